"""Determinism as an explicit policy, and the contract that says which bits strict means."""

from __future__ import annotations

import enum
import hashlib

import attrs

CONTRACT = "strict-v1"


class DeterminismLevel(enum.Enum):
    """How much a run promises.

    STRICT: the same bits everywhere (docs/determinism.md). DEVICE: the same bits from run to run and batch to batch on
    one architecture. RELAXED: no promise. Today every kernel is strict; the weaker levels allow more, later.
    """

    STRICT = "strict"
    DEVICE = "device"
    RELAXED = "relaxed"


@attrs.frozen
class Definitions:
    """The constants that fix the order of every accumulation. They are hashed into plan keys and file formats."""

    sum_lanes: int = 64
    sum_rows: int = 64
    dot_chunk: int = 256
    scan_block: int = 256

    @property
    def sum_block(self) -> int:
        return self.sum_lanes * self.sum_rows

    def contract_id(self) -> str:
        """``strict-v1`` with a hash of the constants, as printed in plans and written into files."""
        digest = hashlib.sha256(repr(attrs.astuple(self)).encode()).hexdigest()[:8]
        return f"{CONTRACT}-{digest}"


DEFINITIONS = Definitions()
