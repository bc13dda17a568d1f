"""What NumPy and JAX make of one step of an expression, on the operands that Volta had."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import volta
from tests.expressions.drawing import Step, kind_of
from tests.expressions.functions import FUNCTIONS
from volta.core import dtypes
from volta.core.interp import get_aval

try:
    import jax
    import jax.scipy.special  # noqa: F401  (`jax.scipy` has no modules before they are imported)
except ImportError:
    jax = None  # type: ignore[assignment]

MODULES = {"numpy": "numpy", "lax": "lax", "nn": "nn", "special": "scipy.special"}
MODULES |= {"fft": "numpy.fft", "linalg": "numpy.linalg"}


def function_of(package: Any, step: Step) -> Callable[..., Any]:
    """The function of that name in Volta or in JAX, its params given."""
    module, name = step.function.name.split(".")
    made = step.function.made
    found = made(package) if made else functools.reduce(getattr, [*MODULES[module].split("."), name], package)
    return functools.partial(found, **step.params) if step.params else found


def common_dtype(operands: Sequence[Any]) -> np.dtype:
    """The dtype that operands meet in, Python numbers weakly."""
    return dtypes.promote(*((a.dtype, a.weak_type) for a in map(get_aval, operands)))[0]


def plain(x: Any) -> Any:
    """An operand as NumPy's array, or as the Python number it is."""
    return x if is_number(x) else np.asarray(x)


# -- NumPy -------------------------------------------------------------------------------------------------------------


def by_numpy(step: Step, operands: Sequence[Any], dtype: np.dtype) -> tuple[np.ndarray | None, float]:
    """The result, in float64 where it is a float's, and the size that errors of far results are measured by."""
    function = step.function
    xs = [plain(x) for x in operands]
    if function.numpy is None:
        return None, _size(step, [np.asarray(x) for x in xs], dtype)
    mixed = 1 if function.name == "numpy.where" else 0
    common = common_dtype(operands[mixed:])
    if dtypes.is_float(dtype) and not (dtypes.is_float(common) or function.own):
        common = dtypes.to_float(common)
    with np.errstate(all="ignore"):
        own = [*xs[:mixed], *(np.asarray(x).astype(common) for x in xs[mixed:])]
        if dtypes.is_complex(common) and not function.own:
            own = [*own[:mixed], *(x.astype(np.complex128) for x in own[mixed:])]
        if dtypes.is_float(common):
            wide = np.float32 if function.own and common == ml_dtypes.bfloat16 else np.float64
            wide = common if function.own and function.name in ("numpy.nextafter", "numpy.spacing") else wide
            if not function.own or wide == np.float32:
                own = [*own[:mixed], *(x.astype(wide) for x in own[mixed:])]
        result = np.asarray(function.numpy(*own, **step.params))
        if dtypes.is_integer(result.dtype) and dtypes.is_integer(dtype):
            result = result.astype(dtype)  # sums and products wrap around in the dtype
        kept = {"f": np.float64, "c": np.complex128}.get(kind_of(result.dtype), result.dtype)
        return result.astype(kept), _size(step, own, dtype)


def _size(step: Step, xs: Sequence[np.ndarray], dtype: np.dtype) -> float:
    if step.function.accuracy != "far":
        return float(step.function.accuracy == "one")
    sizes = [np.abs(x).astype(np.float64) for x in xs if x.size]
    finite = [s[np.isfinite(s)] for s in sizes]
    most = max([1.0, *(float(s.max()) for s in finite if s.size)])
    if step.function.name in ("numpy.sum", "numpy.mean", "numpy.nansum", "numpy.nanmean"):
        return max([1.0, *(float(s.sum()) for s in finite)])
    if step.function.family == "signals":
        return max(float(s.sum()) for s in sizes) ** len(xs)
    if step.function.name in ("numpy.var", "numpy.std", "numpy.prod"):
        return most * most
    return most


# -- JAX ---------------------------------------------------------------------------------------------------------------

LENGTH = 8  # of the vectors that JAX's elementwise functions run on, so that few programs are compiled


def is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex))


def needs_wide_jax(operands: Sequence[Any]) -> bool:
    return any(not is_number(x) and x.dtype.itemsize == (16 if dtypes.is_complex(x.dtype) else 8) for x in operands)


def jax_has(step: Step) -> bool:
    try:
        return bool(function_of(jax, step))
    except AttributeError:
        return False


def jax_returns(step: Step, operands: Sequence[Any]) -> bool:
    """JAX's greatest common divisor goes round for ever where an operand is the least integer, as do its exponential
    integrals of vectors with an element next to 0."""
    if step.function.name in ("special.exp1", "special.expi"):
        x = in_common_dtype(step, operands)[0]
        return not np.any((x != 0) & (np.abs(x) < 1e-5))
    if step.function.name not in ("numpy.gcd", "numpy.lcm"):
        return True
    xs = in_common_dtype(step, operands)
    if not needs_wide_jax(operands):
        xs = [x.astype(np.int32) if x.dtype == np.int64 else x for x in xs]  # as JAX does
    return not any(np.any(x == np.iinfo(x.dtype).min) for x in xs if dtypes.is_signed(x.dtype))


