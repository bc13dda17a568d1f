"""A partial differential equation by Fourier transforms: waves of Korteweg and de Vries, u_t = -6 u u_x - u_xxx.

Two solitons of different heights meet, pass through one another and go on unchanged. Derivatives in space are products
in frequencies; the stiff linear part is solved exactly by an integrating factor, the rest by the method of Runge and
Kutta. Draws the waves over time.

    python examples/spectral.py
"""

import argparse

import numpy as np

import volta
import volta.numpy as vnp
from volta import lax

LENGTH, POINTS, DT = 30.0, 128, 2e-3
FREQUENCIES = 2 * np.pi / LENGTH * np.arange(POINTS // 2 + 1)


def soliton(x, speed, place):
    return speed / 2 / vnp.cosh(speed**0.5 / 2 * (x - place)) ** 2


def change(spectrum):
    """The nonlinear part: -3 (u²)_x, without the highest third of the frequencies, which products fold over."""
    u = vnp.fft.irfft(spectrum, POINTS)
    kept = vnp.arange(POINTS // 2 + 1) < POINTS // 3
    return vnp.where(kept, -3j * FREQUENCIES * vnp.fft.rfft(u * u), 0)


def step(spectrum, _):
    """One step: the linear part turns phases, half a step at a time."""
    half = vnp.exp(0.5j * DT * FREQUENCIES**3)
    a = DT * change(spectrum)
    b = DT * change(half * (spectrum + a / 2))
    c = DT * change(half * spectrum + b / 2)
    d = DT * change(half * half * spectrum + half * c)
    return half * half * spectrum + (half * half * a + 2 * half * (b + c) + d) / 6, None


@volta.jit
def later(spectrum, steps):
    return lax.fori_loop(0, steps, lambda i, s: step(s, None)[0], spectrum)


def invariants(u):
    """The mass and the momentum, which the equation keeps."""
    return float(vnp.sum(u)) * LENGTH / POINTS, float(vnp.sum(u * u)) * LENGTH / POINTS


def draw(u, time):
    marks = " .:-=+*#%@"
    print(f"t = {time:3.1f} |{''.join(marks[min(9, max(0, round(float(v) * 2.5)))] for v in u[::2])}|")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=16)
    options = parser.parse_args(arguments)
    x = vnp.arange(POINTS, dtype="float64") * (LENGTH / POINTS)
    u = soliton(x, 6.0, 5.0) + soliton(x, 2.0, 12.0)
    before, spectrum = invariants(u), vnp.fft.rfft(u)
    for i in range(options.pictures + 1):
        if i:
            spectrum = later(spectrum, 100)
        u = vnp.fft.irfft(spectrum, POINTS)
        draw(u, i * 100 * DT)
    after = invariants(u)
    print(f"mass {before[0]:.6f} -> {after[0]:.6f}, momentum {before[1]:.6f} -> {after[1]:.6f}")
    print(f"highest crest {float(vnp.max(u)):.3f} (a soliton of speed 6 has 3)")
    return before, after, float(vnp.max(u))


if __name__ == "__main__":
    main()
