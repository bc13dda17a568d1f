"""Shapes, dtypes and values of every primitive agree with the reference."""

import numpy as np
import pytest

import volta
from tests.reference import REFERENCE
from volta import lax
from volta.core import dtypes
from volta.core.interp import get_aval
from volta.testing.cases import DTYPES, cases, dtypes_of, kinds_of, vocabulary

CASES = [c for p in vocabulary() for d in dtypes_of(p) for c in cases(p, d)]
MORE = [
    c
    for p in vocabulary()
    if p.domain is not None
    for kind in kinds_of(p)
    for d in DTYPES[kind][1:]
    if p.name != "complex" or d.itemsize > 2  # whose parts are not half floats
    for c in cases(p, d)[:2]
]
# Absolute and relative: one ulp of a result of the reference, which is rounded once; sums have a few more.
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 5e-7, "float64": 4e-15}
TOLERANCE |= {"complex64": 1e-6, "complex128": 1e-14}  # NumPy's own errors are several ulps


def check(case):
    avals = case.primitive.abstract(*map(get_aval, case.args), **case.params)
    with np.errstate(all="ignore"):
        expected = REFERENCE[case.primitive.name](*case.args, **case.params)
    actual = case.primitive.bind(*case.args, **case.params)
    if not case.primitive.multiple_results:
        avals, expected, actual = [avals], [expected], [actual]
    assert len(avals) == len(expected) == len(actual)
    for aval, e, a in zip(avals, expected, actual, strict=True):
        e, a = np.asarray(e), np.asarray(a)
        assert aval.shape == e.shape == a.shape
        assert aval.dtype == e.dtype == a.dtype
        if dtypes.is_inexact(e.dtype):
            tolerance = TOLERANCE[e.dtype.name]
            wide = np.complex128 if dtypes.is_complex(e.dtype) else np.float64
            np.testing.assert_allclose(a.astype(wide), e.astype(wide), rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.turns(4, each=True)
def test_value(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE, ids=str)
def test_value_of_other_dtypes(case):
    check(case)


def test_sizes_of_1_are_repeated_where_ranks_are_equal():
    x, y = np.float32([[1], [2], [3]]), np.float32([[10, 20, 30, 40]])
    assert lax.add(x, y).tolist() == (x + y).tolist() and lax.atan2(y, x).shape == (3, 4)
    assert lax.nextafter(x, y).shape == (3, 4) and lax.lt(x, y).dtype == bool
    assert lax.fma(x, y, np.float32(1)).tolist() == (x * y + 1).tolist()
    assert volta.grad(lambda x: lax.mul(x, y).sum())(x).tolist() == [[100]] * 3
    assert volta.vmap(lax.sub)(np.stack([x, x]), np.stack([y, -y])).shape == (2, 3, 4)
    assert volta.jit(lax.max)(x, y[:, :0]).shape == (3, 0)
    for other in (y[0], np.float32([[1, 2]]), y[None]):
        with pytest.raises(volta.errors.ShapeError, match=r"operands must have one shape, or be rank 0 \(of one rank"):
            lax.add(np.ones((3, 4), np.float32), other)


def test_cases_are_chosen_by_number():
    cases = [np.float32(10 * i) + np.arange(3, dtype=np.float32) for i in range(4)]
    which = np.int32([3, 0, 2])
    assert lax.select_n(which, *cases).tolist() == [30, 1, 22]
    assert lax.select_n(np.int32(1), *cases).tolist() == [10, 11, 12]
    assert volta.jit(lambda w: lax.select_n(w, *cases))(np.int32([9, -1, 1])).tolist() == [30, 1, 12]  # moved inside
    assert lax.select_n(which, cases[1]).tolist() == cases[1].tolist()
    assert lax.select_n(which, *(np.float32(i) for i in range(4))).tolist() == [3, 0, 2]
    slope = volta.grad(lambda x: lax.select_n(which, x, 2 * x, 3 * x, 4 * x).sum())(cases[0])
    assert slope.tolist() == [4, 1, 3]
    assert volta.vmap(lax.select_n)(which, *cases).tolist() == [30, 1, 22]
    for bad in (np.int64([0]), np.float32([0])):
        with pytest.raises(volta.errors.DTypeError, match="the predicate must be bool"):
            lax.select_n(bad, np.ones(1), np.ones(1))


@pytest.mark.parametrize("wide", [np.uint64, np.int32, np.float64, np.uint16])
@pytest.mark.parametrize("narrow", [np.uint8, np.int8, np.uint16, np.float16, np.float32])
def test_bits_are_read_as_items_of_another_size(wide, narrow):
    ratio = np.dtype(wide).itemsize // np.dtype(narrow).itemsize
    if ratio < 2:
        pytest.skip("no narrower")
    x = np.random.default_rng(1).integers(1, 100, (2, 3)).astype(wide) * wide(np.uint8(37))
    want = x.view(narrow).reshape(2, 3, ratio)
    parts = lax.bitcast_convert_type(x, narrow)
    assert np.array_equal(parts, want, equal_nan=np.dtype(narrow).kind == "f")
    assert np.array_equal(
        volta.jit(volta.vmap(lambda x: lax.bitcast_convert_type(x, narrow)))(x), parts, equal_nan=True
    )
    if np.dtype(narrow).kind != "f":
        assert np.array_equal(lax.bitcast_convert_type(parts, wide), x)
    with pytest.raises(volta.errors.ShapeError, match=f"{ratio} parts of .* along the last axis make"):
        lax.bitcast_convert_type(np.ones((2, ratio + 1), narrow), wide)
