"""Attention in float32 on a GPU, forward and with gradients, beside JAX and PyTorch.

JAX computes its products at precision "highest", which is float32, and stores the matrix of scores. Rates count the
operations that the formulas need: two products of T x S x H forward, five more backward, half of them where causal.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu_harness import Row, draw, jax_on, ready, turns, volta_on

SHAPES = [  # batch, heads, length, size of a head, causal
    (8, 16, 1024, 64, True), (8, 16, 1024, 64, False), (8, 16, 1024, 128, True), (2, 16, 4096, 64, True),
    (2, 16, 4096, 64, False), (2, 16, 4096, 128, True), (2, 16, 4096, 128, False), (1, 16, 8192, 64, True),
    (1, 16, 8192, 128, True),
]  # fmt: skip
DECODING = [(8, 16, 4096, 64), (1, 32, 8192, 128)]  # one query a head: batch, heads, keys, size of a head


def _gradients(framework: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda q, k, v, do: framework.vjp(f, q, k, v)[1](do)


def shape_rows(
    batch: int, heads: int, length: int, size: int, causal: bool, kind: str = "float32"
) -> Iterator[Row]:  # fmt: skip
    """Forward and with gradients, for arrays of this dtype."""
    import jax
    import jax.numpy as jnp
    import torch

    import volta
    import volta.numpy as vnp

    arrays = [draw(batch, length, heads, size, seed=i) for i in range(4)]
    v, j = [vnp.asarray(x, kind) for x in volta_on(*arrays)], [jnp.asarray(x, kind) for x in jax_on(*arrays)]
    if kind != "float32":
        jax.config.update("jax_default_matmul_precision", None)
    turned = [torch.from_numpy(np.ascontiguousarray(x.swapaxes(1, 2))).cuda() for x in arrays]
    t = [x.to(getattr(torch, kind)).requires_grad_() for x in turned]
    theirs = torch.nn.functional.scaled_dot_product_attention
    name = f"{batch}x{heads}x{length}x{size}{' causal' if causal else ''}"
    ours = partial(volta.nn.dot_product_attention, is_causal=causal)
    other = partial(jax.nn.dot_product_attention, is_causal=causal)
    third = partial(theirs, is_causal=causal)
    work = 4 * batch * heads * length**2 * size // (1 + causal)

    def backward(third: Any = third, t: Any = t) -> Any:
        return torch.autograd.grad(third(*t[:3]), t[:3], t[3])

    def forward(third: Any = third, t: Any = t) -> Any:
        with torch.no_grad():
            return third(*t[:3])

    one = {"volta": partial(volta.jit(ours), *v[:3]), "jax": partial(jax.jit(other), *j[:3]), "torch": forward}
    yield {"name": f"attention {name}", "flops": work, "seconds": turns(one, ready)}
    both = {
        "volta": partial(volta.jit(_gradients(volta, ours)), *v),
        "jax": partial(jax.jit(_gradients(jax, other)), *j),
        "torch": backward,
    }
    yield {"name": f"with gradients {name}", "flops": 7 * work // 2, "seconds": turns(both, ready)}


def attention_rows() -> Iterator[Row]:
    """Rows of the benchmark, one after the other."""
    import jax
    import torch

    import volta

    torch.backends.cuda.matmul.allow_tf32 = False
    for shape in SHAPES:
        yield from shape_rows(*shape)
    for batch, heads, length, size in DECODING:
        q = draw(batch, 1, heads, size)
        k, x = (draw(batch, length, heads, size, seed=i) for i in (1, 2))
        v, j = volta_on(q, k, x), jax_on(q, k, x)
        contenders = {
            "volta": partial(volta.jit(volta.nn.dot_product_attention), *v),
            "jax": partial(jax.jit(jax.nn.dot_product_attention), *j),
        }
        moved = 2 * batch * heads * length * size * 4
        yield {
            "name": f"one query {batch}x{heads}x{length}x{size}",
            "bytes": moved,
            "seconds": turns(contenders, ready),
        }
