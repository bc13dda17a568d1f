# ruff: noqa: E501  (one series, one row)
"""Chebyshev series of special functions, from which ``volta/scipy/series_tables.py`` is made.

    python scripts/fit_special.py

Needs mpmath. Each row is a function that is smooth on an interval, in a variable of its own: what the special function
is divided by, and how its argument becomes that variable, stands where the series is used (``volta/scipy/series.py``
and its readers). Coefficients below 2^-56 of the largest are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mpmath as mp

mp.mp.dps = 40
HERE = Path(__file__).resolve().parent.parent
TABLES = HERE / "volta" / "scipy" / "series_tables.py"


def _at_zero(f: Callable[[mp.mpf], mp.mpf], limit: mp.mpf) -> Callable[[mp.mpf], mp.mpf]:
    return lambda x: limit if x == 0 else f(x)


def _sine_of(part: str, scale: Callable[[mp.mpf], mp.mpf]) -> Callable[[mp.mpf], mp.mpf]:
    """The auxiliary functions of the sine and cosine integrals, of u = 1 / x^2."""

    def value(u: mp.mpf) -> mp.mpf:
        if u == 0:
            return mp.mpf(1)
        x = 1 / mp.sqrt(u)
        ci, si = mp.ci(x), mp.si(x) - mp.pi / 2
        f, g = ci * mp.sin(x) - si * mp.cos(x), -ci * mp.cos(x) - si * mp.sin(x)
        return scale(x) * (f if part == "f" else g)

    return value


def _fresnel_of(part: str) -> Callable[[mp.mpf], mp.mpf]:
    """The auxiliary functions of Fresnel's integrals, of u = 1 / t^2 with t = pi x^2."""

    def value(u: mp.mpf) -> mp.mpf:
        if u == 0:
            return mp.mpf(1)
        t = 1 / mp.sqrt(u)
        x = mp.sqrt(t / mp.pi)
        s, c = mp.mpf("0.5") - mp.fresnels(x), mp.mpf("0.5") - mp.fresnelc(x)
        sin, cos = mp.sin(t / 2), mp.cos(t / 2)
        f, g = s * cos - c * sin, c * cos + s * sin
        return mp.pi * x * f if part == "f" else mp.pi**2 * x**3 * g

    return value


def _scaled_expi(w: mp.mpf) -> mp.mpf:
    """x exp(-x) Ei(x) of w = 1 / x."""
    return mp.mpf(1) if w == 0 else mp.exp(-1 / w) * mp.ei(1 / w) / w


