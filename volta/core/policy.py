"""Determinism as an explicit policy."""

from __future__ import annotations

import enum


class DeterminismLevel(enum.Enum):
    """How much a run promises.

    STRICT: the same bits everywhere (docs/determinism.md). DEVICE: the same bits from run to run and batch to batch on
    one architecture. RELAXED: no promise. Today every kernel is strict; the weaker levels allow more, later.
    """

    STRICT = "strict"
    DEVICE = "device"
    RELAXED = "relaxed"
