"""``volta.kernel``: a function of Numba's as an operation of Volta's."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from volta.api.arguments import ShapeDtypeStruct, aval_of, operand_of, values_of
from volta.core import dtypes, pytrees
from volta.core.avals import ShapedArray
from volta.core.boundary import boundary
from volta.core.errors import KernelError, VoltaError
from volta.core.source import at_user_line
from volta.emit.functions import called, is_dispatcher
from volta.ops.user import GpuFunction, Results, UserKernel
from volta.trace.user import user_kernel_p


class Kernel:
    """A function of Numba's that takes part in Volta's programs: what :func:`volta.kernel` gives."""

    def __init__(self, record: UserKernel, function: Any) -> None:
        self._record = record
        functools.update_wrapper(self, function.py_func)
        self.__name__ = record.name

    @boundary
    def __call__(self, *operands: Any, **named: Any) -> Any:
        """The results for operands (arrays or numbers), by position, as ``out`` declares them.

        Raises:
            KernelError: the function raised, does not compile for these dtypes, does not take so many arrays or complex
                ones, or draws random numbers.
            DTypeError: an operand is no array and no number.
            OverflowError: an operand is a Python integer that int32, as which it counts among arrays, does not hold.
        """
        name = self._record.name
        if named:
            raise KernelError(
                at_user_line(f"kernel `{name}` takes its operands by position, got {', '.join(named)} by name")
            )
        values = [operand_of(x) for x in values_of(operands, f"an operand of `{name}`:", lambda: _places(operands))]
        results = self._record.results(tuple(x.aval.strip_weak() for x in values))
        outs = user_kernel_p.bind(*values, kernel=self._record, batch=(), mapped=((),) * len(values))
        return pytrees.unflatten(results.tree, outs)

    def jvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the forward derivative: ``rule(operands, results, tangents)`` gives the results' tangents.

        It must be linear in the tangents. Those of integers are None. With the operations that it applies it serves
        ``jvp``, and ``grad`` too where there is no vjp rule and these operations are Volta's own.
        """
        return self._rule("jvp", rule)

    def vjp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the reverse derivative: ``rule(operands, results, cotangents)`` gives a cotangent an operand, in a
        tuple (None: zero)."""
        return self._rule("vjp", rule)

    def batch(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate what ``vmap`` does instead of running the function for each element of the batch.

        ``rule(size, batched, *operands)`` gets operands with the batch in front where ``batched`` says so, and gives
        ``(results, batched)``. It must give the numbers that a loop would.
        """
        return self._rule("batch", rule)

    def cuda(self, *, grid: Sizes | None, block: Sizes = 256) -> Callable[[Any], Any]:
        """Decorate the kernel's function for GPUs, an ``@numba.cuda.jit`` function of the same arguments.

        ``grid`` is the number of blocks and ``block`` the threads in each: a number, or a function from the operands,
        as ShapeDtypeStructs, to one; each along one dimension. A batch's elements are run one after the other by the
        same threads. It is compiled without contraction, and level strict refuses it if its PTX has approximate
        operations. It must give what the function for the CPU gives. An exception in it is not seen.

        Raises:
            KernelError: there is no grid, or what is decorated is no ``@numba.cuda.jit`` function.
        """
        name = self._record.name
        if grid is None:
            raise KernelError(at_user_line(f"kernel `{name}` for GPUs needs a grid: grid=lambda x: -(-x.size // 256)"))

        def decorate(function: Any) -> Any:
            if not _is_for_gpus(function):
                raise KernelError(
                    at_user_line(f"kernel `{name}`: .cuda decorates an @numba.cuda.jit function (got {function!r:.60})")
                )
            self._record.gpu["cuda"] = GpuFunction(function, _sizes(grid), _sizes(block))
            return function

        return decorate

    def _rule(self, name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(rule):
            raise KernelError(
                at_user_line(f"the {name} rule of kernel `{self._record.name}` is a function, got {rule!r:.60}")
            )
        self._record.rules[name] = rule
        return rule

    def __repr__(self) -> str:
        return f"<volta.kernel {self._record.name}>"


Sizes = int | Callable[..., Any] | tuple[int, ...]
"""Of a grid or a block: a number, or a function from the operands, as ShapeDtypeStructs, to it."""


@boundary
def kernel(
    out: Any, *, name: str | None = None, grid: Sizes | None = None, block: Sizes = 256
) -> Callable[[Any], Kernel]:
    """Make an operation of a function decorated with ``@numba.njit``; it runs inside of plans, by its native address.

    The function takes the operands, then the results, which it fills; it returns nothing. Arrays are contiguous,
    operands read-only; an operand of rank 0 is a number; results are zeros when it is called. It must not write
    anything else: elements of a batch are computed side by side, in threads.

    Args:
        out: what the kernel gives: a :class:`ShapeDtypeStruct` (or anything with a shape and a dtype), a pytree of
            them, or a function from the operands, as ShapeDtypeStructs, to these.
        name: its name in programs and messages (None: the function's).
        grid, block: of a function decorated with ``@numba.cuda.jit``, which makes a kernel for GPUs alone; see
            :meth:`Kernel.cuda`, which gives a kernel for the CPU its function for GPUs.

    Raises:
        KernelError: what is decorated is no such function, or is compiled with ``parallel``.

    >>> import numba
    >>> import volta
    >>> @volta.kernel(out=lambda x: x)
    ... @numba.njit
    ... def running_mean(x, out):
    ...     total = 0.0
    ...     for i in range(x.size):
    ...         total += x[i]
    ...         out[i] = total / (i + 1)
    >>> running_mean(volta.numpy.arange(4.0)).tolist()
    [0.0, 0.5, 1.0, 1.5]
    """

    def decorate(function: Any) -> Kernel:
        if not is_dispatcher(function):
            raise KernelError(
                at_user_line(
                    f"volta.kernel decorates a function of Numba's: write @numba.njit below it (got {function!r:.60})"
                )
            )
        label = name or function.py_func.__name__
        options = [f.targetoptions for f in called(function) if is_dispatcher(f)]
        if any(o.get("parallel") for o in options):
            raise KernelError(
                at_user_line(
                    f"kernel `{label}`, or a function that it calls, is compiled with parallel=True. Kernels run in "
                    "Volta's own threads, one task for each element of a batch: leave parallel out, and use vmap."
                )
            )
        arity = _arity(function.py_func, label)

        @functools.lru_cache(maxsize=256)
        def results(avals: tuple[ShapedArray, ...]) -> Results:
            return _declared(out, label, avals, arity)

        fast = any(o.get("fastmath") for o in options)
        if not _is_for_gpus(function):
            if grid is not None:
                raise KernelError(
                    at_user_line(
                        f"kernel `{label}`: grid and block are of @numba.cuda.jit functions; use its .cuda(...)"
                    )
                )
            return Kernel(UserKernel(label, results, function, fast), function)
        made = Kernel(UserKernel(label, results, None, fast), function)
        made.cuda(grid=grid, block=block)(function)
        return made

    return decorate


def _is_for_gpus(function: Any) -> bool:
    return any(cls.__name__ == "CUDADispatcher" for cls in type(function).__mro__)


def _sizes(given: Any) -> Callable[[Sequence[ShapedArray]], tuple[int, ...]]:
    def sizes(avals: Sequence[ShapedArray]) -> tuple[int, ...]:
        found = given(*[ShapeDtypeStruct(a.shape, a.dtype) for a in avals]) if callable(given) else given
        return tuple(map(operator.index, found if isinstance(found, (tuple, list)) else (found,)))

    return sizes


def _places(operands: Sequence[Any]) -> list[str]:
    return [f"number {i}" for i in range(len(operands))]


def _arity(function: Any, name: str) -> int:
    """How many arrays a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        raise KernelError(
            at_user_line(
                f"kernel `{name}` takes its operands and results one by one, without *, / and ** in its signature"
            )
        )
    return len(parameters)


def _declared(out: Any, name: str, avals: Sequence[ShapedArray], arity: int) -> Results:
    structs = [ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    given = out
    if callable(out) and not hasattr(out, "shape"):
        try:
            given = out(*structs)
        except TypeError as error:
            raise KernelError(
                at_user_line(f"kernel `{name}`: out does not take its {len(avals)} operands: {error}")
            ) from error
    leaves, tree = pytrees.flatten(given)
    try:
        results = tuple(aval_of(x).strip_weak() for x in leaves)
    except VoltaError as error:
        raise KernelError(
            at_user_line(f"kernel `{name}`: out gives {given!r:.80}, where each result has a shape and a dtype")
        ) from error
    if not results:
        raise KernelError(at_user_line(f"kernel `{name}`: out declares no results"))
    if found := next((a for a in (*avals, *results) if dtypes.is_complex(a.dtype)), None):
        raise KernelError(
            at_user_line(
                f"kernel `{name}` is called with {found.dtype} or gives it, and kernels know real numbers only: hand "
                "it x.real and x.imag, and put its results together with volta.lax.complex(real, imag)"
            )
        )
    if arity != len(avals) + len(results):
        raise KernelError(
            at_user_line(
                f"kernel `{name}` takes {arity} arrays, but is given {len(avals)} operands and {len(results)} results: "
                "it takes the operands, then the results"
            )
        )
    return Results(results, tree)
