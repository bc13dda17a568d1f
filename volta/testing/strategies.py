"""Hypothesis strategies: shapes, arrays and whole programs. Needs hypothesis, which Volta itself does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from volta.api.arguments import ShapeDtypeStruct
from volta.api.tracing import eval_shape
from volta.core import dtypes
from volta.testing.data import FILLS, fill
from volta.testing.programs import OPERATIONS, Program, Step

Shape = tuple[int, ...]
_LENGTHS = (1, 2, 3, 4, 5, 8, 17, 33, 65)
_NAMES = ("float32", "float32", "float32", "float64", "float16", "bfloat16", "int32", "int8", "uint8", "int64", "bool")
_MOST = 4096


def shapes(max_rank: int = 3, lengths: Sequence[int] = _LENGTHS, most: int = _MOST) -> st.SearchStrategy[Shape]:
    """Shapes of at most ``max_rank`` dimensions and ``most`` elements."""
    return st.lists(st.sampled_from(list(lengths)), max_size=max_rank).map(tuple).filter(lambda s: _size(s) <= most)


def dtype_names(floats: bool = False) -> st.SearchStrategy[str]:
    """Names of dtypes, float32 more often than the others; only floats on request."""
    return st.sampled_from([n for n in _NAMES if not floats or "float" in n])


@st.composite
def arrays(draw: Any, shape: Shape | None = None, dtype: str | None = None, kinds: Sequence[str] = ()) -> np.ndarray:
    """Arrays filled in any of the ways of :data:`volta.testing.FILLS` (or of ``kinds``)."""
    shape = draw(shapes()) if shape is None else shape
    dtype = draw(dtype_names()) if dtype is None else dtype
    return fill(draw(st.sampled_from(list(kinds) or sorted(FILLS))), shape, dtype, draw(st.integers(0, 2**16)))


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


class _Drawer:
    """Draws one step at a time, knowing the shape and dtype of every value so far."""

    def __init__(self, draw: Any, values: list[ShapeDtypeStruct]) -> None:
        self.draw, self.values = draw, values

    def any(self, choices: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(choices)))

    def where(self, test: Any) -> list[int]:
        return [i for i, v in enumerate(self.values) if test(v)]

    def axes(self, v: ShapeDtypeStruct) -> tuple[int, ...]:
        picked = self.draw(st.lists(st.integers(0, len(v.shape) - 1), min_size=1, max_size=len(v.shape), unique=True))
        return tuple(sorted(picked))

    def params(self, name: str, v: ShapeDtypeStruct) -> tuple[Any, ...]:
        """Parameters of an operation whose first operand is ``v`` (of rank 1 at least where it has an axis)."""
        rank = len(v.shape)
        if name in ("sum", "prod", "max", "min", "mean", "any"):
            return self.axes(v), self.draw(st.booleans())
        if name == "centre":
            return (self.axes(v),)
        if name in ("argmax", "argmin", "softmax", "log_softmax", "layer_norm", "sort", "argsort", "index", "take",
                    "concatenate", "looked_up", "dynamic_slice"):  # fmt: skip
            return (self.draw(st.integers(0, rank - 1)),)
        if name in ("swapped", "two_sums"):
            return self.draw(st.integers(0, rank - 1)), self.draw(st.integers(0, rank - 1))
        if name in ("cumsum", "cumprod", "cummax"):
            return self.draw(st.integers(0, rank - 1)), self.draw(st.booleans())
        if name == "convert":
            return (self.draw(dtype_names()),)
        if name == "transpose":
            return (tuple(self.draw(st.permutations(range(rank)))),)
        if name in ("flip", "mirror"):
            return (self.axes(v),)
        if name == "reshape":
            return (self._factors(_size(v.shape)),)
        if name == "broadcast":
            return ((self.any((2, 3, 5)), *(self.any((2, 4)) if n == 1 else n for n in v.shape)),)
        if name == "slice":
            start = tuple(self.draw(st.integers(0, n - 1)) for n in v.shape)
            limit = tuple(self.draw(st.integers(a + 1, n)) for a, n in zip(start, v.shape, strict=True))
            return start, limit, tuple(self.any((1, 1, 2, 3)) for _ in v.shape)
        if name == "pad":
            low, high = st.integers(-1, 2), st.integers(0, 2)
            return (tuple((self.draw(low), self.draw(high), self.any((0, 0, 1))) for _ in v.shape),)
        if name == "scatter":
            return (self.any(("add", "set", "mul", "max")),)
        if name == "attention":
            return (self.draw(st.booleans()),)
        return (self.draw(st.booleans()), self.draw(st.booleans())) if name == "matmul" else ()

    def _factors(self, n: int) -> Shape:
        out: list[int] = []
        while n > 1 and len(out) < 3 and self.draw(st.booleans()):
            out.append(self.any([d for d in range(1, n + 1) if n % d == 0]))
            n //= out[-1]
        return tuple(self.draw(st.permutations([*out, n])))

    def step(self, names: Sequence[str]) -> Step | None:
        name = self.any(names)
        operation = OPERATIONS[name]
        ranked = name in _NEED_AXIS
        ranks = {"matmul": (2, 3), "attention": (2, 3, 4)}.get(name)
        first = self.where(lambda v: (not ranked or len(v.shape) > 0) and (ranks is None or len(v.shape) in ranks))
        if name == "scatter":
            first = self.where(lambda v: 0 < len(v.shape) and v.dtype != np.bool_)
        if not first:
            return None
        operands = [self.any(first[-3:] if self.draw(st.booleans()) else first)]
        v = self.values[operands[0]]
        for k in range(1, operation.arity):
            fitting = self.where(self._partner(name, k, v))
            if not fitting:
                return None
            operands.append(self.any(fitting))
        step = Step(name, tuple(operands), self.params(name, v))
        return step

    def _partner(self, name: str, k: int, v: ShapeDtypeStruct) -> Any:
        if name == "concatenate":
            return lambda w: w.shape == v.shape
        if name == "matmul":
            batch = v.shape[:-2]
            return lambda w: len(w.shape) == 2 or (len(w.shape) == 3 and batch in ((), w.shape[:1]))
        if name in ("take", "dynamic_slice") or (name == "scatter" and k == 2):
            return lambda w: dtypes.is_integer(w.dtype) and _size(w.shape) <= 32
        if name == "scatter":
            return lambda w: w.dtype != np.bool_
        return lambda w: (
            len(w.shape) <= len(v.shape)
            and all(a in (1, b) for a, b in zip(w.shape[::-1], v.shape[::-1], strict=False))
        )


_NEED_AXIS = frozenset(
    """sum prod max min mean any argmax argmin centre softmax log_softmax layer_norm sort argsort index take concatenate
    dynamic_slice cumsum cumprod cummax mirror swapped looked_up two_sums transpose flip slice pad
    scatter broadcast""".split()
)


@st.composite
def programs(
    draw: Any, max_steps: int = 8, smooth: bool = False, only: Sequence[str] = (), lengths: Sequence[int] = _LENGTHS
) -> Program:
    """Random programs: graphs over several dtypes with reductions, products, movement, indexing, scans and sorts.

    ``smooth`` programs can be differentiated with respect to their first input, a float32 array. ``only`` restricts the
    operations.
    """
    names = [n for n, op in OPERATIONS.items() if (op.smooth or not smooth) and (not only or n in only)]
    first = draw(shapes(lengths=lengths).filter(len))
    if draw(st.booleans()):
        first = (first[0],) * min(2, len(first)) + first[2:]  # a square, which looks the same both ways
    inputs: list[tuple[Shape, str]] = [(first, "float32")]
    inputs.append((first if draw(st.booleans()) else first[::-1], draw(dtype_names(floats=smooth))))
    inputs.append((draw(st.sampled_from([(), (3,), first[-1:]])), draw(st.sampled_from(["int32", "uint8"]))))
    values = [ShapeDtypeStruct(shape, dtypes.canonicalize(dtype)) for shape, dtype in inputs]
    drawer, steps = _Drawer(draw, values), []
    for _ in range(draw(st.integers(1, max_steps))):
        step = drawer.step(names)
        if step is None:
            continue
        operation = OPERATIONS[step.operation]
        out = eval_shape(lambda *xs, f=operation.apply, p=step.params: f(*xs, *p), *(values[i] for i in step.operands))
        if 0 < _size(out.shape) <= 4 * _MOST and len(out.shape) <= 4:
            values.append(out)
            steps.append(step)
    made = range(len(inputs), len(values))
    read = {i for step in steps for i in step.operands}
    outputs = [i for i in made if i not in read or (len(made) > 1 and draw(st.integers(0, 4)) == 0)]
    return Program(tuple(inputs), tuple(steps), tuple(outputs or [0]))
