"""Stretches as indices, ``x[ds(i, n)]``: beside JAX's, under jit and vmap, differentiated, updated, and refused."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.core.errors import ConcretizationTypeError, DTypeError, ShapeError

X = np.arange(24.0, dtype=np.float32).reshape(4, 6)
STARTS = (0, 1, 2, 5, -1, -9)


def indices(module, i, j):
    ds, asarray = module.ds, module.numpy.asarray
    return {
        "rows": ds(i, 2),
        "columns": (slice(None), ds(j, 3)),
        "after an ellipsis": (..., ds(j, 3)),
        "both": (ds(i, 2), ds(j, 3)),
        "with a number": (ds(i, 2), 3),
        "with an array": (ds(i, 2), asarray([0, 2])),
        "with a new axis": (None, ds(i, 2), slice(None, None, 2)),
        "before an ellipsis": (ds(i, 2), ..., None),
    }


@pytest.mark.parametrize("name", indices(volta, 0, 0))
def test_elements_and_updates_are_jaxs(name):
    jax = pytest.importorskip("jax")
    for i in STARTS:
        if i < 0 and name in ("with an array", "with a new axis"):
            continue  # JAX counts from the end except here
        ours, theirs = (indices(m, m.numpy.asarray(i), m.numpy.asarray(i))[name] for m in (volta, jax))
        got, want = vnp.asarray(X)[ours], jax.numpy.asarray(X)[theirs]
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
        for op in ("set", "add", "multiply", "max"):
            new = getattr(vnp.asarray(X).at[ours], op)(7)
            np.testing.assert_array_equal(np.asarray(new), np.asarray(getattr(jax.numpy.asarray(X).at[theirs], op)(7)))


def test_every_second_element():
    x = vnp.arange(10)
    assert x[volta.ds(vnp.asarray(1), 3, 2)].tolist() == [1, 3, 5]
    assert x.at[volta.ds(1, 3, 2)].set(0).tolist() == [0, 0, 2, 0, 4, 0, 6, 7, 8, 9]
    assert x[volta.ds(3)].tolist() == [0, 1, 2] and x[volta.ds(None)].shape == (10,)
    assert x[volta.ds(4, 0)].shape == (0,)


def test_under_jit_vmap_and_grad():
    def f(x, i):
        return vnp.sum(x[volta.ds(i, 2)] ** 2)

    x = vnp.asarray(X)
    for i in STARTS:
        at = vnp.asarray(i)
        assert volta.jit(f)(x, at).tobytes() == f(x, at).tobytes()
        assert volta.jit(lambda x, s: x[s])(x, volta.ds(at, 2)).tobytes() == x[volta.ds(at, 2)].tobytes()
    mapped = volta.vmap(f, (None, 0))(x, vnp.asarray(STARTS))
    assert mapped.tobytes() == vnp.stack([f(x, vnp.asarray(i)) for i in STARTS]).tobytes()
    gradient = volta.grad(f)(x, vnp.asarray(1))
    assert np.array_equal(gradient, np.where(np.isin(np.arange(4), (1, 2))[:, None], 2 * X, 0))


def test_what_is_refused():
    x = vnp.arange(10)
    with pytest.raises(ShapeError, match=r"ds: 11 elements from axis 0, which has 10"):
        x[volta.ds(0, 11)]
    with pytest.raises(DTypeError, match="ds: the start must be an integer, got f32"):
        volta.ds(vnp.asarray(1.0), 2)
    with pytest.raises(ShapeError, match=r"ds: the start is a scalar.*shape \(2,\), size 2 and stride 1"):
        volta.ds(vnp.asarray([1, 2]), 2)
    with pytest.raises(ShapeError, match="stride 0"):
        volta.ds(1, 2, 0)
    with pytest.raises(IndexError, match="too many indices: the array has 1 dimensions"):
        x[0, volta.ds(0, 2)]
    with pytest.raises(ConcretizationTypeError, match="ds: the size is traced"):
        volta.jit(lambda x, n: x[volta.ds(0, n)])(x, 3)
