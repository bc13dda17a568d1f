"""Elementwise functions of float32 over 1 GB, Volta beside JAX. Rows of `benchmarks/gpu.py functions`.

What takes longer than a copy computes for longer than it reads and writes. Operands are normal numbers, where the
function takes them; JAX's functions are as it has them, some with errors of several units in the last place.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.gpu_harness import Row, draw, jax_on, ready, turns, volta_on

GB = 1 << 30
Calls = tuple[Callable[..., Any], Callable[..., Any], str]
"""A function of Volta's and of JAX's, and the kind of each operand: any number, one above 0, one between -1 and 1."""


def functions() -> dict[str, Calls]:
    """All by name: activations, then primitives."""
    import jax
    import jax.numpy as jnp

    import volta
    import volta.numpy as vnp

    found: dict[str, Calls] = {
        "gelu, exact": (
            lambda x: volta.nn.gelu(x, approximate=False), lambda x: jax.nn.gelu(x, approximate=False), "n",
        ),
    }  # fmt: skip
    for name in "gelu sigmoid silu softplus log_sigmoid elu mish".split():
        found[name] = (getattr(volta.nn, name), getattr(jax.nn, name), "n")
    found["logaddexp"] = (vnp.logaddexp, jnp.logaddexp, "nu")
    kinds = {
        "n": "tanh erf erfc exp exp2 expm1 sin cos tan atan sinh cosh asinh cbrt lgamma digamma",
        "p": "rsqrt sqrt log log1p log2 log10 acosh",
        "u": "erf_inv asin acos atanh",
        "nu": "div atan2",
        "pn": "pow",
    }
    for kind, names in kinds.items():
        for name in names.split():
            found[name] = (getattr(volta.lax, name, None) or getattr(vnp, name), _of_jax(jax, jnp, name), kind)
    return found


def _of_jax(jax: Any, jnp: Any, name: str) -> Callable[..., Any]:
    return getattr(jax.lax, name, None) or getattr(jnp, name)


def function_rows() -> Iterator[Row]:
    """A row for each function."""
    import jax
    import jax.numpy as jnp

    import volta
    import volta.numpy as vnp

    x = draw(1 << 18, 1024)
    (v,), (j,) = volta_on(x), jax_on(x)
    operands = {"n": (v, j), "p": (vnp.abs(v) + 1.0, jnp.abs(j) + 1.0), "u": (v * 0.15, j * 0.15)}
    for name, (f, g, kind) in functions().items():
        ours = [operands[k][0] for k in kind]
        theirs = [operands[k][1] for k in kind]
        contenders = {"volta": partial(volta.jit(f), *ours), "jax": partial(jax.jit(g), *theirs)}
        yield {"name": f"1 GB: {name}", "bytes": (1 + len(kind)) * GB, "seconds": turns(contenders, ready)}
