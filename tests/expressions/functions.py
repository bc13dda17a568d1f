"""What expressions are made of: functions under Volta's names, what they take, and what NumPy or SciPy has for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import scipy.special

from tests.expressions import families

Params = dict[str, Any]


@attrs.frozen
class Function:
    """A function of arrays.

    ``kinds``: the kinds of dtypes that all operands may have, of "f", "i", "b" and "c". ``numpy`` computes in float64
    (or complex128) on operands of the common dtype, or, where ``own``, in that dtype itself. ``accuracy``: results are
    ``exact`` (rounded once; complex ones some times), ``near`` (within some ULP of themselves) or ``far`` (within some
    ULP of the largest operand).
    A function of a ``family`` is drawn in it alone, and those of complex numbers also in theirs.
    """

    name: str
    kinds: str = "f"
    arity: int = 1
    numpy: Callable[..., Any] | None = None
    accuracy: str = "near"
    smooth: bool = False  # derivatives are compared
    rows: bool = False  # works along the last axis rather than element by element
    own: bool = False
    mixed: bool = False  # operands keep their dtypes
    family: str = "general"
    made: Callable[[Any], Callable[..., Any]] | None = None  # of a package that has no function of this name
    shapes: Callable[..., bool] = lambda *shapes: True  # of the operands, whether it takes them
    most: float = np.inf  # operands are finite and no larger
    params: Callable[[np.random.Generator], Params] = lambda rng: {}

    def __str__(self) -> str:
        return self.name


FUNCTIONS: dict[str, Function] = {}


def _enter(module: str, names: str, kinds: str, accuracy: str, arity: int = 1, **more: Any) -> None:
    for name in names.split():
        given = dict(more)
        if "numpy" not in given and "made" in given:
            given["numpy"] = given["made"](families.NUMPY)
        if "numpy" not in given and module == "numpy":
            given["numpy"] = getattr(np, name)
        if "numpy" not in given and module == "special":
            given["numpy"] = getattr(scipy.special, name)
        if "numpy" not in given and module in ("fft", "linalg"):
            given["numpy"] = getattr(getattr(np, module), name)
        full = f"{module}.{name}"
        FUNCTIONS[full] = Function(full, kinds, arity, accuracy=accuracy, **given)


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of vectors: a single exponent NumPy does not always take as it takes one of many."""
    xs, ys = np.broadcast_arrays(x, y)
    return np.power(xs.ravel(), ys.ravel()).reshape(xs.shape)


