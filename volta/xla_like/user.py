"""Calls of the user's own kernels: one task an element of the batch, over whole contiguous arrays."""

from __future__ import annotations

import attrs

from volta.core.errors import NotDifferentiableError, UnsupportedOperationError
from volta.core.policy import DeterminismLevel
from volta.core.source import at_user_line
from volta.ops.user import UserKernel
from volta.xla_like.kernels import Access, KernelCall, LibraryKernel
from volta.xla_like.loops import unique
from volta.xla_like.nodes import Node, Ref
from volta.xla_like.opaque import Context
from volta.xla_like.views import Ints, prod, row_major

KINDS = ("user_kernel", "user_pushforward")

NAME = "user"


@attrs.frozen
class UserSpec:
    """A user's kernel, the dtype and rank of each of its arrays (operands, then results), how many of them are read,
    and how many dimensions the batch has.

    A call's sizes are those of the batch, then for each array its batch strides in bytes (0: the same for the whole
    dimension) and its shape.
    """

    kernel: UserKernel
    arrays: tuple[tuple[str, int], ...]
    reads: int
    batch: int

    @property
    def shown(self) -> str:
        """How reports name the kernel."""
        return self.kernel.name

    def __str__(self) -> str:
        shown = [f"{dtype}[{rank}]" for dtype, rank in self.arrays]
        operands, results = ", ".join(shown[: self.reads]), ", ".join(shown[self.reads :])
        return f"{self.kernel.name}({operands}) -> ({results}) batch={self.batch}"


def is_user(call: KernelCall) -> bool:
    """Whether a call is of a kernel of the user's own."""
    return isinstance(call.kernel, LibraryKernel) and call.kernel.name == NAME


def user_calls(node: Node, ctx: Context) -> list[KernelCall]:
    """The call of a user's kernel.

    Raises:
        UnsupportedOperationError: its function is compiled with fastmath, at level strict.
        NotDifferentiableError: tangents are pushed forward through a kernel with a vjp rule only.
    """
    kernel, batch, mapped = node.params["kernel"], node.params["batch"], node.params["mapped"]
    if node.kind == "user_pushforward":
        raise NotDifferentiableError(
            at_user_line(
                f"kernel `{kernel.name}` has a vjp rule, which gives derivatives backwards; here they are pushed "
                f"forward (jvp, linearize, jacfwd, hessian): give it a rule with @{kernel.name}.jvp as well."
            )
        )
    if kernel.fast and ctx.level is DeterminismLevel.STRICT:
        raise UnsupportedOperationError(
            at_user_line(
                f"kernel `{kernel.name}`, or a function that it calls, is compiled with fastmath: its sums may be "
                "taken in any order, so level 'strict' has no kernel for it. Decorate it without fastmath, or run it "
                'in `with volta.execution_context(level="device")`.'
            )
        )
    if prod(batch) == 0:
        return []
    whole = (True,) * len(batch)
    # An operand is the memory of a Val, which may have another shape: the same elements in the same order.
    read = [(x.val, x.view.shape, mask) for x, mask in zip(node.operands, mapped, strict=True) if isinstance(x, Ref)]
    sizes: list[int] = [*batch]
    arrays, buffers = [], []
    for val, shape, mask in (*read, *((val, val.shape, whole) for val in node.outputs)):
        own = shape[sum(mask) :]
        sizes += [*_batch_strides(shape, mask, val.dtype.itemsize), *own]
        arrays.append((val.dtype.name, len(own)))
        buffers.append(ctx.buffer_of(val))
    spec = UserSpec(kernel, tuple(arrays), len(read), len(batch))
    accesses = tuple(Access(b, 0, ()) for b in buffers)
    inputs, outputs = unique(buffers[: len(read)]), tuple(buffers[len(read) :])
    label = "" if node.source is None else str(node.source)
    return [KernelCall(LibraryKernel(NAME, spec), tuple(sizes), accesses, prod(batch), inputs, outputs, label=label)]


def _batch_strides(shape: Ints, mask: tuple[bool, ...], itemsize: int) -> list[int]:
    """Bytes from one element of the batch to the next along each of its dimensions; an array's own come first."""
    strides = iter(row_major(shape))
    return [next(strides) * itemsize if m else 0 for m in mask]
