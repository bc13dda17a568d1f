"""Random expressions: some arrays and Python numbers, and steps that apply functions to them and to each other.

The same seed and number give the same expression on every machine.
"""

from __future__ import annotations

from typing import Any

import attrs
import ml_dtypes
import numpy as np

from tests.expressions.families import FAMILIES
from tests.expressions.functions import FUNCTIONS, Function, Params
from volta.core import dtypes


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
    if dtypes.is_complex(dtype):
        parts = [array(rng, np.dtype(np.float64), shape, regular) for _ in range(2)]
        values = np.empty(shape, dtype)  # not a sum, in which zeros would lose their signs
        values.real, values.imag = parts
        return values
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
    if dtypes.is_complex(dtype):
        return "c"
    return "f" if dtypes.is_float(dtype) else "b" if dtype == np.bool_ else "i"


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return kind_of(value.dtype)
    return (
        "b"
        if isinstance(value, bool)
        else "i"
        if isinstance(value, int)
        else "c"
        if isinstance(value, complex)
        else "f"
    )


def _one_of(rng: np.random.Generator, odds: dict[Any, float]) -> Any:
    share = np.array(list(odds.values()), float)
    return list(odds)[rng.choice(len(odds), p=share / share.sum())]


def draw(seed: int, number: int, name: str = "") -> Expression:
    """The expression of that number: leaves that broadcast, and one to three steps over what they may take.

    ``name``: the family, if not drawn.
    """
    rng = np.random.default_rng([seed, number])
    name = name or _one_of(rng, {name: family.odds for name, family in FAMILIES.items()})
    family = FAMILIES[name]
    regular = bool(rng.random() < family.regular)
    shape = _one_of(rng, family.shapes)
    leaves: list[Any] = []
    first = _one_of(rng, family.dtypes)
    for i in range(3):
        dtype = first if rng.random() < 0.6 else _one_of(rng, family.dtypes)
        own = shape if i == 0 or rng.random() < 0.6 else shape[-1:] if rng.random() < 0.5 else ()
        leaves.append(array(rng, dtypes.canonicalize(dtype), own, regular))
    leaves += [family.numbers[i] for i in rng.choice(len(family.numbers), 2)]
    kinds = [_kind(v) for v in leaves]
    steps: list[Step] = []
    functions = [
        f
        for f in FUNCTIONS.values()
        if f.family == name or name == "complex" and "c" in f.kinds and f.family == "general"
    ]
    while len(steps) < 1 + rng.integers(3):
        step = _step(rng, functions, [np.shape(x) for x in leaves], kinds)
        steps.append(step)
        kinds.append(next((k for k in "cf" if k in (kinds[i] for i in step.operands)), kinds[step.operands[0]]))
    return Expression(number, tuple(leaves), tuple(steps), regular)


def _step(rng: np.random.Generator, functions: list[Function], shapes: list[tuple[int, ...]], kinds: list[str]) -> Step:
    """One whose function takes the kinds of its operands and the shapes of leaves, and of which one is an array."""
    while True:
        function = functions[rng.integers(len(functions))]
        taken = [i for i, k in enumerate(kinds) if k in function.kinds]
        arrays = [i for i in taken if i < 3 or i >= len(shapes)]
        if not arrays:
            continue
        operands = [int(rng.choice(taken)) for _ in range(function.arity)]
        if not set(operands) & set(arrays) or function.rows and operands[0] not in arrays:
            operands[rng.integers(function.arity)] = int(rng.choice(arrays))
        if function.name == "numpy.where":
            operands[0] = int(rng.choice(arrays))
        if max(operands) >= len(shapes) or function.shapes(*(shapes[i] for i in operands)):
            return Step(function, tuple(operands), function.params(rng))
