"""Reductions over segments: against NumPy row by row, with numbers out of range, compiled, batched, differentiated."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn
from volta.errors import ConcretizationTypeError, DTypeError, ShapeError

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(8)
IDS = RNG.integers(-2, 9, 300).astype(np.int32)  # -2, -1, 7 and 8 are out of range; 5 never occurs
IDS[IDS == 5] = 4
FUNCTIONS = {
    "segment_sum": (nn.segment_sum, np.sum, 0),
    "segment_prod": (nn.segment_prod, np.prod, 1),
    "segment_max": (nn.segment_max, np.max, None),
    "segment_min": (nn.segment_min, np.min, None),
}


def data(dtype, *shape):
    x = RNG.uniform(0.9, 1.1, shape) if np.dtype(dtype).kind == "f" else RNG.integers(1, 3, shape)
    return x.astype(dtype)


def expected(name, x):
    _, reduce, start = FUNCTIONS[name]
    if start is None:
        info = np.finfo(x.dtype) if x.dtype.kind == "f" else np.iinfo(x.dtype)
        start = info.min if name == "segment_max" else info.max
        start = np.copysign(np.inf, start) if x.dtype.kind == "f" else start
    empty = np.full(x.shape[1:], start, x.dtype)
    rows = [x[i == IDS] for i in range(7)]
    return np.stack([reduce(r, axis=0).astype(x.dtype) if len(r) else empty for r in rows])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_against_numpy(name, dtype):
    x = data(dtype, 300, 3)
    got = FUNCTIONS[name][0](x, IDS, 7)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected(name, x), rtol=2e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("ids", ["int8", "int64", "uint32", "uint64"])
def test_every_dtype_of_numbers(name, ids):
    x, inside = data("float32", 300), np.where(IDS < 0, 8, IDS)
    wanted = FUNCTIONS[name][0](x, inside, 7)
    np.testing.assert_array_equal(FUNCTIONS[name][0](x, inside.astype(ids), 7), wanted)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_result(name):
    """Compiled, batched, and with the rows of other segments in between: the same bits."""
    f = lambda x, ids: FUNCTIONS[name][0](x, ids, 7)  # noqa: E731
    x = vnp.asarray(data("float32", 300, 2))
    eager = f(x, IDS)
    np.testing.assert_array_equal(volta.jit(f)(x, IDS), eager)
    np.testing.assert_array_equal(volta.vmap(f)(vnp.stack([x, x + 1]), np.stack([IDS, IDS]))[0], eager)
    order = np.argsort(IDS, kind="stable")  # segment after segment, each in its own order
    np.testing.assert_array_equal(f(x[order], IDS[order]), eager)


def test_the_sum_is_the_declared_one():
    x = vnp.asarray(data("float32", 300))
    for i, total in enumerate(nn.segment_sum(x, IDS, 7)):
        assert total == vnp.sum(x[np.flatnonzero(i == IDS)])


def test_derivatives():
    x = data("float32", 300)
    grad = volta.grad(lambda x: vnp.sum(nn.segment_sum(x, IDS, 7) ** 2))(x)
    sums = np.append(expected("segment_sum", x), [0, 0, 0, 0])  # what is out of range has no part
    np.testing.assert_allclose(grad, 2 * sums[np.where((IDS < 0) | (IDS > 6), 8, IDS)], rtol=1e-5)
    largest = volta.grad(lambda x: vnp.sum(nn.segment_max(x, IDS, 5)))(x)
    assert vnp.sum(largest) == 5 and set(np.asarray(largest).tolist()) == {0.0, 1.0}


def test_the_number_of_segments():
    assert nn.segment_sum(np.ones(3, np.float32), np.int32([0, 4, -1])).tolist() == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert nn.segment_sum(np.ones((0, 2), np.float32), np.zeros(0, np.int32)).shape == (0, 2)
    assert nn.segment_max(np.ones((0, 2), np.float32), np.zeros(0, np.int32), 2).tolist() == [[-np.inf] * 2] * 2
    with pytest.raises(ConcretizationTypeError, match="give num_segments"):
        volta.jit(lambda i: nn.segment_sum(np.ones(3, np.float32), i))(np.int32([0, 1, 2]))


def test_refusals():
    with pytest.raises(DTypeError, match=r"must be integers, not f32\[3\]"):
        nn.segment_sum(np.ones(3), np.ones(3, np.float32))
    for ids in (np.zeros(2, np.int32), np.zeros((3, 1), np.int32), np.int32(0)):
        with pytest.raises(ShapeError, match=r"needs segment_ids of shape \(3,\)"):
            nn.segment_sum(np.ones((3, 1)), ids)


def test_against_jax():
    ops = pytest.importorskip("jax.ops")
    for name, (function, *_) in FUNCTIONS.items():
        x = data("float32", 300, 2)
        np.testing.assert_allclose(function(x, IDS, 7), getattr(ops, name)(x, IDS, 7), rtol=1e-5)
