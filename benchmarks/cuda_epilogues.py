"""Products with what follows them in a GPT-2's layer: in one kernel, by Volta in two ("apart"), and by JAX."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu_harness import Row, draw, jax_on, ready, turns, volta_on

TOKENS, WIDTH, HIDDEN = 8192, 768, 3072


def epilogue_rows() -> Iterator[Row]:
    import jax
    import jax.numpy as jnp

    import volta
    import volta.numpy as vnp
    from volta import nn

    x, h = draw(TOKENS, WIDTH), draw(TOKENS, HIDDEN, seed=5)
    up, down = (draw(*s, seed=1) * np.float32(0.05) for s in ((WIDTH, HIDDEN), (HIDDEN, WIDTH)))
    b, c = draw(HIDDEN, seed=2), draw(WIDTH, seed=3)
    for precision, kind in ((None, "float32"), ("highest", "float32"), ("tf32", "float32"), ("bf16", "bfloat16")):
        product = partial(vnp.matmul, precision=precision)
        cases: list[tuple[str, Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = [
            ("gelu(x w + b)", partial(_dense, product, nn.gelu), partial(_dense, jnp.matmul, jax.nn.gelu), (x, up, b)),
            ("x w + b + r", partial(_residual, product), partial(_residual, jnp.matmul), (h, down, c, x)),
        ]
        for name, ours, theirs, operands in cases:
            m, k, n = operands[0].shape[0], *operands[1].shape
            v = tuple(vnp.asarray(a, kind) for a in volta_on(*operands))
            runs = {"volta": _run(ours, v), "apart": _run(ours, v, epilogues=False)}
            if precision is None:
                runs["jax"] = partial(jax.jit(theirs), *jax_on(*operands))
            label = f"{kind} {precision + ' ' if precision else ''}{k}→{n}: {name}"
            with volta.execution_context(level="device"):  # a program of a weaker level is refused elsewhere
                seconds = turns(runs, ready)
            yield {"name": label, "flops": 2 * m * k * n, "seconds": seconds}


def _dense(product: Any, gelu: Any, x: Any, w: Any, b: Any) -> Any:
    return gelu(product(x, w) + b)


def _residual(product: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
    return product(x, w) + b + r


def _run(f: Callable[..., Any], operands: tuple[Any, ...], epilogues: bool = True) -> Callable[[], Any]:
    import volta
    from volta.xla_like.compile import CompileOptions

    options = CompileOptions(epilogues=epilogues)
    with volta.execution_context(level="device", options=options), volta.default_device("cuda"):
        compiled = volta.jit(f).lower(*operands).compile()
    return partial(compiled, *operands)
