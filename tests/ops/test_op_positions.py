"""Positions at their ends: counted from the end, beyond int64, and in narrow dtypes."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.nn import segment_sum
from volta.testing import assert_bits_equal

BEYOND = [2**63, 2**64 - 1]
X = np.arange(300, dtype=np.float32)
STARTS = [-1, -2, -5, -299, -300, -1000, -(2**31), 0, 299, 2**31 - 1]
BOXES = {
    "dynamic_slice": (lambda s: lax.dynamic_slice(X, (s,), (3,)), lambda p: X[p : p + 3]),
    "dynamic_slice_in_dim": (lambda s: lax.dynamic_slice_in_dim(X, s, 3), lambda p: X[p : p + 3]),
    "dynamic_update_slice": (
        lambda s: lax.dynamic_update_slice(X, -X[:3], (s,)),
        lambda p: np.concatenate([X[:p], -X[:3], X[p + 3 :]]),
    ),
    "dynamic_update_slice_in_dim": (
        lambda s: lax.dynamic_update_slice_in_dim(X[:, None], -X[:3, None], s, 0)[:, 0],
        lambda p: np.concatenate([X[:p], -X[:3], X[p + 3 :]]),
    ),
}


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("kind", ("python", "int32", "int64", "int8"))
def test_starts_below_zero_count_from_the_end(name, kind):
    f, expected = BOXES[name]
    starts = [s for s in STARTS if kind in ("python", "int32", "int64") or -128 <= s < 128]
    if kind != "python":
        starts = [np.dtype(kind).type(s) for s in starts]
    jitted, mapped = volta.jit(f), volta.vmap(f)(vnp.asarray(np.asarray(starts)))
    for start, row in zip(starts, mapped, strict=True):
        place = int(start) + (len(X) if start < 0 else 0)
        want = expected(min(max(place, 0), len(X) - 3))
        for got in (f(start), jitted(start), row):
            np.testing.assert_array_equal(got, want)


def test_positions_below_zero_count_from_the_end():
    assert lax.dynamic_index_in_dim(X, -1, keepdims=False) == 299
    assert lax.dynamic_slice(X, vnp.asarray(np.int8([-5])), (2,)).tolist() == [295, 296]
    assert lax.dynamic_update_index_in_dim(X[:3], 7, -2, 0).tolist() == [0, 7, 2]
    grad = volta.grad(lambda x: lax.dynamic_slice(x, (np.int32(-2),), (1,)).sum())(X[:4])
    assert grad.tolist() == [0, 0, 1, 0]


# What is read with an index beyond the end of every axis, and what is written.
READS = {
    "getitem": (lambda i: vnp.asarray(X)[i], 299.0),
    "take": (lambda i: vnp.take(X, i), np.nan),
    "take clip": (lambda i: vnp.take(X, i, mode="clip"), 299.0),
    "take_along_axis": (lambda i: vnp.take_along_axis(X, i), np.nan),
    "at get": (lambda i: vnp.asarray(X).at[i].get(mode="fill"), np.nan),
    "gather fill": (lambda i: lax.gather(X, [i], (0,)), np.nan),
    "gather clip": (lambda i: lax.gather(X, [i], (0,), mode="clip"), 299.0),
    "dynamic_slice": (lambda i: lax.dynamic_slice(X, i, (1,)), 299.0),
    "ravel_multi_index": (lambda i: vnp.ravel_multi_index((i,), (300,)), 299),
}
WRITES = {
    "at set": (lambda i: vnp.zeros(3).at[i].set(7.0), [0, 0, 0]),
    "at set clip": (lambda i: vnp.zeros(3).at[i].set(7.0, mode="clip"), [0, 0, 7]),
    "scatter": (lambda i: lax.scatter(np.zeros(3), np.ones(1), [i], (0,)), [0, 0, 0]),
    "scatter clip": (lambda i: lax.scatter(np.zeros(3), np.ones(1), [i], (0,), mode="clip"), [0, 0, 1]),
    "segment_sum": (lambda i: segment_sum(np.ones(1), i, 3), [0, 0, 0]),
    "dynamic_update_slice": (lambda i: lax.dynamic_update_slice(np.zeros(3), np.ones(1), i), [0, 0, 1]),
}


@pytest.mark.parametrize("index", BEYOND)
@pytest.mark.parametrize("name", [*READS, *WRITES])
@pytest.mark.turns(6)
def test_indices_beyond_int64_are_out_of_bounds(name, index):
    f, want = {**READS, **WRITES}[name]
    constant = np.array([index], np.uint64)
    for g, i in ((f, constant), (f, vnp.asarray(constant)), (volta.jit(f), constant)):
        np.testing.assert_array_equal(g(i), np.asarray([want] if name in READS else want))


@pytest.mark.parametrize("index", BEYOND)
def test_indices_beyond_int64_go_around(index):
    constant = np.array([index], np.uint64)
    for i in (constant, vnp.asarray(constant)):
        assert vnp.take(X, i, mode="wrap").tolist() == [float(index % 300)]
        assert vnp.ravel_multi_index((i,), (300,), mode="wrap").tolist() == [index % 300]


def test_narrow_indices_into_long_axes():
    assert vnp.take(vnp.arange(301), np.uint8([200]), mode="clip").tolist() == [200]
    assert vnp.ravel_multi_index((np.uint8([200]), np.uint8([3])), (300, 300)).tolist() == [60003]


COUNTED = {
    "pad": lambda v: lax.pad(vnp.arange(3), v[0], [(1, 1, 1)]),
    "pad with a negative edge": lambda v: lax.pad(vnp.arange(6).reshape(2, 3), v[0], [(-1, 1, 0), (0, 0, 1)]),
    "concatenate": lambda v: vnp.concatenate([vnp.arange(3), v, vnp.arange(3)[::-1]]),
    "dynamic_update_slice": lambda v: (
        lax.dynamic_update_slice(vnp.arange(5), v, (1,)),
        lax.dynamic_update_slice(v, vnp.arange(1), (1,)),
    ),
    "scatter": lambda v: vnp.arange(5).at[v].add(vnp.arange(2)),
    "loop": lambda v: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + v[0], vnp.arange(3)),
    "cond": lambda v: lax.cond(v[0] > 0, lambda: vnp.arange(3), lambda: vnp.arange(3)[::-1]),
    "scan": lambda v: lax.scan(lambda c, x: (c + x, c), v[0], vnp.arange(4)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_numbers_that_only_count_may_stand_anywhere(name):
    """They have no memory of their own: what reads memory writes them out first."""
    v = vnp.asarray(np.int32([1, 2]))
    for got, want in zip(
        volta.tree.leaves(volta.jit(COUNTED[name])(v)), volta.tree.leaves(COUNTED[name](v)), strict=True
    ):
        assert_bits_equal(got, want)
