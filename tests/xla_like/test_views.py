"""Views against NumPy: whatever strides say, the same elements in the same order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from volta.xla_like.views import View, merge, prod, refine, row_major, split, strides_over

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
SOLID = st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=4).map(tuple)


def elements(view: View) -> np.ndarray:
    """The buffer positions that a view reads, by its definition."""
    out = np.full(view.shape, view.offset)
    for d, (n, step) in enumerate(zip(view.shape, view.strides, strict=True)):
        out = out + (step * np.arange(n)).reshape([n if k == d else 1 for k in range(len(view.shape))])
    return out


@st.composite
def moves(draw):
    """A view and the NumPy array that it should equal, after some movement operations."""
    shape = draw(SHAPES)
    array, view = np.arange(prod(shape)).reshape(shape), View.of(shape)
    for _ in range(draw(st.integers(0, 5))):
        rank = array.ndim
        kind = draw(st.sampled_from(["transpose", "broadcast", "slice", "rev", "reshape"]))
        if kind == "transpose":
            order = tuple(draw(st.permutations(range(rank))))
            array, view = array.transpose(order), view.transpose(order)
        elif kind == "broadcast" and rank < 5:
            new = tuple(draw(st.integers(2, 3)) if n == 1 and draw(st.booleans()) else n for n in array.shape)
            outer = draw(st.integers(1, 3))
            array = np.broadcast_to(array, (outer, *new))
            view = view.broadcast((outer, *new), tuple(range(1, rank + 1)))
        elif kind == "slice":
            start = tuple(draw(st.integers(0, n)) for n in array.shape)
            limit = tuple(draw(st.integers(a, n)) for a, n in zip(start, array.shape, strict=True))
            steps = tuple(draw(st.integers(1, 3)) for _ in start)
            array = array[tuple(slice(*k) for k in zip(start, limit, steps, strict=True))]
            view = view.slice(start, limit, steps)
        elif kind == "rev":
            dims = tuple(d for d in range(rank) if draw(st.booleans()))
            array, view = np.flip(array, dims), view.rev(dims)
        elif kind == "reshape":
            n, new = array.size, []
            while n > 1 and len(new) < 3:
                new.append(draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0])))
                n //= new[-1]
            moved = view.reshape((*new, n))
            if moved is not None:
                array, view = array.reshape((*new, n)), moved
    return array, view


@given(moves())
def test_views_read_what_numpy_reads(pair) -> None:
    array, view = pair
    assert view.shape == array.shape
    if array.size:
        np.testing.assert_array_equal(elements(view), array)


@given(moves())
def test_linear_means_in_order(pair) -> None:
    array, view = pair
    if array.size and view.is_linear:
        np.testing.assert_array_equal(array.ravel(), np.arange(array.size))


@given(moves())
def test_a_view_reshapes_wherever_numpy_needs_no_copy(pair) -> None:
    array, view = pair
    if not array.size:
        return
    flat = view.reshape((array.size,))
    if flat is None:
        assert not np.shares_memory(array, array.reshape(-1)) or 0 in array.strides
    else:
        np.testing.assert_array_equal(elements(flat), array.reshape(-1))


@given(moves(), moves())
def test_merging_keeps_every_address(one, two) -> None:
    shape = one[0].shape
    strides = [one[1].strides, row_major(shape)]
    dims, merged = merge(shape, strides)
    assert prod(dims) == prod(shape) or 0 in shape
    if 0 in shape:
        return
    for before, after in zip(strides, merged, strict=True):
        np.testing.assert_array_equal(elements(View(shape, before)).ravel(), elements(View(dims, after)).ravel())


@st.composite
def two_shapes_of_one_size(draw):
    factors = draw(SOLID)
    shapes = []
    for _ in range(2):
        shape = [1]
        for n in draw(st.permutations(factors)):
            shape[len(shape) :] = [n] if draw(st.booleans()) else [shape.pop() * n]
        shapes.append(tuple(shape))
    return shapes


@given(two_shapes_of_one_size())
def test_refining_splits_both(shapes) -> None:
    a, b = shapes
    dims = refine(a, b)
    if dims is None:
        assert prod(a) > 1
        return
    assert prod(dims) == prod(a) and 1 not in dims
    for shape in (a, b):
        assert split(tuple(n for n in shape if n != 1), dims) is not None or dims == ()
        view = View.of(shape)
        strides = strides_over(view, dims)
        np.testing.assert_array_equal(elements(View(dims, strides)).ravel(), np.arange(prod(a)))
    assert refine(dims, a) == dims and refine(b, a) == dims


def test_refine_finds_none_where_dims_straddle() -> None:
    assert refine((2, 3), (3, 2)) is None
    assert refine((6, 4), (2, 12)) == (2, 3, 4)
    assert refine((), (1, 1)) == ()


def test_split_finds_none_where_a_dim_straddles() -> None:
    assert split((2, 3), (3, 2)) is None
    assert split((6,), (3, 2)) == [(0, 2), (0, 1)]


def test_refined_dims_must_refine() -> None:
    with pytest.raises(AssertionError, match="does not refine"):
        strides_over(View.of((2, 3)), (3, 2))
