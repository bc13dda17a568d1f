"""JAX's internals, as far as libraries name them when they are imported: stand-ins that say so where they are used.

Libraries register primitives, rules and lowerings with JAX when they are imported. Here that is accepted, and using
one of them is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from volta.api.callbacks import effects_barrier
from volta.core.errors import UnsupportedOperationError
from volta.core.source import at_user_line


def refuse(what: str) -> NoReturn:
    raise UnsupportedOperationError(
        at_user_line(
            f"{what} is one of JAX's internals, which Volta does not have. volta.from_jax runs programs that use them, "
            "where JAX is installed"
        )
    )


class Absent(type):
    """A name of JAX's internals: a class without instances, so that ``isinstance`` may be asked."""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(f"{cls.__module__}.{cls.__name__}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.__module__}.{cls.__name__}", name)


def absent(module: str, name: str) -> Absent:
    return Absent(name, (), {"__module__": module})


class Primitive:
    """A primitive of a library's own: rules may be given, but it cannot be bound."""

    multiple_results = False

    def __init__(self, name: str):
        self.name = name

    def bind(self, *args: Any, **params: Any) -> NoReturn:
        refuse(f"the primitive {self.name!r}")

    def def_impl(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        return rule

    def_abstract_eval = def_effectful_abstract_eval = def_custom_bind = def_bind_with_trace = def_impl

    def __repr__(self) -> str:
        return self.name


def accepted(*args: Any, **kwargs: Any) -> Any:
    """A registration: nothing is done with it. As a decorator it gives the function back."""
    return args[-1] if args and callable(args[-1]) else accepted


CORE: dict[str, Any] = {"Primitive": Primitive}
AD: dict[str, Any] = {
    name: {} for name in ("primitive_jvps", "primitive_transposes", "reducing_transposes", "custom_jvp")
} | dict.fromkeys(("defjvp", "deflinear", "deflinear2", "defbilinear", "primitive_transposes_like"), accepted)
BATCHING: dict[str, Any] = {
    "not_mapped": None,
    **{name: {} for name in ("primitive_batchers", "axis_primitive_batchers", "fancy_primitive_batchers")},
}
MLIR: dict[str, Any] = dict.fromkeys(("register_lowering", "lower_fun"), accepted)
PARTIAL_EVAL: dict[str, Any] = {
    name: {} for name in ("custom_partial_eval_rules", "dce_rules", "partial_eval_jaxpr_custom_rules")
}
TRACEBACKS: dict[str, Any] = {"register_exclusion": accepted, "api_boundary": accepted}
DISPATCH: dict[str, Any] = {
    "prim_requires_devices_during_lowering": set(),
    "wait_for_tokens": effects_barrier,
}
