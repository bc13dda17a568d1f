"""Below strict: products and attention on tensor cores, and a training step in bfloat16 with float32 master weights.

Rows of the group "mixed" of benchmarks/gpu.py. JAX's default for float32 products is tf32 on these GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks import programs
from benchmarks.cuda_attention import shape_rows
from benchmarks.gpu_harness import GPT2_SMALL, Row, draw, ready, train, turns, volta_on


@contextmanager
def device_level(precision: str | None = None) -> Iterator[None]:
    """Level device, and the precision of products that name none."""
    import volta

    with ExitStack() as stack:
        stack.enter_context(volta.execution_context(level="device"))
        stack.enter_context(volta.default_matmul_precision(precision))
        yield


def product_rows() -> Iterator[Row]:
    """Square products of bfloat16 arrays, and of float32 arrays rounded to tf32 or bfloat16 on the way."""
    import jax
    import jax.numpy as jnp
    import torch

    import volta
    import volta.numpy as vnp

    torch.backends.cuda.matmul.allow_tf32 = True
    preset = jax.lax.DotAlgorithmPreset
    presets = {"tf32": preset.TF32_TF32_F32, "bf16": preset.BF16_BF16_F32}
    for n in (1024, 2048, 4096, 8192):
        for kind, precision in (("bfloat16", "bf16"), ("float32", "tf32"), ("float32", "bf16")):
            a, b = draw(n, n), draw(n, n, seed=1)
            va, vb = (vnp.asarray(x, kind) for x in volta_on(a, b))
            ja, jb = (jnp.asarray(x, kind) for x in (a, b))
            ta, tb = (torch.from_numpy(x).cuda().to(getattr(torch, kind)) for x in (a, b))
            ours = volta.jit(partial(vnp.matmul, precision=precision))
            other = jax.jit(partial(jnp.matmul, precision=None if kind == "bfloat16" else presets[precision]))

            contenders = {
                "volta": partial(ours, va, vb),
                "jax": partial(other, ja, jb),
                "cublas": partial(torch.matmul, ta, tb),
            }
            if kind == "float32" and precision == "bf16":
                del contenders["cublas"]  # it has no such product
            with device_level():
                seconds = turns(contenders, ready)
            yield {"name": f"{kind} {precision} {n}", "flops": 2 * n**3, "seconds": seconds}


def attention_rows() -> Iterator[Row]:
    """Attention of bfloat16 arrays."""
    for shape in (
        (8, 12, 1024, 64, True),
        (8, 16, 1024, 128, True),
        (2, 16, 4096, 64, False),
        (2, 16, 4096, 128, True),
    ):
        with device_level("bfloat16"):
            rows = list(shape_rows(*shape, kind="bfloat16"))
        for row in rows:
            yield row | {"name": f"bfloat16 {row['name']}"}


def mixed_step(fw: programs.Framework, c: programs.TransformerConfig) -> Callable[..., Any]:
    """One step of Adam whose parameters are float32 and whose model computes in bfloat16."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        half = programs.map_tree(lambda leaf: leaf.astype("bfloat16"), p)
        return programs.transformer_loss(fw, c, half, x, y).astype("float32")

    def step(p: Any, m: Any, v: Any, x: Any, y: Any) -> Any:
        value, g = fw.value_and_grad(lambda p: loss(p, x, y))(p)
        m = programs.map_tree(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = programs.map_tree(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        p = programs.map_tree(lambda p, m, v: p - 1e-3 * m / (fw.xp.sqrt(v) + 1e-8), p, m, v)
        return p, m, v, value

    return step


def step_rows() -> Iterator[Row]:
    """The GPT-2-small step: all of it in bfloat16 but the parameters, and with float32 around the products."""
    import jax

    jax.config.update("jax_default_matmul_precision", None)
    kinds = {
        "GPT-2-small step, bfloat16": (mixed_step, mixed_step),
        "GPT-2-small step, products alone in bfloat16": (programs.transformer_step, None),
    }
    default = train(programs.jax(), programs.transformer_step, GPT2_SMALL, lambda args: args)
    for name, (ours, theirs) in kinds.items():
        with device_level("bfloat16"):
            found = {"volta": train(programs.volta(), ours, GPT2_SMALL, lambda args: volta_on(*args)), "jax": default}
        if theirs is not None:
            found["jax, bfloat16"] = train(programs.jax(), theirs, GPT2_SMALL, lambda args: args)
        losses = {who: last for who, (_, _, last) in found.items()}
        yield {"name": name, "seconds": {who: t for who, (_, t, _) in found.items()}, "losses": losses}
        yield {"name": f"{name}: the first", "seconds": {who: t for who, (t, _, _) in found.items()}}


def mixed_rows() -> Iterator[Row]:
    yield from product_rows()
    yield from attention_rows()
    yield from step_rows()
