"""An implicit layer: its output is where an iteration comes to rest, and its gradient does not unroll the iteration.

At z = f(w, z) the implicit function theorem says what a change of w does to z; `custom_vjp` has the rule, which
solves for the cotangent by another iteration. A layer of this kind learns to give the square roots of its inputs.

    python examples/fixed_point.py
"""

import argparse

import volta
import volta.numpy as vnp
from volta import lax, optim, random

TOLERANCE, MOST = 1e-5, 200


def iterate(f, z):
    """Where ``f`` leads from ``z``, again and again, until it rests; and after how many iterations."""

    def moves(state):
        old, new, count = state
        return (vnp.max(vnp.abs(new - old)) > TOLERANCE) & (count < MOST)

    _, z, count = lax.while_loop(moves, lambda s: (s[1], f(s[1]), s[2] + 1), (z, f(z), 1))
    return z, count


def layer(params, x, z):
    """One iteration. The matrix is scaled so that each step brings points closer together."""
    inner = params["inner"] / (1.2 + vnp.linalg.norm(params["inner"]))
    return vnp.tanh(z @ inner + x @ params["outer"] + params["bias"])


@volta.custom_vjp
def rest(params, x):
    return iterate(lambda z: layer(params, x, z), vnp.zeros((x.shape[0], params["bias"].size)))[0]


def rest_forward(params, x):
    z = rest(params, x)
    return z, (params, x, z)


def rest_backward(saved, ct):
    params, x, z = saved
    _, by_z = volta.vjp(lambda z: layer(params, x, z), z)
    through, _ = iterate(lambda u: ct + by_z(u)[0], ct)  # u = ct + uᵀ df/dz
    return volta.vjp(lambda params, x: layer(params, x, z), params, x)[1](through)


rest.defvjp(rest_forward, rest_backward)


def model(params, x):
    return (rest(params, x) @ params["head"])[:, 0]


def initial(key, width=12):
    inner, outer, head = random.split(key, 3)
    return {
        "inner": random.normal(inner, (width, width)),
        "outer": random.normal(outer, (1, width)),
        "bias": vnp.zeros(width),
        "head": random.normal(head, (width, 1)) / width,
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args(arguments)
    x = vnp.linspace(0.0, 4.0, 64)[:, None]
    wanted = vnp.sqrt(x[:, 0])
    optimizer = optim.adam(1e-2)

    @volta.jit
    def step(params, state):
        loss = lambda params: vnp.mean((model(params, x) - wanted) ** 2)  # noqa: E731
        value, gradient = volta.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optim.apply_updates(params, updates), state, value

    params = initial(random.key(0))
    state, values = optimizer.init(params), []
    for _ in range(options.steps):
        params, state, value = step(params, state)
        values.append(float(value))
    for place in (0.25, 1.0, 2.25, 4.0):
        found = model(params, vnp.array([[place]]))[0]
        print(f"sqrt({place:.2f}) = {place**0.5:.3f}, the layer rests at {float(found):.3f}")
    count = iterate(lambda z: layer(params, x, z), vnp.zeros((64, 12)))[1]
    print(f"mean squared error {values[0]:.4f} -> {values[-1]:.6f}; at rest after {int(count)} iterations")
    return values


if __name__ == "__main__":
    main()
