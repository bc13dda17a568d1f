"""The differences from NumPy and JAX that are meant, each with its reason. What is not listed fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from tests.expressions.comparing import Finding
from volta.core import dtypes


@attrs.frozen
class Difference:
    """Findings of ``what`` beside ``reference`` (or both) for ``functions`` (empty: all), where ``when`` holds."""

    reason: str
    what: str
    reference: str
    functions: str = ""
    when: Callable[[Finding], Any] = lambda f: True

    def covers(self, f: Finding) -> bool:
        if f.reference not in self.reference.split() or self.what not in f.what:
            return False
        names = self.functions.split()
        return (not names or f.function in names or f.function.split(".")[1] in names) and bool(self.when(f))


def _arrays(f: Finding) -> list[np.ndarray]:
    return [np.asarray(x) for x in (*f.operands, f.got, f.want) if not isinstance(x, (str, np.dtype))]


def _floats(f: Finding) -> list[np.ndarray]:
    """Those among operands and results, of complex numbers the parts."""
    parts = (p for x in _arrays(f) for p in ((x.real, x.imag) if dtypes.is_complex(x.dtype) else (x,)))
    return [x for x in parts if dtypes.is_float(x.dtype)]


def _subnormal(f: Finding) -> bool:
    """A number below the normal ones of its dtype, or hardly above, is among operands or results."""
    tiny = [(x, 4 * float(ml_dtypes.finfo(x.dtype).tiny)) for x in _floats(f)]
    return any(bool(np.any((np.abs(x.astype(np.float64)) < t) & (x != 0))) for x, t in tiny)


def _zeros(f: Finding) -> bool:
    """They differ in the signs of zeros alone."""
    got, want = (np.asarray(x).astype(np.complex128) for x in (f.got, f.want))
    return np.array_equal(got, want, equal_nan=True) and bool(np.any(got == 0))


def _nan_beside(f: Finding) -> bool:
    """JAX has NaN where here is a number or an infinity."""
    got, want = np.asarray(f.got), np.asarray(f.want)
    return bool(np.all(want != want) and not np.any(got != got))


def _infinite(x: np.ndarray) -> bool:
    return bool(np.isinf(x.astype(np.complex128)).any())


def _half(f: Finding) -> bool:
    return np.asarray(f.got).dtype in (dtypes.float16, dtypes.bfloat16)


def _number_too_large(f: Finding) -> bool:
    return str(f.got).startswith("OverflowError") and "does not fit" in str(f.got)


def _rounds_to_infinity(f: Finding) -> bool:
    return bool(np.any(~np.isfinite(np.asarray(f.want, np.float64))))


def _leaves_the_range(f: Finding) -> bool:
    """Sums, squares or partial products are not held by the dtype, though the result may be."""
    x, limits = np.abs(f.operands[0].astype(np.float64)), ml_dtypes.finfo(f.got.dtype)
    with np.errstate(all="ignore"):
        if f.function in ("numpy.prod", "numpy.cumprod"):
            x = x[x > 0]
            return bool(np.maximum(x, 1).prod() >= limits.max or np.minimum(x, 1).prod() < limits.tiny)
        sizes = np.square(x) if f.function in ("numpy.std", "numpy.var") else x
        unfinished = not (np.isfinite(f.got).all() and np.isfinite(f.want).all())  # in one order or the other
        return unfinished and bool(np.nansum(sizes) >= limits.max)


def _infinite_products(f: Finding) -> bool:
    p, q = (x.astype(f.got.dtype) for x in f.operands)
    with np.errstate(all="ignore"):
        return bool(np.isnan(f.want) and np.isinf(p * np.log(p)) and (q == 1 or not np.isnan(p * np.log(q))))


def _bound_is_not_held(f: Finding) -> bool:
    """An integer bound lies outside of the dtype."""
    if not dtypes.is_integer(f.got.dtype):
        return False
    held = np.iinfo(f.got.dtype)
    return any(not held.min <= int(bound) <= held.max for bound in f.operands[1:])


def _nearly(f: Finding) -> bool:
    """In float64, equal but for some thousand units in the last place."""
    return bool(f.got.dtype == np.float64 and abs(f.got - f.want) <= 2.0**-40 * abs(f.want))


def _on_a_cut(f: Finding) -> bool:
    """A part of the operand is zero, and the results differ in the signs of parts."""
    z, parts = np.asarray(f.operands[0]), [(np.abs(np.real(x)), np.abs(np.imag(x))) for x in (f.got, f.want)]
    return dtypes.is_complex(z.dtype) and (z.real == 0 or z.imag == 0) and np.allclose(*parts, rtol=1e-5, atol=1e-6)


_CUT = "sqrt log log2 log10 log1p arcsin arccos arctan arcsinh arccosh arctanh angle power"
_COMPARISONS = "equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor"
_COMPARISONS += " logical_not isnan isinf isfinite signbit isposinf isneginf all any"

DECLARED: tuple[Difference, ...] = (
    Difference("at poles and ends of its domain JAX has NaN, where SciPy has a value", "value", "jax",
               "special.loggamma special.expi special.gamma special.exp1 special.spence special.owens_t "
               "special.gammainc special.gammaincc", _nan_beside),
    Difference("JAX's is good to the digits of float32, also in float64", "value", "jax", "special.owens_t",
               lambda f: f.got.dtype == np.float64 and abs(f.got - f.want) <= 1e-7 * abs(f.want)),
    Difference("sinc of infinity is NaN, as in NumPy", "value", "jax", "sinc", lambda f: np.isinf(f.operands[0])),
    Difference("JAX's are good to some digits less in float64", "value", "jax", "special.log_ndtr special.gammainc "
               "special.gammaincc",
               lambda f: f.got.dtype == np.float64 and abs(f.got - f.want) <= 2e-11 * abs(f.want)),
    Difference("JAX's of large orders is good to three digits in float32", "value", "jax", "special.gammainc "
               "special.gammaincc",
               lambda f: f.got.dtype != np.float64 and min(f.operands) > 100 and abs(f.got - f.want) <= 2e-3),
    Difference("the slope at the pole at -0 is that of the side of the sign", "derivative", "jax", "gammaln",
               lambda f: f.operands[0] == 0),
    Difference("0 to a complex power with a positive real part is 0, as in NumPy; JAX has NaN", "value", "jax", "power",
               lambda f: f.operands[0] == 0 and np.iscomplexobj(f.got) and f.got == 0),
    Difference("the quantile at the end of a row is its end; JAX computes inf - inf", "value", "jax", "percentile",
               lambda f: bool(np.isnan(f.want).any() and np.isinf(f.operands[0]).any())),
    Difference("JAX takes half of the ends away from the sum: inf - inf where they are infinite", "value", "jax",
               "trapezoid", lambda f: _infinite(f.operands[0]) and np.isnan(f.want).any()),
    Difference("what a transform makes of infinities depends on each one's order", "value", "numpy jax",
               "fft ifft rfft irfft hfft ihfft fft2 ifft2", lambda f: not np.isfinite(f.operands[0]).all()),
    Difference("the slope of |x| at NaN is NaN; JAX takes a side", "derivative", "jax", "abs fabs",
               lambda f: np.isnan(f.operands[0]) and np.isnan(f.got)),
    Difference("JAX does not take float16 and bfloat16", "taken", "jax", "special.log_ndtr special.spence", _half),
    Difference("JAX gives float32", "dtype", "jax", "special.owens_t",
               lambda f: f.got in (dtypes.float16, dtypes.bfloat16)),
    Difference("JAX takes subnormal numbers for zeros on CPUs, here they are kept", "value", "jax", when=_subnormal),
    Difference("JAX takes subnormal numbers for zeros in derivatives, too", "derivative", "jax", when=_subnormal),
    Difference("a zero quotient or remainder has the array API's sign, which JAX does not give", "value", "jax",
               "floor_divide remainder", _zeros),
    Difference("integers divided by 0 give 0 as in NumPy; JAX gives -1 or -2", "value", "jax", "floor_divide",
               lambda f: f.operands[1] == 0),
    Difference("booleans are never weak, as weakness means nothing for them", "weak type", "jax", _COMPARISONS),
    Difference("JAX forgets that the operand was weak", "weak type", "jax",
               "log_softmax softmax ptp logsumexp ndtr ndtri rint hypot sum gelu log2 log10 logaddexp2 deg2rad rad2deg "
               "gamma sinh cosh tan spacing max min nanmax nanmin nansum heaviside kl_div rel_entr sinc logit dawsn "
               "erfcx exp1 expi log_ndtr spence cumprod",
               lambda f: f.got and not f.want),
    Difference("whether booleans are weak means nothing, so it is not looked after", "weak type", "jax",
               "maximum minimum fmax fmin max min sort where bitwise_and bitwise_or bitwise_xor invert",
               lambda f: all(np.asarray(x).dtype == dtypes.bool_ for x in f.operands)),
    Difference("a Python int that the dtype does not hold is an error here; JAX wraps it around", "error", "jax",
               when=_number_too_large),
    Difference("i0 computes in float32 only, and says so", "error", "jax", "i0", lambda f: "float32 only" in f.got),
    Difference("spacing is the distance to the next float away from 0, with the operand's sign, also of float16 and -0",
               "value", "numpy jax", "spacing", lambda f: np.signbit(f.operands[0])),
    Difference("+0 is above -0", "value", "numpy jax", "maximum minimum fmax fmin max min clip nanmax nanmin",
               _zeros),
    Difference("sorts are stable, and zeros are equal: they keep their order, which NumPy's do not", "value", "numpy",
               "sort", _zeros),
    Difference("x ** 0.5 is the square root where 0.5 is a Python number", "value", "numpy jax", "power",
               lambda f: f.operands[1] == 0.5 and f.operands[0] in (-np.inf, 0.0)),
    Difference("pi * x is infinite where x is next to that, as in JAX", "value", "numpy", "sinc",
               lambda f: abs(f.operands[0]) > ml_dtypes.finfo(f.operands[0].dtype).max / 4),
    Difference("half floats are computed in float32 and overflow later than JAX's", "value", "jax",
               "std var i0 boxcox", lambda f: _half(f) and _rounds_to_infinity(f)),
    Difference("JAX does not take half floats", "taken", "jax", "gammaln digamma ndtr ndtri kl_div rel_entr entr logit",
               _half),
    Difference("the slope of |x| at 0 is the mean of both sides'", "derivative", "jax", "abs fabs",
               lambda f: f.operands[0] == 0),
    Difference("relative entropy is NaN of a NaN and infinite of a negative number, as in SciPy; in JAX the other way",
               "value", "jax", "kl_div rel_entr", lambda f: np.isnan(f.operands).any() or min(f.operands) < 0),
    Difference("JAX subtracts p log q from p log p, each of which may be infinite", "value", "jax", "kl_div rel_entr",
               _infinite_products),
    Difference("where a function is NaN its derivative is, too; JAX's formula gives a number", "derivative", "jax",
               "arccosh", lambda f: np.isnan(f.got) and f.operands[0] < 1),
    Difference("relative entropy of a NaN has the slope NaN; JAX's is that of -p + q", "derivative", "jax",
               "kl_div rel_entr", lambda f: np.isnan(f.got) and np.isnan(f.operands).any()),
    Difference("at -infinity, beyond all poles, digamma has no value and so no slope; JAX's is infinite", "derivative",
               "jax", "digamma", lambda f: f.operands[0] == -np.inf and np.isnan(f.got)),
    Difference("a Python number is true or false before it is rounded to the other operand's dtype", "value",
               "numpy jax", "logical_and logical_or logical_xor",
               lambda f: any(0 < abs(float(x)) < 1e-40 for x in f.operands)),
    Difference("rows with an infinity are NaN, as in JAX", "value", "numpy", "softmax log_softmax",
               lambda f: np.isposinf(f.operands[0].astype(np.float64)).any()),
    Difference("the sign of a zero is 0, as in NumPy; JAX keeps its sign", "value", "jax", "sign", _zeros),
    Difference("64-bit integers are there without a switch", "dtype", "jax",
               when=lambda f: f.got == np.int64 and f.want == np.int32),
    Difference("the slope of the quantile at 0 and 1 is infinite; JAX has 0", "derivative", "jax", "ndtri",
               lambda f: f.operands[0] in (0.0, 1.0) and np.isinf(f.got)),
    Difference("a limit where JAX's formula gives NaN", "derivative", "jax", when=_nan_beside),
    Difference("the pole of digamma at 0 is infinite, as in SciPy", "value", "jax", "digamma",
               lambda f: f.operands[0] == 0),
    Difference("relative entropy is infinite, and so constant, where an operand is not allowed", "derivative", "jax",
               "kl_div rel_entr", lambda f: f.operands[0] < 0 or f.operands[1] <= 0),
    Difference("lgamma(-inf) is infinite as in C, as are its poles", "value", "numpy", "gammaln",
               lambda f: f.operands[0] == -np.inf),
    Difference("a row with NaN has no winner, so the derivative is NaN; JAX has 0", "derivative", "jax", "max min",
               lambda f: np.isnan(f.operands[0].astype(np.float64)).any()),
    Difference("where |x| = |y| JAX differentiates a maximum: its second derivatives are 0, its slope at 0 is 1/2",
               "derivative", "jax", "hypot", lambda f: abs(f.operands[0]) == abs(f.operands[1])),
    Difference("the second derivative at 0 is that of the left side, 1 over alpha; JAX takes half of it twice",
               "second derivative", "jax", "celu", lambda f: f.operands[0] == 0),
    Difference("the second derivative at 0 is 1/2; JAX, by way of |x|, has 0", "second derivative", "jax", "i0",
               lambda f: f.operands[0] == 0),
    Difference("beside an infinite operand the other counts for nothing; JAX's slope is the exponential of it",
               "derivative", "jax", "logaddexp logaddexp2", lambda f: np.inf in f.operands),
    Difference("between infinity and a number, and at the ends, NumPy computes inf - inf", "value", "numpy",
               "percentile", lambda f: np.isnan(f.want) & ~np.isnan(f.got) & np.isinf(f.operands[0]).any()),
    Difference("what is summed and multiplied can leave the range on the way, in each one's order", "value",
               "numpy jax", "sum mean nansum nanmean prod cumprod std var irfft hfft", _leaves_the_range),
    Difference("of an order next to 0 the whole integral lies below; SciPy has 0 of subnormal orders", "value",
               "numpy", "special.gammainc special.gammaincc",
               lambda f: 0 < f.operands[0] < np.finfo(np.float64).tiny and abs(f.got + f.want - 1) < 1e-15),
    Difference("a bound that the dtype does not hold bounds nothing; NumPy and JAX wrap it around", "value",
               "numpy jax", "clip", _bound_is_not_held),
    Difference("JAX's are good to some digits less in float64", "value", "jax", "exp2 cosh sinh arctanh", _nearly),
    Difference("lgamma of subnormal numbers is -log|x|; SciPy has infinity", "value", "numpy",
               "gammaln loggamma",
               lambda f: 0 < abs(f.operands[0]) < np.finfo(np.float64).tiny and np.isposinf(f.want)),
    Difference("linear algebra refuses half floats; JAX does so later, where it compiles", "error", "jax",
               "solve inv det cholesky eigvalsh qr matrix_power slogdet",
               lambda f: "DTypeError" in f.got and _half(attrs.evolve(f, got=f.operands[0]))),
    Difference("JAX's transform of real numbers does not take half floats", "taken", "jax", "rfft",
               lambda f: _half(attrs.evolve(f, got=f.operands[0]))),
    Difference("on a cut of a complex function the sign of a zero says which side, as in C and NumPy", "value", "jax",
               _CUT, _on_a_cut),
    Difference("so it does for derivatives", "derivative", "jax", _CUT, _on_a_cut),
    Difference("JAX's slope of arccosh has the wrong sign left of the imaginary axis", "derivative", "jax", "arccosh",
               lambda f: np.iscomplexobj(f.operands[0]) and f.operands[0].real < 0),
    Difference("a complex number is true where a part is; JAX looks at the real part", "value", "jax", "all any",
               lambda f: np.iscomplexobj(f.operands[0])),
    Difference("of infinite order they are 0 and 1, and NaN of two infinities, as in SciPy", "value", "jax",
               "gammainc gammaincc", lambda f: f.operands[0] == np.inf),
    Difference("spence has the limit -infinity, where SciPy has NaN", "value", "numpy", "spence",
               lambda f: f.operands[0] == np.inf),
    Difference("a power next to 0 is as far from 1 as it is; SciPy takes the logarithm", "value", "numpy",
               "boxcox boxcox1p", lambda f: np.isinf(f.want) and f.got * f.operands[1] == -1),
    Difference("the sign of a NaN counts as positive", "value", "numpy jax", "signbit copysign",
               lambda f: np.isnan(f.operands[-1])),
)  # fmt: skip


def declared(f: Finding) -> Difference | None:
    return next((d for d in DECLARED if d.covers(f)), None)
