"""``jax.config`` and what else of JAX's says how it runs, for programs that set it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from volta.core.errors import ArgumentError
from volta.core.extended import KEY_TYPES
from volta.core.source import at_user_line

_ANY = object()

_SETTINGS: dict[str, tuple[Any, Any]] = {
    # name: (what it is, what it may be set to besides, or several of that)
    "jax_enable_x64": (False, True),  # 64 bits are always there: they stay where they are asked for
    "jax_default_matmul_precision": (None, _ANY),
    "jax_threefry_partitionable": (True, None),
    "jax_numpy_dtype_promotion": ("standard", None),
    "jax_numpy_rank_promotion": ("allow", None),
    "jax_platforms": ("", _ANY),
    "jax_platform_name": ("", _ANY),
    "jax_disable_jit": (False, None),
    "jax_debug_nans": (False, None),
    "jax_debug_infs": (False, None),
    "jax_traceback_filtering": ("auto", _ANY),
    "jax_compilation_cache_dir": (None, _ANY),
    "jax_log_compiles": (False, _ANY),
    "jax_check_tracer_leaks": (False, _ANY),
    "jax_enable_checks": (False, _ANY),
    "jax_default_prng_impl": ("threefry2x32", tuple(kind.impl for kind in KEY_TYPES)),
}
_WAYS = {
    "jax_numpy_dtype_promotion": "there is one rule of promotion, JAX's standard one",
    "jax_disable_jit": "it is `with jax.disable_jit():`",
    "jax_debug_nans": "it is `with jax.debug_nans():`",
    "jax_debug_infs": "it is `with jax.debug_infs():`",
}


class Config:
    """``jax.config``: settings are accepted where Volta has no need of them, or where it is as they say."""

    def update(self, name: str, value: Any) -> None:
        """Set ``name``.

        Raises:
            ArgumentError: it would change what Volta does, which has no global switches.
        """
        if name not in _SETTINGS:
            raise ArgumentError(at_user_line(f"jax.config has no {name!r} here; it has {', '.join(sorted(_SETTINGS))}"))
        own, besides = _SETTINGS[name]
        others = besides if isinstance(besides, tuple) else (besides,)
        if value != own and besides is not _ANY and value not in others:
            way = _WAYS.get(name, "there are no global switches; docs/settings.md lists the settings")
            raise ArgumentError(at_user_line(f"jax.config: {name} is {own!r} and cannot be {value!r}: {way}"))
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return _SETTINGS[name][0]
        except KeyError:
            raise AttributeError(f"jax.config has no {name!r}", name=name, obj=self) from None

    def read(self, name: str) -> Any:
        return getattr(self, name)

    def parse_flags_with_absl(self) -> None:
        """Accepted: there are no flags."""


config = Config()


def switch(name: str) -> Any:
    """A setting as a context manager, ``with jax.enable_x64(True):``."""

    @contextlib.contextmanager
    def entered(value: Any = True) -> Iterator[None]:
        before = getattr(config, name)
        config.update(name, value)
        try:
            yield
        finally:
            vars(config)[name] = before

    return entered
