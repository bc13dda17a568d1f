"""Names of JAX's that stand in none of Volta's namespaces, since only programs written for JAX ask for them."""

from __future__ import annotations

import contextlib
import enum
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np

import volta
from volta.api.arguments import aval_of, float0
from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.device import Device
from volta.core.errors import ArgumentError, DeviceError
from volta.core.interp import Trace, Tracer, current_trace, get_aval
from volta.core.ir import ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from volta.core.sharding import PartitionSpec
from volta.core.source import at_user_line
from volta.interop.jax_names import scalars
from volta.interop.jax_names.settings import config, switch
from volta.trace.jaxpr_trace import eval_jaxpr

VERSION = (0, 10, 2)
"""The version of JAX whose names these are."""


@attrs.frozen
class NoMesh:
    """The mesh of a type: types say nothing of where arrays lie."""

    axis_names: tuple[str, ...] = ()
    empty: bool = True
    are_all_axes_explicit: bool = False


@attrs.frozen
class NoSharding:
    """The sharding of a type."""

    mesh: NoMesh = NoMesh()
    spec: PartitionSpec = PartitionSpec()


@attrs.frozen
class Type:
    """What ``jax.typeof`` gives: the shape and the dtype of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    weak_type: bool = False
    sharding: NoSharding = NoSharding()
    vma: frozenset[str] = frozenset()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


def typeof(x: Any) -> Type:
    """The shape and the dtype of an array or a number, as one value."""
    aval = aval_of(x)
    return Type(aval.shape, aval.dtype, aval.weak_type)


class ShapedArrayMeta(type):
    """The type of JAX's name of types of arrays: what it makes are Volta's types."""

    def __call__(
        cls, shape: Any, dtype: Any, weak_type: bool = False, *, sharding: Any = None, vma: Any = frozenset()
    ) -> ShapedArray:
        return ShapedArray(tuple(shape), dtypes.canonicalize(dtype), weak_type)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, ShapedArray)


class AbstractValue(metaclass=ShapedArrayMeta):
    """JAX's ``ShapedArray`` and what it is derived from."""


def _placed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A product with JAX's keywords that say how its result lies, and what multiplies.

    Raises:
        ArgumentError: another function than ``dot_general`` is to multiply.
    """

    @functools.wraps(function)
    def product(*args: Any, out_sharding: Any = None, _dot_general: Any = None, **kwargs: Any) -> Any:
        if _dot_general not in (None, volta.lax.dot_general):
            raise ArgumentError(
                at_user_line(
                    f"{function.__name__}: products are lax.dot_general's, not those of {_dot_general!r}; write the "
                    "contraction with that function itself"
                )
            )
        out = function(*args, **kwargs)
        return out if out_sharding is None else volta.lax.with_sharding_constraint(out, out_sharding)

    return product


@functools.wraps(volta.nn.dot_product_attention)
def dot_product_attention(*args: Any, implementation: str | None = None, **kwargs: Any) -> Array:
    """With JAX's keyword that says whose kernels compute it: they are Volta's whatever it says.

    Raises:
        ArgumentError: there is no such implementation in JAX.
    """
    if implementation not in (None, "xla", "cudnn"):
        raise ArgumentError(at_user_line(f"dot_product_attention: there is no implementation {implementation!r}"))
    out: Array = volta.nn.dot_product_attention(*args, **kwargs)
    return out


def _lying(sampler: Callable[..., Any]) -> Callable[..., Any]:
    """A sampler with JAX's keyword that says how its result lies."""

    @functools.wraps(sampler)
    def drawn(*args: Any, out_sharding: Any = None, **kwargs: Any) -> Any:
        out = sampler(*args, **kwargs)
        return out if out_sharding is None else volta.lax.with_sharding_constraint(out, out_sharding)

    return drawn


def _of_setting(function: Callable[..., Any]) -> Callable[..., Any]:
    """What makes keys, by default for the generator that ``jax_default_prng_impl`` names."""

    @functools.wraps(function)
    def made(*args: Any, impl: Any = None, **kwargs: Any) -> Any:
        if impl is None and kwargs.get("dtype") is None:
            impl = config.jax_default_prng_impl
        return function(*args, impl=impl, **kwargs)

    return made


@functools.wraps(volta.lax.scan)
def scan(*args: Any, _split_transpose: bool = False, **kwargs: Any) -> Any:
    return volta.lax.scan(*args, **kwargs)  # the keyword says how XLA computes a gradient


