"""The suite of linear algebra: decompositions of small and large matrices, of tall ones, and in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import volta.numpy as vnp
from volta import lax
from volta.testing.data import fill
from volta.verify.checks import Check, Named, Setting, compare

_Programs = tuple[tuple[str, Callable[[Any], Any]], ...]

_TALL: _Programs = (("lu", lambda a: lax.linalg.lu(a)), ("qr", vnp.linalg.qr))
_SQUARE: _Programs = (*_TALL, ("solve", lambda a: vnp.linalg.solve(a, a[..., :3])), ("inv", vnp.linalg.inv))
_SYMMETRIC: _Programs = (("cholesky", lax.linalg.cholesky), ("eigh", vnp.linalg.eigh))


def definite(a: Any) -> Any:
    """A symmetric matrix whose diagonal is large, by additions alone: the same on every machine."""
    n = a.shape[-1]
    return (a + a.swapaxes(-1, -2) + 4 * n * np.eye(n)).astype(a.dtype)


def matrices(setting: Setting) -> Iterator[Check]:
    """Eliminations, reflections and rotations go column by column in a fixed order, whoever has the columns."""

    def found() -> Iterator[Named]:
        for shape in ((7, 8, 8), (2, 40, 40), (1, 300, 300), *([(1, 1000, 1000)] if setting.full else [])):
            for dtype in ("float32", "float64") if shape[-1] < 300 or setting.full else ("float32",):
                a = fill("normal", shape, dtype)
                for name, f in _SQUARE:
                    yield f"{name} {shape} {dtype}", f, (a,)
                for name, f in _SYMMETRIC:
                    yield f"{name} {shape} {dtype}", f, (definite(a),)
        yield "svd", vnp.linalg.svd, (fill("normal", (5, 20, 12)),)
        for rows in (700, 1500, 2100):  # what of a column fits registers, shared memory, neither
            a = fill("normal", (rows, 37))
            for name, f in _TALL:
                yield f"{name} of {rows} rows", f, (a,)
        for kind in ("ladder", "zeros", "specials"):
            a = fill(kind, (3, 33, 33))
            yield f"lu {kind}", lax.linalg.lu, (a,)  # pivots tie, vanish, are NaN
            yield f"triangles {kind}", _triangles, (a,)

    yield from compare(setting, found())


def _triangles(a: Any) -> Any:
    return [lax.linalg.triangular_solve(a, a[..., :2], left_side=True, lower=lower) for lower in (True, False)]