def _kl_div(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """SciPy's own overflows where p / q does."""
    inside = (p > 0) & (q > 0)
    return np.where(inside, scipy.special.rel_entr(p, q) - p + q, scipy.special.kl_div(p, q))


def _axis(rng: np.random.Generator) -> Params:
    return {"axis": -1} if rng.random() < 0.5 else {}


# -- one operand -------------------------------------------------------------------------------------------------------

_enter(
    "numpy",
    "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan arcsin arccos arctan",
    "fibc",
    "near",
    smooth=True,
)
_enter("numpy", "sinh cosh tanh arcsinh arccosh arctanh", "fibc", "near", smooth=True)
_enter("numpy", "cbrt deg2rad rad2deg", "fib", "near", smooth=True)
_enter("numpy", "sinc i0", "f", "one", smooth=True)
_enter("numpy", "negative abs square positive", "fic", "exact", smooth=True)
_enter("numpy", "reciprocal", "fc", "exact", smooth=True)
_enter("numpy", "fabs", "f", "exact", smooth=True)
_enter("numpy", "sign floor ceil trunc rint", "fi", "exact", smooth=True)
_enter("numpy", "isnan isinf isfinite", "fc", "exact")
_enter("numpy", "signbit isposinf isneginf", "f", "exact")
_enter("numpy", "logical_not", "fibc", "exact")
_enter("numpy", "invert", "ib", "exact")
_enter("numpy", "bitwise_count", "i", "exact")
_enter("numpy", "spacing", "f", "exact", own=True)
_enter("numpy", "nan_to_num", "f", "exact", own=True)
_enter("lax", "rsqrt", "f", "near", numpy=lambda x: 1.0 / np.sqrt(x), smooth=True)
_enter("lax", "erf_inv", "f", "one", numpy=scipy.special.erfinv, smooth=True)
_enter("lax", "logistic", "f", "near", numpy=scipy.special.expit, smooth=True)
_enter("special", "erf erfc expit gammaln digamma ndtr", "f", "one", smooth=True)
_enter("special", "entr log_expit logit erfinv ndtri", "f", "one", smooth=True)
_enter("nn", "relu", "f", "exact", numpy=lambda x: np.where(x > 0, x, np.where(x == x, 0.0, x)), smooth=True)
_enter("nn", "relu6", "f", "exact", numpy=lambda x: np.clip(x, 0.0, 6.0) + 0.0, smooth=True)
_enter("nn", "sigmoid", "f", "near", numpy=scipy.special.expit, smooth=True)
_enter("nn", "softplus", "f", "near", numpy=lambda x: np.logaddexp(x, 0.0), smooth=True)
_enter("nn", "silu", "f", "one", numpy=lambda x: x * scipy.special.expit(x), smooth=True)
_enter("nn", "log_sigmoid", "f", "near", numpy=lambda x: -np.logaddexp(-x, 0.0), smooth=True)
_enter("nn", "soft_sign", "f", "near", numpy=lambda x: x / (1.0 + np.abs(x)), smooth=True)
_enter("nn", "elu", "f", "near", numpy=lambda x: np.where(x > 0, x, np.expm1(np.where(x > 0, 0, x))), smooth=True)
_enter("nn", "selu celu gelu hard_tanh hard_sigmoid leaky_relu mish squareplus", "f", "one", smooth=True)

_enter("special", "dawsn erfcx exp1 expi gamma loggamma i0e i1 i1e log_ndtr spence", "f", "one")

# -- several operands --------------------------------------------------------------------------------------------------

_enter("numpy", "add multiply", "fibc", "exact", 2, smooth=True)
_enter("numpy", "subtract", "fic", "exact", 2, smooth=True)
_enter("numpy", "divide", "fic", "exact", 2, smooth=True)
_enter("numpy", "floor_divide remainder fmod", "fi", "exact", 2, smooth=True, own=True)
_enter("numpy", "maximum minimum", "fib", "exact", 2, smooth=True)
_enter("numpy", "fmax fmin", "fib", "exact", 2)
_enter("numpy", "equal not_equal", "fibc", "exact", 2, own=True)
_enter("numpy", "less less_equal greater greater_equal", "fib", "exact", 2, own=True)
_enter("numpy", "logical_and logical_or logical_xor", "fib", "exact", 2)
_enter("numpy", "bitwise_and bitwise_or bitwise_xor", "ib", "exact", 2)
_enter("numpy", "gcd lcm", "i", "exact", 2, own=True)
_enter("numpy", "power", "fc", "near", 2, numpy=_power, smooth=True)
_enter("numpy", "arctan2", "f", "near", 2, smooth=True)
_enter("numpy", "hypot", "f", "near", 2, smooth=True)
_enter("numpy", "logaddexp logaddexp2", "f", "far", 2, smooth=True)
_enter("numpy", "copysign heaviside", "f", "exact", 2)
_enter("numpy", "nextafter", "f", "exact", 2, own=True)
_enter("special", "xlogy xlog1py", "f", "far", 2, smooth=True)
_enter("special", "rel_entr", "f", "far", 2, smooth=True)
_enter("special", "kl_div", "f", "far", 2, numpy=_kl_div, smooth=True)
_enter("special", "boxcox boxcox1p", "f", "far", 2)
_enter("special", "gammainc gammaincc owens_t", "f", "one", 2)
_enter("numpy", "float_power", "f", "near", 2, numpy=_power)
_enter("numpy", "clip", "fi", "exact", 3, smooth=True)
_enter("numpy", "where", "fibc", "exact", 3)

# -- along rows --------------------------------------------------------------------------------------------------------

_enter("numpy", "sum prod mean", "fic", "far", params=_axis, smooth=True, rows=True)
_enter("numpy", "var std", "fc", "far", params=_axis, rows=True)
_enter("numpy", "max min", "fib", "exact", params=_axis, smooth=True, rows=True, own=True)
_enter("numpy", "argmax argmin", "fi", "exact", params=_axis, rows=True, own=True)
_enter("numpy", "all any count_nonzero", "fibc", "exact", params=_axis, rows=True, own=True)
_enter("numpy", "ptp", "f", "exact", params=_axis, rows=True, own=True)
_enter("numpy", "sort", "fibc", "exact", rows=True, own=True, smooth=True)
_enter("numpy", "nansum nanmean", "f", "far", params=_axis, rows=True)
_enter("numpy", "nanmax nanmin", "f", "exact", params=_axis, rows=True, own=True)
_enter("numpy", "median", "f", "far", params=_axis, rows=True)
_enter("special", "logsumexp", "f", "far", params=_axis, rows=True, smooth=True)
_enter("special", "softmax log_softmax", "f", "far", params=_axis, rows=True, smooth=True)
_enter(
    "numpy", "percentile", "f", "far", rows=True,
    params=lambda rng: {"q": float(rng.choice([0.0, 10.0, 37.0, 50.0, 99.9, 100.0]))},
)  # fmt: skip
_enter("numpy", "cumsum cumprod", "fic", "far", params=lambda rng: {"axis": -1}, rows=True, smooth=True)
_enter("numpy", "diff", "fic", "exact", rows=True, smooth=True)
_enter("numpy", "trapezoid", "f", "far", rows=True, smooth=True)
_enter("fft", "irfft hfft", "f", "far", params=lambda rng: {"n": int(rng.choice([2, 3, 4, 6]))}, rows=True, smooth=True)
_enter("linalg", "norm", "f", "far", params=_axis, rows=True)

# -- families ----------------------------------------------------------------------------------------------------------

_enter("numpy", "real imag conj angle", "fc", "near", family="complex", smooth=True)

_enter("numpy", "argsort", "fc", "exact", family="complex", rows=True, own=True)


def _matrix(first: tuple[int, ...], *more: tuple[int, ...]) -> bool:
    return first[-2:] == (3, 3) and all(second[-2:] in ((3,), (3, 3)) for second in more)


def _matrices(names: str, made: Callable[[str], Any], arity: int = 1, **more: Any) -> None:
    """Linear algebra of matrices whose condition is good."""
    for name in names.split():
        _enter("linalg", name, "fic", "far", arity, family="matrices", rows=True, smooth=True, shapes=_matrix, most=3.0,
               made=made(name), **more)  # fmt: skip


_matrices("inv det", families.of_regular)
_matrices("solve", families.of_regular, 2)
_matrices("matrix_power", families.of_regular, params=lambda rng: {"n": int(rng.integers(-2, 6))})
_matrices("cholesky eigvalsh", families.of_definite)
_matrices("slogdet", lambda name: families.log_of_det)
_matrices("qr", lambda name: families.triangle_of_qr)


def _norm(rng: np.random.Generator) -> Params:
    return {"norm": str(rng.choice(["backward", "ortho", "forward"]))}


def _length(rng: np.random.Generator) -> Params:
    return _norm(rng) if rng.random() < 0.5 else {"n": int(rng.integers(1, 8))}


def _mode(rng: np.random.Generator) -> Params:
    return {"mode": str(rng.choice(["full", "same", "valid"]))}


def _window(rng: np.random.Generator) -> Params:
    return {"stride": int(rng.integers(1, 3)), "padding": str(rng.choice(["SAME", "VALID"]))}


_signals = {"family": "signals", "rows": True, "smooth": True, "most": 1e3}
_enter("fft", "fft ifft", "fic", "far", params=_length, **_signals)
_enter("fft", "rfft", "fi", "far", params=_length, **_signals)
_enter("fft", "fft2 ifft2", "fic", "far", params=_norm, shapes=lambda x: len(x) >= 2, **_signals)
_enter(
    "numpy", "convolve correlate", "fic", "far", 2, params=_mode, shapes=lambda x, y: len(x) == len(y) == 1, **_signals
)
_enter("lax", "conv", "fi", "far", 2, made=families.conv, numpy=families.conv_by_numpy, params=_window,
       shapes=lambda x, y: len(x) == len(y) == 2 and x[0] == y[0], **_signals)  # fmt: skip


def _wrapped(rng: np.random.Generator) -> Params:
    return {"of": str(rng.choice(["sin", "tanh", "exp", "square", "arctan"]))}


for rule in ("custom_jvp", "custom_vjp"):
    _enter("rules", rule, "f", "far", family="rules", smooth=True, params=_wrapped, most=4.0,
           made=getattr(families, rule), numpy=lambda x, of: getattr(np, of)(x) * x)  # fmt: skip
