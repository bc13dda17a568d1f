"""From Python arguments to flat values and back; what all transforms share."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes, pytrees
from volta.core.array import Array
from volta.core.avals import ShapedArray, as_shape
from volta.core.errors import ArgumentError, ArgumentNumberError, DTypeError, StaticArgumentError
from volta.core.pytrees import TreeSpec
from volta.core.sizes import Size
from volta.core.source import Source, at_user_line
from volta.ops.base import settled
from volta.runtime.array import as_array, intern_aval

# The dtype of tangents and cotangents of integers: no elements, so nothing can be computed with them (as in JAX).
float0 = np.dtype([("float0", np.void, 0)])


def name_of(fun: Any) -> str:
    """A function's name for messages and programs."""
    name = getattr(fun, "__name__", None)
    while name is None and hasattr(fun, "func"):  # functools.partial
        fun = fun.func
        name = getattr(fun, "__name__", None)
    return type(fun).__name__ if name is None else name


def place_of(fun: Any) -> str:
    """Where a function is defined, for messages; empty where that is unknown."""
    code = getattr(inspect.unwrap(fun), "__code__", None) if callable(fun) else None
    return "" if code is None else "\n" + Source(code.co_filename, code.co_firstlineno, code.co_name).pointer()


def check_callable(fun: Any, transform: str) -> None:
    if not callable(fun):
        raise TypeError(at_user_line(f"{transform} takes a function, got {type(fun).__name__}: {fun!r:.60}"))


def value_of(x: Any) -> Any:
    """A leaf as an operand with an aval: tracers and arrays pass, NumPy values and Python numbers become arrays."""
    return x if isinstance(x, Array) else as_array(x)


def operand_of(x: Any) -> Any:
    """`value_of` a leaf that counts as an array: a Python number has the default dtype of its kind.

    Raises:
        OverflowError: for a Python integer that this cannot hold.
    """
    return settled(value_of(x))


Numbers = dict[int, tuple[Any, Any]]
"""The Python numbers among leaves, by place, each after its value as an operand."""


def numbers_among(leaves: Sequence[Any], values: Sequence[Any]) -> Numbers:
    pairs = enumerate(zip(values, leaves, strict=True))
    return {i: (x, leaf) for i, (x, leaf) in pairs if type(leaf) in (bool, int, float, complex)}


def with_numbers(given: Sequence[Any], numbers: Numbers) -> list[Any]:
    """What a function is given: a Python number whose value a transform has not touched is itself again."""
    seen = list(given)
    for i, (value, number) in numbers.items():
        if seen[i] is value:
            seen[i] = number
    return seen


def call_paths(args: Sequence[Any], kwargs: dict[str, Any], numbers: Sequence[int] | None = None) -> list[str]:
    """How each leaf of a call is written: ``args[0]['w']``, ``kwargs['x']``. ``numbers`` are the places of ``args``."""
    places = range(len(args)) if numbers is None else numbers
    paths = [f"args[{i}]{path}" for i, arg in zip(places, args, strict=True) for path in pytrees.leaf_paths(arg)]
    return paths + [f"kwargs{path}" for path in pytrees.leaf_paths(kwargs)]


def values_of(leaves: Sequence[Any], what: str, paths: Callable[[], list[str]]) -> list[Any]:
    """All leaves as operands; ``paths`` gives how each is written.

    Raises:
        DTypeError: naming the path of a leaf that is no array and no number.
    """
    try:
        return [x if isinstance(x, Array) else as_array(x) for x in leaves]
    except DTypeError:
        for path, leaf in zip(paths(), leaves, strict=True):
            try:
                value_of(leaf)
            except DTypeError as reason:
                raise DTypeError(at_user_line(f"{what} {path} is {_no_operand(leaf, str(reason))}")) from None
        raise  # pragma: no cover - one of the leaves was refused above


def _no_operand(leaf: Any, reason: str) -> str:
    """What a leaf is that is no operand, and how to hand it over."""
    kind = type(leaf).__name__
    if attrs.has(type(leaf)) or dataclasses.is_dataclass(leaf):
        return (
            f"a {kind}, a class that is not registered as a pytree, so the arrays in it are not seen. "
            f"Register it once: volta.tree_util.register_dataclass({kind})"
        )
    text = reason.split("\n")[0]
    return (
        f"{leaf!r:.60} of type {kind}, which is no array and no number ({text}). A setting (a string, a function, "
        "a flag) goes in through a closure, or to jit as a static argument."
    )


def output_paths(out: Any) -> list[str]:
    return [f"output{path}" for path in pytrees.leaf_paths(out)]


def flat_outputs(out: Any, name: str) -> tuple[list[Any], TreeSpec]:
    """What a traced function returned, as operands."""
    leaves, tree = pytrees.flatten(out)
    for x in leaves:
        if not isinstance(x, Array):
            return values_of(leaves, f"the output of `{name}`:", lambda: output_paths(out)), tree
    return leaves, tree


