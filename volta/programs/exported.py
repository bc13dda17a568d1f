"""A traced function in a file: ``export``, and ``load_program``, which needs neither the function nor its source."""

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
from volta.core import contract, pytrees
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.boundary import boundary
from volta.core.errors import DTypeError, FormatError, NotDifferentiableError, ShapeError, TreeError
from volta.core.ir import ClosedJaxpr
from volta.core.source import at_user_line
from volta.io import files, structure
from volta.io.format import compact
from volta.ops import lax
from volta.programs.c_library import LibraryFiles, write_library
from volta.programs.document import Reader, Writer, has_rules
from volta.programs.machine_code import MachineCode, admit, compiled_for, from_stored, to_stored
from volta.programs.stablehlo.module import module_text
from volta.trace.calls import call as call_program
from volta.trace.calls import jit_p

FORMAT = 2
_PLAIN_FORMAT = 1
"""Of a program alone: what has no use for a newer format is written in the oldest, for those that read no other."""
_FIELDS = {"program", "constants", "inputs", "outputs", "name", "donated", "keywords", "rules", "format"}
_MORE_FIELDS = {_PLAIN_FORMAT: frozenset[str](), FORMAT: frozenset({"machine_code"})}


@attrs.frozen(eq=False, repr=False)
class Exported:
    """A function as a program for arguments of one structure and one type each; call it like the function.

    ``program`` is what it computes, ``fun_name`` the function's name, ``contract`` the bit contract under which it was
    made. ``inputs`` and ``outputs`` are the trees of arguments (with keywords: of arguments and keywords) and of
    results, each leaf its number. ``donated`` are numbers of inputs whose memory a call takes over. ``rules``: the
    function had derivative rules of its own, which are not part of a program, so this one has no derivatives.
    ``machine_code``: its compiled kernels, for each target of :meth:`compiled_for`.
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

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The types of the arguments' leaves."""
        return self.program.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The types of the results' leaves."""
        return self.program.out_avals

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function gives for these arguments, bit by bit.

        Raises:
            TreeError: the arguments have another structure.
            ShapeError: an argument has another shape than the program was made for.
            DTypeError: an argument has another dtype.
        """
        return self._jitted(*args, **kwargs)

    call = __call__

    def as_text(self) -> str:
        """The program as text."""
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
        return module_text(self.program, self.fun_name)

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
        values = values_of(leaves, f"an argument of `{self.fun_name}`:", lambda: paths)
        return [self._fitting(x, a, path) for x, a, path in zip(values, self.in_avals, paths, strict=True)]

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

    def compiled_for(self, *targets: str) -> Exported:
        """The same program with its kernels compiled for targets, in the current context; ``save`` writes them too.

        They are used where :func:`volta.load_program` is told that it may, and everything that decided them is the same
        there: processor, versions of Volta and its tools.

        Args:
            targets: ``"cpu"`` (processors like this one), ``"cpu:x86-64-v4"`` (also ``-v3`` and ``-v2``: any whose best
                level this is), ``"sm_90a"`` (PTX for a compute capability), ``"sm_90a:cubin"`` (its machine code).

        Raises:
            ArgumentError: there is no such target.
            DeviceError: there is no nvJitLink for a cubin.
            UnsupportedOperationError: an operation has no kernel there at the context's level.

        >>> import volta
        >>> f = volta.export(lambda x: x + 1, volta.ShapeDtypeStruct((3,), "float32")).compiled_for("cpu", "sm_90a")
        >>> [code.target for code in f.machine_code]
        ['cpu', 'sm_90a']
        """
        leaves = [ShapeDtypeStruct(a.shape, a.dtype, a.weak_type) for a in self.in_avals]
        given = pytrees.unflatten(pytrees.structure(self.inputs), leaves)
        args, kwargs = given if self.keywords else (given, {})
        traced = cast(JitFunction[Any, Any], self._jitted).trace(*args, **kwargs)
        codes = [compiled_for(traced.jaxpr, self.fun_name, traced.donated, target) for target in targets]
        return attrs.evolve(self, machine_code=tuple(codes))

    def save(self, path: files.Path) -> None:
        """Write the program to a file, which :func:`volta.load_program` reads: a model file (see :mod:`volta.io`) whose
        arrays are the program's constants, and its compiled kernels where it was :meth:`compiled_for` targets. The same
        program gives the same bytes; without targets no code is in it.

        Raises:
            OSError: when it cannot be written; an old file is untouched.
        """
        writer = Writer()
        text = json.dumps(writer.program(self.program), separators=(",", ":"))
        more = {"machine_code": [to_stored(code) for code in self.machine_code]} if self.machine_code else {}
        files.save(path, {
            "format": FORMAT if more else _PLAIN_FORMAT, "name": self.fun_name, "program": text,
            "constants": writer.constants, "inputs": self.inputs, "outputs": self.outputs,
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
            ArgumentError: the name is none in C.
            UnsupportedOperationError: an array without elements, or an operation that needs a part of Volta's runtime.
            DeviceError: there is no such compiler, or it could not link.
            OSError: the files cannot be written.
        """
        args, kwargs = self.inputs if self.keywords else (self.inputs, {})
        inputs = [path.removeprefix("kwargs") for path in call_paths(args, kwargs)]
        outputs = [f"out{path}" for path in pytrees.leaf_paths(self.outputs)]
        return write_library(self.program, name or self.fun_name, inputs, outputs, os.fspath(folder), cc)


