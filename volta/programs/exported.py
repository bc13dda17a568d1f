"""A traced function as a program: called, looked at, compiled for targets, saved."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import attrs

from volta.api.arguments import ShapeDtypeStruct, call_paths, values_of
from volta.api.custom_derivatives import custom_jvp
from volta.api.jit import JitFunction, jit
from volta.api.stages import Traced
from volta.core import contract, pytrees
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.boundary import boundary
from volta.core.errors import ArgumentError, DTypeError, NotDifferentiableError, ShapeError, TreeError
from volta.core.ir import ClosedJaxpr
from volta.core.recent import Recent
from volta.core.source import at_user_line
from volta.io import files
from volta.ops import lax
from volta.programs.c_library import LibraryFiles, write_library
from volta.programs.document import Writer
from volta.programs.machine_code import MachineCode, compiled_for, to_stored
from volta.programs.stablehlo.module import module_text
from volta.programs.symbolic import Symbolic
from volta.trace.calls import call as call_program
from volta.trace.calls import jit_p

FORMAT = 2
_PLAIN_FORMAT = 1
"""Of a program alone: what has no use for a newer format is written in the oldest, for those that read no other."""
FIELDS = {"program", "constants", "inputs", "outputs", "name", "donated", "keywords", "rules", "format"}
MORE_FIELDS = {_PLAIN_FORMAT: frozenset[str](), FORMAT: frozenset({"machine_code", "symbols"})}
_KEPT = 64
"""Programs of this many sizes are kept, and of at most twice as many."""


@attrs.frozen(eq=False, repr=False)
class Exported:
    """A function as a program for arguments of one structure and one type each; call it like the function.

    ``program`` is what it computes, ``fun_name`` the function's name, ``contract`` the bit contract under which it was
    made. ``inputs`` and ``outputs`` are the trees of arguments (with keywords: of arguments and keywords) and of
    results, each leaf its number. ``donated`` are numbers of inputs whose memory a call takes over. ``rules``: the
    function had derivative rules of its own, which are not part of a program, so this one has no derivatives.
    ``machine_code``: its compiled kernels, for each target of :meth:`compiled_for`. ``symbolic``: its sizes are symbols
    (see :func:`volta.symbolic_shape`); ``program`` is then the one at the least sizes, and :meth:`at` gives any other.
    """

    fun_name: str
    program: ClosedJaxpr
    inputs: Any
    outputs: Any
    donated: tuple[int, ...] = ()
    keywords: bool = False
    rules: bool = False
    contract: str = contract.ID
    machine_code: tuple[MachineCode, ...] = ()
    symbolic: Symbolic | None = None

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The types of the arguments' leaves; where sizes are symbols, with these in their shapes."""
        found = self.program.in_avals
        if self.symbolic is not None:
            found = [a.update(shape=shape) for a, shape in zip(found, self.symbolic.shapes, strict=True)]
        return found

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The types of the results' leaves; where sizes are symbols, with these in their shapes."""
        found = self.program.out_avals
        if self.symbolic is not None:
            found = [a.update(shape=shape) for a, shape in zip(found, self.symbolic.shapes_of_results(), strict=True)]
        return found

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function gives for these arguments, bit by bit.

        Raises:
            TreeError: the arguments have another structure.
            ShapeError: an argument has another shape than the program was made for.
            DTypeError: an argument has another dtype.
        """
        if self.symbolic is not None:
            leaves, paths = self._leaves(args, kwargs)
            values = self.symbolic.values([x.aval.shape for x in leaves], paths, self.fun_name)
            return self.at(**values)._jitted(*args, **kwargs)
        return self._jitted(*args, **kwargs)

    call = __call__

    @boundary
    def at(self, **sizes: int) -> Exported:
        """The program for sizes of its symbols: what the function traced for these shapes is, bit by bit.

        Raises:
            ArgumentError: its sizes are no symbols, or others.
            ShapeError: a size that its symbol may not be.

        >>> import volta
        >>> shape = volta.symbolic_shape("b, 8")
        >>> program = volta.export(lambda x: x.sum(1), volta.ShapeDtypeStruct(shape, "float32"))
        >>> program, program.at(b=3)
        (<volta.Exported <lambda>(f32[b,8]) -> f32[b]>, <volta.Exported <lambda>(f32[3,8]) -> f32[3]>)
        """
        if self.symbolic is None:
            raise ArgumentError(at_user_line(f"`{self.fun_name}` was exported for numbers as sizes, not for symbols"))
        self.symbolic.check(sizes, self.fun_name)
        key = tuple(sorted(sizes.items()))
        found = self._specialised.find(key)
        if found is None:
            program = self.symbolic.program(sizes)
            found = self._specialised.keep(key, attrs.evolve(self, program=program, symbolic=None))
        return found

    @functools.cached_property
    def _specialised(self) -> Recent[tuple[tuple[str, int], ...], Exported]:
        return Recent(_KEPT)

    def _in_numbers(self, what: str) -> ClosedJaxpr:
        """The program, where its sizes are numbers."""
        if self.symbolic is not None:
            least = ", ".join(f"{name}={least}" for name, (least, _) in self.symbolic.ranges.items())
            raise ArgumentError(
                at_user_line(
                    f"{what}: sizes of `{self.fun_name}` are symbols; say which, as in program.at({least}).{what}"
                )
            )
        return self.program

    def as_text(self) -> str:
        """The program as text; where sizes are symbols, the one at the least sizes."""
        return str(self.program)

    def mlir_module(self) -> str:
        """The program as StableHLO text, for other compilers: XLA, IREE, or what reads these. Its numbers are theirs
        then, equal to Volta's to within rounding.

        Functions that StableHLO lacks are those of its library CHLO; attention is written out.

        Raises:
            UnsupportedOperationError: an operation means something in Volta alone; it is named.

        >>> import volta
        >>> print(volta.export(lambda x: x + 1, volta.ShapeDtypeStruct((3,), "float32")).mlir_module())
        module @"<lambda>" {
          func.func public @main(%0: tensor<3xf32>) -> (tensor<3xf32>) {
            %1 = "stablehlo.constant"() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
            %2 = "stablehlo.broadcast_in_dim"(%1) {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<3xf32>
            %3 = "stablehlo.add"(%0, %2) : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
            "func.return"(%3) : (tensor<3xf32>) -> ()
          }
        }
        """
        return module_text(self._in_numbers("mlir_module()"), self.fun_name)

    def __repr__(self) -> str:
        types = ", ".join(map(str, self.in_avals))
        return f"<volta.Exported {self.fun_name}({types}) -> {', '.join(map(str, self.out_avals))}>"

    @functools.cached_property
    def _jitted(self) -> JitFunction[Any, Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            leaves = self._operands(args, kwargs)
            return pytrees.unflatten(out_tree, flat(*leaves))

        def program(*leaves: Any) -> list[Any]:
            return call_program(jit_p, self.program, leaves, self.fun_name)

        def refuse(primals: Any, tangents: Any) -> Any:
            raise NotDifferentiableError(
                f"`{self.fun_name}` comes from a file, and was made from a function with derivative rules of its own, "
                "which a program does not keep: export the gradient itself, volta.export(volta.grad(f), ...)"
            )

        flat: Callable[..., Any] = program
        if self.rules:
            flat = custom_jvp(program)
            flat.defjvp(refuse)
        out_tree = pytrees.structure(self.outputs)
        run.__name__ = run.__qualname__ = self.fun_name
        args, kwargs = self.inputs if self.keywords else (self.inputs, {})
        nums = [i for i, arg in enumerate(args) if self._is_donated(arg)]
        return jit(run, donate_argnums=nums, donate_argnames=[k for k, arg in kwargs.items() if self._is_donated(arg)])

    def _is_donated(self, arg: Any) -> bool:
        leaves = pytrees.leaves(arg)
        return bool(leaves) and {*leaves} <= {*self.donated}

    def _operands(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        leaves, paths = self._leaves(args, kwargs)
        return [self._fitting(x, a, path) for x, a, path in zip(leaves, self.in_avals, paths, strict=True)]

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Array], list[str]]:
        given = (args, dict(kwargs)) if self.keywords or kwargs else args
        leaves, tree = pytrees.flatten(given)
        if tree != pytrees.structure(self.inputs):
            raise TreeError(
                at_user_line(
                    f"`{self.fun_name}` was exported for arguments of the structure "
                    f"{pytrees.text(pytrees.structure(self.inputs))}, "
                    f"got {pytrees.text(tree)}"
                )
            )
        paths = call_paths(args, dict(kwargs))
        return values_of(leaves, f"an argument of `{self.fun_name}`:", lambda: paths), paths

    def _fitting(self, x: Array, wanted: ShapedArray, path: str) -> Any:
        found = x.aval
        what = f"`{self.fun_name}` was exported for {wanted} as {path}, got {found}"
        if found.shape != wanted.shape:
            raise ShapeError(at_user_line(f"{what}: export it for this shape too"))
        if found.weak_type and not wanted.weak_type and found.dtype.kind == wanted.dtype.kind:
            return lax.convert_element_type(x, wanted.dtype)  # a Python number, where the function was given an array
        if (found.dtype, found.weak_type) != (wanted.dtype, wanted.weak_type):
            raise DTypeError(at_user_line(f"{what}: convert it with .astype"))
        return x

    @boundary
    def compiled_for(self, *targets: str, sizes: Sequence[Mapping[str, int]] = ()) -> Exported:
        """The same program with its kernels compiled for targets, in the current context; ``save`` writes them too.

        They are used where :func:`volta.load_program` is told that it may, and everything that decided them is the same
        there: processor, versions of Volta and its tools.

        Args:
            targets: ``"cpu"`` (processors like this one), ``"cpu:x86-64-v4"`` (also ``-v3`` and ``-v2``: any whose best
                level this is), ``"sm_90a"`` (PTX for a compute capability), ``"sm_90a:cubin"`` (its machine code).
            sizes: where the program's sizes are symbols, what they are: a dict for each time that it is compiled. Most
                kernels serve any size, so others often need no more than these.

        Raises:
            ArgumentError: there is no such target, or sizes are symbols and ``sizes`` does not say which.
            ShapeError: a size that its symbol may not be.
            DeviceError: there is no nvJitLink for a cubin.
            UnsupportedOperationError: an operation has no kernel there at the context's level.

        >>> import volta
        >>> f = volta.export(lambda x: x + 1, volta.ShapeDtypeStruct((3,), "float32")).compiled_for("cpu", "sm_90a")
        >>> [code.target for code in f.machine_code]
        ['cpu', 'sm_90a']
        """
        if not sizes:
            self._in_numbers("compiled_for(...)")
        traces = [program._traced() for program in ([self.at(**x) for x in sizes] if sizes else [self])]
        programs = [traced.jaxpr for traced in traces]
        codes = [compiled_for(programs, self.fun_name, traces[0].donated, target) for target in targets]
        return attrs.evolve(self, machine_code=tuple(codes))

    def _traced(self) -> Traced:
        """As a call traces it."""
        leaves = [ShapeDtypeStruct(a.shape, a.dtype, a.weak_type) for a in self.in_avals]
        given = pytrees.unflatten(pytrees.structure(self.inputs), leaves)
        args, kwargs = given if self.keywords else (given, {})
        return cast(JitFunction[Any, Any], self._jitted).trace(*args, **kwargs)

    def save(self, path: files.Path) -> None:
        """Write the program to a file, which :func:`volta.load_program` reads: a model file (see :mod:`volta.io`) whose
        arrays are the program's constants, and its compiled kernels where it was :meth:`compiled_for` targets. The same
        program gives the same bytes; without targets no code is in it.

        Raises:
            OSError: when it cannot be written; an old file is untouched.
        """
        more: dict[str, Any] = {}
        if self.machine_code:
            more["machine_code"] = [to_stored(code) for code in self.machine_code]
        if self.symbolic is not None:
            more["symbols"] = self.symbolic.to_stored()
            document, constants = self.symbolic.document, self.symbolic.constants
        else:
            writer = Writer()
            document, constants = writer.program(self.program), writer.constants
        files.save(path, {
            "format": FORMAT if more else _PLAIN_FORMAT, "name": self.fun_name,
            "program": json.dumps(document, separators=(",", ":")), "constants": constants,
            "inputs": self.inputs, "outputs": self.outputs,
            "donated": list(self.donated), "keywords": self.keywords, "rules": self.rules, **more,
        })  # fmt: skip

    def save_library(self, folder: files.Path, name: str | None = None, *, cc: str = "cc") -> LibraryFiles:
        """Write ``name.h`` and ``libname.so``: the program as one C function, for processors like this one.

        The function takes a pointer for each leaf of the arguments and of the results, and one to a workspace, of as
        many bytes as the header says. It needs no Python, allocates nothing, runs on the calling thread, and gives the
        program's bits.

        Args:
            folder: where to; it must be there.
            name: of the function and of the files (default: the function's own).
            cc: the C compiler, which links the library.

        Returns:
            The files' paths, ``header`` and ``library``, and ``workspace_bytes``.

        Raises:
            ArgumentError: the name is none in C, or sizes are symbols.
            UnsupportedOperationError: an array without elements, or an operation that needs a part of Volta's runtime.
            DeviceError: there is no such compiler, or it could not link.
            OSError: the files cannot be written.
        """
        args, kwargs = self.inputs if self.keywords else (self.inputs, {})
        inputs = [path.removeprefix("kwargs") for path in call_paths(args, kwargs)]
        outputs = [f"out{path}" for path in pytrees.leaf_paths(self.outputs)]
        program = self._in_numbers("save_library(...)")
        return write_library(program, name or self.fun_name, inputs, outputs, os.fspath(folder), cc)
