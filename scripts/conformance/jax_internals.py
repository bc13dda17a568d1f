"""Stand-ins for JAX's internals, as far as its own tests name them, where ``import jax`` means Volta.

A module ``jax._src.x`` is, in this order: the file of the checkout, where it is a helper of the tests (``CHECKOUT``);
the names below; what Volta answers for ``jax.x``; and for any other name a stand-in that says so where it is used.
Settings that Volta does not have (strict promotion, ranks) are accepted and remembered, and change nothing.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import volta
from volta.core import dtypes as own_dtypes
from volta.core.extended import KEY_TYPES, KeyType
from volta.core.interp import get_aval
from volta.interop.jax_names import finder, internals, own, primitives
from volta.interop.jax_names.modules import ANSWERS

CHECKOUT = (
    "jax.example_libraries jax.test_util jax._src.test_util jax._src.public_test_util jax._src.test_warning_util "
    "jax._src.test_loader jax._src.internal_test_util jax._src.lax_reference"
).split()
"""What is read from the checkout: its tests' helpers, and what is written on public names."""


_SWITCHES = "enable_x64 numpy_rank_promotion numpy_dtype_promotion legacy_prng_key enable_custom_prng "
_SWITCHES += "explicit_x64_dtypes enable_checks debug_key_reuse log_compiles no_tracing softmax_custom_jvp"
"""Settings that tests change by ``with jax.name(value):`` and that Volta does not have."""


class Setting:
    """A setting of JAX's: a value, and what sets it for a while."""

    def __init__(self, value: Any = None):
        self.value = value

    @contextlib.contextmanager
    def __call__(self, value: Any) -> Iterator[None]:
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


class Settings(dict[str, Setting]):
    """Settings by name; one that nobody has set is None."""

    def __missing__(self, name: str) -> Setting:
        self[name] = Setting()
        return self[name]


def wide() -> bool:
    """Whether the tests are run as with 64 bits."""
    return os.environ.get("JAX_ENABLE_X64", "0").lower() in ("1", "true")


SETTINGS = Settings({"enable_x64": Setting(wide()), "threefry_partitionable": Setting(True)})


def _named(name: str) -> str:
    return name.removeprefix("jax_")


def _flag(name: str, default: Any, *args: Any, help: str = "") -> Setting:
    return Setting(default)


class _States:
    def __getitem__(self, name: str) -> Setting:
        return SETTINGS[_named(name)]


def _update(name: str, value: Any) -> None:
    SETTINGS[_named(name)].value = value


class ExplicitX64Mode(enum.Enum):
    ALLOW, WARN, ERROR = range(3)


CONFIG: dict[str, Any] = {
    "ExplicitX64Mode": ExplicitX64Mode,
    "_read": lambda name: SETTINGS[_named(name)].value,
    "bool_env": lambda name, default: bool(int(os.environ.get(name, default))),
    "bool_flag": _flag,
    "config": types.SimpleNamespace(values={}),
    "config_states": _States(),
    "int_flag": _flag,
    "parse_flags_with_absl": lambda: None,
    "string_flag": _flag,
    "update": _update,
}

# -- dtypes ------------------------------------------------------------------------------------------------------------

_NARROW = {np.dtype(np.float64): np.float32, np.dtype(np.complex128): np.complex64}
_NARROW |= {np.dtype(np.int64): np.int32, np.dtype(np.uint64): np.uint32}


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> Any:
    """The dtype that JAX would have: without its 64 bits the one of 32."""
    if isinstance(dtype, KeyType):
        return dtype
    found = np.dtype(dtype)
    return found if SETTINGS["enable_x64"].value else np.dtype(_NARROW.get(found, found))


def _default(wide_one: Any, narrow: Any) -> Callable[[], Any]:
    return lambda: np.dtype(wide_one if SETTINGS["enable_x64"].value else narrow)


_DEFAULTS = {
    "f": _default(np.float64, np.float32),
    "i": _default(np.int64, np.int32),
    "u": _default(np.uint64, np.uint32),
    "c": _default(np.complex128, np.complex64),
}


def dtype_of(x: Any, *, align_to: Any = None) -> Any:
    return own.LAX["dtype"](x)


