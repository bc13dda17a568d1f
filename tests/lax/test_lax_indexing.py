"""Gather and scatter with dimension numbers, beside JAX's, and what does not fit."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.testing.bits import digest

jax = pytest.importorskip("jax", reason="JAX is not installed (pip install 'volta[oracle]')")

X = np.random.default_rng(0).standard_normal((4, 5, 3)).astype(np.float32)
CASES = {
    "rows": (((1, 2), (0,), (0,)), [[1], [3], [9]], (1, 5, 2)),
    "columns_before_the_batch": (((0, 2), (1,), (2, 1)), [[1, 0], [2, 4], [-1, 3]], (4, 1, 2)),
    "elements": (((), (0, 1, 2), (0, 1, 2)), [[[0, 1, 2], [3, 4, 0]], [[2, 2, 2], [0, 5, 0]]], (1, 1, 1)),
    "shared_axis": (((1,), (2,), (2,), (0,), (0,)), [[1], [2], [0], [3]], (1, 5, 1)),
    "all_of_it": (((1, 2, 3), (), ()), np.zeros((2, 0)), (4, 5, 3)),
}
OPERATIONS = "scatter scatter_add scatter_sub scatter_mul scatter_min scatter_max".split()


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.turns(6)
def test_boxes_are_jaxs(case: str, mode: str) -> None:
    numbers, indices, sizes = CASES[case]
    index = np.asarray(indices, np.int32)
    want = jax.lax.gather(X, index, jax.lax.GatherDimensionNumbers(*numbers), sizes, mode=mode)
    got = lax.gather(X, index, lax.GatherDimensionNumbers(*numbers), sizes, mode=mode)
    np.testing.assert_array_equal(got, want)
    updates = np.random.default_rng(1).standard_normal(want.shape).astype(np.float32)
    places = jax.lax.ScatterDimensionNumbers(*numbers)
    expected = jax.jit(lambda *args: [getattr(jax.lax, name)(*args, places, mode=mode) for name in OPERATIONS])
    for name, theirs in zip(OPERATIONS, expected(X, index, updates), strict=True):
        ours = getattr(lax, name)(X, index, updates, lax.ScatterDimensionNumbers(*numbers), mode=mode)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_modes_by_name_and_what_they_are_without_one() -> None:
    numbers, index = lax.GatherDimensionNumbers((), (0,), (0,)), np.int32([[0], [7]])
    x, mode = np.float32([1, 2]), lax.GatherScatterMode
    assert (
        lax.gather(x, index, numbers, (1,)).tolist() == lax.gather(x, index, numbers, (1,), "clip").tolist() == [1, 2]
    )
    assert lax.gather(x, index, numbers, (1,), mode.FILL_OR_DROP, fill_value=5).tolist() == [1, 5]
    assert [mode.from_any(m) for m in ("drop", None, mode.CLIP)] == [mode.FILL_OR_DROP, mode.FILL_OR_DROP, mode.CLIP]
    places = lax.ScatterDimensionNumbers((), (0,), (0,))
    assert lax.scatter_add(x, index, x, places).tolist() == [2, 2]
    assert lax.scatter_add(x, index, x, places, mode="clip").tolist() == [2, 4]
    with pytest.raises(ValueError, match="no mode 'wrap'; there are 'clip'"):
        lax.gather(x, index, numbers, (1,), "wrap")


def test_boxes_of_a_number_are_the_number() -> None:
    numbers = lax.ScatterDimensionNumbers((), (), ())
    index = np.zeros((2, 0), np.int32)
    assert lax.scatter(np.float32(3), index, np.float32([4, 5]), numbers).item() == 5
    assert lax.scatter_add(np.float32(3), index, np.float32([4, 5]), numbers).item() == 12


def test_their_bits_do_not_depend_on_transforms_and_they_have_derivatives() -> None:
    numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    f = lambda x, i: lax.gather(x, i, numbers, (1, 3), mode="clip")  # noqa: E731
    x, i = X[0], np.int32([[1], [2], [1]])
    assert digest(volta.jit(f)(x, i)) == digest(f(x, i)) == digest(volta.vmap(f)(x[None], i[None])[0])
    slope = volta.grad(lambda x: vnp.sum(f(x, i)))(x)
    assert slope[:, 0].tolist() == [0, 2, 1, 0, 0]


@pytest.mark.parametrize(
    ("says", "numbers", "index", "sizes"),
    [
        (r"f32\[4,5,3\] by indices i32\[1,2\]: the indices need an axis of 1 columns", ((1, 2), (0,), (0,)), [[0, 0]], (1, 5, 3)),  # noqa: E501
        (r"boxes of sizes \(1, 6, 3\) do not fit in", ((1, 2), (0,), (0,)), [[0]], (1, 6, 3)),
        ("axes of the operand must be there", ((1, 2), (3,), (0,)), [[0]], (1, 5, 3)),
        ("must have one element along", ((1, 2), (0,), (0,)), [[0]], (2, 5, 3)),
        ("share must have one size", ((1, 2), (), (1,), (0,), (0,)), [[0]], (1, 1, 3)),
        ("a box has 2 axes in a result of 3", ((1, 3), (0,), (0,)), [[0]], (1, 5, 3)),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(says: str, numbers: tuple, index: object, sizes: tuple) -> None:
    with pytest.raises(volta.errors.ShapeError, match=says):
        lax.gather(X, np.asarray(index, np.int32), lax.GatherDimensionNumbers(*numbers), sizes)


def test_updates_that_do_not_fit_are_refused() -> None:
    numbers, index = lax.ScatterDimensionNumbers((1, 2), (0,), (0,)), np.int32([[0], [1]])
    with pytest.raises(volta.errors.ShapeError, match=r"beside a box's axes the updates f32\[3,5,3\] must have"):
        lax.scatter(X, index, X[:3], numbers)
    with pytest.raises(volta.errors.ShapeError, match="a box has 2 axes"):
        lax.scatter(X, index, X[:2], numbers._replace(update_window_dims=(1,)))
    with pytest.raises(volta.errors.DTypeError, match="the indices must be integers"):
        lax.scatter(X, np.float32([[0], [1]]), X[:2], numbers)
