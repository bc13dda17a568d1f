"""JAX's internals, as far as libraries name them when they are imported: stand-ins that say so where they are used.

Libraries register rules and lowerings with JAX when they are imported. Here that is accepted, and using one of them is
an error that names it. (Primitives of a library's own are in ``primitives``.)
"""

from __future__ import annotations

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
    """A name of JAX's internals: a class without instances, so that ``isinstance`` may be asked.

    Libraries derive classes of their own from such, and make instances of these when they are imported.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__bases__ == (object,):
            refuse(f"{cls.__module__}.{cls.__name__}")
        return super().__call__(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.__module__}.{cls.__name__}", name)


def absent(module: str, name: str) -> Absent:
    return Absent(name, (), {"__module__": module})


def accepted(*args: Any, **kwargs: Any) -> Any:
    """A registration: nothing is done with it. As a decorator it gives the function back."""
    return args[-1] if args and callable(args[-1]) else accepted


MLIR: dict[str, Any] = dict.fromkeys(("register_lowering", "lower_fun"), accepted)
PARTIAL_EVAL: dict[str, Any] = {
    name: {} for name in ("custom_partial_eval_rules", "dce_rules", "partial_eval_jaxpr_custom_rules")
}
TRACEBACKS: dict[str, Any] = {
    "api_boundary": accepted,
    "include_frame": lambda frame: True,
    "register_exclusion": accepted,
}
DISPATCH: dict[str, Any] = {
    "prim_requires_devices_during_lowering": set(),
    "wait_for_tokens": effects_barrier,
}
