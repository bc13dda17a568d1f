"""Programs with compiled loops, for a `programs.Framework` that has the names of ``jax.lax``."""

from collections.abc import Callable
from typing import Any


def counting(fw: Any) -> Callable[..., Any]:
    """10,000 turns of two small operations: what a turn costs."""
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


def recurrent(fw: Any) -> Callable[..., Any]:
    """(weights, weights, bias, first state, inputs) to the last state and all states."""

    def run(w: Any, u: Any, b: Any, h: Any, xs: Any) -> Any:
        def turn(h: Any, x: Any) -> Any:
            h = fw.xp.tanh(0.1 * (h @ w) + x @ u + b)
            return h, h

        return fw.lax.scan(turn, h, xs)

    return run


def recurrent_gradient(fw: Any) -> Callable[..., Any]:
    """The gradient in the weights and the bias."""
    run = recurrent(fw)
    return fw.grad(lambda *args: (run(*args)[1] ** 2).sum(), (0, 1, 2))


def _shapes(width: int, batch: int, length: int) -> list[tuple[int, ...]]:
    return [(width, width), (width, width), (width,), (batch, width), (length, batch, width)]


PROGRAMS: list[tuple[str, Callable[[Any], Callable[..., Any]], list[tuple[int, ...]]]] = [
    ("while, 10,000 turns", counting, [(8,)]),
    ("scan of 5,000, Lorenz", lorenz, [(3,)]),
    ("scan of 100, width 128, batch 64", recurrent, _shapes(128, 64, 100)),
    ("scan of 100, width 128, batch 64: gradient", recurrent_gradient, _shapes(128, 64, 100)),
    ("scan of 100, width 1024, batch 256", recurrent, _shapes(1024, 256, 100)),
    ("scan of 100, width 1024, batch 256: gradient", recurrent_gradient, _shapes(1024, 256, 100)),
]
"""Name, maker, and the shapes of the arguments, float32."""