def to_inexact(dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    if dtype.kind in "fcV":
        return dtype
    return np.dtype(np.float64 if dtype.itemsize == 8 and SETTINGS["enable_x64"].value else np.float32)


DTYPES: dict[str, Any] = {
    **{n: getattr(ml_dtypes, n) for n in dir(ml_dtypes) if n.startswith(("int", "uint", "float", "bfloat"))},
    "_float8_dtypes": [np.dtype(getattr(ml_dtypes, n)) for n in dir(ml_dtypes) if n.startswith("float8")],
    "_intn_dtypes": [np.dtype(getattr(ml_dtypes, n)) for n in ("int2", "int4", "uint2", "uint4")],
    "_jax_types": [np.dtype(d) for d in own_dtypes.ALL],
    "_weak_types": [int, float, complex],
    "canonicalize_dtype": canonicalize_dtype,
    "default_complex_dtype": _DEFAULTS["c"],
    "default_float_dtype": _DEFAULTS["f"],
    "default_int_dtype": _DEFAULTS["i"],
    "default_uint_dtype": _DEFAULTS["u"],
    "default_types": _DEFAULTS,
    "dtype": dtype_of,
    "finfo": volta.numpy.finfo,
    "float0": own.DTYPES["float0"],
    "iinfo": volta.numpy.iinfo,
    "int1": None,
    "is_weakly_typed": lambda x: get_aval(x).weak_type,
    "isdtype": volta.numpy.isdtype,
    "issubdtype": volta.numpy.issubdtype,
    "itemsize_bits": lambda dtype: 8 * np.dtype(dtype).itemsize,
    "promote_types": volta.numpy.promote_types,
    "python_scalar_types_to_dtypes": {
        bool: np.dtype(bool),
        **{kind: make() for kind, make in zip((float, int, complex), map(_DEFAULTS.get, "fic"), strict=True)},
    },
    "register_canonicalize_value_handler": internals.accepted,
    "result_type": volta.numpy.result_type,
    "safe_to_cast": lambda given, wanted: volta.numpy.promote_types(given, wanted) == wanted,
    "supports_inf": lambda dtype: True,
    "to_complex_dtype": lambda dtype: volta.numpy.promote_types(to_inexact(dtype), np.complex64),
    "to_floating_dtype": lambda dtype: np.finfo(to_inexact(dtype)).dtype,
    "to_inexact_dtype": to_inexact,
    "to_numeric_dtype": lambda dtype: np.dtype(np.int32) if np.dtype(dtype) == np.bool_ else np.dtype(dtype),
    "TypePromotionError": volta.errors.DTypeError,
    "uint1": None,
}

# -- what is left ------------------------------------------------------------------------------------------------------


def _safe_map(f: Callable[..., Any], *lists: Any) -> list[Any]:
    lists = tuple(map(list, lists))
    assert len(set(map(len, lists))) < 2, list(map(len, lists))
    return list(map(f, *lists))


def _subvals(values: Any, changes: Any) -> tuple[Any, ...]:
    changed = dict(changes)
    return tuple(changed.get(i, v) for i, v in enumerate(values))


def _split_list(args: Any, counts: Any) -> list[list[Any]]:
    args, found = list(args), []
    for n in counts:
        found.append(args[:n])
        args = args[n:]
    return [*found, args]


UTIL: dict[str, Any] = {
    "Mutex": lambda: None,
    "install_failure_signal_handler": lambda: None,
    "safe_map": _safe_map,
    "safe_zip": lambda *lists: list(zip(*lists, strict=True)),
    "split_list": _split_list,
    "subvals": _subvals,
    "tuple_update": lambda t, at, v: (*t[:at], v, *t[at + 1 :]),
    "unzip2": lambda pairs: tuple(zip(*pairs, strict=True)) or ((), ()),
}


class _Backend:
    platform, platform_version = "cpu", "volta"

    @staticmethod
    def cache_clear() -> None: ...

    def __call__(self, *args: Any) -> _Backend:
        return self


def _misses() -> Any:
    return types.SimpleNamespace(misses=0)


def _promote(*args: Any) -> list[Any]:
    return [volta.numpy.asarray(x, own_dtypes.canonicalize(volta.numpy.result_type(*args))) for x in args]


def _promote_inexact(*args: Any) -> list[Any]:
    dtype = to_inexact(volta.numpy.result_type(*args))
    return [volta.numpy.asarray(x, dtype) for x in args]


def _promote_complex(*args: Any) -> list[Any]:
    dtype = DTYPES["to_complex_dtype"](volta.numpy.result_type(*args))
    return [volta.numpy.asarray(x, dtype) for x in args]


def _converted(x: Any, dtype: Any = None, weak_type: bool = False, sharding: Any = None) -> Any:
    x = volta.numpy.asarray(x)
    return volta.lax.convert_element_type(x, x.dtype if dtype is None else canonicalize_dtype(dtype), weak_type)


class _Keys(type):
    """Arrays of random keys."""

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, volta.Array) and isinstance(x.dtype, KeyType)


_ONE_DEVICE = {"make_single_device_sharding": lambda device, **kwargs: volta.sharding.SingleDeviceSharding(device)}
_NO_CACHE = types.SimpleNamespace(cache_clear=lambda: None)

