"""Panels, as operations: a few columns of a matrix, eliminated one by one. What is computed is what a program means."""

from __future__ import annotations

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.ir import Eqn
from volta.xla_like.kernels import Operation
from volta.xla_like.loops import BLOCK

PANEL = "panel"
"""The primitive's name, and the class of kernels."""

WIDTH = 32
"""Columns of a panel at most."""

ROTATIONS = ("symmetric", "rows")
"""Jacobi's rotations: of the rows and columns of symmetric matrices, and of rows that are made orthogonal."""

WHOLE = LOWER, MEAN = ("lower", "mean")
"""Cholesky's factors of matrices of one panel, NaN where there is none: of what is in the lower triangle, and of the
mean of the matrix and its transpose."""

QR_STEP = TURN, FOLLOW = ("turn", "follow")
"""Of complex matrices neighbouring rows, each pair of which finds a rotation; columns, and those of what is multiplied
with them, by rotations that are known."""

FACTOR, FORWARD, TRIANGLE, CHASE, SWEEP, *_ = COMPOSED = (
    "factor", "forward", "triangle", "chase", "sweep", *WHOLE, *QR_STEP,
)  # fmt: skip
"""Cholesky's columns of a whole group; triangular equations of more than a block of rows; T of a block of reflections,
from the products of their vectors and their factors; a QR step of Hessenberg's form, whose reflections chase a bulge;
a sweep of rotations of the rows of larger matrices; Cholesky's factors of small ones; the rotations of a complex QR
step. Where a backend has no kernel for these they are what they mean: panels and products, or loops."""

ROWS = 48
"""Of a matrix that one kernel rotates, at most: so many lie near whoever does it."""

SWEEPS = 40
"""More are not made; matrices need about ten."""


def kept(eqn: Eqn) -> bool:
    """Whether there are kernels for an equation of this name."""
    kind, (_, rows, length) = eqn.params["kind"], eqn.inputs[0].aval.shape
    if kind in COMPOSED:
        return False
    return rows <= ROWS if kind in ROTATIONS else kind != "qr" or length <= BLOCK


@attrs.frozen
class PanelSpec:
    """What is done with a panel, whose columns lie one behind the other.

    'cholesky': the columns of L from those of square matrices. 'substitute': the solutions of triangular equations.
    'qr': reflections. 'lu': elimination with pivots. 'symmetric' and 'rows': Jacobi's rotations of small matrices.
    'chase': a QR step of two shifts, and 'sweep': one of Jacobi's, where the operands lie if memory allows it.
    ``unit``: diagonal elements of a triangle count as 1.
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
