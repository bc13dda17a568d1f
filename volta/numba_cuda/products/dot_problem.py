"""What the choice of a product's kernel goes by."""

from __future__ import annotations

import attrs

from volta.numba_cuda.products.dot_epilogue import Epilogue
from volta.xla_like.dot import Dot, DotStrides
from volta.xla_like.kernels import Access, KernelCall


@attrs.frozen
class Problem:
    """A product, where its arrays lie, and what becomes of its elements."""

    dot: Dot
    lhs: Access
    rhs: Access
    out: Access
    epilogue: Epilogue | None = None
    loops: tuple[KernelCall, ...] = ()

    @property
    def strides(self) -> DotStrides:
        return DotStrides(self.lhs.strides, self.rhs.strides, self.out.strides)

    def aligned(self, nbytes: int, array: Access, stride: int) -> bool:
        """Whether an array begins at multiples of `nbytes`, in all items of the batch, and a stride is such."""
        steps = [array.offset, stride]
        steps += [step for step, count in zip(array.strides, self.dot.batch, strict=False) if count > 1]
        return not any(step % nbytes for step in steps)