def jax_type(step: Step, operands: Sequence[Any]) -> Any:
    """Shape, dtype and weak type of JAX's result."""

    def described(x: Any) -> Any:
        return x if is_number(x) else jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))

    numbers = {i: x for i, x in enumerate(operands) if is_number(x)}
    arrays = [described(x) for x in operands if not is_number(x)]

    def applied(*arrays: Any) -> Any:
        rest = iter(arrays)
        return function_of(jax, step)(*(numbers[i] if i in numbers else next(rest) for i in range(len(operands))))

    with jax.enable_x64(needs_wide_jax(operands)):
        return jax.eval_shape(applied, *arrays)


def in_common_dtype(step: Step, operands: Sequence[Any]) -> list[np.ndarray]:
    mixed = 1 if step.function.name == "numpy.where" else 0
    common = common_dtype(operands[mixed:])
    if step.function.name == "numpy.divide":
        common = dtypes.to_float(common)
    with np.errstate(all="ignore"):
        return [
            np.asarray(plain(x)) if i < mixed else np.asarray(plain(x)).astype(common) for i, x in enumerate(operands)
        ]


def as_vectors(step: Step, xs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], tuple[int, ...]]:
    """Operands of an elementwise function as vectors of one length, and the shape of its result."""
    spread = np.broadcast_arrays(*xs)
    whole = -(-spread[0].size // LENGTH) * LENGTH
    return [np.resize(x, whole) for x in spread], spread[0].shape


def _from_vector(y: Any, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(y)[: int(np.prod(shape))].reshape(shape)


@functools.cache
def _program(function: str, params: tuple[Any, ...]) -> Any:
    return jax.jit(function_of(jax, Step(FUNCTIONS[function], (), dict(params))))


def by_jax(step: Step, operands: Sequence[Any]) -> np.ndarray:
    """JAX's result on the operands in their common dtype; with its 64-bit types where an operand has one."""
    xs = in_common_dtype(step, operands)
    program = _program(step.function.name, tuple(step.params.items()))
    with jax.enable_x64(needs_wide_jax(operands)):
        if step.function.rows or 0 in np.broadcast_shapes(*(x.shape for x in xs)):
            return np.asarray(program(*xs))
        vectors, shape = as_vectors(step, xs)
        return _from_vector(program(*vectors), shape)


# -- derivatives -------------------------------------------------------------------------------------------------------


def differentiable(step: Step, operands: Sequence[Any]) -> list[int]:
    """The operands to differentiate by: all floats have one dtype, no half, and there is an array."""
    if not step.function.smooth:
        return []
    xs = [x for x in operands if not is_number(x)]
    if len({x.dtype for x in xs}) != 1 or xs[0].dtype not in SMOOTH:
        return []
    if any(getattr(x, "weak_type", False) or x.size == 0 for x in xs):
        return []
    return [i for i, x in enumerate(operands) if not is_number(x)]


SMOOTH = (dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128)


def _weighted(vnp: Any, x: Any, seed: int) -> Any:
    """A weighted sum of floats, or of the parts of complex numbers."""
    parts = 2 if dtypes.is_complex(x.dtype) else 1
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, (parts, *x.shape)).astype(np.finfo(x.dtype).dtype)
    if parts == 1:
        return vnp.sum(x * weights[0])
    return vnp.sum(vnp.real(x) * weights[0]) + vnp.sum(vnp.imag(x) * weights[1])


def _derivatives(package: Any, f: Callable[..., Any], by: Sequence[int]) -> Callable[..., Any]:
    """First derivatives of a weighted sum of the result, and second ones: of a weighted sum of the first."""
    vnp = package.numpy

    def both(*operands: Any) -> tuple[Any, Any]:
        def of(*xs: Any) -> Any:
            given = list(operands)
            for i, x in zip(by, xs, strict=True):
                given[i] = x
            return _weighted(vnp, f(*given), 0)

        def along(*xs: Any) -> Any:
            return sum(_weighted(vnp, g, 1 + i) for i, g in enumerate(first(*xs)))

        places = tuple(range(len(by)))
        first = package.grad(of, argnums=places)
        xs = [operands[i] for i in by]
        return first(*xs), package.grad(along, argnums=places)(*xs)

    return both


def volta_derivatives(step: Step, operands: Sequence[Any], by: Sequence[int]) -> Any:
    """Derivatives by the operands (of one shape) that are arrays; the numbers stay Python's."""
    given = [volta.numpy.asarray(x) if i in by else x for i, x in enumerate(operands)]
    return _derivatives(volta, function_of(volta, step), by)(*given)


@functools.cache
def _derived_program(function: str, params: tuple[Any, ...], by: tuple[int, ...]) -> Any:
    return jax.jit(_derivatives(jax, function_of(jax, Step(FUNCTIONS[function], (), dict(params))), by))


def jax_derivatives(step: Step, operands: Sequence[Any], by: Sequence[int], wide: bool) -> Any:
    with jax.enable_x64(wide):
        return _derived_program(step.function.name, tuple(step.params.items()), tuple(by))(*operands)
