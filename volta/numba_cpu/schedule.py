"""What the CPU decides about a plan: which calls run as one, what memory they need besides, and their launches.

A plan's calls say what is computed; `HANDLERS` has an entry for each class of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from llvmlite import ir

from volta.core.ir import Eqn
from volta.core.policy import TENSOR_PRECISIONS, DeterminismLevel
from volta.numba_cpu import (
    attention,
    attention_schedule,
    bands,
    chases,
    combining,
    dot,
    dot_block_row,
    dot_block_words,
    dot_row,
    dot_schedule,
    epilogues,
    loop_schedule,
    nests,
    nests_tiled,
    ordering_schedule,
    panels,
    radix_sorting,
    scatter,
    scatter_buckets,
    scatter_numbers,
    scatter_schedule,
    scatter_sorting,
    small_loop_code,
    small_loops,
    sorting,
    target,
    tiles,
    user_entry,
    vector_sorting,
)
from volta.numba_cpu.launches import Launch
from volta.xla_like import control_calls, user
from volta.xla_like.dot import BLOCK_PRODUCT
from volta.xla_like.kernels import KernelCall, kernel_class
from volta.xla_like.ordering import Scatter
from volta.xla_like.panels import PANEL, kept
from volta.xla_like.plan import Buffer

Build = Callable[[ir.Module, str, Any], object]
"""Adds a kernel to a module, by its symbol and what it is for."""


@attrs.frozen
class Handler:
    """How a class of calls runs: its launches, of a call for registers of so many bits; the kernels of these, by name;
    the bytes of memory that they share; and the strongest level at which they are deterministic."""

    launches: Callable[[KernelCall, int, Sequence[Buffer]], list[Launch]]
    kernels: Mapping[str, Build]
    workspace: Callable[[KernelCall, int], int] = lambda call, vector_bits: 0
    level: DeterminismLevel = DeterminismLevel.STRICT


def _attention(name: str, build: Build) -> dict[str, Handler]:
    return {name: Handler(attention_schedule.launches, {name: build})}


def _joined(call: KernelCall, vector_bits: int, buffers: Sequence[Buffer]) -> list[Launch]:
    """Loops that pass something on which nobody else sees run tile by tile, others band by band."""
    handler = tiles if tiles.inside(call) else epilogues
    return handler.launches(call, vector_bits, buffers)


_IN_PLACE = Handler(lambda call, vector_bits, buffers: [], {})
"""Of a choice, and of a loop that is not small, `lower` writes the rows of its plans, between rows that jump."""

HANDLERS: dict[str, Handler] = {
    "loop": Handler(loop_schedule.launches, {"loop": nests.build_loop}),
    "combine": Handler(loop_schedule.combine, {"combine": combining.build_combine}),
    "joined": Handler(
        _joined, {"epilogue": epilogues.build_epilogue, "tiled": nests_tiled.build_tiled}, epilogues.workspace
    ),
    "dot": Handler(
        dot_schedule.launches,
        {
            "dot": dot.build_dot,
            "dot_pack": dot.build_dot_pack,
            "dot_row": dot_row.build_dot_row,
            "dot_block_row": dot_block_row.build_dot_block_row,
            "dot_block_words": dot_block_words.build_dot_block_words,
        },
        dot_schedule.workspace,
    ),
    **_attention("attention", attention.build_attention),
    **_attention("attention_dq", attention.build_attention_dq),
    **_attention("attention_dkv", attention.build_attention_dkv),
    **_attention("attention_backward", attention.build_attention_backward),
    "scan": Handler(ordering_schedule.scan, {"scan": sorting.build_scan}),
    "sort": Handler(
        ordering_schedule.sort,
        {
            "sort": sorting.build_sort,
            "sort_rows": radix_sorting.build_rows,
            "sort_keys": radix_sorting.build_keys,
            "sort_count": radix_sorting.build_count,
            "sort_starts": radix_sorting.build_starts,
            "sort_place": radix_sorting.build_place,
            "sort_results": radix_sorting.build_results,
            "vector_sort": vector_sorting.build_rows,
            "vector_sort_sample": vector_sorting.build_sample,
            "vector_sort_share": vector_sorting.build_share,
            "vector_sort_buckets": vector_sorting.build_buckets,
            "vector_sort_special": vector_sorting.build_special,
        },
        ordering_schedule.sort_bytes,
    ),
    "scatter": Handler(
        scatter_schedule.launches,
        {
            "scatter": lambda m, n, spec: scatter.build_scatter(m, n, spec, target.vector_bits() // 32),
            "scatter_few": lambda m, n, spec: scatter.build_scatter_few(m, n, spec, target.vector_bits() // 32),
            "scatter_count": scatter_sorting.build_count,
            "scatter_starts": scatter_sorting.build_starts,
            "scatter_place": scatter_sorting.build_place,
            "scatter_split": scatter_buckets.build_split,
            "scatter_numbers": scatter_numbers.build_numbers,
        },
        scatter_schedule.order_bytes,
    ),
    PANEL: Handler(panels.launches, {"panel": panels.build_panel, chases.REST: panels.build_rest}, panels.workspace),
    user.NAME: Handler(user_entry.launches, {user.NAME: user_entry.build_user}),
    **dict.fromkeys(control_calls.KINDS, _IN_PLACE),
    "while": Handler(small_loops.launches, {small_loops.NAME: small_loop_code.build_small_loop}),
}
"""By `kernel_class`."""

GENERAL: dict[str, Handler] = {
    "sort": Handler(ordering_schedule.merge, {"sort": sorting.build_sort}),
    "scatter": Handler(scatter_schedule.general, {}, scatter_schedule.general_bytes),
    "while": _IN_PLACE,
}
"""By `kernel_class`, where a `Schedule` is general."""

KERNELS: dict[str, Build] = {name: build for handler in HANDLERS.values() for name, build in handler.kernels.items()}
"""Every kernel by its class."""


@attrs.frozen
class Schedule:
    """The CPU's, for registers of ``vector_bits``. It changes no bit.

    ``general``: for kernels that somebody else writes (`volta.numba_source`), those that serve every program: equations
    that mean a program are that program, every loop is a plan whose launches run again and again, rows are merged, and
    updates are sorted by target.
    """

    vector_bits: int
    general: bool = False
    tensor_cores = False
    moves = False

    def keeps(self, eqn: Eqn) -> bool:
        """Products with weights in blocks, whose precision is that of chains of float32 here, and panels."""
        name = eqn.primitive.name
        panel = name == PANEL and (kept(eqn) or panels.keeps_composed(eqn))
        product = name == BLOCK_PRODUCT and eqn.params["precision"] in (None, *TENSOR_PRECISIONS)
        return not self.general and (product or panel)

    def bare(self, op: Scatter) -> bool:
        """Scatters of single numbers."""
        return not self.general and scatter_schedule.fills_rows(op)

    def joined(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> list[KernelCall]:
        """Products with the loops that run band by band behind them; loops that pass arrays on tile by tile, or band by
        band."""
        found = epilogues.join(calls, buffers, self.vector_bits)
        return bands.join(found if self.general else tiles.join(found, buffers, self.vector_bits), buffers)

    def moments(self, calls: Sequence[KernelCall], buffers: Sequence[Buffer]) -> Sequence[int]:
        return range(len(calls))

    def workspace(self, call: KernelCall) -> int:
        """Bytes that a call's launches share."""
        handler = self._handler(call)
        return 0 if handler is None else handler.workspace(call, self.vector_bits)

    def launches(self, call: KernelCall, buffers: Sequence[Buffer]) -> list[Launch]:
        """What runs a call; of a loop or a choice nothing, if the launches of its plans do, again and again."""
        handler = self._handler(call)
        assert handler is not None, kernel_class(call.kernel)
        return handler.launches(call, self.vector_bits, buffers)

    def _handler(self, call: KernelCall) -> Handler | None:
        name = kernel_class(call.kernel)
        return (GENERAL.get(name) if self.general else None) or HANDLERS.get(name)