def transfer_guard(level: str) -> Any:
    """Accepted where it allows copies between devices, which nothing watches here.

    Raises:
        ArgumentError: it is to disallow them.
    """
    if level not in ("allow", "log", "log_explicit"):
        raise ArgumentError(at_user_line(f"transfer_guard({level!r}): copies between devices are not watched here"))
    return contextlib.nullcontext()


def set_mesh(mesh: Any) -> Any:
    """Accepted for programs that name a mesh around them: arrays say themselves where they lie."""
    return contextlib.nullcontext(mesh)


@contextlib.contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """What is computed from known numbers inside is computed while tracing."""
    yield


def named_call(fun: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """``fun``, under a name in JAX's profiles: it is the function itself."""
    return functools.partial(named_call, name=name) if fun is None else fun


def pmap(fun: Callable[..., Any], axis_name: Any = None, *, in_axes: Any = 0, out_axes: Any = 0, **kwargs: Any) -> Any:
    """``fun`` over the devices of this process, of which Volta computes on one: axes that are mapped have size 1.

    Raises:
        ArgumentError: called with a keyword that is not there.
        DeviceError: an axis that is mapped is longer than there are devices.
    """
    if any(kwargs[word] not in (None, (), False) for word in kwargs):
        raise ArgumentError(
            at_user_line(f"pmap: {', '.join(kwargs)} are not there under volta.as_jax; use jit and vmap")
        )
    mapped = volta.jit(volta.vmap(fun, in_axes, out_axes, axis_name=axis_name))

    @functools.wraps(fun, updated=())
    def called(*args: Any) -> Any:
        places = (in_axes,) * len(args) if not isinstance(in_axes, (tuple, list)) else in_axes
        for x, axis in zip(args, places, strict=False):
            sizes = [np.shape(leaf)[axis] for leaf in volta.tree.leaves(x)] if isinstance(axis, int) else []
            if any(size > volta.device_count() for size in sizes):
                raise DeviceError(
                    at_user_line(f"pmap over an axis of {max(sizes)}: there is 1 device; jax.vmap maps on one")
                )
        return mapped(*args)

    return called


def default_backend() -> str:
    """The platform that programs run on, ``'cpu'`` or ``'gpu'``."""
    return "gpu" if volta.default_backend() == "cuda" else "cpu"


def clear_caches() -> None:
    """Accepted: what is kept is bounded."""


def canonicalize_dtype(dtype: Any, allow_extended_dtype: bool = False) -> np.dtype:
    """The dtype that arrays have: 64 bits are always there, as in JAX with ``jax_enable_x64``."""
    return dtypes.canonicalize(dtype)


def scalar_type_of(x: Any) -> type:
    """The type of Python's that a number counts as."""
    dtype = get_aval(x).dtype
    if dtypes.is_complex(dtype):
        return complex
    return bool if dtype == dtypes.bool_ else int if dtypes.is_integer(dtype) else float


def concrete_or_error(force: Callable[..., Any] | None, x: Any, context: str = "") -> Any:
    """``force(x)``, an error where ``x`` is traced."""
    return x if force is None else force(x)


@attrs.frozen
class TraceState:
    """Which transforms are at work, to be compared with another time."""

    trace: Trace


def get_opaque_trace_state(convention: str = "") -> TraceState:
    """What is at work now; libraries compare it with what was when they made something."""
    return TraceState(current_trace())


def jaxpr_as_fun(closed: ClosedJaxpr) -> Callable[..., list[Any]]:
    """A program as a function of its flat arguments."""
    return lambda *args: eval_jaxpr(closed.jaxpr, closed.consts, *args)


NN: dict[str, Any] = {"dot_product_attention": dot_product_attention}
NUMPY: dict[str, Any] = {
    **scalars.NAMES,
    **{name: _placed(getattr(volta.numpy, name)) for name in ("dot", "einsum", "matmul", "tensordot")},
}


_OF_KEYS = ("PRNGKey", "clone", "fold_in", "key", "key_data", "key_dtype", "key_impl", "split", "wrap_key_data")
RANDOM: dict[str, Any] = {
    **{name: _lying(getattr(volta.random, name)) for name in volta.random.__all__ if name not in _OF_KEYS},
    **{name: _of_setting(getattr(volta.random, name)) for name in ("PRNGKey", "key", "wrap_key_data")},
}


def dtype_of(x: Any) -> np.dtype:
    """The dtype of an array or a number; a dtype's own."""
    return dtypes.canonicalize(x) if isinstance(x, (type, str, np.dtype)) else get_aval(x).dtype


def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
    """The running logarithm of sums of exponentials."""
    out: Array = volta.lax.associative_scan(volta.numpy.logaddexp, operand, reverse, axis)
    return out


def platform_dependent(*args: Any, default: Callable[..., Any] | None = None, **per_platform: Any) -> Any:
    """The function for the platform that programs run on, called: ``cpu=``, ``cuda=`` or ``default=``."""
    own = volta.default_backend()
    chosen = per_platform.get(own, default)
    if chosen is None:
        raise ArgumentError(at_user_line(f"platform_dependent: there is no function for {own!r}, and no default"))
    return chosen(*args)


_SPECIAL = volta.scipy.special
LAX: dict[str, Any] = {
    "bessel_i0e": _SPECIAL.i0e,
    "bessel_i1e": _SPECIAL.i1e,
    "betainc": _SPECIAL.betainc,
    "cumlogsumexp": cumlogsumexp,
    "dtype": dtype_of,
    "igamma": _SPECIAL.gammainc,
    "igammac": _SPECIAL.gammaincc,
    "platform_dependent": platform_dependent,
    "polygamma": _SPECIAL.polygamma,
    "scan": scan,
    "zeta": _SPECIAL.zeta,
}


def _segmented(function: Callable[..., Array]) -> Callable[..., Array]:
    """A reduction of segments with JAX's keywords. Its hints, and in how many buckets XLA adds, change nothing here.

    Raises:
        ArgumentError: numbers out of bounds are to be clamped; they are left out.
    """

    @functools.wraps(function)
    def reduced(
        data: Any, segment_ids: Any, num_segments: int | None = None, indices_are_sorted: bool = False,
        unique_indices: bool = False, bucket_size: int | None = None, mode: Any = None,
    ) -> Array:  # fmt: skip
        if mode not in (None, "drop", "fill", "promise_in_bounds"):
            raise ArgumentError(at_user_line(f"{function.__name__}: numbers out of bounds are left out, not {mode!r}"))
        return function(data, segment_ids, num_segments)

    return reduced


OPS: dict[str, Any] = {
    name: _segmented(getattr(volta.nn, name)) for name in ("segment_max", "segment_min", "segment_prod", "segment_sum")
}

JAX: dict[str, Any] = {
    "Device": Device,
    "__version__": ".".join(map(str, VERSION)),
    "__version_info__": VERSION,
    "check_tracer_leaks": switch("jax_check_tracer_leaks"),
    "checking_leaks": switch("jax_check_tracer_leaks"),
    "clear_caches": clear_caches,
    "config": config,
    "enable_x64": switch("jax_enable_x64"),
    "default_backend": default_backend,
    "default_prng_impl": switch("jax_default_prng_impl"),
    "ensure_compile_time_eval": ensure_compile_time_eval,
    "named_call": named_call,
    "numpy_dtype_promotion": switch("jax_numpy_dtype_promotion"),
    "numpy_rank_promotion": switch("jax_numpy_rank_promotion"),
    "pmap": pmap,
    "set_mesh": set_mesh,
    "transfer_guard": transfer_guard,
    "typeof": typeof,
}

CORE: dict[str, Any] = {
    "AbstractValue": AbstractValue,
    "Atom": Any,
    "ClosedJaxpr": ClosedJaxpr,
    "Jaxpr": Jaxpr,
    "JaxprEqn": Eqn,
    "Literal": Literal,
    "ShapedArray": AbstractValue,
    "Tracer": Tracer,
    "Var": Var,
    "concrete_or_error": concrete_or_error,
    "eval_jaxpr": lambda jaxpr, consts, *args: eval_jaxpr(jaxpr, consts, *args),
    "get_aval": get_aval,
    "get_opaque_trace_state": get_opaque_trace_state,
    "jaxpr_as_fun": jaxpr_as_fun,
}

DTYPES: dict[str, Any] = {
    "bfloat16": scalars.SCALARS["bfloat16"],
    "canonicalize_dtype": canonicalize_dtype,
    "extended": volta.dtypes.extended,
    "float0": float0,
    "issubdtype": volta.numpy.issubdtype,
    "prng_key": volta.dtypes.prng_key,
    "result_type": volta.numpy.result_type,
    "scalar_type_of": scalar_type_of,
}

TYPING: dict[str, Any] = {"DTypeLike": Any, "ArrayLike": volta.typing.ArrayLike, "Array": Array}


class AxisType(enum.Enum):
    """How JAX treats an axis of a mesh; here all are Auto."""

    Auto = "auto"
    Explicit = "explicit"
    Manual = "manual"


SHARDING: dict[str, Any] = {
    "AbstractMesh": NoMesh,
    "AxisType": AxisType,
    "Sharding": volta.sharding.NamedSharding,
    "get_abstract_mesh": NoMesh,
}
