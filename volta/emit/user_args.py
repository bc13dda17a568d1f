"""What the entries of users' kernels share among the backends: what one is compiled for, and the words of its args."""

from __future__ import annotations

import attrs

from volta.ops.user import UserKernel
from volta.xla_like.kernels import KernelCall
from volta.xla_like.user import User


@attrs.frozen
class UserSpec:
    """What one compiled entry is for: a user's kernel, the dtype and rank of each of its arrays (operands, then
    results), how many of them are read, and how many dimensions the batch has.

    Behind the arrays' addresses its args are the sizes of the batch, then for each array its batch strides in bytes (0:
    the same for the whole dimension) and its shape: see `user_words`.
    """

    kernel: UserKernel
    arrays: tuple[tuple[str, int], ...]
    reads: int
    batch: int

    @classmethod
    def of(cls, op: User) -> UserSpec:
        return cls(op.kernel, tuple((dtype, len(shape)) for dtype, shape in op.arrays), op.reads, len(op.batch))

    @property
    def shown(self) -> str:
        """How reports name the kernel."""
        return self.kernel.name

    def __str__(self) -> str:
        shown = [f"{dtype}[{rank}]" for dtype, rank in self.arrays]
        operands, results = ", ".join(shown[: self.reads]), ", ".join(shown[self.reads :])
        return f"{self.kernel.name}({operands}) -> ({results}) batch={self.batch}"


def user_words(call: KernelCall) -> tuple[int, ...]:
    """The words of a call of `User` behind the addresses."""
    op = call.kernel
    assert isinstance(op, User)
    words = [*op.batch]
    for (_, shape), access in zip(op.arrays, call.accesses, strict=True):
        words += [*access.strides[: len(op.batch)], *shape]
    return tuple(words)
