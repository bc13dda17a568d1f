"""An existing Numba program brought into Volta: heat that spreads on a plate, and which plate it was.

`step` and `step_back` are plain Numba functions; the few lines below them make an operation of them that is jitted,
differentiated and batched. From a few states before and after, gradient descent then finds how well each place of the
plate conducts.

    python examples/heat.py [--gpu]
"""

import argparse
import time

import numba
import numpy as np

import volta
import volta.numpy as vnp
from volta import lax, optim

SIDE, STEPS, STATES = 24, 20, 8
DESCENT = optim.adam(3e-3)


# The program as it was: one step of an explicit scheme. The plate's edge keeps its temperature.
@numba.njit
def step(heat, conducts, new):
    for i in range(heat.shape[0]):
        for j in range(heat.shape[1]):
            cell(heat, conducts, new, i, j)


@numba.njit
def cell(heat, conducts, new, i, j):
    new[i, j] = heat[i, j]
    if 0 < i < heat.shape[0] - 1 and 0 < j < heat.shape[1] - 1:
        around = heat[i - 1, j] + heat[i + 1, j] + heat[i, j - 1] + heat[i, j + 1]
        new[i, j] += conducts[i, j] * (around - 4 * heat[i, j])


# Its derivative, by hand: what a temperature is worth is what the new ones are worth that come from it.
@numba.njit
def step_back(heat, conducts, worth, of_heat, of_conducts):
    for i in range(heat.shape[0]):
        for j in range(heat.shape[1]):
            cell_back(heat, conducts, worth, of_heat, of_conducts, i, j)


@numba.njit
def cell_back(heat, conducts, worth, of_heat, of_conducts, i, j):
    last_i, last_j = heat.shape[0] - 1, heat.shape[1] - 1
    total = worth[i, j]
    if 0 < i < last_i and 0 < j < last_j:
        around = heat[i - 1, j] + heat[i + 1, j] + heat[i, j - 1] + heat[i, j + 1]
        of_conducts[i, j] = worth[i, j] * (around - 4 * heat[i, j])
        total -= 4 * worth[i, j] * conducts[i, j]
    if i > 1 and 0 < j < last_j:
        total += worth[i - 1, j] * conducts[i - 1, j]
    if i < last_i - 1 and 0 < j < last_j:
        total += worth[i + 1, j] * conducts[i + 1, j]
    if 0 < i < last_i and j > 1:
        total += worth[i, j - 1] * conducts[i, j - 1]
    if 0 < i < last_i and j < last_j - 1:
        total += worth[i, j + 1] * conducts[i, j + 1]
    of_heat[i, j] = total


# Brought into Volta.
spread = volta.kernel(out=lambda heat, conducts: heat)(step)
spread_back = volta.kernel(out=lambda heat, conducts, worth: (heat, conducts))(step_back)


@spread.vjp
def _(operands, new, worth):
    return spread_back(*operands, worth)


def use_gpu():
    """Give both kernels their functions for GPUs: a thread a cell."""
    from numba import cuda  # noqa: PLC0415 - of numba-cuda, and only where a GPU is asked for

    one, one_back = (cuda.jit(device=True)(f.py_func) for f in (cell, cell_back))

    def cells(heat, *_):
        return -(-heat.size // 128)

    @spread.cuda(grid=cells, block=128)
    @cuda.jit
    def _(heat, conducts, new):
        n = cuda.grid(1)
        if n < heat.size:
            one(heat, conducts, new, n // heat.shape[1], n % heat.shape[1])

    @spread_back.cuda(grid=cells, block=128)
    @cuda.jit
    def _(heat, conducts, worth, of_heat, of_conducts):
        n = cuda.grid(1)
        if n < heat.size:
            one_back(heat, conducts, worth, of_heat, of_conducts, n // heat.shape[1], n % heat.shape[1])


def after(heat, conducts):
    """The plate after some time."""
    return lax.scan(lambda now, _: (spread(now, conducts), None), heat, None, length=STEPS)[0]


def loss(conducts, before, observed):
    """How far the plates end from what was observed, for all states at once."""
    return vnp.mean((volta.vmap(after, in_axes=(0, None))(before, conducts) - observed) ** 2)


@volta.jit
def improve(conducts, state, before, observed):
    """A step of gradient descent; what the plate conducts stays where the scheme is stable."""
    value, slope = volta.value_and_grad(loss)(conducts, before, observed)
    updates, state = DESCENT.update(slope, state, conducts)
    return vnp.clip(conducts + updates, 0.01, 0.24), state, value


def plate(rng):
    """A plate that conducts well, with a spot that does not."""
    i, j = np.mgrid[:SIDE, :SIDE]
    y, x = rng.uniform(0.35, 0.65, 2) * SIDE
    return np.where((i - y) ** 2 + (j - x) ** 2 < (SIDE / 5) ** 2, 0.06, 0.2).astype(np.float32)


def find(truth, before, rounds):
    """What is found after so many rounds, and the loss of each."""
    observed = after_all(before, truth)
    conducts, losses = vnp.full((SIDE, SIDE), 0.15), []
    state = DESCENT.init(conducts)
    for _ in range(rounds):
        conducts, state, value = improve(conducts, state, before, observed)
        losses.append(float(value))
    return conducts, losses


after_all = volta.jit(volta.vmap(after, in_axes=(0, None)))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", action="store_true", help="also on a GPU (needs numba-cuda)")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    truth, before = plate(rng), rng.standard_normal((STATES, SIDE, SIDE)).astype(np.float32)

    start = time.perf_counter()
    conducts, losses = find(truth, before, options.rounds)
    print(f"{options.rounds} rounds in {time.perf_counter() - start:.2f} s: loss {losses[0]:.2e} to {losses[-1]:.2e}")
    inner = (slice(1, -1), slice(1, -1))
    print(f"mean error of what it conducts: {np.abs(np.asarray(conducts) - truth)[inner].mean():.4f} (of 0.06 to 0.20)")

    threads = volta.get_num_threads()
    volta.set_num_threads(1)
    alone, _ = find(truth, before, options.rounds)
    volta.set_num_threads(threads)
    print(f"one thread or {threads}, bits identical: {bool((conducts == alone).all())}")

    if options.gpu:
        use_gpu()
        with volta.default_device("cuda"):
            there, _ = find(truth, before, options.rounds)
        print(f"CPU or GPU, bits identical: {bool((np.asarray(conducts) == np.asarray(there)).all())}")
    return losses


if __name__ == "__main__":
    main()
