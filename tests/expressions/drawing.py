"""Random expressions: some arrays and Python numbers, and steps that apply functions to them and to each other.

The same seed and number give the same expression on every machine.
"""

from __future__ import annotations

from typing import Any

import attrs
import ml_dtypes
import numpy as np

from tests.expressions.functions import FUNCTIONS, Function, Params
from volta.core import dtypes

SHAPES = ((5,), (2, 3), (), (2, 1), (0,))
SHAPE_ODDS = (0.45, 0.35, 0.1, 0.08, 0.02)
DTYPE_ODDS = {
    "float32": 30, "float64": 14, "float16": 8, "bfloat16": 8, "int32": 10, "int8": 5, "uint8": 5, "int16": 3,
    "uint16": 3, "int64": 4, "uint32": 4, "uint64": 3, "bool": 5,
}  # fmt: skip
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 100, 300, -5, 0.0, -0.0, 1.0, 0.5, 0.1, 2.0, -1.5, 3.0, 1e10, 1e300, 1e-300)
NUMBERS += (float("inf"), float("nan"), True, False)


@attrs.frozen(eq=False)
class Step:
    """A function applied to values of the expression, which are numbered: the leaves, then the results of the steps."""

    function: Function
    operands: tuple[int, ...]
    params: Params

    def __str__(self) -> str:
        given = [f"v{i}" for i in self.operands] + [f"{k}={v!r}" for k, v in self.params.items()]
        return f"{self.function.name}({', '.join(given)})"


@attrs.frozen(eq=False)
class Expression:
    number: int
    leaves: tuple[Any, ...]  # NumPy arrays and Python numbers
    steps: tuple[Step, ...]
    regular: bool  # its floats are where functions are smooth, or at points where they may not be, all of usual size

    def __str__(self) -> str:
        lines = [f"expression {self.number}"]
        for i, leaf in enumerate(self.leaves):
            text = f"{leaf.dtype}{list(leaf.shape)} {leaf.tolist()}" if isinstance(leaf, np.ndarray) else repr(leaf)
            lines.append(f"  v{i} = {text}")
        lines += [f"  v{len(self.leaves) + i} = {step}" for i, step in enumerate(self.steps)]
        return "\n".join(lines)


def edges(dtype: np.dtype) -> list[Any]:
    """Zeros, ones, infinities, NaN, the ends of the range and what is next to them."""
    if dtype == np.bool_:
        return [True, False]
    if dtypes.is_integer(dtype):
        limits = np.iinfo(dtype)
        signed = [-1, -2, limits.min + 1] if limits.min else []
        return [0, 1, 2, 3, limits.max, limits.max - 1, limits.min, *signed]
    limits = ml_dtypes.finfo(dtype)
    positive = [0.0, 1.0, 0.5, 2.0, np.pi, 10.0, limits.max, limits.tiny, limits.smallest_subnormal, limits.eps, np.inf]
    positive.append(dtype.type(1) + limits.eps)
    return [np.nan, *positive, *(-np.asarray(p, dtype) for p in positive)]


def array(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, ...], regular: bool) -> np.ndarray:
    n = int(np.prod(shape))
    kind = rng.integers(3)
    if not dtypes.is_float(dtype) and dtype != np.bool_:
        low = 0 if dtypes.is_unsigned(dtype) else -9
        values: Any = rng.integers(low, 10, n)
        if kind and not regular:
            known = edges(dtype)
            return np.array([known[i] for i in rng.integers(0, len(known), n)], dtype).reshape(shape)
        return values.astype(dtype).reshape(shape)
    if dtype == np.bool_:
        return rng.integers(0, 2, n).astype(dtype).reshape(shape)
    if regular:
        special = rng.choice(np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.0]), n)  # ties, too
        values = special if kind == 0 else rng.uniform(-3, 3, n) if kind == 1 else rng.uniform(0.05, 0.95, n)
    elif kind == 0:
        values = rng.normal(size=n) * 10.0 ** rng.integers(-3, 4)
    else:
        known = edges(dtype)
        return np.array([known[i] for i in rng.integers(0, len(known), n)]).astype(dtype).reshape(shape)
    return values.astype(dtype).reshape(shape)


def kind_of(dtype: np.dtype) -> str:
    return "f" if dtypes.is_float(dtype) else "b" if dtype == np.bool_ else "i"


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return kind_of(value.dtype)
    return "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f"


def draw(seed: int, number: int) -> Expression:
    """The expression of that number: leaves that broadcast, and one to three steps over what they may take."""
    rng = np.random.default_rng([seed, number])
    regular = bool(rng.random() < 0.4)
    shape = SHAPES[rng.choice(len(SHAPES), p=SHAPE_ODDS)]
    names, odds = list(DTYPE_ODDS), np.array(list(DTYPE_ODDS.values()), float)
    leaves: list[Any] = []
    first = names[rng.choice(len(names), p=odds / odds.sum())]
    for i in range(3):
        name = first if rng.random() < 0.6 else names[rng.choice(len(names), p=odds / odds.sum())]
        own = shape if i == 0 or rng.random() < 0.6 else shape[-1:] if rng.random() < 0.5 else ()
        leaves.append(array(rng, dtypes.canonicalize(name), own, regular))
    leaves += [NUMBERS[i] for i in rng.choice(len(NUMBERS), 2)]
    kinds = [_kind(v) for v in leaves]
    steps: list[Step] = []
    while len(steps) < 1 + rng.integers(3):
        step = _step(rng, kinds, len(leaves))
        steps.append(step)
        kinds.append("f" if "f" in (kinds[i] for i in step.operands) else kinds[step.operands[0]])
    return Expression(number, tuple(leaves), tuple(steps), regular)


def _step(rng: np.random.Generator, kinds: list[str], leaves: int) -> Step:
    """One whose function takes the kinds of its operands, at least one of which is no Python number."""
    names = list(FUNCTIONS)
    while True:
        function = FUNCTIONS[names[rng.integers(len(names))]]
        taken = [i for i, k in enumerate(kinds) if k in function.kinds]
        arrays = [i for i in taken if i < 3 or i >= leaves]
        if not arrays:
            continue
        operands = [int(rng.choice(taken)) for _ in range(function.arity)]
        if not set(operands) & set(arrays) or function.rows and operands[0] not in arrays:
            operands[rng.integers(function.arity)] = int(rng.choice(arrays))
        if function.name == "numpy.where":
            operands[0] = int(rng.choice(arrays))
        return Step(function, tuple(operands), function.params(rng))
