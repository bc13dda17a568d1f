"""``to_jax``: a function of Volta's, called back from JAX's programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from volta import random
from volta.api.arguments import ShapeDtypeStruct, value_of
from volta.api.autodiff import vjp
from volta.api.jit import jit
from volta.api.tracing import eval_shape
from volta.api.vmap import vmap
from volta.core import dtypes
from volta.core.errors import ArgumentError
from volta.core.extended import is_key
from volta.core.source import at_user_line
from volta.interop.jaxprs import keys, trees

METHODS = "sequential", "broadcast_all"


def to_jax(fun: Callable[..., Any], vmap_method: str) -> Callable[..., Any]:
    """See :func:`volta.to_jax`."""
    if vmap_method not in METHODS:
        raise ArgumentError(at_user_line(f"to_jax: vmap_method is one of {', '.join(METHODS)}, not {vmap_method!r}"))

    @functools.wraps(fun, updated=())
    def called(*args: Any) -> Any:
        trees.adopt(args)
        return _differentiable(fun, vmap_method)(*jax.tree.map(jax.numpy.asarray, args))

    return called


def _differentiable(fun: Callable[..., Any], method: str) -> Callable[..., Any]:
    """The call with Volta's reverse derivatives, by the float arguments."""

    @jax.custom_vjp
    def apply(*args: Any) -> Any:
        return _call(fun, method, *args)

    def forward(*args: Any) -> Any:
        return apply(*args), args

    def backward(args: Any, cts: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        floats = [i for i, x in enumerate(leaves) if jax.numpy.issubdtype(x.dtype, jax.numpy.floating)]

        def pulled(leaves: Any, cts: Any) -> Any:
            def of_floats(*live: Any) -> Any:
                given = list(leaves)
                for i, x in zip(floats, live, strict=True):
                    given[i] = x
                return _floats(fun(*jax.tree.unflatten(tree, given)))

            return list(vjp(of_floats, *(leaves[i] for i in floats))[1](cts))

        float_cts = [ct for ct in jax.tree.leaves(cts) if ct.dtype != jax.dtypes.float0]
        found = iter(_call(pulled, method, leaves, float_cts))
        whole = [next(found) if i in floats else np.zeros(x.shape, jax.dtypes.float0) for i, x in enumerate(leaves)]
        return tuple(jax.tree.unflatten(tree, whole))

    apply.defvjp(forward, backward)
    return apply


def _floats(out: Any) -> list[Any]:
    """The leaves of a result that have derivatives."""
    return [x for x in map(value_of, jax.tree.leaves(out)) if dtypes.is_inexact(x.dtype)]


def _call(fun: Callable[..., Any], method: str, *args: Any) -> Any:
    """The callback, for arguments of JAX's (mostly tracers)."""
    of_keys = jax.tree.map(keys.is_key, args)
    structs = jax.tree.map(lambda x, k: ShapeDtypeStruct(x.shape, keys.kind_of(x) if k else x.dtype), args, of_keys)
    like = eval_shape(fun, *structs)
    trees.adopt(like)
    wanted = jax.tree.map(_sent_as, like)
    args = jax.tree.map(lambda x, k: jax.random.key_data(x) if k else x, args, of_keys)  # keys travel as words
    ranks = [x.ndim for x in jax.tree.leaves(args)]
    compiled = jit(fun)

    def run(*args: Any) -> Any:
        given = jax.tree.map(lambda x: value_of(np.asarray(x)), args)
        arrays = jax.tree.map(
            lambda x, s: random.wrap_key_data(x, dtype=s.dtype) if is_key(s.dtype) else x, given, structs
        )
        extra = np.ndim(jax.tree.leaves(args)[0]) - ranks[0] if ranks else 0
        mapped: Callable[..., Any] = compiled
        for _ in range(extra):
            mapped = vmap(mapped)
        out = mapped(*arrays)
        return jax.tree.map(lambda x, s: _sent(x).astype(s.dtype, copy=False), out, wanted)

    out = jax.pure_callback(run, wanted, *args, vmap_method=method)
    return jax.tree.map(
        lambda x, s: jax.random.wrap_key_data(x, impl=s.dtype.impl) if is_key(s.dtype) else x, out, like
    )


def _sent_as(like: Any) -> Any:
    """The type in which a result travels."""
    if is_key(like.dtype):
        return jax.ShapeDtypeStruct((*like.shape, like.dtype.words), np.uint32)
    return jax.ShapeDtypeStruct(like.shape, like.dtype)


def _sent(x: Any) -> np.ndarray:
    return np.asarray(random.key_data(x) if is_key(value_of(x).dtype) else x)
