"""Hamiltonian Monte Carlo: samples of a distribution that is known up to a factor, by its gradient.

The target is a banana in the plane, whose moments are known. Chains run side by side under `volta.vmap`, all of their
steps in one `lax.scan`. Draws where the samples lie.

    python examples/hamiltonian.py
"""

import argparse

import volta
import volta.numpy as vnp
from volta import lax, random

CHAINS, LEAPS, STEP = 32, 12, 0.25


def energy(q):
    """x is normal, and y is normal around x² / 2 - 1/2."""
    return 0.5 * q[0] ** 2 + 0.5 * ((q[1] - 0.5 * q[0] ** 2 + 0.5) / 0.5) ** 2


def leapfrog(q, p):
    """The motion of a ball on the energy's surface, for a while."""
    force = volta.grad(energy)

    def leap(state, _):
        q, p = state
        p = p - STEP / 2 * force(q)
        q = q + STEP * p
        return (q, p - STEP / 2 * force(q)), None

    return lax.scan(leap, (q, p), length=LEAPS)[0]


def move(q, key):
    """A push in a random direction, and where it leads, unless the errors of the leaps say no."""
    push, chance = random.split(key)
    p = random.normal(push, (2,))
    new_q, new_p = leapfrog(q, p)
    gained = energy(q) + p @ p / 2 - energy(new_q) - new_p @ new_p / 2
    accepted = vnp.log(random.uniform(chance)) < gained
    q = vnp.where(accepted, new_q, q)
    return q, (q, accepted)


@volta.jit
def sample(keys):
    """Samples of each chain, (chains, moves, 2), and which moves were accepted."""
    chain = lambda keys: lax.scan(move, vnp.zeros(2), keys)[1]  # noqa: E731
    return volta.vmap(chain)(keys)


def draw(points, rows=16, columns=56):
    counts = [[0] * columns for _ in range(rows)]
    for x, y in points:
        row, column = round((4 - y) / 6 * (rows - 1)), round((x + 3) / 6 * (columns - 1))
        if 0 <= row < rows and 0 <= column < columns:
            counts[row][column] += 1
    most = max(map(max, counts))
    for line in counts:
        print("".join(" .:-=+*#%@"[min(9, -(-9 * n // most))] for n in line))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=500)
    options = parser.parse_args(arguments)
    keys = random.split(random.key(0), (CHAINS, options.moves))
    points, accepted = sample(keys)
    kept = points[:, options.moves // 10 :].reshape(-1, 2)
    draw(kept.tolist())
    mean, spread = vnp.mean(kept, 0).tolist(), vnp.std(kept, 0).tolist()
    print(f"{kept.shape[0]} samples, {float(vnp.mean(accepted)):.0%} of the moves accepted")
    print(f"mean ({mean[0]:+.3f}, {mean[1]:+.3f}), true (0, 0)")
    print(f"spread ({spread[0]:.3f}, {spread[1]:.3f}), true (1, 0.866)")
    return mean, spread, float(vnp.mean(accepted))


if __name__ == "__main__":
    main()
