"""Arguments that JAX's functions take and NumPy's do not, and what is only asked of arrays that cannot change."""

from array import array
from collections import namedtuple

import numpy as np
import pytest

import volta
import volta.nn as nn
import volta.numpy as vnp
from volta import lax, tree_util

F = np.float32
DOUBLED = volta.jit(lambda x: 2 * x, donate_argnums=0)


@pytest.mark.parametrize("copied", [lambda x: x.copy(), vnp.copy, vnp.array, lambda x: x.__copy__()])
def test_a_copy_stays_where_the_original_is_donated(copied):
    for gone_first in (True, False):
        x = vnp.arange(4)
        y = copied(x)
        kept = x if gone_first else y
        DOUBLED(y if gone_first else x)
        assert kept.tolist() == [0, 1, 2, 3] and not kept.is_deleted()
    x = vnp.arange(4)
    assert vnp.array(x, copy=False) is x and vnp.asarray(x) is x


def test_interp_goes_on_where_it_is_told_to():
    x, xp, fp = F([-10, 0.5, 10]), np.arange(5).astype(F), 2 * np.arange(5).astype(F)
    assert vnp.interp(x, xp, fp, left="extrapolate", right="extrapolate").tolist() == [-20, 1, 20]
    assert vnp.interp(x, xp, fp, left="extrapolate").tolist() == [-20, 1, 8]
    assert vnp.interp(x, xp, fp, left=F(7), right="extrapolate").tolist() == [7, 1, 20]
    with pytest.raises(ValueError, match="'extrapolate', not 'linear'"):
        vnp.interp(x, xp, fp, left="linear")


def test_interp_of_complex_values():
    x, xp, fp = np.array([-1, 0.5, 10]), np.array([0.0, 1, 2]), np.array([1 + 2j, 3 - 1j, 1j])
    for ends in ({}, {"left": 9j, "right": 4}):
        assert vnp.interp(x, xp, fp, **ends).tolist() == np.interp(x, xp, fp, **ends).tolist()
    assert vnp.interp(x, xp, fp, period=2.0).tolist() == np.interp(x, xp, fp, period=2.0).tolist()


def test_many_polynomials_are_added():
    one, two = np.int32([[2, 3, 1]]), np.int32([[5, 7, 3], [8, 2, 6]])
    assert vnp.polyadd(one, two).tolist() == [[5, 7, 3], [10, 5, 7]]
    assert vnp.polysub(one, two).tolist() == [[-5, -7, -3], [-6, 1, -5]]
    assert vnp.polyadd(two, np.int32([2])).tolist() == [[5, 7, 3], [10, 4, 8]]
    with pytest.raises(volta.errors.ShapeError, match=r"polyadd: coefficients of shapes \(3,\) and \(2, 3\)"):
        vnp.polyadd(np.int32([1, 3, 5]), two)


@pytest.mark.parametrize("places", [[0, 3], [-1, 2, 0], [5], [], [-6, -5, -4, -3, -2, -1]])
def test_traced_places_are_deleted_where_none_comes_twice(places):
    x, places = np.arange(12.0, dtype=F).reshape(2, 6), np.int32(places)
    delete = volta.jit(lambda x, i: vnp.delete(x, i, 1, assume_unique_indices=True))
    assert delete(x, places).tolist() == np.delete(x, places, 1).tolist()
    with pytest.raises(volta.errors.ConcretizationTypeError):
        volta.jit(vnp.delete)(x, places)


def test_vectors_in_a_row_are_matrices_where_it_is_asked():
    a, b = [1, 2, 3], [4, 5, 6]
    assert vnp.r_["r", a, b].tolist() == [[1, 2, 3, 4, 5, 6]]
    assert vnp.r_["c", a, b].tolist() == [[1], [2], [3], [4], [5], [6]]
    assert vnp.c_["r", a, b].tolist() == vnp.c_["c", a, b].tolist() == [[1, 4], [2, 5], [3, 6]]


