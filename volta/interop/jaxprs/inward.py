"""``from_jax``: JAX traces a function, and Volta runs the program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from volta.api.arguments import value_of
from volta.api.jit import jit
from volta.core import pytrees
from volta.core.array import Array
from volta.core.extended import is_key
from volta.core.interp import get_aval
from volta.interop.jaxprs import keys, trees
from volta.interop.jaxprs.equations import aval_of
from volta.interop.jaxprs.table import TRANSLATOR
from volta.ops.base import bind_named


def from_jax(fun: Callable[..., Any], static_argnums: Any, static_argnames: Any) -> Callable[..., Any]:
    """See :func:`volta.from_jax`."""

    @functools.wraps(fun, updated=())
    def traced(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, _DATA)]

        def flat(*arrays: Any) -> Any:
            given = list(leaves)
            for i, x in zip(places, arrays, strict=True):
                given[i] = x
            some, named = jax.tree.unflatten(tree, given)
            return fun(*some, **named)

        program, shapes = jax.make_jaxpr(flat, return_shape=True)(*(_struct(leaves[i]) for i in places))
        avals = [v.aval for v in program.jaxpr.invars]
        outs = TRANSLATOR.run(program, [_operand(leaves[i], a) for i, a in zip(places, avals, strict=True)])
        result = jax.tree.unflatten(jax.tree.structure(shapes), [value_of(x) for x in outs])
        trees.adopt(result)
        return result

    trees.adopt_known()
    compiled = jit(traced, static_argnums=static_argnums, static_argnames=static_argnames)

    @functools.wraps(fun, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if not all(isinstance(x, _PLAIN) for x in pytrees.leaves((args, kwargs))):
            trees.adopt((args, kwargs))
            args, kwargs = pytrees.map(_given, (args, kwargs))
        return compiled(*args, **kwargs)

    return call


_DATA = (Array, np.ndarray, np.generic)
"""What is traced; other leaves are settings. (Numbers are arrays by now, but where nothing is jitted.)"""
_PLAIN = (Array, np.ndarray, np.generic, int, float)
"""What needs no look before a call."""


def _given(x: Any) -> Any:
    """A leaf of a call: arrays and keys of JAX's become Volta's; what else there is stays."""
    if not isinstance(x, jax.Array):
        return x
    return keys.from_jax(x) if keys.is_key(x) else value_of(jax.device_get(x))


def _struct(x: Any) -> Any:
    aval = get_aval(x)
    if is_key(aval.dtype):
        return jax.ShapeDtypeStruct(aval.shape, keys.key_dtype(aval.dtype))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _operand(x: Any, aval: Any) -> Any:
    """An argument in the type that JAX gave it."""
    want, own = aval_of(aval), get_aval(x)
    return x if own == want else bind_named("convert_element_type", x, new_dtype=want.dtype, weak_type=False)