def aval_of(x: Any) -> ShapedArray:
    """The aval of anything with a shape and a dtype (arrays, ShapeDtypeStruct), or of a number."""
    if isinstance(x, Array):
        return x.aval
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        found = ShapeDtypeStruct(x.shape, x.dtype, getattr(x, "weak_type", False))
        if found.symbolic:
            raise ArgumentError(
                at_user_line(f"{found}: sizes that are symbols are for volta.export; pass numbers here")
            )
        return found.aval
    return as_array(x).aval


@attrs.frozen(init=False)
class ShapeDtypeStruct:
    """A shape and a dtype without data: what ``eval_shape`` gives, and what ``lower`` and ``make_jaxpr`` accept.

    >>> import volta
    >>> volta.ShapeDtypeStruct((2, 3), "float32")
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """

    aval: ShapedArray

    def __init__(self, shape: Any, dtype: Any, weak_type: bool = False, *, sharding: None = None):
        if sharding is not None:
            raise ArgumentError(
                at_user_line(
                    f"ShapeDtypeStruct: sharding={sharding!r}, but types say nothing of where arrays lie; "
                    "volta.device_put lays them out"
                )
            )
        dtype = dtypes.canonicalize(dtype)
        if isinstance(shape, (tuple, list)) and any(isinstance(x, Size) for x in shape):
            as_shape("ShapeDtypeStruct", [0 if isinstance(x, Size) else x for x in shape])
            self.__attrs_init__(ShapedArray(tuple(shape), dtype, bool(weak_type)))
            return
        aval = ShapedArray(as_shape("ShapeDtypeStruct", shape), dtype, bool(weak_type))
        aval.check("ShapeDtypeStruct")
        self.__attrs_init__(intern_aval(aval))

    @property
    def symbolic(self) -> bool:
        """Whether a size is a symbol, see :func:`volta.symbolic_shape`."""
        return any(isinstance(x, Size) for x in self.aval.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        return self.aval.dtype

    @property
    def weak_type(self) -> bool:
        return self.aval.weak_type

    @property
    def sharding(self) -> None:
        return self.aval.sharding

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{weak})"


# -- argument positions ------------------------------------------------------------------------------------------------


def as_tuple(x: Any) -> tuple[Any, ...]:
    if x is None:
        return ()
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


@attrs.frozen
class Positions:
    """Arguments singled out by number and by name (``static_argnums`` and ``static_argnames``, say)."""

    nums: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def any(self) -> bool:
        return bool(self.nums or self.names)


def resolve_positions(fun: Any, nums: Any, names: Any, what: str) -> Positions:
    """Numbers and names, each completed from the other through the function's signature.

    Raises:
        StaticArgumentError: for a number or a name that the function does not have.
    """
    numbers, words = as_tuple(nums), as_tuple(names)
    if not numbers and not words:
        return Positions((), ())
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return Positions(tuple(sorted(numbers)), words)
    kinds = [p.kind for p in parameters]
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    many = inspect.Parameter.VAR_POSITIONAL in kinds
    resolved = []
    for i in numbers:
        if not isinstance(i, int) or (not many and not -len(positional) <= i < len(positional)):
            raise StaticArgumentError(
                at_user_line(f"{what}: `{name_of(fun)}` has {len(positional)} positional arguments, no number {i!r}")
            )
        resolved.append(i if i >= 0 or many else i + len(positional))
    known = {p.name for p in parameters}
    for word in words:
        if word not in known and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise StaticArgumentError(
                at_user_line(f"{what}: `{name_of(fun)}` has no argument {word!r}; it has {', '.join(sorted(known))}")
            )
    all_nums = {*resolved, *(positional.index(w) for w in words if w in positional)}
    by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    all_names = [*words, *(positional[i] for i in resolved if i < len(positional) and positional[i] in by_name)]
    return Positions(tuple(sorted(all_nums)), tuple(dict.fromkeys(all_names)))


def hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def check_static(fun_name: str, label: str, value: Any) -> None:
    """Refuse a static value that cannot be a key."""
    if not hashable(value):
        raise StaticArgumentError(
            at_user_line(
                f"the static argument {label} of `{fun_name}` is {value!r:.60} of type {type(value).__name__}, which "
                "cannot be hashed, so it cannot be told whether the function was traced for it before. "
                "Pass a tuple instead of a list, a frozen dataclass instead of a dict; pass arrays as normal arguments."
            )
        )


def select_argnums(argnums: int | Sequence[int], n_args: int, transform: str, fun: Any) -> tuple[int, ...]:
    """``argnums`` of a derivative as numbers from 0, checked against the arguments of this call."""
    wanted = as_tuple(argnums)
    for i in wanted:
        if not isinstance(i, (int, np.integer)):
            raise TypeError(at_user_line(f"{transform}: argnums must be ints, got {i!r}"))
        if not -n_args <= i < n_args:
            raise ArgumentNumberError(
                at_user_line(f"{transform}: argnums={argnums} but `{name_of(fun)}` was called with {n_args} arguments")
            )
    return tuple(int(i) % n_args for i in wanted)


def bind_arguments(fun: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """``fun`` with its keyword arguments fixed."""
    return (lambda *args: fun(*args, **kwargs)) if kwargs else fun
