"""Panels, as operations: a few columns of a matrix, eliminated one by one. What is computed is what a program means."""

from __future__ import annotations

import attrs
import numpy as np

from volta.core import dtypes
from volta.xla_like.kernels import Operation

PANEL = "panel"
"""The primitive's name, and the class of kernels."""

WIDTH = 32
"""Columns of a panel at most."""


@attrs.frozen
class PanelSpec:
    """What is done with a panel, whose columns lie one behind the other.

    'cholesky': the columns of L from those of square matrices. 'substitute': the solutions of triangular equations.
    'lu': elimination with pivots. ``unit``: diagonal elements of a triangle count as 1.
    """

    kind: str
    dtype: np.dtype
    unit: bool = False


@attrs.frozen
class Panel(Operation):
    """``width`` columns of ``length`` elements for each matrix of a batch. Accesses: its program's operands, then its
    results; all are contiguous."""

    spec: PanelSpec
    batch: int
    width: int
    length: int

    @property
    def name(self) -> str:
        return PANEL

    @property
    def shown(self) -> str:
        return f"{self.spec.kind} of a panel"

    def details(self) -> str:
        unit = " unit" if self.spec.unit else ""
        return (
            f"{self.spec.kind} {dtypes.short_name(self.spec.dtype)} batch={self.batch} width={self.width} "
            f"length={self.length}{unit}"
        )
