"""Programs whose text, plan, kernels and result bits are kept in this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import volta
import volta.numpy as vnp
from volta import lax, nn, optim
from volta.testing import fill


def x(*shape: int, dtype: str = "float32", kind: str = "normal", seed: int = 0) -> np.ndarray:
    return fill(kind, shape, dtype, seed)


def mlp(w1, b1, w2, inputs):
    return nn.gelu(inputs @ w1 + b1) @ w2


def loss(w1, b1, w2, inputs, labels):
    return -vnp.mean(vnp.take_along_axis(nn.log_softmax(mlp(w1, b1, w2, inputs)), labels[:, None], axis=1))


def recurrent(w, u, h, inputs):
    """A loop that counts, reads slices, stacks results, and chooses."""

    def turn(h, v):
        h = vnp.tanh(h @ w + v @ u)
        return lax.cond(h.sum() > 0, lambda h: h * 0.5, lambda h: h + v.sum(), h), h.sum()

    return lax.scan(turn, h, inputs)


def recurrent_loss(*args):
    h, sums = recurrent(*args)
    return vnp.sum(h * h) + vnp.sum(sums)


OPTIMIZER = optim.adam(1e-2)


def train(w1, b1, w2, inputs, labels):
    params = [w1, b1, w2]
    state = OPTIMIZER.init(params)
    for _ in range(2):
        gradients = volta.grad(lambda p: loss(*p, inputs, labels))(params)
        updates, state = OPTIMIZER.update(gradients, state, params)
        params = optim.apply_updates(params, updates)
    return params


MODEL = (x(10, 33), x(33, seed=1), x(33, 7, seed=2), x(5, 10, seed=3))
RECURRENT = (x(6, 6), x(4, 6, seed=1), x(3, 6, seed=2), x(5, 3, 4, seed=3))
LABELS = np.array([0, 6, 3, 3, 1], np.int32)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (nn.softmax, (x(5, 300),)),
    "layer_norm": (nn.layer_norm, (x(5, 300), x(300, seed=1), x(300, seed=2))),
    "long_sum": (lambda v: (vnp.sum(v), vnp.max(v), vnp.argmin(v)), (x(40001, kind="cancel"),)),
    "column_sums": (lambda v: vnp.sum(v * v, 0), (x(5000, 20, kind="ladder"),)),
    "half_sums": (lambda v: (vnp.sum(v, 1), vnp.mean(v)), (x(7, 400, dtype="float16"),)),
    "bfloat16": (lambda a, b: nn.gelu(a @ b), (x(6, 300, dtype="bfloat16"), x(300, 9, dtype="bfloat16", seed=1))),
    "matmul": (vnp.matmul, (x(17, 600), x(600, 40, seed=1))),
    "matmul_float64": (vnp.matmul, (x(5, 300, dtype="float64"), x(300, 6, dtype="float64", seed=1))),
    "matmul_exact": (lambda a, b: vnp.matmul(a, b, precision="exact"), (x(17, 600, kind="ladder"), x(600, 40, seed=1))),
    "movement": (lambda v: vnp.sum(vnp.flip(v.T[2:9, ::2], 0)[None] + 1, 2), (x(8, 12),)),
    "gather_scatter": (
        lambda t, i, u: t.at[i].add(u)[i[::-1]],
        (x(9, 4), np.array([3, 1, 3, 8, 3], np.int32), x(5, 4, seed=1, kind="ladder")),
    ),
    "scan_and_sort": (lambda v: (vnp.cumsum(v), vnp.sort(v), vnp.argsort(v)), (x(700, kind="cancel"),)),
    "recurrent": (recurrent, RECURRENT),
    "recurrent_gradient": (volta.grad(recurrent_loss, (0, 1, 2)), RECURRENT),
    "mlp_gradient": (volta.grad(loss, (0, 1, 2)), (*MODEL, LABELS)),
    "adam_twice": (train, (*MODEL, LABELS)),
}
"""Name -> function and arguments."""