def test_pad_by_a_function():
    def ends(row, width, axis, settings):
        before, after = width
        row = row.at[:before].set(settings.get("before", 0))
        return row.at[len(row) - after :].set(settings.get("after", 0))

    def in_place(row, width, axis, settings):
        row[: width[0]] = settings.get("before", 0)
        row[len(row) - width[1] :] = settings.get("after", 0)

    x = np.int32([[2, 3, 4], [5, 6, 7]])
    for width in (2, ((1, 0), (2, 3))):
        want = np.pad(x, width, in_place, before=-10, after=10)
        assert vnp.pad(x, width, ends, before=-10, after=10).tolist() == want.tolist()
    with pytest.raises(volta.errors.ShapeError, match="the function must return its vector"):
        vnp.pad(x, 1, lambda *_: None)


def test_einsum_in_a_given_order():
    x, y, z = (np.random.default_rng(0).normal(size=s).astype(F) for s in ((2, 3), (3, 4), (4, 2)))
    for order in ([(0, 1), (0, 1)], [(1, 2), (0, 1)], vnp.einsum_path("ij,jk,kl", x, y, z)[0]):
        want = (x @ y) @ z
        np.testing.assert_allclose(vnp.einsum("ij,jk,kl", x, y, z, optimize=order), want, 1e-5)
    first = lax.dot(lax.dot(x, y), z)
    assert vnp.array_equal(vnp.einsum("ij,jk,kl->il", x, y, z, optimize=[(0, 1), (0, 1)]), first)


def test_points_are_counted_in_integers():
    x, y = np.arange(4.0, dtype=F), F([0, 1, 1, 3])
    counts, *_ = vnp.histogram2d(x, y, bins=2)
    assert counts.dtype == "int32" and counts.tolist() == np.histogram2d(x, y, bins=2)[0].tolist()
    assert vnp.histogram2d(x, y, bins=2, weights=y)[0].dtype == "float32"
    assert vnp.histogram2d(x, y, bins=2, density=True)[0].dtype == vnp.histogram(x)[0].dtype == "float32"


def test_softmax_of_no_elements_is_empty():
    x = vnp.ones((2, 0))
    for f in (nn.softmax, nn.log_softmax):
        assert f(x).shape == volta.grad(lambda x: f(x).sum())(x).shape == (2, 0)  # noqa: B023
        assert f(vnp.ones((0, 3)), axis=None).shape == f(vnp.ones((0, 3)), axis=-1).shape == (0, 3)
    assert nn.logsumexp(x, axis=1).tolist() == [-np.inf, -np.inf]
    for f in (nn.layer_norm, nn.rms_norm):
        assert f(x).shape == (2, 0)


def test_buffers_of_python_are_arrays():
    for buffer in (array("i", [2, 3]), memoryview(np.int32([2, 3]))):
        assert (
            vnp.array(buffer).tolist() == vnp.asarray(buffer).tolist() == [2, 3] and vnp.array(buffer).dtype == "int32"
        )
    with pytest.raises(volta.errors.DTypeError, match="cannot make an array of str"):
        vnp.array("text")


def test_reshape_of_permuted_axes():
    x = np.arange(6).reshape(2, 3)
    assert lax.reshape(x, (6,), (1, 0)).tolist() == x.T.reshape(6).tolist()


def test_composites_are_their_decomposition():
    f = lax.composite(lambda x, *, scale: x * scale, name="my.scale")
    x = vnp.arange(3.0)
    assert f(x, scale=2.0).tolist() == volta.jit(lambda x: f(x, scale=2.0))(x).tolist() == [0, 2, 4]


def test_containers_are_flattened_one_level():
    assert tree_util.flatten_one_level([1, (2, 3)]) == ((1, (2, 3)), None)
    assert tree_util.flatten_one_level({"b": [1], "a": None}) == ((None, [1]), ("a", "b"))
    part = tree_util.Partial(max, 1)
    assert tree_util.flatten_one_level(part)[1] is max
    assert tree_util.flatten_one_level(None) == ((), None)
    for leaf in (1, vnp.ones(2), "text"):
        with pytest.raises(ValueError, match="flatten_one_level: a value of type"):
            tree_util.flatten_one_level(leaf)


