"""Products with weights that are kept in blocks, as one equation: it means a program, and backends may have a kernel.

``x`` (rows, inputs), float32, times the transpose of the numbers (outputs, inputs) that ``packed`` stands for, at a
precision of products. Where that rounds operands, ``x`` may come rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr
from volta.ops.base import move_axis, reshape_to, shape_of
from volta.ops.primitive import Linear, Zero
from volta.trace.control import batched as batched_program
from volta.trace.jaxpr_trace import eval_closed
from volta.trace.meaning import means_its_program
from volta.xla_like.dot import BLOCK_PRODUCT


class Products(Protocol):
    """What is multiplied with, apart from the bytes: hashable, as a program is kept by it."""

    def program(self, rows: int, packed: tuple[int, ...]) -> ClosedJaxpr:
        """The product of ``rows`` rows and weights of that shape, as operations."""

    def back(self, ct: Any, packed: Any) -> Any:
        """The cotangent of ``x``: ``ct`` (rows, outputs) times the numbers."""


def block_product(x: Any, packed: Any, products: Products, fmt: str, precision: str | None) -> Any:
    """``x`` (rows, inputs) times the transpose of what ``packed`` stands for: (rows, outputs)."""
    program = products.program(get_aval(x).shape[0], get_aval(packed).shape)
    (out,) = block_product_p.bind(x, packed, jaxpr=program, products=products, format=fmt, precision=precision)
    return out


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: ClosedJaxpr, **params: Any) -> Any:
    (x, packed), (t, _) = primals, tangents
    (out,) = block_product_p.bind(x, packed, jaxpr=jaxpr, **params)
    if isinstance(t, Zero):
        return [out], [Zero(get_aval(out).strip_weak())]
    return [out], block_product_p.bind(t, packed, jaxpr=jaxpr, **params)


def _linearize(nonzero: Sequence[bool], x: Any, packed: Any, **params: Any) -> Any:
    outs = block_product_p.bind(x, packed, **params)
    return outs, (True,), lambda t: block_product_p.bind(t, packed, **params)


def _transpose(cts: Sequence[Any], x: Any, packed: Any, *, products: Products, **params: Any) -> list[Any]:
    (ct,) = cts
    assert isinstance(x, Linear)
    return [None if isinstance(ct, Zero) else products.back(ct, packed), None]


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, jaxpr: ClosedJaxpr, products: Products, format: str,
    precision: str | None,
) -> Any:  # fmt: skip
    """More rows where the weights are one; else the program, batched."""
    (x, packed), (dim, weights) = args, dims
    if weights is None and dim is not None:
        x = move_axis(x, dim, 0)
        size, rows, inputs = shape_of(x)
        out = block_product(reshape_to(x, (size * rows, inputs)), packed, products, format, precision)
        return [reshape_to(out, (size, rows, shape_of(out)[1]))], [0]
    mapped = tuple(d is not None for d in dims)
    program, _ = batched_program(jaxpr, trace.axis, mapped, (True,), BLOCK_PRODUCT)
    front = [y if d is None else move_axis(y, d, 0) for y, d in zip(args, dims, strict=True)]
    return eval_closed(program, *front), [0]


block_product_p = means_its_program(
    BLOCK_PRODUCT,
    jvp=_jvp,
    batch=_batch,
    linearize=_linearize,
    transpose=_transpose,
    doc="Rows times the transpose of a matrix that is kept in blocks of few bits, as DOT over its numbers.",
)
