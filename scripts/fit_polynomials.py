# ruff: noqa: E501  (one fit, one row)
"""Writes volta/ops/scalar/coefficients.py: near-minimax polynomials by Chebyshev interpolation at high precision."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import mpmath as mp

mp.mp.prec = 500
TARGET = Path(__file__).resolve().parent.parent / "volta/ops/scalar/coefficients.py"


class Fit(NamedTuple):
    name: str
    formula: str  # what the polynomial approximates, for the comment in the file
    function: Callable[[mp.mpf], mp.mpf]
    low: float
    high: float
    terms: int


def removable(function: Callable[[mp.mpf], mp.mpf]) -> Callable[[mp.mpf], mp.mpf]:
    """The function continued over its removable singularity at 0."""
    return lambda x: function(x) if abs(x) > mp.mpf(2) ** -70 else function(mp.mpf(2) ** -70)


def of_square(function: Callable[[mp.mpf], mp.mpf]) -> Callable[[mp.mpf], mp.mpf]:
    return removable(lambda s: function(mp.sqrt(s)))


def erfcx_rational(t: mp.mpf) -> mp.mpf:
    """(1 + 2x) exp(x^2) erfc(x) where t = (x - 4) / (x + 4), which maps x >= 0 to [-1, 1)."""
    if t >= 1:
        return 2 / mp.sqrt(mp.pi)
    x = 4 * (1 + t) / (1 - t)
    return (1 + 2 * x) * (mp.exp(x * x) * mp.erfc(x) if x < 60 else mp.hyperu(0.5, 0.5, x * x) / mp.sqrt(mp.pi))


def erf_inv_central(w: mp.mpf) -> mp.mpf:
    """erf_inv(x) / x where w = -log(1 - x^2)."""
    w = max(w, mp.mpf(2) ** -70)
    x = mp.sqrt(-mp.expm1(-w))
    return mp.erfinv(x) / x


def erf_inv_tail(v: mp.mpf) -> mp.mpf:
    """erf_inv(x) / x where v = sqrt(-log(1 - x^2)), for x so near to 1 that mp.erfinv needs more digits."""
    with mp.workprec(400):
        x = mp.sqrt(-mp.expm1(-v * v))
        return mp.erfinv(x) / x


def cube_root(m: mp.mpf) -> mp.mpf:
    return mp.cbrt(m)


DIGAMMA_ZERO = mp.findroot(mp.digamma, 1.4616321449683623)


def digamma_from_zero(u: mp.mpf) -> mp.mpf:
    """digamma(1.5 + u) / (1.5 + u - zero)."""
    x = mp.mpf("1.5") + u
    return mp.digamma(x) / (x - DIGAMMA_ZERO) if abs(x - DIGAMMA_ZERO) > mp.mpf(2) ** -70 else mp.polygamma(1, x)


def log_gamma_at_two(z: mp.mpf) -> mp.mpf:
    return mp.loggamma(2 + z) / z


LN2_HALF = 0.34665735902799726547 * 1.005
QUARTER = 0.7853981633974483 * 1.005
LOG_S2 = 0.0294373  # (sqrt(2) - 1)^2 / (sqrt(2) + 1)^2
ATAN_S2 = 0.17157288 * 1.005

FITS = [
    Fit("EXP", "(exp(r) - 1 - r) / r^2", removable(lambda r: (mp.exp(r) - 1 - r) / r**2), -LN2_HALF, LN2_HALF, 10),
    Fit("EXP_SHORT", "(exp(r) - 1 - r) / r^2", removable(lambda r: (mp.exp(r) - 1 - r) / r**2), -LN2_HALF, LN2_HALF, 6),
    Fit("LOG", "(2 atanh(s) - 2 s) / s^3 in s^2", of_square(lambda s: 2 * (mp.atanh(s) - s) / s**3), 0, LOG_S2, 7),
    Fit("LOG_SHORT", "(2 atanh(s) - 2 s) / s^3 in s^2", of_square(lambda s: 2 * (mp.atanh(s) - s) / s**3), 0, LOG_S2, 4),
    Fit("SIN", "(sin(r) / r - 1) / r^2 in r^2", of_square(lambda r: (mp.sin(r) / r - 1) / r**2), 0, QUARTER**2, 6),
    Fit("COS", "(cos(r) - 1 + r^2 / 2) / r^4 in r^2", of_square(lambda r: (mp.cos(r) - 1 + r * r / 2) / r**4), 0, QUARTER**2, 6),
    Fit("SIN_SHORT", "(sin(r) / r - 1) / r^2 in r^2", of_square(lambda r: (mp.sin(r) / r - 1) / r**2), 0, 4 * QUARTER**2, 5),
    Fit("COS_SHORT", "(cos(r) - 1 + r^2 / 2) / r^4 in r^2", of_square(lambda r: (mp.cos(r) - 1 + r * r / 2) / r**4), 0, QUARTER**2, 4),
    Fit("ASIN", "(asin(r) / r - 1) / r^2 in r^2", of_square(lambda r: (mp.asin(r) / r - 1) / r**2), 0, 0.25, 14),
    Fit("ASIN_SHORT", "(asin(r) / r - 1) / r^2 in r^2", of_square(lambda r: (mp.asin(r) / r - 1) / r**2), 0, 0.25, 7),
    Fit("ATAN", "(atan(r) / r - 1) / r^2 in r^2", of_square(lambda r: (mp.atan(r) / r - 1) / r**2), 0, ATAN_S2, 12),
    Fit("ATAN_SHORT", "(atan(r) / r - 1) / r^2 in r^2", of_square(lambda r: (mp.atan(r) / r - 1) / r**2), 0, ATAN_S2, 6),
    Fit("SINH", "(sinh(r) / r - 1) / r^2 in r^2", of_square(lambda r: (mp.sinh(r) / r - 1) / r**2), 0, 1, 7),
    Fit("SINH_SHORT", "(sinh(r) / r - 1) / r^2 in r^2", of_square(lambda r: (mp.sinh(r) / r - 1) / r**2), 0, 1, 4),
    Fit("ERF", "erf(r) / r - 1 in r^2", of_square(lambda r: mp.erf(r) / r - 1), 0, 1, 13),
    Fit("ERF_SHORT", "erf(r) / r - 1 in r^2", of_square(lambda r: mp.erf(r) / r - 1), 0, 1, 7),
    Fit("ERFCX", "(1 + 2 x) exp(x^2) erfc(x) in t = (x - 4) / (x + 4)", erfcx_rational, -1, 1, 24),
    Fit("ERFCX_SHORT", "(1 + 2 x) exp(x^2) erfc(x) in t = (x - 4) / (x + 4)", erfcx_rational, -1, 0.6, 12),
    Fit("ERF_INV", "erf_inv(x) / x in w - 3, w = -log(1 - x^2)", lambda u: erf_inv_central(u + 3), -3, 3, 14),
    Fit("ERF_INV_TAIL", "erf_inv(x) / x in v - 4.25, v = sqrt(-log(1 - x^2))", lambda u: erf_inv_tail(u + 4.25), -1.81, 1.85, 14),
    Fit("CBRT", "cbrt(m) in m - 1", lambda u: cube_root(1 + u), -0.2929, 0.4143, 13),
    Fit("LGAMMA", "lgamma(2 + z) / z", removable(log_gamma_at_two), -0.5, 0.5, 19),
    Fit("DIGAMMA", "digamma(x) / (x - 1.4616...) in x - 1.5", digamma_from_zero, -0.5, 0.5, 22),
    Fit("LOG_TAIL", "(2 atanh(s) - 2 s - 2/3 s^3) / s^5 in s^2", of_square(lambda s: (2 * (mp.atanh(s) - s) - 2 * s**3 / 3) / s**5), 0, LOG_S2, 7),
    Fit("TANH32", "(tanh(r) / r - 1) / r^2 in r^2", of_square(lambda r: (mp.tanh(r) / r - 1) / r**2), 0, 0.81, 9),
]  # fmt: skip

HEADER = '''"""Polynomial coefficients, highest power first. Written by scripts/fit_polynomials.py; do not edit."""

# A *_SHORT table serves float32 results that are computed in float64, a *32 table is evaluated in float32.
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="print these fits instead of writing the file")
    only = parser.parse_args().only
    parts = [HEADER]
    for fit in FITS:
        if only and fit.name not in only:
            continue
        coefficients, error = mp.chebyfit(fit.function, [mp.mpf(fit.low), mp.mpf(fit.high)], fit.terms, error=True)
        numbers = "".join(f"    {float(c)!r},\n" for c in coefficients)
        comment = f"# {fit.formula}, on [{fit.low:.6g}, {fit.high:.6g}]: error {mp.nstr(error, 2)}."
        parts.append(f"{comment}\n{fit.name} = (\n{numbers})\n")
        print(comment, flush=True)
    if not only:
        TARGET.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
