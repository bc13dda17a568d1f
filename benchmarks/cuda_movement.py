"""Loops that read what is moved: rolls, paddings, halves exchanged. Rows of `benchmarks/gpu.py movement`.

Bytes are those of one copy, each operand read once: what a program could take that found every neighbour in a cache.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.gpu_harness import Row, draw, jax_on, ready, turns, volta_on

SIDE = 8192

Program = Callable[[Any], Callable[..., Any]]
"""A function of arrays, given the namespace of one who computes it: `volta.numpy` or `jax.numpy`."""


def _stencil(np: Any) -> Callable[..., Any]:
    return lambda x: 0.25 * (np.roll(x, 1, 0) + np.roll(x, -1, 0) + np.roll(x, 1, 1) + np.roll(x, -1, 1))


def _heat(np: Any) -> Callable[..., Any]:
    near = _stencil(np)
    return lambda x: x + 0.4 * (near(x) - x)


def _rotary(np: Any) -> Callable[..., Any]:
    def turned(x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin

    return turned


PROGRAMS: dict[str, tuple[Program, bool]] = {
    "four rolls": (_stencil, False),
    "a step of heat": (_heat, False),
    "rows above and below": (lambda np: lambda x: np.roll(x, 1, 0) + np.roll(x, -1, 0) - x, False),
    "pad * 2": (lambda np: lambda x: np.pad(x, 1) * 2.0, False),
    "x / 2 + roll, of one row": (lambda np: lambda x: x.reshape(-1) * 0.5 + np.roll(x.reshape(-1), 3), False),
    "8 (1.1 sin(x) + roll), of one row": (
        lambda np: lambda x: 8 * (np.sin(x.reshape(-1)) * 1.1 + np.roll(x.reshape(-1), 3)),
        False,
    ),
    "rotary embedding": (_rotary, True),
}
"""By name; whether the operands are a head's vectors and their angles."""


def movement_rows() -> Iterator[Row]:
    """A row for each program, on 268 MB."""
    import jax
    import jax.numpy as jnp

    import volta
    import volta.numpy as vnp

    field, heads, angle = draw(SIDE, SIDE), draw(4, SIDE // 4, 64, 128), draw(SIDE // 4, 1, 128)
    for name, (program, turned) in PROGRAMS.items():
        operands = (heads, angle, angle + 1) if turned else (field,)
        contenders = {
            "volta": partial(volta.jit(program(vnp)), *volta_on(*operands)),
            "jax": partial(jax.jit(program(jnp)), *jax_on(*operands)),
        }
        yield {"name": name, "bytes": 2 * field.nbytes, "seconds": turns(contenders, ready)}
