"""Elementwise functions, each with its exact meaning, for tests of derivatives at special points.

A row has Volta's function, the same in mpmath, and points of its own beside the common ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import mpmath as mp

import volta.nn as nn
import volta.numpy as vnp
import volta.scipy.special as special
from volta import lax

COMMON = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e-3, -1e-3, 1e-6, -1e-6, 20.0, -20.0, 100.0, -100.0)
APART = (1e-9, 1e30)  # their quotients are not held by float32
PAIRS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0)


SAME = "the same name"


@attrs.frozen
class Row:
    """``volta`` of one operand or two; ``exact`` takes mpmath's numbers."""

    name: str
    volta: Callable[..., Any]
    exact: Callable[..., Any]
    points: tuple[float, ...] = ()
    arity: int = 1
    jax: str = ""  # JAX's name of it, if it is to be compared
    only: tuple[float, ...] = ()  # these points instead of the common ones
    dtypes: tuple[str, ...] = ("float32", "float64")
    most: tuple[int, ...] = (3, 3)  # how often it can be differentiated by each operand

    def __str__(self) -> str:
        return self.name

    @property
    def name_in_jax(self) -> str:
        if self.jax is not SAME:
            return self.jax
        return self.name.replace("special", "scipy.special") if "." in self.name else f"lax.{self.name}"


def real(f: Callable[..., Any], inside: Callable[..., bool]) -> Callable[..., Any]:
    """``f`` where it is real; NaN elsewhere."""
    return lambda *x: f(*x) if inside(*x) else mp.nan


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _softplus(x: Any) -> Any:
    return mp.log(1 + mp.exp(x))


def _elu(x: Any) -> Any:
    return x if x > 0 else mp.expm1(x)


def _clip(x: Any, low: Any, high: Any) -> Any:
    return min(max(x, low), high)


def _ndtr(x: Any) -> Any:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def _xlogx(x: Any) -> Any:
    return x * mp.log(x)


def _gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf(0.044715) * x**3)))


def _frexp(x: Any) -> Any:
    return mp.frexp(x)[0]


def _cube_turned(x: Any, y: Any) -> Any:
    """The imaginary part of (x + iy)³: a real function in which both parts count, and not alike."""
    z = lax.complex(x, y)
    return lax.imag(lax.mul(z, lax.mul(z, z)))


def _positive(x: Any, *_: Any) -> bool:
    return bool(x > 0)


def _positive_y(x: Any, y: Any) -> bool:
    return bool(y > 0)


def _divides(x: Any, y: Any) -> bool:
    return bool(abs(y) > 1e-10)


def _sparse_plus(x: Any) -> Any:
    return mp.mpf(0) if x < -1 else x if x > 1 else (x + 1) ** 2 / 4


def _relative_entropy(x: Any, y: Any) -> Any:
    return x * mp.log(x / y) if x > 0 and y > 0 else mp.nan


def _xlog1py(x: Any, y: Any) -> Any:
    return x * mp.log(1 + y) if y > -1 else mp.nan


def _ndtri(x: Any) -> Any:
    return mp.sqrt(2) * mp.erfinv(2 * x - 1) if 0 < x < 1 else mp.nan


def _log1mexp(x: Any) -> Any:
    return mp.log(-mp.expm1(-x)) if x > 0 else mp.nan


def _boxcox(x: Any, power: Any) -> Any:
    return (x**power - 1) / power if x > 0 else mp.nan


def _owens_t(h: Any, a: Any) -> Any:
    """By the powers of a, whose factors vanish as an exponential series does; their differences from 1 cancel."""
    least = +mp.eps
    with mp.workprec(2 * mp.mp.prec + 600):
        half = h * h / 2
        term = partial = mp.exp(-half)
        total, power, change, j = mp.atan(a), a, mp.inf, 0
        while abs(change) > least * abs(total) or j < half * a * a:
            change = power * (1 - partial) / (2 * j + 1)
            total -= change
            j += 1
            term *= half / j
            partial += term
            power *= -a * a
        return total / (2 * mp.pi)


