"""Gaussian process regression: a curve with its uncertainty from a few noisy samples, its settings learned from them.

The marginal likelihood of the data is one Cholesky factor; its gradient by `volta.grad` finds the length scale, the
height and the noise. Prints the fit as a plot of text.

    python examples/gaussian_process.py
"""

import argparse
import math

import volta
import volta.numpy as vnp
from volta import lax, optim, random

POINTS, ROWS, WIDTH = 24, 21, 61


def truth(x):
    return vnp.sin(2 * x) + 0.5 * vnp.cos(5 * x)


def kernel(settings, a, b):
    """The squared exponential: how alike the curve's values at two places are."""
    apart = (a[:, None] - b[None, :]) / vnp.exp(settings["length"])
    return vnp.exp(2 * settings["height"]) * vnp.exp(-0.5 * apart**2)


def factor(settings, x):
    """The Cholesky factor of the data's covariance."""
    noise = vnp.exp(2 * settings["noise"]) + 1e-5
    return lax.linalg.cholesky(kernel(settings, x, x) + noise * vnp.eye(x.size))


def surprise(settings, x, y):
    """The negative logarithm of the marginal likelihood of the data."""
    lower = factor(settings, x)
    white = lax.linalg.triangular_solve(lower, y[:, None], left_side=True, lower=True)
    return vnp.sum(white**2) / 2 + vnp.sum(vnp.log(vnp.diagonal(lower))) + x.size * math.log(2 * math.pi) / 2


def posterior(settings, x, y, at):
    """The curve's mean and standard deviation at other places."""
    lower, between = factor(settings, x), kernel(settings, x, at)
    solve = lambda b: lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)  # noqa: E731
    weights = solve(between)
    mean = weights.T @ solve(y[:, None])[:, 0]
    return mean, vnp.sqrt(vnp.exp(2 * settings["height"]) - vnp.sum(weights**2, 0) + 1e-6)


def draw(at, mean, deviation, x, y):
    """Rows from left to right: the mean (*), two standard deviations around it (-), the samples (o)."""
    column = lambda v: min(max(round((float(v) + 2.5) / 5 * (WIDTH - 1)), 0), WIDTH - 1)  # noqa: E731
    for i in range(ROWS):
        line = [" "] * WIDTH
        low, high = column(mean[i] - 2 * deviation[i]), column(mean[i] + 2 * deviation[i])
        line[low : high + 1] = "-" * (high + 1 - low)
        line[column(mean[i])] = "*"
        for place, value in zip(x, y, strict=True):
            if abs(place - at[i]) < 3 / (ROWS - 1):
                line[column(value)] = "o"
        print(f"{float(at[i]):+.1f} |{''.join(line)}|")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args(arguments)
    places, errors = random.split(random.key(0))
    x = random.uniform(places, (POINTS,), minval=-3.0, maxval=3.0)
    y = truth(x) + 0.1 * random.normal(errors, (POINTS,))
    settings = {"length": vnp.zeros(()), "height": vnp.zeros(()), "noise": -vnp.ones(())}
    optimizer = optim.adam(5e-2)

    @volta.jit
    def step(settings, state):
        value, gradient = volta.value_and_grad(surprise)(settings, x, y)
        updates, state = optimizer.update(gradient, state, settings)
        return optim.apply_updates(settings, updates), state, value

    state, values = optimizer.init(settings), []
    for _ in range(options.steps):
        settings, state, value = step(settings, state)
        values.append(float(value))
    at = vnp.linspace(-3, 3, ROWS)
    mean, deviation = volta.jit(posterior)(settings, x, y, at)
    draw(at.tolist(), mean.tolist(), deviation.tolist(), x.tolist(), y.tolist())
    learned = {name: round(math.exp(float(v)), 3) for name, v in settings.items()}
    inside = float(vnp.mean(vnp.abs(truth(at) - mean) < 2 * deviation + 0.1))
    print(f"-log likelihood {values[0]:.2f} -> {values[-1]:.2f}; learned {learned}; inside the band: {inside:.0%}")
    return values, inside


if __name__ == "__main__":
    main()
