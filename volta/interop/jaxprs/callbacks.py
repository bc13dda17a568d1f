"""Calls of Python functions from inside of programs, under JAX's names."""

from __future__ import annotations

from typing import Any

import jax

from volta.api.arguments import ShapeDtypeStruct
from volta.api.callbacks import debug_callback, debug_print, io_callback, pure_callback
from volta.interop.jaxprs.equations import Equation, Rule


def _likes(e: Equation) -> list[ShapeDtypeStruct]:
    return [ShapeDtypeStruct(a.shape, a.dtype) for a in e.outs]


def _pure(e: Equation, *values: Any) -> Any:
    call = e.params["callback"]
    return pure_callback(lambda *xs: list(call(*xs)), _likes(e), *values, vmap_method=e.params["vmap_method"])


def _io(e: Equation, *values: Any) -> Any:
    call = e.params["callback"]
    return io_callback(lambda *xs: list(call(*xs)), _likes(e), *values, ordered=e.params["ordered"])


def _debug(e: Equation, *values: Any) -> Any:
    call = e.params["callback"]

    def look(*xs: Any) -> None:
        call(*xs)

    debug_callback(look, *values)
    return []


def _print(e: Equation, *values: Any) -> Any:
    if e.params["static_args"]:
        raise NotImplementedError("of what is no array it is not translated; put it into the text")
    args, kwargs = jax.tree.unflatten(e.params["in_tree"], values)
    debug_print(e.params["fmt"], *args, skip_format_check=True, **kwargs)
    return []


RULES: dict[str, Rule] = {
    "debug_callback": _debug,
    "debug_print": _print,
    "io_callback": _io,
    "pure_callback": _pure,
}
