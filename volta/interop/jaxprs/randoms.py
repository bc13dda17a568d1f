"""Random numbers: JAX's primitives on keys, with JAX's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta import lax, random
from volta.api.vmap import vmap
from volta.interop.jaxprs.equations import Equation, Rule
from volta.interop.jaxprs.keys import KINDS, check_drawing
from volta.random.threefry import threefry2x32, unsigned


def _of_each(function: Callable[..., Any], *arrays: Any, rank: int) -> Any:
    """``function``, which draws, over so many leading axes of all arrays."""
    check_drawing()
    for _ in range(rank):
        function = vmap(function)
    return function(*arrays)


def _kind(equation: Equation) -> Any:
    """The type of the keys that an equation makes."""
    name = equation.params["impl"].name
    found = next((kind for kind in KINDS.values() if kind.impl == name), None)
    if found is None:
        raise NotImplementedError(f"there are no keys of {name}; there are {', '.join(KINDS)}")
    return found


def _seed(equation: Equation, seeds: Any) -> Any:
    kind = _kind(equation)
    return _of_each(lambda seed: random.key(seed, dtype=kind), seeds, rank=seeds.ndim)


def _split(equation: Equation, keys: Any) -> Any:
    return _of_each(lambda key: random.split(key, equation.params["shape"]), keys, rank=keys.ndim)


def _fold_in(equation: Equation, keys: Any, data: Any) -> Any:
    return _of_each(random.fold_in, keys, data, rank=keys.ndim)


def _bits(equation: Equation, keys: Any) -> Any:
    shape, dtype = equation.params["shape"], unsigned(equation.params["bit_width"])
    return _of_each(lambda key: random.bits(key, shape, dtype), keys, rank=keys.ndim)


def _gamma(equation: Equation, keys: Any, alpha: Any) -> Any:
    draw = random.loggamma if equation.params["log_space"] else random.gamma
    rank = keys.ndim
    return _of_each(lambda key, a: draw(key, a, a.shape, np.dtype(a.dtype)), keys, alpha, rank=rank)


def _threefry(equation: Equation, k0: Any, k1: Any, x0: Any, x1: Any) -> Any:
    shape = equation.outs[0].shape
    k0, k1, x0, x1 = (lax.broadcast_in_dim(x, shape, range(len(shape))) if x.shape else x for x in (k0, k1, x0, x1))
    return threefry2x32((k0, k1), x0, x1)


def _same(equation: Equation, keys: Any) -> Any:
    return keys


def _wrap(equation: Equation, words: Any) -> Any:
    return random.wrap_key_data(words, dtype=_kind(equation))


def _bit_generator(equation: Equation, state: Any) -> Any:
    given = equation.params
    return lax.rng_bit_generator(state, given["shape"], given["dtype"], int(given["algorithm"]))


RULES: dict[str, Rule] = {
    "random_bits": _bits,
    "random_clone": _same,
    "random_fold_in": _fold_in,
    "random_gamma": _gamma,
    "random_seed": _seed,
    "random_split": _split,
    "random_unwrap": lambda equation, keys: random.key_data(keys),
    "random_wrap": _wrap,
    "rng_bit_generator": _bit_generator,
    "threefry2x32": _threefry,
}