ROWS: dict[str, tuple[Callable[[mp.mpf], mp.mpf], str, str]] = {
    "I0E_NEAR": (lambda x: mp.exp(-x) * mp.besseli(0, x), "0", "8"),
    "I0E_FAR": (_at_zero(lambda u: mp.exp(-8 / u) * mp.sqrt(8 / u) * mp.besseli(0, 8 / u), 1 / mp.sqrt(2 * mp.pi)), "0", "1"),
    "I1E_NEAR": (_at_zero(lambda x: mp.exp(-x) * mp.besseli(1, x) / x, mp.mpf("0.5")), "0", "8"),
    "I1E_FAR": (_at_zero(lambda u: mp.exp(-8 / u) * mp.sqrt(8 / u) * mp.besseli(1, 8 / u), 1 / mp.sqrt(2 * mp.pi)), "0", "1"),
    "ERFCX": (
        lambda t: 1 / mp.sqrt(mp.pi) * 2 if t == 1 else
        (1 + 2 * 3.75 * (1 + t) / (1 - t)) * mp.exp((3.75 * (1 + t) / (1 - t)) ** 2) * mp.erfc(3.75 * (1 + t) / (1 - t)),
        "-1", "1",
    ),
    "EXP1_NEAR": (_at_zero(lambda x: (mp.e1(x) + mp.euler + mp.log(x)) / x, mp.mpf(1)), "0", "1"),
    "EXP1_MIDDLE": (lambda w: mp.exp(1 / w) * mp.e1(1 / w) / w, "0.2", "1"),
    "EXP1_FAR": (_at_zero(lambda w: mp.exp(1 / w) * mp.e1(1 / w) / w, mp.mpf(1)), "0", "0.2"),
    "EXPI_NEAR": (_at_zero(lambda x: (mp.ei(x) - mp.euler - mp.log(x)) / x, mp.mpf(1)), "0", "6"),
    "EXPI_MIDDLE": (_scaled_expi, "1/16", "1/6"),
    "EXPI_FARTHER": (_scaled_expi, "1/48", "1/16"),
    "EXPI_FAR": (_scaled_expi, "0", "1/48"),
    "SI_NEAR": (_at_zero(lambda u: mp.si(mp.sqrt(u)) / mp.sqrt(u), mp.mpf(1)), "0", "16"),
    "CI_NEAR": (_at_zero(lambda u: (mp.ci(mp.sqrt(u)) - mp.euler - mp.log(mp.sqrt(u))) / u, mp.mpf("-0.25")), "0", "16"),
    "SICI_F_MIDDLE": (_sine_of("f", lambda x: x), "1/64", "1/16"),
    "SICI_G_MIDDLE": (_sine_of("g", lambda x: x * x), "1/64", "1/16"),
    "SICI_F_FAR": (_sine_of("f", lambda x: x), "0", "1/64"),
    "SICI_G_FAR": (_sine_of("g", lambda x: x * x), "0", "1/64"),
    "FRESNEL_S_NEAR": (_at_zero(lambda v: mp.fresnels(v ** mp.mpf("0.25")) / v ** mp.mpf("0.75"), mp.pi / 6), "0", "16"),
    "FRESNEL_C_NEAR": (_at_zero(lambda v: mp.fresnelc(v ** mp.mpf("0.25")) / v ** mp.mpf("0.25"), mp.mpf(1)), "0", "16"),
    "FRESNEL_F_FAR": (_fresnel_of("f"), "0", "1/157"),
    "FRESNEL_G_FAR": (_fresnel_of("g"), "0", "1/157"),
    "DAWSON_NEAR": (_at_zero(lambda u: mp.exp(-u) * mp.erfi(mp.sqrt(u)) * mp.sqrt(mp.pi) / 2 / mp.sqrt(u), mp.mpf(1)), "0", "9"),
    "DAWSON_MIDDLE": (lambda u: mp.exp(-1 / u) * mp.erfi(1 / mp.sqrt(u)) * mp.sqrt(mp.pi) / mp.sqrt(u), "1/36", "1/9"),
    "DAWSON_FAR": (
        _at_zero(lambda u: mp.exp(-1 / u) * mp.erfi(1 / mp.sqrt(u)) * mp.sqrt(mp.pi) / mp.sqrt(u), mp.mpf(1)), "0", "1/36",
    ),
}  # fmt: skip


def _number(text: str) -> mp.mpf:
    top, _, bottom = text.partition("/")
    return mp.mpf(top) / mp.mpf(bottom or 1)


def coefficients(f: Callable[[mp.mpf], mp.mpf], low: mp.mpf, high: mp.mpf, most: int = 96) -> list[float]:
    """Of a Chebyshev series on [low, high], the first already halved."""
    nodes = [mp.cos(mp.pi * (k + mp.mpf("0.5")) / most) for k in range(most)]
    values = [f((low + high) / 2 + (high - low) / 2 * t) for t in nodes]
    series = [
        2 * sum(v * mp.cos(mp.pi * j * (k + mp.mpf("0.5")) / most) for k, v in enumerate(values)) / most
        for j in range(most)
    ]
    series[0] /= 2
    largest = max(abs(c) for c in series)
    while abs(series[-1]) < largest * mp.mpf(2) ** -56:
        series.pop()
    return [float(c) for c in series]


def main() -> None:
    lines = [
        '"""Chebyshev series of special functions: made by ``scripts/fit_special.py``. The first coefficients are halved."""',
        "",
        "# fmt: off",
    ]
    for name, (f, low, high) in ROWS.items():
        series = coefficients(f, _number(low), _number(high))
        print(f"{name}: {len(series)} coefficients", flush=True)
        lines.append(f"{name} = (")
        text = ""
        for c in series:
            piece = f"{c!r}, "
            if len(text) + len(piece) > 114:
                lines.append(f"    {text.rstrip()}")
                text = ""
            text += piece
        lines += [f"    {text.rstrip()}", ")"]
    TABLES.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
