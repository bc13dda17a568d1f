"""Cosine transforms have SciPy's values, of every type and norm, and undo each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta.core.errors import DTypeError, ShapeError
from volta.scipy import fft

pytestmark = pytest.mark.turns(6)

scipy_fft = pytest.importorskip("scipy.fft")

RNG = np.random.default_rng(3)
CASES = [
    (t, n, norm)
    for t in (1, 2, 3, 4)
    for n in (1, 2, 3, 4, 7, 8)
    for norm in (None, "ortho", "forward")
    if t > 1 or n > 1
]


@sampled("kind,n,norm", CASES, [(1, 4, None), (2, 7, "ortho"), (3, 8, None), (4, 3, "forward")])
def test_values_are_scipys(kind: int, n: int, norm: Any) -> None:
    x = RNG.standard_normal((2, n))
    for name in ("dct", "idct"):
        want = getattr(scipy_fft, name)(x, kind, norm=norm)
        for dtype, near in (("f4", 3e-6), ("f8", 1e-14)):
            found = getattr(fft, name)(x.astype(dtype), kind, norm=norm)
            assert found.dtype == dtype
            assert np.abs(np.asarray(found) - want).max() <= near * max(1, np.abs(want).max())


def test_several_axes_and_lengths() -> None:
    x = RNG.standard_normal((3, 4, 5))
    for options in ({}, {"axes": (0, 2), "s": (4, 3)}, {"s": (2, 2), "norm": "ortho"}, {"axes": 1, "type": 3}):
        for name in ("dctn", "idctn"):
            want = getattr(scipy_fft, name)(x, **options)
            assert np.abs(np.asarray(getattr(fft, name)(x, **options)) - want).max() < 1e-12
    assert np.allclose(fft.dct(x, n=6, axis=0), scipy_fft.dct(x, n=6, axis=0))


def test_an_orthogonal_transform_keeps_lengths_and_is_its_cotangents_inverse() -> None:
    x = RNG.standard_normal(7)
    y, back = volta.vjp(lambda x: fft.dct(x, norm="ortho"), x)
    assert np.allclose(vnp.sum(y * y), np.sum(x * x))
    assert np.allclose(back(y)[0], x)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ValueError, match="dct: type=5; it is 1, 2, 3 or 4"):
        fft.dct(np.ones(3), 5)
    with pytest.raises(ValueError, match="idct: norm='no'"):
        fft.idct(np.ones(3), norm="no")
    with pytest.raises(DTypeError, match="dct: takes real numbers, not complex128"):
        fft.dct(np.ones(3) * 1j)
    with pytest.raises(ShapeError, match="of type 1 takes two elements or more, got 1"):
        fft.dct(np.ones(1), 1)
    with pytest.raises(ShapeError, match="dctn: 1 lengths"):
        fft.dctn(np.ones((2, 2)), s=(2,), axes=(0, 1))
