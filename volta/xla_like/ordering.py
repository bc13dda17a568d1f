"""Scans, sorts and scatters as operations: what they compute, and nothing about how."""

from __future__ import annotations

import attrs
import numpy as np

from volta.core import dtypes
from volta.xla_like.kernels import Operation

SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}
"""How each kind of scan combines, as reductions call it."""

SCATTERS = {"add": "sum", "mul": "prod", "min": "min", "max": "max"}
"""How updates combine, likewise; of 'set' the last one stays."""


@attrs.frozen
class ScanSpec:
    """cumsum, cumprod, cummax or cummin over rows; ``reverse`` from the end."""

    kind: str
    dtype: np.dtype
    reverse: bool


@attrs.frozen
class SortSpec:
    """Stable sort of rows by the first ``num_keys`` operands.

    The operand ``positions`` (None: no such) is each element's position in its row, of 4 bytes, and is not read.
    """

    dtypes: tuple[np.dtype, ...]
    num_keys: int
    positions: int | None = None

    @property
    def read(self) -> tuple[int, ...]:
        """The operands that are read."""
        return tuple(k for k in range(len(self.dtypes)) if k != self.positions)


@attrs.frozen
class ScatterSpec:
    """Combine rows of updates that have the same target, in their order, then with the target."""

    op: str
    dtype: np.dtype


@attrs.frozen
class Scan(Operation):
    """Rows of an array, scanned. Accesses: the array, the result; both (rows, length)."""

    spec: ScanSpec
    rows: int
    length: int

    @property
    def name(self) -> str:
        return "scan"

    def details(self) -> str:
        return f"{self.spec.kind} rows={self.rows} length={self.length}{' reverse' if self.spec.reverse else ''}"


@attrs.frozen
class Sort(Operation):
    """Rows of arrays, sorted together. Accesses: the operands that are read, then the results; all (rows, length)."""

    spec: SortSpec
    rows: int
    length: int

    @property
    def name(self) -> str:
        return "sort"

    def details(self) -> str:
        arrays = " ".join(dtypes.short_name(d) for d in self.spec.dtypes)
        return f"rows={self.rows} length={self.length} keys={self.spec.num_keys} of {arrays}"


@attrs.frozen
class Scatter(Operation):
    """For each item of a batch, ``count`` rows of updates into ``slots`` rows of a result, ``width`` elements each.

    Accesses: updates (batch, count, width), targets (batch, count; int64, -1: dropped; where a backend reads them so,
    int32, dropped if out of range), the result (batch, slots, width), which holds what updates are combined with.
    """

    spec: ScatterSpec
    batch: int
    slots: int
    width: int
    count: int

    @property
    def name(self) -> str:
        return "scatter"

    def details(self) -> str:
        return f"{self.spec.op} batch={self.batch} slots={self.slots} width={self.width} count={self.count}"