NAMES: dict[str, dict[str, Any]] = {
    "jax._src.api": {"jit": lambda *args, **kwargs: volta.jit(*args, **kwargs)},  # tests write attributes on it
    "jax._src.array": {"ArrayImpl": volta.Array},
    "jax._src.compilation_cache": {"_cache": None, "reset_cache": lambda: None},
    "jax._src.cloud_tpu_init": {"running_in_cloud_tpu_vm": False},
    "jax._src.config": CONFIG,
    "jax._src.core": {
        **own.CORE,
        **primitives.CORE,
        "reset_trace_state": lambda: True,
        "trace_state_clean": lambda: True,
    },
    "jax._src.deprecations": {"is_accelerated": lambda name: True},
    "jax._src.dispatch": {
        "xla_primitive_callable": types.SimpleNamespace(cache_info=_misses, cache_clear=lambda: None)
    },
    "jax._src.dtypes": DTYPES,
    "jax._src.errors": {name: getattr(volta.errors, name) for name in volta.errors.__all__},
    "jax._src.interpreters.mlir": {"_platforms_with_donation": ["cpu", "gpu"]},
    "jax._src.lax": {},
    "jax._src.lax.control_flow": {},
    "jax._src.lax.control_flow.common": {"_dedup_consts": _NO_CACHE, "_pad_constvars": _NO_CACHE},
    "jax._src.lax.lax": {"_convert_element_type": _converted, "asarray": volta.numpy.asarray},
    "jax._src.lib": {
        "_jax": types.SimpleNamespace(
            is_optimized_build=lambda: True,
            is_asan=lambda: False,
            is_msan=lambda: False,
            is_tsan=lambda: False,
            is_sanitized=lambda: False,
        ),
        "cuda_versions": None,
        "jaxlib_extension_version": 1000,
        "version": own.VERSION,
    },
    "jax._src.numpy.util": {
        "promote_dtypes": _promote,
        "promote_dtypes_complex": _promote_complex,
        "promote_dtypes_inexact": _promote_inexact,
    },
    "jax._src.random.prng": {
        "KeyTy": KeyType,
        "PRNGImpl": internals.accepted,
        "PRNGKeyArray": _Keys("PRNGKeyArray", (), {}),
        "prngs": {t.impl: t for t in KEY_TYPES},
    },
    "jax._src.sharding_impls": _ONE_DEVICE,
    "jax._src.tree_util": {
        f"tree_{name}": getattr(volta.tree, name) for name in ("all", "flatten", "map", "unflatten", "reduce")
    },
    "jax._src.util": UTIL,
    "jax._src.xla_bridge": {
        "devices": lambda *args: volta.devices(),
        "get_backend": _Backend(),
        "local_devices": lambda *args, **kwargs: volta.devices(),
        "num_cpu_devices": types.SimpleNamespace(value=8),
    },
}


class Missing(internals.Absent):
    """A public name of JAX's that Volta does not have: an error where it is used, not where a test file names it."""

    importing = False

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if Missing.importing:
            return cls
        raise AttributeError(f"{cls.__module__} has no {cls.__name__} under volta.as_jax")


def _missing(module: str, name: str) -> Any:
    if hasattr(ml_dtypes, name):
        return getattr(ml_dtypes, name)
    return Missing(name, (), {"__module__": module})


class StandIn(types.ModuleType):
    """A module of JAX's internals, or one that Volta does not have."""

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__ in NAMES and name in NAMES[self.__name__]:
            found = NAMES[self.__name__][name]
        elif self.__name__ == "jax._src.config":
            return SETTINGS[_named(name)]
        elif full in NAMES or full in CHECKOUT:
            return importlib.import_module(full)
        else:
            found = self._public(name)
        setattr(self, name, found)
        return found

    def _public(self, name: str) -> Any:
        public = self.__name__.replace("jax._src", "jax", 1).removesuffix(".api").replace("lax.lax", "lax")
        absent = internals.absent if "_src" in self.__name__ else _missing
        if public in ANSWERS and public != self.__name__:
            found = getattr(importlib.import_module(public), name, None)
            if found is not None and not isinstance(found, (internals.Absent, types.ModuleType)):
                return found
        if f"{public}.{name}" in ANSWERS or public == "jax":
            return importlib.import_module(f"{self.__name__}.{name}")
        return absent(self.__name__, name)


class Finder:
    """Before Volta's finder of JAX's names: internals, files of the checkout, and modules that are not there."""

    checkout: Path

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in ("jax", "jaxlib"):
            return None
        if any(name == own or name.startswith(own + ".") for own in CHECKOUT):
            place = cls.checkout / name.replace(".", "/")
            file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            folder = [str(place)] if place.is_dir() else None
            if file.exists():
                return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folder)
        if name in ANSWERS and name not in NAMES and name != "jax._src":
            return None
        return ModuleSpec(name, Finder, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    @staticmethod
    def exec_module(module: Any) -> None: ...


def install(checkout: Path) -> None:
    """``import jax`` means Volta from now on, and its internals mean what stands here."""
    finder.install()
    Finder.checkout = checkout
    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
    ask = finder.Answered.__getattr__

    def tolerant(self: Any, name: str) -> Any:
        try:
            return ask(self, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            return _missing(self.__name__, name)

    finder.Answered.__getattr__ = tolerant  # type: ignore[method-assign]
    jax = importlib.import_module("jax")
    vars(jax)["config"] = importlib.import_module("jax._src.config")
    vars(jax)["default_prng_impl"] = own.JAX["default_prng_impl"]
    for name in _SWITCHES.split():
        vars(jax)[name] = SETTINGS[name]
