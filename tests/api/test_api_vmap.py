"""vmap: axes of all kinds, nesting, and the trees of its arguments and outputs."""

import numpy as np

import volta
import volta.numpy as vnp

A = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_axes_of_inputs_and_outputs() -> None:
    for axis in range(-3, 3):
        want = np.stack([np.moveaxis(A, axis, 0)[i].sum(0) for i in range(A.shape[axis])])
        assert volta.vmap(lambda x: vnp.sum(x, axis=0), in_axes=axis)(A).tolist() == want.tolist()
        out = volta.vmap(lambda x: x * 2, in_axes=axis, out_axes=-1)(A)
        np.testing.assert_array_equal(np.asarray(out), np.moveaxis(A, axis, -1) * 2)


def test_trees_of_axes() -> None:
    def affine(p, x):
        return {"y": p["w"] * x + p["b"], "w": p["w"]}

    f = volta.vmap(affine, in_axes=({"w": None, "b": 0}, 1), out_axes={"y": 1, "w": None})
    out = f({"w": np.float32(2), "b": np.arange(3, dtype=np.float32)}, A[0].T)
    np.testing.assert_array_equal(np.asarray(out["y"]), (2 * A[0] + np.arange(3)[:, None]).T)
    assert float(out["w"]) == 2
    g = volta.vmap(lambda pair, none: pair[0] + pair[1], in_axes=((0, None), None))
    assert g((A[0, 0], 1.0), None).tolist() == [1, 2, 3, 4]
    assert volta.vmap(lambda x, y: x + y, in_axes=[0, None])(A[0, 0], 1.0).tolist() == [1, 2, 3, 4]


def test_outputs_that_do_not_depend_on_the_mapped_argument_are_repeated() -> None:
    out = volta.vmap(lambda x: (3.0, x, A[0]), out_axes=(0, 0, 1))(A)
    assert out[0].tolist() == [3, 3] and out[2].shape == (3, 2, 4)


def test_keywords_are_mapped_over_axis_0_and_axis_size() -> None:
    assert volta.vmap(lambda x, y: x + y)(A[0], y=A[1]).tolist() == (A[0] + A[1]).tolist()
    assert volta.vmap(lambda: vnp.ones(2), axis_size=3)().shape == (3, 2)
    assert volta.vmap(lambda x: x, in_axes=None, axis_size=2)(1.0).tolist() == [1, 1]


def test_nesting() -> None:
    outer = volta.vmap(volta.vmap(lambda x, y: x * y, in_axes=(None, 0)), in_axes=(0, None))
    x, y = np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(outer(x, y)), np.outer(x, y))
    pairs = volta.vmap(volta.vmap(vnp.dot, (0, None)), (None, 0))(A[0], A[1])
    np.testing.assert_array_equal(np.asarray(pairs), (A[0] @ A[1].T).T)


def test_over_grad_and_jit_and_under_them() -> None:
    def loss(w, x):
        return vnp.sum(vnp.tanh(w * x))

    w = np.float32(0.5)
    per_example = volta.vmap(volta.grad(loss), in_axes=(None, 0))(w, A[0])
    assert per_example.shape == (3,)
    for mapped in (
        volta.jit(volta.vmap(volta.grad(loss), in_axes=(None, 0))),
        volta.vmap(volta.jit(volta.grad(loss)), in_axes=(None, 0)),
    ):
        assert mapped(w, A[0]).tolist() == per_example.tolist()
    total = volta.grad(lambda w: vnp.sum(volta.vmap(loss, in_axes=(None, 0))(w, A[0])))(w)
    np.testing.assert_allclose(float(total), float(vnp.sum(per_example)), rtol=1e-6)


def test_a_size_of_one_and_a_size_of_zero() -> None:
    assert volta.vmap(lambda x: vnp.sum(x))(A[:1, 0]).tolist() == [6]
    assert volta.vmap(lambda x: vnp.sum(x))(A[:0, 0]).shape == (0,)