def _share(a: Any, x: Any) -> Any:
    return mp.gammainc(a, 0, x, regularized=True) if a > 0 and x > 0 else mp.nan


SELU = (mp.mpf(1.6732632423543772848170429916717), mp.mpf(1.0507009873554804934193349852946))

PRIMITIVES = (
    Row("neg", lax.neg, lambda x: -x, jax=SAME),
    Row("abs", lax.abs, abs, jax=SAME),
    Row("sign", lax.sign, mp.sign, jax=SAME),
    Row("copy", lax.copy, lambda x: x),
    Row("exp", lax.exp, mp.exp, jax=SAME),
    Row("exp2", lax.exp2, lambda x: mp.mpf(2) ** x, jax=SAME),
    Row("expm1", lax.expm1, mp.expm1, jax=SAME),
    Row("log", lax.log, real(mp.log, _positive), jax=SAME),
    Row("log2", lax.log2, real(lambda x: mp.log(x, 2), _positive), jax="numpy.log2"),
    Row("log10", lax.log10, real(mp.log10, _positive), jax="numpy.log10"),
    Row("log1p", lax.log1p, real(lambda x: mp.log(1 + x), lambda x: x > -1), jax=SAME),
    Row("logistic", lax.logistic, _sigmoid, jax=SAME),
    Row("sqrt", lax.sqrt, real(mp.sqrt, _positive), jax=SAME),
    Row("rsqrt", lax.rsqrt, real(lambda x: 1 / mp.sqrt(x), _positive), jax=SAME),
    Row("cbrt", lax.cbrt, lambda x: mp.sign(x) * mp.cbrt(abs(x)), (8.0, -8.0), jax=SAME),
    Row("sin", lax.sin, mp.sin, jax=SAME),
    Row("cos", lax.cos, mp.cos, jax=SAME),
    Row("tan", lax.tan, mp.tan, jax=SAME),
    Row("asin", lax.asin, real(mp.asin, lambda x: abs(x) < 1), jax=SAME),
    Row("acos", lax.acos, real(mp.acos, lambda x: abs(x) < 1), jax=SAME),
    Row("atan", lax.atan, mp.atan, jax=SAME),
    Row("sinh", lax.sinh, mp.sinh, jax=SAME),
    Row("cosh", lax.cosh, mp.cosh, jax=SAME),
    Row("tanh", lax.tanh, mp.tanh, jax=SAME),
    Row("asinh", lax.asinh, mp.asinh, jax=SAME),
    Row("acosh", lax.acosh, real(mp.acosh, lambda x: x > 1), jax=SAME),
    Row("atanh", lax.atanh, real(mp.atanh, lambda x: abs(x) < 1), jax=SAME),
    Row("erf", lax.erf, mp.erf, jax=SAME),
    Row("erfc", lax.erfc, mp.erfc, jax=SAME),
    Row("erf_inv", lax.erf_inv, real(mp.erfinv, lambda x: abs(x) < 1), jax=SAME),
    Row("digamma", lax.digamma, mp.digamma, (1.5, -0.25, -7.5), jax=SAME),
    Row("lgamma", lax.lgamma, lambda x: mp.re(mp.loggamma(x)), (1.5, -0.25, -7.5), jax=SAME),
    Row("integer_pow 3", lambda x: lax.integer_pow(x, 3), lambda x: x**3),
    Row("integer_pow 2", lambda x: lax.integer_pow(x, 2), lambda x: x**2),
    Row("integer_pow 0", lambda x: lax.integer_pow(x, 0), lambda x: x**0),
    Row("integer_pow -1", lambda x: lax.integer_pow(x, -1), lambda x: 1 / x),
    Row("integer_pow -2", lambda x: lax.integer_pow(x, -2), lambda x: x**-2),
    Row("pow_int 3", lambda x: lax.pow_int(x, 3), lambda x: x**3),
    Row("pow_int 1", lambda x: lax.pow_int(x, 1), lambda x: x),
    Row("pow_int 0", lambda x: lax.pow_int(x, 0), lambda x: x**0),
    Row("pow_int -1", lambda x: lax.pow_int(x, -1), lambda x: 1 / x),
    Row("clamp", lambda x: lax.clamp(-1.0, x, 2.0), lambda x: _clip(x, -1, 2), jax="clamp"),
    Row("fma", lambda x, y: lax.fma(x, y, x), lambda x, y: x * y + x, arity=2),
    Row("complex", _cube_turned, lambda x, y: 3 * x * x * y - y**3, arity=2),
    Row("add", lax.add, lambda x, y: x + y, arity=2, jax=SAME),
    Row("sub", lax.sub, lambda x, y: x - y, arity=2, jax=SAME),
    Row("mul", lax.mul, lambda x, y: x * y, arity=2, jax=SAME),
    Row("div", lax.div, lambda x, y: x / y, arity=2, jax=SAME),
    Row("rem", lax.rem, real(lambda x, y: x - y * mp.mpf(int(x / y)), _divides), arity=2, jax=SAME),
    Row("max", lax.max, max, arity=2, jax=SAME),
    Row("min", lax.min, min, arity=2, jax=SAME),
    Row("nextafter", lax.nextafter, lambda x, y: x, arity=2),
    Row("pow", lax.pow, real(lambda x, y: x**y, _positive), arity=2, jax=SAME),
    Row("atan2", lax.atan2, mp.atan2, arity=2, jax=SAME),
    Row("select_n", lambda x, y: lax.select_n(lax.lt(x, y), x, y), max, arity=2),
    Row("convert_element_type", lambda x: lax.convert_element_type(x, "float64"), lambda x: x),
)  # fmt: skip

