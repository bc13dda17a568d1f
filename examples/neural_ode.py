"""A neural ODE: a small network is the velocity of a point, and learns a spiral from samples along it.

`volta.experimental.ode.odeint` solves the equation; the gradient comes by solving its adjoint backwards in time. Draws
the spiral (o) and what the network makes of it (*).

    python examples/neural_ode.py
"""

import argparse

import volta
import volta.numpy as vnp
from volta import optim, random
from volta.experimental.ode import odeint

TIMES = vnp.linspace(0.0, 6.0, 25)
START = vnp.array([2.0, 0.0])


def spiral(point, t):
    return vnp.array([[-0.15, -1.2], [1.2, -0.15]]) @ point


def velocity(point, t, params):
    """What the network says of how the point moves."""
    hidden = vnp.tanh(params["in"] @ point + params["bias"])
    return params["out"] @ hidden


def initial(key, width=16):
    one, two = random.split(key)
    return {
        "in": random.normal(one, (width, 2)) / 2,
        "bias": vnp.zeros(width),
        "out": random.normal(two, (2, width)) / width**0.5,
    }


def draw(wanted, found, rows=17, columns=45):
    picture = [[" "] * columns for _ in range(rows)]
    for points, mark in ((wanted, "o"), (found, "*")):
        for x, y in points:
            row, column = round((2.2 - y) / 4.4 * (rows - 1)), round((x + 2.2) / 4.4 * (columns - 1))
            if 0 <= row < rows and 0 <= column < columns:
                picture[row][column] = "#" if picture[row][column] == "o" and mark == "*" else mark
    print("\n".join("".join(line) for line in picture))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args(arguments)
    wanted = odeint(spiral, START, TIMES)
    optimizer = optim.adam(3e-2)

    def loss(params, until):
        reached = odeint(velocity, START, TIMES, params, rtol=1e-4, atol=1e-4)
        return vnp.mean(vnp.where(until, (reached - wanted) ** 2, 0.0))

    @volta.jit
    def step(params, state, until):
        value, gradient = volta.value_and_grad(loss)(params, until)
        updates, state = optimizer.update(gradient, state, params)
        return optim.apply_updates(params, updates), state, value

    params = initial(random.key(1))
    state = optimizer.init(params)
    everywhere, first = vnp.ones((25, 1), bool), float(loss(params, vnp.ones((25, 1), bool)))
    for i in range(options.steps):
        early = TIMES[:, None] <= 6.0 * min(1.0, 0.2 + 2 * i / options.steps)  # the beginning is learned first
        params, state, value = step(params, state, early)
        if i % 30 == 0:
            print(f"step {i:4}  loss {float(value):.4f}")
    last = float(loss(params, everywhere))
    draw(wanted.tolist(), odeint(velocity, START, TIMES, params).tolist())
    print(f"mean squared distance {first:.3f} -> {last:.5f}")
    return first, last


if __name__ == "__main__":
    main()
