"""What CUDA decides about a plan: which calls run as one, what memory they need besides, and their launches.

A plan's calls say what is computed; `HANDLERS` has an entry for each class of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from volta.core.block_formats import LAYOUTS
from volta.core.ir import Eqn
from volta.core.policy import DeterminismLevel
from volta.numba_cuda import conditional_nodes, merging, moves, user
from volta.numba_cuda.attention import attention_choice, attention_tensor_choice
from volta.numba_cuda.launch_context import LaunchContext
from volta.numba_cuda.launches import Launch
from volta.numba_cuda.loops import combining, nests, nests_tiled, tiles
from volta.numba_cuda.ordering import scan_steps, steps
from volta.numba_cuda.panels import panels
from volta.numba_cuda.products import dot, dot_rounded, epilogues
from volta.numba_cuda.products.beside import side_by_side
from volta.numba_cuda.products.dot_unpack import UNPACKED_ROWS
from volta.xla_like.control_calls import KINDS
from volta.xla_like.dot import BLOCK_PRODUCT
from volta.xla_like.kernels import KernelCall, LoopKernel, kernel_class
from volta.xla_like.ordering import Scatter
from volta.xla_like.panels import PANEL, kept
from volta.xla_like.plan import Buffer
from volta.xla_like.user import NAME as USER


@attrs.frozen
class Handler:
    """How a class of calls runs: its launches, with the kernels that these build; the bytes of the arena that they
    share; and the strongest level at which they are deterministic. At level device the bits are the same from run to
    run and batch to batch on one architecture."""

    launches: Callable[[KernelCall, LaunchContext], Iterator[Launch]]
    workspace: Callable[[KernelCall], int] = lambda call: 0
    level: DeterminismLevel = DeterminismLevel.STRICT


def _joined(call: KernelCall, ctx: LaunchContext) -> Iterator[Launch]:
    """Of a product with its epilogue, or of loops that run tile by tile."""
    return (nests_tiled if isinstance(call.parts[0].kernel, LoopKernel) else dot).launches(call, ctx)


HANDLERS: dict[str, Handler] = {
    "loop": Handler(nests.launches),
    "combine": Handler(combining.launches),
    "joined": Handler(_joined),
    "dot": Handler(dot.launches),
    "dot_tc": Handler(dot.launches, level=DeterminismLevel.DEVICE),
    **dict.fromkeys(attention_choice.KERNELS, Handler(attention_choice.launches)),
    attention_choice.BACKWARD: Handler(attention_choice.backward),
    **dict.fromkeys(
        attention_tensor_choice.TENSOR_KERNELS,
        Handler(attention_tensor_choice.launches, level=DeterminismLevel.DEVICE),
    ),
    "scan": Handler(scan_steps.scan),
    "sort": Handler(steps.sort),
    "scatter": Handler(steps.scatter, steps.order_bytes),
    PANEL: Handler(panels.launches),
    "move": Handler(moves.launches),
    USER: Handler(user.launches),
    **dict.fromkeys(KINDS, Handler(conditional_nodes.launches)),
}
"""By `kernel_class`."""

KERNEL_CLASSES = {name: handler.level for name, handler in HANDLERS.items() if name != "joined"}
"""Classes of kernels, each with the strongest level at which it is deterministic: joined calls have their parts'."""


@attrs.frozen
class Schedule:
    """CUDA's. Launches are chosen later, for a GPU's compute capability (kernels.py). What scratch memory they need for
    themselves depends on it, and lies behind the arena (`merging.place_scratch`)."""

    tensor_cores = True
    moves = True

    def keeps(self, eqn: Eqn) -> bool:
        """Panels, and products with weights in blocks that are not interleaved: of few rows, and below strict of any
        where tensor cores multiply with bfloat16 that a kernel makes of them. For many rows weights become float32 once
        for all of them."""
        if eqn.primitive.name == PANEL:
            long = eqn.params["kind"] == "qr" and eqn.inputs[0].aval.shape[2] > panels.REFLECTED
            return (kept(eqn) and not long) or panels.keeps_composed(eqn)
        if eqn.primitive.name != BLOCK_PRODUCT:
            return False
        fmt, precision = LAYOUTS[eqn.params["format"]], eqn.params["precision"]
        if precision == "bf16":
            return dot_rounded.unpacks(fmt)
        return precision is None and fmt.rows == 1 and eqn.inputs[0].aval.shape[0] <= UNPACKED_ROWS

    def bare(self, op: Scatter) -> bool:
        return False

    def joined(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
        """Products with the loops that their kernels compute where they write tiles, and those of the same rows beside
        each other, as small loops that are alike; loops that pass arrays on tile by tile."""
        beside = side_by_side(epilogues.join(calls, buffers))
        return tiles.join(merging.alike_beside(beside, buffers), buffers)

    def moments(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> Sequence[int]:
        """Alike loops over small values run in one launch, where their memory lets them."""
        return merging.moments(calls, buffers)

    def workspace(self, call: KernelCall) -> int:
        """Bytes that a call's launches share, and that lie in the arena."""
        handler = HANDLERS.get(kernel_class(call.kernel))
        return 0 if handler is None else handler.workspace(call)
