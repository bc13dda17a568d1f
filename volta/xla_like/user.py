"""Calls of the user's own kernels: what runs for each element of a batch, over whole contiguous arrays."""

from __future__ import annotations

import attrs

from volta.core.errors import NotDifferentiableError, UnsupportedOperationError
from volta.core.policy import DeterminismLevel
from volta.core.source import at_user_line
from volta.ops.user import UserKernel
from volta.xla_like.kernels import Access, KernelCall, Operation, kernel_class
from volta.xla_like.loops import unique
from volta.xla_like.nodes import Node, Ref
from volta.xla_like.opaque import Context
from volta.xla_like.views import Ints, prod, row_major

KINDS = ("user_kernel", "user_pushforward")

NAME = "user"


@attrs.frozen
class User(Operation):
    """A user's kernel, the sizes of the batch, the dtype and shape of an element's part of each array (operands, then
    results), and how many of them are read.

    An access's strides are those of the batch (0: the same for the whole dimension), then the array's own.
    """

    kernel: UserKernel
    batch: Ints
    arrays: tuple[tuple[str, Ints], ...]
    reads: int

    @property
    def name(self) -> str:
        return NAME

    @property
    def shown(self) -> str:
        return self.kernel.name

    def details(self) -> str:
        shown = [f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in self.arrays]
        operands, results = ", ".join(shown[: self.reads]), ", ".join(shown[self.reads :])
        return f"({operands}) -> ({results}) batch={self.batch}"


def is_user(call: KernelCall) -> bool:
    """Whether a call is of a kernel of the user's own."""
    return kernel_class(call.kernel) == NAME


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
    arrays, accesses = [], []
    for val, shape, mask in (*read, *((val, val.shape, whole) for val in node.outputs)):
        arrays.append((val.dtype.name, shape[sum(mask) :]))
        accesses.append(Access(ctx.buffer_of(val), 0, _strides(shape, mask, val.dtype.itemsize)))
    buffers = [a.buffer for a in accesses]
    inputs, outputs = unique(buffers[: len(read)]), unique(buffers[len(read) :])
    label = "" if node.source is None else str(node.source)
    op = User(kernel, batch, tuple(arrays), len(read))
    return [KernelCall(op, (), tuple(accesses), inputs, outputs, label=label)]


def _strides(shape: Ints, mask: tuple[bool, ...], itemsize: int) -> Ints:
    """Bytes from one element of the batch to the next along each of its dimensions, then the array's own."""
    strides = iter(row_major(shape))
    return tuple(n * itemsize for n in (*(next(strides) if m else 0 for m in mask), *strides))
