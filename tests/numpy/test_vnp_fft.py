"""volta.numpy.fft takes what numpy.fft takes, gives its values with JAX's dtypes, and has the derivatives of sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.core.errors import DTypeError, ShapeError
from volta.numpy import fft

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(2)
COMPLEX = {"f2": "c8", "f4": "c8", "f8": "c16", "c8": "c8", "c16": "c16", "i4": "c8", "?": "c8"}
REAL = {"f2": "f4", "f4": "f4", "f8": "f8", "c8": "f4", "c16": "f8", "i4": "f4", "?": "f4"}
TOLERANCE = {"c8": 2e-6, "f4": 2e-6, "c16": 1e-14, "f8": 1e-14}


def numbers(dtype: str, *shape: int) -> Any:
    x = RNG.standard_normal(shape) * 3
    return (x + 1j * RNG.standard_normal(shape)).astype(dtype) if dtype[0] == "c" else x.astype(dtype)


def assert_near(found: Any, want: Any, dtype: str) -> None:
    assert (found.shape, found.dtype) == (want.shape, np.dtype(dtype))
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    assert np.abs(np.asarray(found) - want).max(initial=0) <= TOLERANCE[dtype] * scale * 3


ONE = [
    ((6,), {}),
    ((3, 5), {}),
    ((4, 3, 2), {"axis": 0, "norm": "ortho"}),
    ((7,), {"n": 4, "norm": "forward"}),
    ((3, 2), {"n": 10, "axis": -2, "norm": "backward"}),
    ((2,), {"n": 1}),
    ((0, 4), {}),
]


@sampled(
    "name,dtype,case",
    [(f, d, i) for f in ("fft", "ifft", "irfft", "hfft", "rfft", "ihfft") for d in COMPLEX for i in range(len(ONE))
     if f not in ("rfft", "ihfft") or d[0] != "c"],
    lambda x: x[1] == "f4" and x[2] in (1, 4) or x[0] == "fft" and x[2] == 0,
)  # fmt: skip
def test_one_axis(name: str, dtype: str, case: int) -> None:
    shape, options = ONE[case]
    x = numbers(dtype, *shape)
    found, want = (
        getattr(fft, name)(x, **options),
        getattr(np.fft, name)(x.astype(np.result_type(dtype, "f8")), **options),
    )
    assert_near(found, want, (REAL if name in ("irfft", "hfft") else COMPLEX)[dtype])


SEVERAL = [{}, {"s": (5, 3), "axes": (0, 2)}, {"axes": (1, 0)}, {"norm": "ortho"}, {"s": (3, -1), "axes": (1, 2)}]


@sampled(
    "name,case",
    [(f, i) for f in ("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2") for i in range(5)],
    [("fftn", 1), ("rfft2", 0), ("irfftn", 3)],
)
def test_several_axes(name: str, case: int) -> None:
    x = numbers("f4", 3, 4, 6)
    found = getattr(fft, name)(x, **SEVERAL[case])
    want = getattr(np.fft, name)(x.astype("f8"), **SEVERAL[case])
    assert_near(found, want, "f4" if name.startswith("irfft") else "c8")


def test_axes_may_repeat_or_be_none_at_all() -> None:
    x = numbers("f4", 3, 4)
    assert_near(fft.fftn(x, axes=(0, 0)), np.fft.fftn(x.astype("f8"), axes=(0, 0)), "c8")
    assert_near(fft.fftn(x, axes=()), x.astype("c8"), "c8")
    assert_near(fft.ifftn(x, s=(2,), axes=None), np.fft.ifft(x.astype("f8"), 2), "c8")


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_frequencies_and_shifts(n: int) -> None:
    assert_near(fft.fftfreq(n, 0.3), np.fft.fftfreq(n, 0.3), "f4")
    assert_near(fft.rfftfreq(n, d=0.3, dtype="float64"), np.fft.rfftfreq(n, 0.3), "f8")
    x = numbers("f4", n, 3)
    for axes in (None, 0, (1, 0)):
        assert_near(fft.fftshift(x, axes), np.fft.fftshift(x, axes), "f4")
        assert_near(fft.ifftshift(x, axes), np.fft.ifftshift(x, axes), "f4")


def test_what_comes_back_is_what_went_there() -> None:
    x = numbers("f8", 4, 9)
    assert_near(fft.ifft(fft.fft(x)).real, x, "f8")
    assert_near(fft.irfft(fft.rfft(x), 9), x, "f8")
    assert_near(fft.hfft(fft.ihfft(x), 9), x, "f8")
    assert_near(fft.irfftn(fft.rfftn(x), x.shape), x, "f8")


FAULTS: dict[str, Any] = {
    "no elements": (lambda: fft.fft(np.zeros((2, 0), "f4")), ShapeError, r"fft: .* an element or more.*\(2, 0\)"),
    "no length": (lambda: fft.ifft(np.ones(3), 0), ShapeError, "ifft: .* length of 0"),
    "a length that is none": (lambda: fft.fft(np.ones(3), 2.5), ShapeError, "fft: a length is a Python int, not 2.5"),
    "one element": (lambda: fft.irfft(np.ones(1)), ShapeError, "irfft: .* an element or more, got 0"),
    "no axis": (lambda: fft.rfft(np.ones(3), axis=1), ShapeError, "rfft: axis 1 does not exist"),
    "a scalar": (lambda: fft.fft(np.float32(3)), ShapeError, "fft: axis -1 does not exist"),
    "another norm": (lambda: fft.fft(np.ones(3), norm="no"), ValueError, "fft: norm='no'; it is \"backward\""),
    "complex": (lambda: fft.rfft(np.ones(3) * 1j), DTypeError, "rfft: takes real numbers, not complex128; take a.real"),
    "complex too": (lambda: fft.ihfft(np.ones(3) * 1j), DTypeError, "ihfft: takes real numbers"),
    "a list": (lambda: fft.fft([1, 2]), DTypeError, "fft: operands must be arrays"),
    "lengths": (lambda: fft.fftn(np.ones((2, 2)), (2,), (0, 1)), ShapeError, r"fftn: 1 lengths s=\(2,\) for 2 axes"),
    "too many": (lambda: fft.fft2(np.ones(3)), ShapeError, "fft2: axis -2 does not exist"),
    "no real axis": (lambda: fft.rfftn(np.ones(3), axes=()), ShapeError, "rfftn: needs an axis"),
    "no frequency": (lambda: fft.fftfreq(0), ShapeError, "fftfreq: .* length of 0"),
    "lax: dtype": (lambda: lax.fft(np.ones(4), "FFT", (4,)), DTypeError, "FFT takes complex64 or complex128"),
    "lax: real": (lambda: lax.fft(np.ones(4) * 1j, "RFFT", (4,)), DTypeError, "RFFT takes float32 or float64"),
    "lax: type": (lambda: lax.fft(np.ones(4), "DFT", (4,)), ValueError, "it is one of FFT, IFFT, RFFT, IRFFT"),
    "lax: lengths": (
        lambda: lax.fft(np.ones(4), 2, (5,)),
        ShapeError,
        r"RFFT of lengths \(5,\) takes last axes \(5,\)",
    ),
    "lax: half": (
        lambda: lax.fft(np.ones(4) * 1j, 3, (4,)),
        ShapeError,
        r"IRFFT of lengths \(4,\) takes last axes \(3,\)",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_does_not_fit_is_said(case: str) -> None:
    call, error, text = FAULTS[case]
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize(
    ("kind", "shape", "lengths", "numpys"),
    [
        ("FFT", (2, 3, 4), (3, 4), np.fft.fft2),
        ("IFFT", (2, 3, 4), (3, 4), np.fft.ifft2),
        (lax.FftType.RFFT, (2, 3, 4), (3, 4), np.fft.rfft2),
        (3, (2, 3, 4), (3, 7), lambda x: np.fft.irfft2(x, (3, 7))),
        ("FFT", (3,), (), lambda x: x),
    ],
)
def test_lax_fft(kind: Any, shape: Any, lengths: Any, numpys: Any) -> None:
    real = kind is lax.FftType.RFFT
    x = numbers("f4" if real else "c8", *shape)
    assert_near(lax.fft(x, kind, lengths), numpys(x), "f4" if kind == 3 else "c8")


# -- derivatives -------------------------------------------------------------------------------------------------------


def matrix(f: Any, n: int, dtype: str) -> Any:
    return np.stack([np.asarray(f(row)) for row in np.eye(n, dtype=dtype)], -1)


@sampled("n", [1, 2, 3, 6, 7, 8, 17], [6, 7])
def test_tangents_and_cotangents_go_through_the_matrix(n: int) -> None:
    for f, dtype in ((fft.fft, "c16"), (fft.ifft, "c16"), (fft.rfft, "f8")):
        m = matrix(f, n, dtype)
        x, t = numbers(dtype, n), numbers(dtype, n)
        ct = numbers("c16", m.shape[0])
        assert_near(volta.jvp(f, (x,), (t,))[1], m @ t, "c16")
        (back,) = volta.vjp(f, x)[1](ct)
        assert_near(back, m.T @ ct if dtype == "c16" else (m.T @ ct).real, dtype)
    x, t, ct = numbers("c16", n // 2 + 1), numbers("c16", n // 2 + 1), numbers("f8", n)

    def real(x: Any) -> Any:
        return fft.irfft(x, n)

    one, other = matrix(real, len(x), "c16"), matrix(lambda x: real(1j * x), len(x), "c16")
    assert_near(volta.jvp(real, (x,), (t,))[1], one @ t.real + other @ t.imag, "f8")
    assert_near(volta.vjp(real, x)[1](ct)[0], one.T @ ct - 1j * (other.T @ ct), "c16")


@sampled("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "irfftn"], ["rfft", "irfft"])
def test_second_derivatives_agree_with_differences(name: str) -> None:
    x, t = numbers("f8", 3, 4), numbers("f8", 3, 4)

    def f(x: Any) -> Any:
        given = x if name in ("rfft", "ihfft") else lax.complex(x, vnp.cos(x))
        y = getattr(fft, name)(given)
        return vnp.sum(vnp.sin(y.real) * (1 + y.imag**2) if vnp.iscomplexobj(y) else vnp.sin(y))

    slope, step = volta.grad(f), 1e-5
    _, second = volta.jvp(slope, (x,), (t,))
    difference = (np.asarray(slope(x + step * t)) - np.asarray(slope(x - step * t))) / (2 * step)
    assert np.abs(np.asarray(second) - difference).max() <= 1e-6 * np.abs(difference).max()
    _, along = volta.jvp(f, (x,), (t,))
    assert abs(float(along) - float(np.sum(np.asarray(slope(x)) * t))) <= 1e-12 * np.abs(np.asarray(slope(x)) * t).sum()
