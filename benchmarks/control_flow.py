"""Programs with compiled loops, for a `programs.Framework` that has the names of ``jax.lax``."""

from collections.abc import Callable
from typing import Any


def counting(fw: Any) -> Callable[..., Any]:
    """10,000 iterations of two small operations: what an iteration costs."""
    return lambda x: fw.lax.while_loop(lambda s: s[0] < 10_000, lambda s: (s[0] + 1, s[1] * 1.0001), (0, x))


def lorenz(fw: Any) -> Callable[..., Any]:
    """5,000 Runge-Kutta steps of the Lorenz system, three numbers: an ordinary differential equation."""

    def rate(s: Any) -> Any:
        x, y, z = s[0], s[1], s[2]
        return fw.xp.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3 * z])

    def step(s: Any, _: None) -> Any:
        a = rate(s)
        b = rate(s + 0.005 * a)
        c = rate(s + 0.005 * b)
        s = s + 0.01 / 6 * (a + 2 * b + 2 * c + rate(s + 0.01 * c))
        return s, s

    return lambda s: fw.lax.scan(step, s, None, length=5000)


def chosen(fw: Any) -> Callable[..., Any]:
    """5,000 iterations of a state of four numbers, one of three functions at a time."""
    functions = [lambda x: x * 1.1, lambda x: x + 0.3, lambda x: -x]
    return lambda x: fw.lax.fori_loop(0, 5000, lambda i, x: fw.lax.switch(i % 3, functions, x), x)


def thresholds(fw: Any) -> Callable[..., Any]:
    """A state of eight numbers, which one of two functions follows on, as the input says."""

    def step(c: Any, x: Any) -> Any:
        c = fw.lax.cond(x[0] > 0, lambda c: fw.xp.tanh(c) + x, lambda c: c * x, c)
        return c, c

    return lambda c, xs: fw.lax.scan(step, c, xs)


def kalman(fw: Any) -> Callable[..., Any]:
    """(transition, observation, state, measurements): a Kalman filter of four states and two measurements."""

    def run(f: Any, h: Any, m: Any, zs: Any) -> Any:
        def step(carry: Any, z: Any) -> Any:
            m, p = carry
            m, p = f @ m, f @ p @ f.T + 0.01
            s = h @ p @ h.T + 0.1
            s = s + 0.1 * fw.xp.eye(2, dtype="float32")
            det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
            inverse = fw.xp.stack([fw.xp.stack([s[1, 1], -s[0, 1]]), fw.xp.stack([-s[1, 0], s[0, 0]])]) / det
            gain = p @ h.T @ inverse
            return (m + gain @ (z - h @ m), p - gain @ h @ p), m

        return fw.lax.scan(step, (m, fw.xp.eye(4, dtype="float32")), zs)

    return run


def hamiltonian(fw: Any) -> Callable[..., Any]:
    """(data, labels, weights, momenta): Hamiltonian Monte Carlo of a logistic regression, ten steps a sample."""

    def run(x: Any, y: Any, w: Any, momenta: Any) -> Any:
        def potential(w: Any) -> Any:
            z = x @ w
            return (fw.xp.logaddexp(z, 0 * z) - y * z).sum() + 0.5 * (w * w).sum()

        slope = fw.grad(potential)

        def leap(_: Any, s: Any) -> Any:
            w, p = s
            p = p - 0.05 * slope(w)
            w = w + 0.1 * p
            return w, p - 0.05 * slope(w)

        def sample(w: Any, p: Any) -> Any:
            to, q = fw.lax.fori_loop(0, 10, leap, (w, p))
            change = potential(w) + 0.5 * (p * p).sum() - potential(to) - 0.5 * (q * q).sum()
            w = fw.xp.where(change > -0.5, to, w)
            return w, w

        return fw.lax.scan(sample, w, momenta)

    return run


def recurrent(fw: Any) -> Callable[..., Any]:
    """(weights, weights, bias, first state, inputs) to the last state and all states."""

    def run(w: Any, u: Any, b: Any, h: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = fw.xp.tanh(0.1 * (h @ w) + x @ u + b)
            return h, h

        return fw.lax.scan(step, h, xs)

    return run


def recurrent_gradient(fw: Any) -> Callable[..., Any]:
    """The gradient in the weights and the bias."""
    run = recurrent(fw)
    return fw.grad(lambda *args: (run(*args)[1] ** 2).sum(), (0, 1, 2))


def _shapes(width: int, batch: int, length: int) -> list[tuple[int, ...]]:
    return [(width, width), (width, width), (width,), (batch, width), (length, batch, width)]


PROGRAMS: list[tuple[str, Callable[[Any], Callable[..., Any]], list[tuple[int, ...]]]] = [
    ("while, 10,000 iterations", counting, [(8,)]),
    ("scan of 5,000, Lorenz", lorenz, [(3,)]),
    ("scan of 100, width 128, batch 64", recurrent, _shapes(128, 64, 100)),
    ("scan of 100, width 128, batch 64: gradient", recurrent_gradient, _shapes(128, 64, 100)),
    ("scan of 100, width 1024, batch 256", recurrent, _shapes(1024, 256, 100)),
    ("scan of 100, width 1024, batch 256: gradient", recurrent_gradient, _shapes(1024, 256, 100)),
]
"""Name, maker, and the shapes of the arguments, float32."""

SMALL: list[tuple[str, Callable[[Any], Callable[..., Any]], list[tuple[int, ...]]]] = [
    *PROGRAMS[:2],
    ("switch of three, 5,000 iterations", chosen, [(4,)]),
    ("scan of 2,000 with a cond", thresholds, [(8,), (2000, 8)]),
    ("Kalman filter, 500 steps", kalman, [(4, 4), (2, 4), (4,), (500, 2)]),
    ("Hamiltonian Monte Carlo, 200 samples", hamiltonian, [(32, 4), (32,), (4,), (200, 4)]),
    ("scan of 1,000, width 8", recurrent, [(8, 8), (8, 8), (8,), (1, 8), (1000, 1, 8)]),
    ("scan of 1,000, width 8: gradient", recurrent_gradient, [(8, 8), (8, 8), (8,), (1, 8), (1000, 1, 8)]),
]
"""Loops of small bodies, likewise."""
