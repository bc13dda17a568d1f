"""Indexing, updates and choosing by position, against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import volta
import volta.numpy as vnp
from tests.numpy.vnp_compare import assert_same, floats, same_as_numpy
from volta.api.jit import jit
from volta.api.tracing import make_jaxpr
from volta.errors import ConcretizationTypeError, DTypeError, ShapeError

pytestmark = pytest.mark.turns(6)

X = floats(4, 5, 6)
M = np.int32([[0, 3], [-1, 2]])
MASK = X[..., 0] > 0

INDICES = [
    1,
    -1,
    (1, 2),
    (1, 2, 3),
    slice(None),
    slice(1, 3),
    slice(None, None, -1),
    slice(3, 0, -2),
    slice(5, 1),
    (slice(None), slice(None, None, 2)),
    (slice(1, 4, 2), slice(None, None, -2), slice(4, None, -3)),
    (Ellipsis, 0),
    (0, Ellipsis, slice(2)),
    None,
    (None, 1, None, slice(2, 4), None),
    (Ellipsis, None),
    M,
    [0, 2],
    (M, 0),
    (0, M),
    (slice(None), M),
    (slice(1, 3), M),
    (M, slice(None), M),
    (0, slice(None), M),
    (M, slice(1, 4), 0),
    (slice(None), M, M),
    (M, None, M),
    (slice(None), 1, M),
    (Ellipsis, M),
    (None, M, slice(None, None, -1)),
    (M, M + 1, M - 1),
    (slice(1, 4, 2), np.int32([2, 0, 1]), slice(None, None, -2)),
    np.int64(2),
    np.array(1),
    MASK,
    (MASK, 0),
    (0, X[0] > 0),
    X > 0,
    (slice(None), X[0, :, 0] > 0),
    np.zeros((0,), np.int32),
    (np.int32([[1], [2]]), np.int32([[0, 1, 3]])),
]


@pytest.mark.parametrize("index", INDICES, ids=[str(i) for i in range(len(INDICES))])
def test_reading(index):
    x = vnp.asarray(X)
    want = X[index]
    assert_same(x[index], want)


def as_arrays(index):
    wrap = lambda v: vnp.asarray(v) if isinstance(v, np.ndarray) else v  # noqa: E731
    return tuple(map(wrap, index)) if isinstance(index, tuple) else wrap(index)


@pytest.mark.parametrize("index", INDICES, ids=[str(i) for i in range(len(INDICES))])
def test_reading_with_arrays_as_indices(index):
    assert_same(vnp.asarray(X)[as_arrays(index)], X[index])


@pytest.mark.parametrize("index", INDICES, ids=[str(i) for i in range(len(INDICES))])
@pytest.mark.parametrize("op", ["set", "add", "multiply", "min", "max"])
@pytest.mark.turns(6)
def test_updating(op, index):
    x, value = vnp.asarray(X), floats(*X[index].shape[-1:], low=0.5, high=2.0)
    want = X.copy()
    ufunc = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}.get(op)
    if ufunc is None:
        want[index] = value
    else:
        ufunc.at(want, index, value)
    assert_same(getattr(x.at[as_arrays(index)], op)(value), want, rtol=1e-5)


@pytest.mark.parametrize("index", INDICES[:34], ids=[str(i) for i in range(34)])
def test_updating_with_a_scalar(index):
    want = X.copy()
    want[index] = 2
    assert_same(vnp.asarray(X).at[index].set(2), want)


def slices(size):
    return st.slices(size).filter(lambda s: s.step != 0)


@given(st.data())
def test_basic_indices_of_any_kind(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=5))
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    want = x[index]
    assert_same(vnp.asarray(x)[index], want)
    updated = x.copy()
    updated[index] = 7
    assert_same(vnp.asarray(x).at[index].set(7), updated)
    value = np.arange(want.size, dtype=np.int32).reshape(want.shape) * 3
    updated[index] = value
    assert_same(vnp.asarray(x).at[index].set(value), updated)


@given(st.data())
def test_integer_indices_of_any_kind(data):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    arrays = data.draw(hnp.integer_array_indices(shape, result_shape=hnp.array_shapes(max_dims=2, max_side=3)))
    places = data.draw(st.lists(st.sampled_from(["array", "slice", "int"]), min_size=len(arrays), max_size=len(arrays)))
    index = tuple(
        a if p == "array" else slice(None, None, -1) if p == "slice" else int(a.flat[0])
        for a, p in zip(arrays, places, strict=True)
    )
    assert_same(vnp.asarray(x)[index], x[index])


def test_traced_indices():
    x = vnp.asarray(X)
    i = vnp.asarray(np.int32(2))
    assert_same(jit(lambda x, i: x[i])(x, i), X[2])
    assert_same(jit(lambda x, i: x[1:3, i])(x, i), X[1:3, 2])
    assert_same(jit(lambda x, i: x[:, i, None])(x, vnp.asarray(M)), X[:, M, None])
    assert_same(jit(lambda x, i: x[i])(x, vnp.asarray(np.int32(-1))), X[-1])
    assert_same(jit(lambda x, i: x.at[i].set(0))(x, i), np.where(np.arange(4)[:, None, None] == 2, 0, X))
    assert_same(jit(lambda x, i: x.at[1:3, i].add(1))(x, i)[1:3, 2], X[1:3, 2] + 1)
    # out of bounds: reading clamps, writing leaves out
    assert_same(x[vnp.asarray(np.int32([9, -9]))], X[[3, 0]])
    assert_same(x.at[vnp.asarray(np.int32(9))].set(1.0), X)
    assert np.isnan(np.asarray(x.at[vnp.asarray(np.int32(9))].get(mode="fill"))).all()
    assert (np.asarray(x.at[vnp.asarray(np.int32([9, 1]))].get(mode="fill", fill_value=5.0))[0] == 5).all()


def test_a_mode_judges_python_ints_too():
    x = vnp.asarray(X)
    with pytest.raises(IndexError, match="index 7 is out of bounds for axis 0 of size 4"):
        x.at[7].set(1.0)
    assert_same(x.at[7].set(1.0, mode="drop"), X)
    assert_same(x.at[..., -7].add(1.0, mode="drop"), X)
    assert_same(x.at[7].get(mode="clip"), X[3])
    assert_same(x.at[:, -9, 1:3].get(mode="clip"), X[:, 0, 1:3])
    assert np.isnan(np.asarray(x.at[7].get(mode="fill"))).all()
    assert_same(x.at[7, ::2].get(mode="fill", fill_value=-1), np.full((3, 6), -1, np.float32))
    assert_same(x.at[2, -9].get(mode="fill", fill_value=-1), np.full(6, -1, np.float32))
    for index in (1, (2, -1), (slice(None), 3, [1, 2]), (slice(None, None, -2), 0)):  # what is inside is as ever
        assert_same(x.at[index].get(mode="fill", fill_value=-1), X[index])
        for mode in ("drop", "clip"):
            assert_same(x.at[index].add(2.0, mode=mode), x.at[index].add(2.0))
    f = lambda x: (x.at[7].get(mode="fill", fill_value=0), x.at[7, 1].mul(3, mode="clip"))  # noqa: E731
    for eager, compiled in zip(f(x), jit(f)(x), strict=True):
        assert_same(eager, np.asarray(compiled))


def test_indices_of_every_integer_dtype():
    x = np.arange(300, dtype=np.float32)
    for dtype in "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split():
        i = np.array([3, 100, -1 if dtype[0] == "i" else 7]).astype(dtype)
        assert_same(vnp.asarray(x)[vnp.asarray(i)], x[i])
        assert_same(vnp.take(x, vnp.asarray(i)), x[i])
        assert_same(vnp.asarray(x)[i], x[i])
    far = np.int64([2**32 + 1, -(2**40)])
    assert_same(vnp.asarray(x)[vnp.asarray(far)], x[[-1, 0]])
    assert_same(vnp.asarray(x)[far], x[[-1, 0]])
    assert np.isnan(np.asarray(vnp.take(x, vnp.asarray(far)))).all() and np.isnan(np.asarray(vnp.take(x, far))).all()


def test_a_traced_mask_with_a_scalar_is_a_select():
    program = str(make_jaxpr(lambda x: x.at[x > 0].set(0))(vnp.asarray(X)))
    assert "select_n" in program and "scatter" not in program
    assert_same(jit(lambda x: x.at[x > 0].multiply(2))(X), np.where(X > 0, X * 2, X))
    assert_same(vnp.asarray(X).at[MASK].add(1), X + MASK[..., None])


def test_static_indices_make_small_programs():
    def lines(f):
        return len(make_jaxpr(f)(vnp.asarray(X)).eqns)

    assert lines(lambda x: x[1]) == 2  # slice, reshape
    assert lines(lambda x: x[:]) == 0
    assert lines(lambda x: x[None]) == 1
    assert lines(lambda x: x[np.int32([1, 2])]) == 1
    assert lines(lambda x: x.at[0].set(1.0)) <= 3
    assert lines(lambda x: x[:, ::-1]) == 1


def test_index_errors():
    x = vnp.asarray(X)
    with pytest.raises(ConcretizationTypeError, match="traced boolean mask.*where=mask.*size=n"):
        jit(lambda x: x[x > 0])(x)
    with pytest.raises(ConcretizationTypeError, match="dynamic_slice"):
        jit(lambda x, i: x[:i])(x, 2)
    with pytest.raises(IndexError, match="index 4 is out of bounds for axis 0 of size 4"):
        x[4]
    with pytest.raises(IndexError, match="too many indices: the array has 3 dimensions, the index names 4"):
        x[0, 0, 0, 0]
    with pytest.raises(IndexError, match="one Ellipsis"):
        x[..., ...]
    with pytest.raises(IndexError, match="mask of length 3 meets axis 0 of size 4"):
        x[np.ones(3, bool)]
    with pytest.raises(DTypeError, match="integers or booleans"):
        x[vnp.asarray(1.5)]
    with pytest.raises(DTypeError, match="cannot index with str"):
        x["a"]
    with pytest.raises(TypeError, match=r"immutable.*x = x.at\[i\].set\(v\)"):
        x[0] = 1
    with pytest.raises(ShapeError, match=r"values of shape \(7,\) do not broadcast to the indexed part, \(5, 6\)"):
        x.at[0].set(np.zeros(7))
    with pytest.raises(DTypeError, match=r"f32\[\] values do not fit an array of dtype int32"):
        vnp.zeros(3, "int32").at[0].set(np.float32(1.5))
    with pytest.raises(ValueError, match="mode must be"):
        x.at[0].set(1, mode="wild")


def test_duplicates():
    x = vnp.zeros(3)
    i = np.int32([1, 1, 2])
    assert x.at[i].set(vnp.array([1.0, 2.0, 3.0])).tolist() == [0.0, 2.0, 3.0]
    assert x.at[i].add(vnp.array([1.0, 2.0, 3.0])).tolist() == [0.0, 3.0, 3.0]
    assert x.at[1].subtract(1).tolist() == [0.0, -1.0, 0.0]
    assert (x + 8).at[i].divide(2).tolist() == [8.0, 2.0, 4.0]
    assert (x + 3).at[1].power(2).tolist() == [3.0, 9.0, 3.0]
    assert (x + 3).at[:2].apply(vnp.negative).tolist() == [-3.0, -3.0, 3.0]


def test_iteration_and_length():
    x = vnp.asarray(X)
    assert len(x) == 4
    assert_same(list(x), list(X))
    a, b = vnp.array([1, 2])
    assert (int(a), int(b)) == (1, 2)
    with pytest.raises(TypeError, match="scalar"):
        len(vnp.array(1.0))


# -- taking ------------------------------------------------------------------------------------------------------------


def test_take():
    same_as_numpy(lambda np, x: np.take(x, M), X)
    for axis in (0, 1, 2, -1):
        same_as_numpy(lambda np, x, axis=axis: np.take(x, M, axis), X)
    x = vnp.asarray(X)
    assert np.isnan(np.asarray(vnp.take(x, vnp.array([0, 7]), 0))[1]).all()
    assert (np.asarray(vnp.take(x, vnp.array([0, 7]), 0, fill_value=2.0))[1] == 2).all()
    assert_same(vnp.take(x, vnp.array([-1, 7]), 0, mode="clip"), X[[0, 3]])
    assert_same(vnp.take(x, vnp.array([-1, 7]), 0, mode="wrap"), X[[3, 3]])


def test_along_axis():
    for axis in (0, 1, 2):
        order = np.argsort(X, axis).astype(np.int32)
        same_as_numpy(lambda np, x, i, axis=axis: np.take_along_axis(x, i, axis), X, order)
        same_as_numpy(lambda np, x, i, axis=axis: np.take_along_axis(x, i - 2, axis), X, order)
        first = order.take([0], axis)
        want = X.copy()
        np.put_along_axis(want, first, 9.0, axis)
        assert_same(vnp.put_along_axis(vnp.asarray(X), vnp.asarray(first), 9.0, axis, inplace=False), want)
    assert len(make_jaxpr(lambda x, i: vnp.take_along_axis(x, i, -1))(X, np.uint32([[[0]]])).eqns) <= 3
    with pytest.raises(ShapeError, match="as many dimensions"):
        vnp.take_along_axis(X, np.int32([0]))
    with pytest.raises(ValueError, match="immutable"):
        vnp.put_along_axis(X, np.int32([[[0]]]), 1.0, 0)


def test_by_condition():
    same_as_numpy(lambda np, x: np.nonzero(x > 0), X)
    same_as_numpy(lambda np, x: np.where(x[0] > 1), X)
    same_as_numpy(lambda np, x: np.flatnonzero(x > 1), X)
    same_as_numpy(lambda np, x: np.argwhere(x > 1), X)
    same_as_numpy(lambda np, x: np.compress([True, False, True, True], x, 0), X)
    same_as_numpy(lambda np, x: np.extract(x > 0, x), X)
    rows, columns = jit(lambda x: vnp.nonzero(x > 0, size=8, fill_value=-1))(X[0, :2])
    want = np.nonzero(X[0, :2] > 0)
    n = len(want[0])
    assert rows.tolist() == [*want[0], *[-1] * 8][:8] and columns.tolist() == [*want[1], *[-1] * 8][:8]
    assert 0 < n
    with pytest.raises(ConcretizationTypeError, match="size=n"):
        jit(vnp.nonzero)(X)


def test_repeat_pad_delete_diff():
    same_as_numpy(lambda np, x: np.repeat(x, 2), X)
    same_as_numpy(lambda np, x: np.repeat(x, 3, 1), X)
    same_as_numpy(lambda np, x: np.repeat(x, [1, 0, 2, 3], 0), X)
    for mode in ("edge", "reflect", "symmetric", "wrap"):
        same_as_numpy(lambda np, x, mode=mode: np.pad(x, ((2, 1), (0, 3), (4, 0)), mode), X)
    same_as_numpy(lambda np, x: np.pad(x, 2), X)
    same_as_numpy(lambda np, x: np.pad(x, ((1, 2), (0, 0), (3, 0)), constant_values=5), X)
    same_as_numpy(lambda np, x: np.pad(x, (1, 2), constant_values=(5, 6)), X)
    same_as_numpy(lambda np, x: np.delete(x, [0, 2], 1), X)
    same_as_numpy(lambda np, x: np.diff(x, 2, 1), X)
    same_as_numpy(lambda np, x: np.diff(x > 0), X)


def test_places_beyond_32_bits() -> None:
    long = volta.ShapeDtypeStruct((2**31 + 10, 2), "int8")
    assert volta.eval_shape(lambda x: x.at[2**31 + 5].set(1), long).shape == long.shape
    assert volta.eval_shape(lambda x: x[2**31 + 5 :], long).shape == (5, 2)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.turns(6)
def test_roll_by_a_traced_shift(dtype):
    """As by a known one: also by more than the axis has, and by more than int32 holds."""
    x = np.arange(300 * 2, dtype=np.float32).reshape(300, 2)
    limits = np.iinfo(dtype)
    for shift in (0, 1, limits.max, limits.min, limits.max - 7):
        want = np.roll(x, int(shift), 0)
        by = np.asarray(shift, dtype)
        np.testing.assert_array_equal(volta.jit(lambda s: vnp.roll(x, s, 0))(by), want)
        np.testing.assert_array_equal(vnp.roll(x, by, 0), want)
    shifts = np.asarray([1, 2, 100], dtype)
    np.testing.assert_array_equal(
        volta.vmap(lambda s: vnp.roll(x, s))(shifts), np.stack([np.roll(x, int(s)) for s in shifts])
    )
    two = volta.jit(lambda s: vnp.roll(x, s, (0, 1)))
    np.testing.assert_array_equal(two(shifts[:2]), np.roll(x, tuple(int(s) for s in shifts[:2]), (0, 1)))
    np.testing.assert_array_equal(two(shifts[:1]), np.roll(x, int(shifts[0]), (0, 1)))
    assert volta.jit(lambda s: vnp.roll(vnp.zeros((0, 3)), s, 0))(shifts[0]).shape == (0, 3)


def test_roll_refuses_shifts_that_are_none():
    with pytest.raises(ShapeError, match="roll: the shift must be an integer, or one an axis, got f64"):
        volta.jit(lambda s: vnp.roll(vnp.ones(3), s))(1.5)
    with pytest.raises(ShapeError, match="roll: 3 shifts for 2 axes"):
        vnp.roll(vnp.ones((3, 3)), (1, 2, 3), (0, 1))
    with pytest.raises(ShapeError, match="one an axis, got i64"):
        volta.jit(lambda s: vnp.roll(vnp.ones((3, 3)), s, (0, 1)))(np.arange(3))
    assert volta.grad(lambda x: (vnp.roll(x, 1) * vnp.arange(3.0)).sum())(vnp.ones(3)).tolist() == [1.0, 2.0, 0.0]