def test_one_level_with_keys_and_classes_of_containers():
    pair = namedtuple("pair", "first second")
    keyed = tree_util.flatten_one_level_with_keys
    assert keyed({"b": [1], "a": None}) == (((tree_util.DictKey("a"), None), (tree_util.DictKey("b"), [1])), ("a", "b"))
    assert keyed([5, None])[0] == ((tree_util.SequenceKey(0), 5), (tree_util.SequenceKey(1), None))
    names = [key for key, _ in keyed(pair(1, (2, 3)))[0]]
    assert names == [tree_util.GetAttrKey("first"), tree_util.GetAttrKey("second")]
    assert keyed(None) == ((), None)
    with pytest.raises(ValueError, match="a value of type int is a leaf"):
        keyed(3)
    assert all(map(tree_util.is_tree_node, (tuple, list, dict, type(None), pair, tree_util.Partial)))
    assert not any(map(tree_util.is_tree_node, (int, object, np.ndarray)))
    with pytest.raises(TypeError, match="takes a class, not 3"):
        tree_util.is_tree_node(3)


def test_a_traced_mask_is_no_index():
    with pytest.raises(IndexError) as caught:
        volta.jit(lambda x: x[x > 0])(vnp.arange(3.0))
    assert isinstance(caught.value, volta.errors.NonConcreteBooleanIndexError)


def test_what_is_behind_a_partition_falls_as_in_jax():
    x = np.int32([6, 8, 4, 3, 1, 9, 7, 5, 2, 3])
    assert vnp.partition(x, 4).tolist() == [1, 2, 3, 3, 4, 9, 8, 7, 6, 5]
    assert vnp.argpartition(x, 4).tolist() == [4, 8, 3, 9, 2, 0, 1, 5, 6, 7]
    assert vnp.partition(np.stack([x, -x]), -1, axis=0).tolist() == np.sort(np.stack([x, -x]), axis=0).tolist()
    assert vnp.partition(F([2, np.nan, 1]), 0)[0] == 1


def test_what_is_asked_of_python_numbers_alone_is_weak():
    weak = [vnp.equal(5, vnp.array(5)), vnp.less(1, 2.0), vnp.isnan(6), vnp.isnan(6.0), vnp.isfinite(1), vnp.isinf(2)]
    assert all(x.weak_type and x.dtype == bool for x in weak)
    strict = [vnp.equal(5, np.int32(5)), vnp.isnan(np.int32(6)), vnp.isfinite(F(1)), vnp.heaviside(np.int32([1]), 0.5)]
    strict += [vnp.isposinf(5), vnp.isneginf(vnp.inf), vnp.allclose(1, 1.0), vnp.array_equal(1, 1)]
    assert not any(x.weak_type for x in strict)
    for done, number in (  # flags of loops and choices may be of either kind
        lax.while_loop(lambda c: ~c[0], lambda c: (c[1] > 2, c[1] + 1), (False, 0)),
        lax.while_loop(lambda c: ~c[0], lambda c: (c[1] > 2, c[1] + 1), (vnp.zeros((), bool), np.int32(0))),
    ):
        assert bool(done) and int(number) == 4
    assert lax.cond(True, lambda x: x < 3, lambda x: vnp.array(False), 2)


def test_the_derivative_of_what_counts_as_a_number_does_so_too():
    f = lambda x: 3 * vnp.sin(x)  # noqa: E731
    assert all(x.weak_type and x.dtype == F for x in volta.jvp(f, (2.0,), (3.0,)))
    assert volta.linearize(f, 2.0)[1](3.0).weak_type and not volta.jvp(f, (F(2),), (F(3),))[1].weak_type
