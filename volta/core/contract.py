"""The bit contract in numbers: the one place that states them (docs/determinism.md says what they mean).

A change of any of them moves bits, so it changes :data:`ID`, which plans, plan keys and files carry.
"""

from __future__ import annotations

import hashlib

import attrs

NAME = "strict-v2"


@attrs.frozen
class Definitions:
    """The constants that fix the order of every accumulation.

    SUM: blocks of ``sum_lanes`` x ``sum_rows``; a lane adds every ``sum_lanes``-th element, lanes combine by halves,
    blocks in pairs. DOT: blocks of ``dot_block``; chains of ``dot_chunk`` fused multiply-adds over ascending k, a
    block's added in ascending order, blocks in pairs. Scans: blocks of ``scan_block``, each added to what the blocks
    before it amount to. Attention: keys in blocks of ``attention_block``, merged in ascending order; gradients of keys
    and values over ``attention_rows`` queries each, joined in pairs.
    """

    sum_lanes: int = 64
    sum_rows: int = 64
    dot_chunk: int = 256
    dot_block: int = 4096
    scan_block: int = 256
    attention_block: int = 64
    attention_rows: int = 4096

    @property
    def sum_block(self) -> int:
        return self.sum_lanes * self.sum_rows

    def contract_id(self) -> str:
        """The contract's name with a hash of the constants, such as ``strict-v2-0123abcd``."""
        digest = hashlib.sha256(repr(attrs.astuple(self)).encode()).hexdigest()[:8]
        return f"{NAME}-{digest}"


DEFINITIONS = Definitions()

ID = DEFINITIONS.contract_id()
"""Printed with plans, written into files."""

EXACT_DIGITS, EXACT_TERMS = {"float32": 4, "float64": 7}, 1 << 26
"""Of products of precision "exact": an element's digits of base 256, and how many terms there may be. They came later
than the constants above and moved no bit of what was there, so they are none of those that name the contract."""

NAN_BITS = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
"""The NaN that stands for all NaNs where bits become values: in comparisons, digests, files, and read as integers."""

INFINITY_BITS = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF << 52}
"""+infinity; bits above it, the sign aside, are a NaN's."""
