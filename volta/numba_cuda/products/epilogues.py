"""Matrix-product epilogues in the product's own kernel: what is read of a product element by element is computed where
the product's tile is written.

An epilogue is one call whose parts are the product and the loop kernels that read it. Each loop's element
is computed from the same operands by the same operations, so nothing about the bits changes. A product that nobody else
reads is never stored: its buffer has no memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from volta.xla_like.dot import Dot, item_size
from volta.xla_like.kernels import Joined, KernelCall, LoopKernel
from volta.xla_like.loops import reads_in_order
from volta.xla_like.plan import Buffer
from volta.xla_like.views import prod

LEAST, DEEPEST = 1 << 22, 4096
"""Elements of a product on tensor cores, and bytes of k, from which on and up to which it has an epilogue. That takes
about as long as the product and runs beside the next tile, so there must be several for each multiprocessor; and their
tiles are small, which costs a deep product more than it gains."""

MAX_LOOPS = 3

NEAR = 32
"""Bytes up to which neighbours of a row may lie apart, a sector of memory: what reads or writes across rows is better
transposed by a kernel of its own."""


def join(calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
    """Join each product with the loop kernels that read it element by element.

    A loop that comes later is moved up to its product, unless a call between them gives it something to read, or
    touches memory that it writes or may write over.
    """
    left, out = list(calls), []
    writers = Counter(b for call in calls for b in call.writes)
    while left:
        head = left.pop(0)
        product, columns = _product(head, buffers, writers)
        rest = list(left)
        loops: list[KernelCall] = []
        while product is not None and len(loops) < MAX_LOOPS:
            position = next((i for i, call in enumerate(rest) if product.id in call.reads), None)
            if position is None:
                break
            written = [b for loop in loops for b in loop.writes]
            loop = _in_rows(rest[position], columns, product)
            if loop is None or any(b in written for b in loop.reads) or not moves_up(loop, rest[:position]):
                break
            loops.append(loop)
            del rest[position]
        if product is not None and loops:
            stored = product.kind != "temp" or any(product.id in call.reads for call in rest)
            if _pays(head, product, stored):
                head, left = _joined(head, loops, product.id, stored), rest
        out.append(head)
    return out


def _product(
    call: KernelCall, buffers: Sequence[Buffer], writers: Counter[int]
) -> tuple[Buffer | None, int]:  # fmt: skip
    """The buffer that a product fills, item after item, row after row, and its columns; None where there is no such."""
    dot = call.kernel
    if not isinstance(dot, Dot) or dot.spec.blocks is not None or writers[call.writes[0]] > 1:
        return None, 0
    out, (outer, inner), result = buffers[call.writes[0]], dot.batch, call.accesses[2]
    row = dot.n * out.aval.dtype.itemsize
    if result.offset or dot.batches * dot.m * dot.n != out.aval.size:
        return None, 0
    steps = zip(result.strides, (inner * dot.m * row, dot.m * row, row), (outer, inner, dot.m), strict=False)
    return (out if all(stride == step or count == 1 for stride, step, count in steps) else None), dot.n


def _pays(call: KernelCall, product: Buffer, stored: bool) -> bool:
    """Whether an epilogue in the product's kernel is faster: on tensor cores not where the product is stored too."""
    dot = call.kernel
    assert isinstance(dot, Dot)
    if dot.name != "dot_tc":
        return True
    depth = dot.k * item_size(dot.spec.lhs)
    return not stored and product.aval.size >= LEAST and depth <= DEEPEST


def _in_rows(call: KernelCall, n: int, product: Buffer) -> KernelCall | None:
    """The call of a loop over a product's elements, with rows of ``n`` as its last dimension; None if it is not one."""
    kernel = call.kernel
    if not isinstance(kernel, LoopKernel) or kernel.mode != "map":
        return None
    dims = call.sizes
    if prod(dims) != product.aval.size or dims[-1] % n or not reads_in_order(call, dims, product):
        return None
    if n > 1 and any(a.buffer is not None and abs(a.strides[-1]) > NEAR for a in call.accesses):
        return None
    if dims[-1] == n:
        return call
    accesses = tuple(
        attrs.evolve(a, strides=(*a.strides[:-1], a.strides[-1] * n, a.strides[-1])) for a in call.accesses
    )
    sizes = (*dims[:-1], dims[-1] // n, n)
    return attrs.evolve(call, kernel=attrs.evolve(kernel, rank=kernel.rank + 1), sizes=sizes, accesses=accesses)


def moves_up(loop: KernelCall, above: Sequence[KernelCall]) -> bool:
    """Whether a call may run before those above it, and may still write over what it might have before."""
    mine = {*loop.writes, *(read for read, _ in loop.inplace)}
    return not any(
        mine.intersection(call.reads) or mine.intersection(call.writes) or set(loop.reads).intersection(call.writes)
        for call in above
    )


def _joined(head: KernelCall, loops: Sequence[KernelCall], product: int, stored: bool) -> KernelCall:
    reads = dict.fromkeys(b for part in (head, *loops) for b in part.reads if b != product)
    written = dict.fromkeys(b for part in (head, *loops) for b in part.writes if stored or b != product)
    # Other blocks still read the product's operands; a value that two loops read is overwritten by neither.
    count = {b: sum(b in part.reads for part in (head, *loops)) for b in reads}
    inplace = [pair for loop in loops for pair in loop.inplace if count.get(pair[0]) == 1 and pair[0] not in head.reads]
    return KernelCall(
        kernel=Joined(),
        sizes=(),
        accesses=(),
        reads=tuple(reads),
        writes=tuple(written),
        label=head.label,
        inplace=tuple(inplace),
        parts=(head, *loops),
    )