@boundary
def export(fun: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Exported:
    """A function as a program that travels: traced for arguments like these, to be saved in one file.

    What is loaded needs neither the function nor its source, and gives the function's bits, in any process, on any
    device. Values that the function closes over are in the program as they are now.

    Args:
        fun: a function of arrays, jitted or not; of a jitted one, static arguments are fixed and donations kept.
        args, kwargs: its arguments: pytrees of arrays, of numbers or of :class:`volta.ShapeDtypeStruct`. Containers are
            those that :func:`volta.io.load` can build: dicts, lists, tuples, namedtuples.

    Raises:
        UnsupportedOperationError: the function calls Python (a callback) or a kernel of the user's own.
        TreeError: arguments or results in a registered class.

    >>> import os, tempfile
    >>> import volta
    >>> import volta.numpy as vnp
    >>> program = volta.export(lambda x: vnp.tanh(x) * 2, volta.ShapeDtypeStruct((3,), "float32"))
    >>> path = os.path.join(tempfile.mkdtemp(), "twice_tanh.volta")
    >>> program.save(path)
    >>> volta.load_program(path)(vnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    """
    traced = (fun if isinstance(fun, JitFunction) else jit(fun)).trace(*args, **kwargs)
    inputs, outputs = (tree.unflatten(range(tree.num_leaves)) for tree in (traced.in_tree, traced.out_tree))
    for what, tree in (("arguments", inputs), ("results", outputs)):
        _check_containers(what, tree)
    writer = Writer()
    document = writer.program(traced.jaxpr)
    program = Reader(writer.constants).whole(document)
    return Exported(traced.name, program, inputs, outputs, traced.donated, traced.keywords, has_rules(traced.jaxpr))


def _check_containers(what: str, tree: Any) -> None:
    try:
        structure.rebuild(structure.parse(compact(structure.describe(tree)[0])), {}, None)
    except TreeError as error:
        raise TreeError(
            at_user_line(f"export: the {what} are in containers that no file can name: {str(error).partition(',')[0]}; "
                         "pass and return dicts, lists, tuples and namedtuples")
        ) from None  # fmt: skip


@boundary
def load_program(path: files.Path, *, machine_code: bool = False) -> Exported:
    """Read a program that :meth:`volta.Exported.save` wrote: call the result like the function it was made from.

    The whole file is checked first; nothing in it is run but operations of Volta's, whose kernels are compiled here.

    Args:
        path: the file.
        machine_code: run the compiled kernels in the file instead of compiling any. They run as this user, and nothing
            but their author's good will says what they do: ask for them of files that you trust like a program.

    Raises:
        DeviceError: none of the ``machine_code`` fits; it says for each target what is different here.
        FormatError: the file is damaged, no program, of a newer format, or was made under another bit contract, whose
            numbers this version does not compute.
        TreeError: its arguments or results are in a namedtuple whose class is not imported.
        OSError: the file cannot be read.
    """
    name = os.fspath(path)
    try:
        stored = files.load(path)
    except TreeError as error:
        raise TreeError(
            f"{name!s}: arguments or results of this program are in a class that is not here: "
            f"{str(error).partition(';')[0]}; import the module that defines it, then load again"
        ) from None
    if not (isinstance(stored, dict) and {*stored} >= {"program", "format"}):
        raise FormatError(f"{name!s}: no program: this file holds arrays; volta.io.load reads it")
    made_under = files.load_metadata(path).contract
    if type(stored["format"]) is not int or stored["format"] not in _MORE_FIELDS:
        raise FormatError(
            f"{name!s}: a program of format {stored['format']!r:.40}; this version reads "
            f"{' and '.join(map(str, _MORE_FIELDS))}"
        )
    if made_under != contract.ID:
        raise FormatError(
            f"{name!s}: made under the bit contract {made_under}, and this version computes under {contract.ID}: the "
            "bits could differ. Export it anew, or run it with the version that wrote it"
        )
    try:
        program = _rebuilt(stored)
    except FormatError as error:
        raise FormatError(f"{name!s}: {error}") from None
    if machine_code:
        admit(program.machine_code, f"{name!s}")
    return program


def _rebuilt(stored: dict[str, Any]) -> Exported:
    more = {*stored} - _FIELDS
    if not {*stored} >= _FIELDS or not more <= _MORE_FIELDS[stored["format"]]:
        raise FormatError(f"corrupt: a program has {', '.join(sorted(_FIELDS))}")
    if not all(isinstance(stored.get(key, []), list) for key in ("constants", "machine_code")):
        raise FormatError("corrupt: the constants or the machine code of a program are no list")
    if not all(isinstance(x, Array) for x in stored["constants"]):
        raise FormatError("corrupt: a constant of a program is no array")
    types = {"program": str, "name": str, "donated": list, "keywords": bool, "rules": bool}
    for key, kind in types.items():
        if type(stored[key]) is not kind:
            raise FormatError(f"corrupt: {key} of a program is a {type(stored[key]).__name__}")
    try:
        document = json.loads(stored["program"])
    except (ValueError, RecursionError) as error:
        raise FormatError(f"corrupt: the program is not valid JSON ({error})") from None
    program = Reader(stored["constants"]).whole(document)
    for key, avals in (("inputs", program.in_avals), ("outputs", program.out_avals)):
        if pytrees.leaves(stored[key]) != list(range(len(avals))):
            raise FormatError(f"corrupt: the tree of {key} does not count those of the program")
    inputs, keywords = stored["inputs"], stored["keywords"]
    shape = (tuple, dict) if keywords else ()
    if type(inputs) is not tuple or (keywords and tuple(map(type, inputs)) != shape):
        raise FormatError("corrupt: the tree of inputs is none of arguments")
    if not {*stored["donated"]} <= {*range(len(program.in_avals))}:
        raise FormatError("corrupt: what is donated is no input")
    return Exported(
        stored["name"], program, inputs, stored["outputs"], tuple(stored["donated"]), keywords, stored["rules"],
        machine_code=tuple(from_stored(code) for code in stored.get("machine_code", [])),
    )  # fmt: skip