COMPOSITES = (
    Row("numpy.hypot", vnp.hypot, lambda x, y: mp.sqrt(x * x + y * y), arity=2, jax=SAME),
    Row("numpy.logaddexp", vnp.logaddexp, lambda x, y: mp.log(mp.exp(x) + mp.exp(y)), arity=2, jax=SAME),
    Row("numpy.logaddexp2", vnp.logaddexp2, lambda x, y: mp.log(mp.mpf(2)**x + mp.mpf(2)**y, 2), arity=2, jax=SAME),
    Row("numpy.sinc", vnp.sinc, mp.sincpi, (0.6, 1.1, 1e-30), jax=SAME),
    Row("numpy.i0", vnp.i0, lambda x: mp.besseli(0, x), (8.0, 15.9, 16.1, -8.0), jax=SAME, dtypes=("float32",)),
    Row("numpy.frexp", lambda x: vnp.frexp(x)[0], _frexp, (0.3, 6.0), jax="frexp"),
    Row("numpy.modf", lambda x: vnp.modf(x)[0], lambda x: x - mp.mpf(int(x)), (0.3,)),
    Row("numpy.ldexp", lambda x: vnp.ldexp(x, 3), lambda x: x * 8),
    Row("numpy.copysign", vnp.copysign, lambda x, y: abs(x) if y > 0 else -abs(x), arity=2, jax=SAME),
    Row("numpy.power", vnp.power, real(lambda x, y: x**y, _positive), arity=2, jax=SAME),
    Row("numpy.power 0.5", lambda x: vnp.power(x, 0.5), real(mp.sqrt, _positive)),
    Row("numpy.power 2.0", lambda x: vnp.power(x, 2.0), lambda x: x * x),
    Row("numpy.power 1.0", lambda x: vnp.power(x, 1.0), lambda x: x),
    Row("numpy.power 0.0", lambda x: vnp.power(x, 0.0), lambda x: x * 0 + 1),
    Row("numpy.power 1.5", lambda x: vnp.power(x, 1.5), real(lambda x: x ** mp.mpf(1.5), _positive)),
    Row("numpy.fmod", vnp.fmod, real(lambda x, y: x - y * mp.mpf(int(x / y)), _divides), arity=2, jax=SAME),
    Row("numpy.remainder", vnp.remainder, real(lambda x, y: x - y * mp.floor(x / y), _divides), arity=2, jax=SAME),
    Row("numpy.fmax", vnp.fmax, max, arity=2, jax=SAME),
    Row("numpy.fmin", vnp.fmin, min, arity=2, jax=SAME),
    Row("numpy.clip", lambda x: vnp.clip(x, -1, 2), lambda x: _clip(x, -1, 2), jax="clip"),
    Row("numpy.heaviside", vnp.heaviside, lambda x, y: mp.mpf(x > 0), arity=2, jax=SAME),
    Row("numpy.square", vnp.square, lambda x: x * x),
    Row("numpy.reciprocal", vnp.reciprocal, lambda x: 1 / x),
    Row("numpy.spacing", vnp.spacing, lambda x: x * 0),
    Row("numpy.angle", vnp.angle, lambda x: mp.mpf(0) if x > 0 else +mp.pi),
    Row("numpy.nan_to_num", vnp.nan_to_num, lambda x: x),
    Row("numpy.deg2rad", vnp.deg2rad, lambda x: x * mp.pi / 180, jax=SAME),
    Row("numpy.rad2deg", vnp.rad2deg, lambda x: x * 180 / mp.pi, jax=SAME),
    Row("nn.relu", nn.relu, lambda x: max(x, 0), jax=SAME),
    Row("nn.relu6", nn.relu6, lambda x: _clip(x, 0, 6), (6.0,), jax=SAME),
    Row("nn.elu", nn.elu, _elu, jax=SAME),
    Row("nn.celu", lambda x: nn.celu(x, 2.0), lambda x: x if x > 0 else 2 * mp.expm1(x / 2), jax="celu"),
    Row("nn.selu", nn.selu, lambda x: SELU[1] * (x if x > 0 else SELU[0] * mp.expm1(x)), jax=SAME),
    Row("nn.leaky_relu", nn.leaky_relu, lambda x: x if x > 0 else mp.mpf(0.01) * x, jax=SAME),
    Row("nn.gelu", nn.gelu, _gelu_tanh, jax=SAME),
    Row("nn.gelu exact", lambda x: nn.gelu(x, False), lambda x: x * _ndtr(x)),
    Row("nn.silu", nn.silu, lambda x: x * _sigmoid(x), jax=SAME),
    Row("nn.swiglu", nn.swiglu, lambda x, y: x * _sigmoid(x) * y, arity=2),
    Row("nn.mish", nn.mish, lambda x: x * mp.tanh(_softplus(x)), jax=SAME),
    Row("nn.softplus", nn.softplus, _softplus, jax=SAME),
    Row("nn.log_sigmoid", nn.log_sigmoid, lambda x: -_softplus(-x), jax=SAME),
    Row("nn.soft_sign", nn.soft_sign, lambda x: x / (1 + abs(x)), jax=SAME),
    Row("nn.squareplus", nn.squareplus, lambda x: (x + mp.sqrt(x * x + 4)) / 2, jax=SAME),
    Row("nn.hard_tanh", nn.hard_tanh, lambda x: _clip(x, -1, 1), jax=SAME),
    Row("nn.hard_sigmoid", nn.hard_sigmoid, lambda x: _clip(x + 3, 0, 6) / 6, jax=SAME),
    Row("nn.hard_silu", nn.hard_silu, lambda x: x * _clip(x + 3, 0, 6) / 6, jax=SAME),
    Row("nn.sparse_plus", nn.sparse_plus, _sparse_plus, jax=SAME),
    Row("nn.sparse_sigmoid", nn.sparse_sigmoid, lambda x: _clip(x + 1, 0, 2) / 2, jax=SAME),
    Row("nn.log1mexp", nn.log1mexp, _log1mexp, (0.6931472, 0.7), jax=SAME),
    Row("nn.sigmoid_binary_cross_entropy", nn.sigmoid_binary_cross_entropy, lambda x, y: _softplus(x) - x * y, arity=2),
    Row("nn.l2_loss", nn.l2_loss, lambda x, y: (x - y)**2 / 2, arity=2),
    Row("nn.squared_error", nn.squared_error, lambda x, y: (x - y)**2, arity=2),
    Row("special.xlogy", special.xlogy, real(lambda x, y: x * mp.log(y), _positive_y), arity=2, jax=SAME),
    Row("special.xlog1py", special.xlog1py, _xlog1py, arity=2, jax=SAME),
    Row("special.entr", special.entr, real(lambda x: -_xlogx(x), _positive), jax=SAME),
    Row("special.rel_entr", special.rel_entr, _relative_entropy, APART, arity=2, jax=SAME),
    Row("special.kl_div", special.kl_div, lambda x, y: _relative_entropy(x, y) - x + y, APART, arity=2, jax=SAME),
    Row("special.logit", special.logit, real(lambda x: mp.log(x / (1 - x)), lambda x: 0 < x < 1), jax=SAME),
    Row("special.log_expit", special.log_expit, lambda x: -_softplus(-x)),
    Row("special.ndtr", special.ndtr, _ndtr, jax=SAME),
    Row("special.ndtri", special.ndtri, _ndtri, only=(0.5, 0.0, 1.0, 0.25, 0.75, 0.01, 1e-4), jax=SAME),
    Row("special.dawsn", special.dawsn, lambda x: mp.sqrt(mp.pi) / 2 * mp.exp(-x * x) * mp.erfi(x)),
    Row("special.erfcx", special.erfcx, lambda x: mp.exp(x * x) * mp.erfc(x)),
    Row("special.log_ndtr", special.log_ndtr, lambda x: mp.log(_ndtr(x)), jax=SAME),
    Row("special.exp1", special.exp1, real(mp.e1, _positive)),
    Row("special.expi", special.expi, mp.ei),
    Row("special.spence", special.spence, real(lambda x: mp.re(mp.polylog(2, 1 - x)), _positive)),
    Row("special.gamma", special.gamma, mp.gamma, (1.5, -0.25, -7.5)),
    Row("special.loggamma", special.loggamma, real(mp.loggamma, _positive), (1.5, 8.0)),
    Row("special.factorial", special.factorial, real(mp.factorial, _positive), (1.5, 8.0)),
    Row("special.i0e", special.i0e, lambda x: mp.besseli(0, x) * mp.exp(-abs(x)), (8.0, -8.0)),
    Row("special.i1", special.i1, lambda x: mp.besseli(1, x), (8.0, -8.0)),
    Row("special.i1e", special.i1e, lambda x: mp.besseli(1, x) * mp.exp(-abs(x)), (8.0, -8.0)),
    Row("special.boxcox", special.boxcox, _boxcox, arity=2),
    Row("special.boxcox1p", special.boxcox1p, lambda x, y: _boxcox(1 + x, y), arity=2),
    Row("special.beta", special.beta, mp.beta, arity=2),
    Row("special.betaln", special.betaln, lambda x, y: mp.log(abs(mp.beta(x, y))), arity=2),
    Row("special.poch", special.poch, mp.rf, arity=2),
    Row("special.owens_t", special.owens_t, _owens_t, only=(0.0, 1.0, -0.5, 2.0), arity=2),
    Row("special.gammainc", special.gammainc, _share, (20.0,), arity=2, most=(1, 3)),
    Row("special.gammaincc", special.gammaincc, lambda a, x: 1 - _share(a, x), (20.0,), arity=2, most=(1, 3)),
)  # fmt: skip
