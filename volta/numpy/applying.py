"""``x.at[index].apply(f)``: a function of elements, as often as an index names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.interp import Tracer
from volta.lax.loops import while_loop
from volta.numpy import binary, shaping
from volta.ops import lax


def applied(x: Array, index: Any, func: Callable[[Any], Any], mode: str | None) -> Array:
    """The first occurrences of all places, then the second ones, and so on."""
    numbers = lax.reshape(lax.iota(dtypes.int64, x.size), x.shape).at[index]
    places = numbers.get(mode="clip") if mode == "clip" else numbers.get(mode="fill", fill_value=x.size)
    given = places.shape
    places = lax.reshape(places, (places.size,))
    known = not isinstance(places, Tracer)
    if places.size < 2 or (known and len(np.unique(np.asarray(places))) == places.size):
        return x.at[index].set(func(x.at[index].get(mode=mode)), mode=mode)
    shape, flat, turn = x.shape, lax.reshape(x, (x.size,)), _occurrence(places)
    last = lax.reduce_max(turn, (0,))

    def at_turn(i: Any, flat: Array) -> Array:
        there = flat.at[binary.where_three(binary.equal(turn, i), places, np.int64(x.size))]
        values = func(lax.reshape(there.get(mode="clip"), given))
        return there.set(shaping.ravel(shaping.broadcast_to(values, given)), mode="drop")

    if known:
        for i in range(int(last) + 1):
            flat = at_turn(np.int64(i), flat)
        return lax.reshape(flat, shape)
    first = lax.full((), 0, dtypes.int64)
    state = while_loop(lambda s: binary.less_equal(s[0], last), lambda s: (s[0] + 1, at_turn(*s)), (first, flat))
    return lax.reshape(state[1], shape)


def _occurrence(places: Array) -> Array:
    """How often each number has come before."""
    number = lax.iota(dtypes.int64, places.size)
    ordered, origin = lax.sort((places, number), num_keys=1, is_stable=True)
    new = lax.concatenate([lax.full((1,), True, dtypes.bool_), lax.ne(ordered[1:], ordered[:-1])], 0)
    begun = lax.cummax(binary.where_three(new, number, np.int64(0)), 0)
    return lax.full((places.size,), 0, dtypes.int64).at[origin].set(lax.sub(number, begun))
