"""``x.at[i].apply(f)``: as often as an index occurs, as ``f.at(x, i)`` of NumPy."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.testing import assert_bits_equal

X = np.float64([0.5, -1.25, 2.0, 3.5, -0.75])
INDICES = {
    "once": np.array([3, 1]),
    "repeated": np.array([1, 1, 3, 1, -2]),
    "one": np.array([2]),
    "none": np.zeros(0, np.int32),
    "of a slice": slice(1, 4),
    "a mask": np.array([True, False, False, True, True]),
    "two axes": np.array([[0, 0], [0, 4]]),
    "a number": 2,
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("f", [(np.negative, vnp.negative), (np.square, vnp.square), (np.cbrt, vnp.cbrt)])
def test_it_is_applied_as_often_as_an_index_occurs(index, f):
    theirs, ours = f
    want = X.copy()
    theirs.at(want, index)
    got = vnp.asarray(X).at[index].apply(ours)
    np.testing.assert_allclose(got, want, rtol=1e-14)
    assert_bits_equal(volta.vmap(lambda x: x.at[index].apply(ours))(np.stack([X, X + 1]))[0], got)
    assert_bits_equal(volta.jit(lambda x: x.at[index].apply(ours))(X), got)
    if isinstance(index, np.ndarray) and index.dtype != bool:
        known_later = volta.jit(lambda x, i: x.at[i].apply(ours))
        assert_bits_equal(known_later(X, index), got)
        both = volta.vmap(lambda x, i: x.at[i].apply(ours))(np.stack([X, X]), np.stack([index, index]))
        assert_bits_equal(both[1], got)


def test_of_rows_and_out_of_bounds():
    x = vnp.asarray(np.arange(6.0).reshape(3, 2))
    assert x.at[np.array([1, 1])].apply(vnp.square).tolist() == [[0, 1], [16, 81], [4, 5]]
    assert x.at[np.array([1, 7, 7])].apply(vnp.negative).tolist() == [[0, 1], [-2, -3], [4, 5]]
    assert x.at[np.array([2, 7])].apply(vnp.square, mode="clip").tolist() == [[0, 1], [2, 3], [256, 625]]
    assert x.at[np.array([0, 0]), np.array([1, 1])].apply(lambda v: v + 1).tolist() == [[0, 3], [2, 3], [4, 5]]


def test_its_derivatives():
    f = lambda x, i: x.at[i].apply(vnp.square).sum()  # noqa: E731
    twice = np.array([1, 1])
    assert volta.grad(lambda x: f(x, twice))(np.float64([1, 2, 3])).tolist() == [1, 32, 1]
    out, slope = volta.jvp(lambda x: volta.jit(f)(x, twice), (np.float64([1, 2, 3]),), (np.ones(3),))
    assert (out.item(), slope.item()) == (20, 34)
    with pytest.raises(volta.errors.NotDifferentiableError, match="while"):
        volta.grad(lambda x, i: volta.jit(f)(x, i))(np.float64([1, 2, 3]), twice)


def test_what_is_applied_sees_the_shape_of_the_index():
    x, twice = vnp.asarray(X), np.array([[0, 0], [2, 4]])
    by_place = np.array([[2.0, 10.0], [3.0, 5.0]])
    want = X * np.array([20, 1, 3, 1, 5])
    np.testing.assert_allclose(x.at[twice].apply(lambda v: v * by_place), want)
    np.testing.assert_allclose(volta.jit(lambda x, i: x.at[i].apply(lambda v: v * by_place))(X, twice), want)
    z = np.complex64([1 + 1j, 2j, 3])
    got = (
        vnp.asarray(z).at[np.array([[0, 0], [2, 2]])].power(np.float32([[2, 3], [2, 2]]))
    )  # the last of one place stays
    np.testing.assert_allclose(got, [z[0] ** 3, z[1], z[2] ** 2], rtol=1e-5)
