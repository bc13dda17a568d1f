"""Axes of vmap that have names: collectives along them, as in JAX, with the bits of the same over the whole batch."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import errors, lax
from volta.testing import assert_bits_equal

F = np.float32
X = np.random.default_rng(0).standard_normal((3, 4)).astype(F)
Q = np.random.default_rng(1).standard_normal((3, 3)).astype(F)
CUBE = np.random.default_rng(2).standard_normal((3, 6, 2)).astype(F)


def over(f, *args, t=volta, **axes):
    return t.vmap(f, axis_name="i", **axes)(*args)


PROGRAMS = {
    "psum": lambda t, n: over(lambda x: t.lax.psum({"a": x, "b": 2.5, "c": 1}, "i"), X, t=t),
    "psum of booleans": lambda t, n: over(lambda x: t.lax.psum(x, "i"), Q > 0, t=t),
    "pmean": lambda t, n: over(lambda x: x - t.lax.pmean(x, "i"), X, t=t),
    "extrema": lambda t, n: over(lambda x: (t.lax.pmax(x, "i"), t.lax.pmin(x, "i")), X, t=t, out_axes=None),
    "all_gather": lambda t, n: over(
        lambda x: [t.lax.all_gather(x, "i", axis=a, tiled=b) for a in (0, 1) for b in (False, a == 0)][:3],
        X, t=t, out_axes=None,
    ),
    "psum_scatter": lambda t, n: over(
        lambda x: (t.lax.psum_scatter(x, "i", tiled=True), t.lax.psum_scatter(x[:3], "i")), CUBE, t=t
    ),
    "ppermute": lambda t, n: over(lambda x: t.lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)]), X, t=t, in_axes=0),
    "pshuffle": lambda t, n: over(lambda x: t.lax.pshuffle(x, "i", [2, 0, 1]), X.T, t=t, in_axes=1),
    "all_to_all": lambda t, n: over(
        lambda x: (t.lax.all_to_all(x[:3], "i", 0, 1), t.lax.all_to_all(x, "i", 0, 1, tiled=True)), CUBE, t=t
    ),
    "pswapaxes": lambda t, n: over(lambda x: t.lax.pswapaxes(x, "i", 0), Q, t=t),
    "axis_index": lambda t, n: over(lambda x: t.lax.axis_index("i") + t.lax.axis_size("i"), X, t=t),
    "gradients inside": lambda t, n: over(t.grad(lambda x: t.lax.psum(n.sum(x) ** 2, "i")), X, t=t),
    "gradients of means inside": lambda t, n: over(t.grad(lambda x: n.sum(t.lax.pmean(x, "i") * x)), X, t=t),
    "gradients outside": lambda t, n: t.grad(
        lambda x: n.sum(over(lambda v: n.sin(v) * t.lax.psum(v, "i") + t.lax.all_gather(v, "i")[1], x, t=t))
    )(X),
    "gradients of exchanges": lambda t, n: over(
        t.grad(
            lambda x: n.sum(
                n.sin(t.lax.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)])) * t.lax.all_to_all(x, "i", 0, 0)
                + t.lax.psum_scatter(n.cos(t.lax.all_gather(x, "i")), "i")
            )
        ),
        Q, t=t,
    ),
    "inside of calls": lambda t, n: over(
        t.jit(lambda x: t.lax.scan(lambda c, v: (c + t.lax.psum(v, "i"), c), F(0), x)[0] + t.lax.axis_index("i")),
        X, t=t,
    ),
    "a call that nothing mapped reaches": lambda t, n: over(
        lambda x: x + t.jit(lambda: t.lax.psum(n.ones(2)[0], "i") + t.lax.axis_index("i"))(), X, t=t
    ),
    "chosen": lambda t, n: over(
        lambda x: t.lax.cond(n.sum(x) > 0, lambda v: t.lax.psum(v, "i"), lambda v: v, x), X, t=t
    ),
    "two axes": lambda t, n: t.vmap(
        t.vmap(lambda x: (t.lax.psum(x, ("i", "j")), t.lax.axis_index(("i", "j")), t.lax.psum(x, "j")), axis_name="j"),
        axis_name="i",
    )(X),
    "an axis beside": lambda t, n: over(t.vmap(lambda x: t.lax.psum(x, "i") + t.lax.all_gather(x, "i")[0]), X, t=t),
    "no argument": lambda t, n: t.vmap(lambda: t.lax.axis_index("i"), axis_name="i", axis_size=3)(),
    "a custom rule": lambda t, n: over(t.grad(_normalised(t, n)), X, t=t),
}  # fmt: skip


def _normalised(t, n):
    f = t.custom_vjp(lambda x: n.sum(x / t.lax.psum(x, "i")))
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * t.lax.psum(x, "i"),))
    return f


@sampled("name", PROGRAMS, ("psum", "gradients inside", "inside of calls", "two axes", "all_to_all", "no argument"))
@pytest.mark.few(3)
@pytest.mark.turns(3)
def test_programs_agree_with_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    found, expected = PROGRAMS[name](volta, vnp), PROGRAMS[name](jax, jax.numpy)
    leaves, others = jax.tree_util.tree_leaves(volta.tree.map(np.asarray, found)), jax.tree_util.tree_leaves(expected)
    for x, y in zip(leaves, others, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


def test_parts_of_sums_of_booleans_are_counts() -> None:
    """JAX refuses to sum booleans in parts, which it counts in whole sums."""
    counts = over(lambda x: lax.psum_scatter(x, "i"), (Q > 0).astype(np.int32), t=volta)
    assert_bits_equal(over(lambda x: lax.psum_scatter(x, "i"), Q > 0, t=volta), counts)


def test_sums_have_the_bits_of_sums_over_the_batch() -> None:
    x = np.random.default_rng(3).standard_normal((5000, 3)).astype(F)
    expected = vnp.sum(x, axis=0)
    for wrap in (lambda f: f, volta.jit):
        assert_bits_equal(volta.vmap(wrap(lambda v: lax.psum(v, "i")), axis_name="i", out_axes=None)(x), expected)
        assert_bits_equal(wrap(volta.vmap(lambda v: lax.psum(v, "i"), axis_name="i", out_axes=None))(x), expected)
    mean = volta.vmap(lambda v: lax.pmean(v, "i"), axis_name="i", out_axes=None)(x)
    assert_bits_equal(mean, vnp.mean(x, axis=0))
    same = volta.vmap(lambda v: lax.psum(F(0.1) * vnp.ones(()), "i") + v, axis_name="i")(vnp.zeros(4097))
    assert_bits_equal(same[0], vnp.sum(vnp.full(4097, F(0.1))))


def test_two_axes_are_one_sequence() -> None:
    x = np.random.default_rng(4).standard_normal((130, 70)).astype(F)
    both = lambda names: volta.vmap(  # noqa: E731
        volta.vmap(lambda v: lax.psum(v, names), axis_name="j", out_axes=None), axis_name="i", out_axes=None
    )(x)
    assert_bits_equal(both(("i", "j")), vnp.sum(x))
    assert_bits_equal(both(("j", "i")), vnp.sum(vnp.asarray(x.T)))


@sampled("name", ["psum", "pmax", "all_gather", "all_to_all", "ppermute", "psum_scatter"], ["all_to_all"])
def test_an_axis_beside_the_named_one_changes_nothing(name: str) -> None:
    f = {
        "psum": lambda x: lax.psum(x, "i"),
        "pmax": lambda x: lax.pmax(x, "i"),
        "all_gather": lambda x: lax.all_gather(x, "i", axis=1),
        "all_to_all": lambda x: lax.all_to_all(x, "i", 0, 1),
        "ppermute": lambda x: lax.ppermute(x, "i", [(0, 2), (2, 1)]),
        "psum_scatter": lambda x: lax.psum_scatter(x, "i"),
    }[name]
    x = np.random.default_rng(5).standard_normal((3, 3, 2, 4)).astype(F)
    expected = [over(f, x[..., k]) for k in range(4)]
    for d in range(3):
        moved = np.moveaxis(x, 3, d + 1)
        assert_bits_equal(over(volta.vmap(f, in_axes=d), moved), vnp.stack(expected, 1))


def test_gradients_however_they_are_taken() -> None:
    def loss(x):
        return lax.psum(vnp.sum(vnp.sin(x)) ** 2, "i")

    expected = volta.vmap(volta.grad(loss), axis_name="i")(X)
    assert_bits_equal(volta.jit(volta.vmap(volta.grad(loss), axis_name="i"))(X), expected)
    assert_bits_equal(volta.vmap(volta.jit(volta.grad(volta.jit(loss))), axis_name="i")(X), expected)
    assert_bits_equal(volta.vmap(volta.grad(volta.checkpoint(loss)), axis_name="i")(X), expected)


def test_extrema_are_differentiable() -> None:
    inside = volta.vmap(volta.grad(lambda x: lax.pmax(x, "i") * 2), axis_name="i")
    outside = volta.grad(lambda x: vnp.sum(volta.vmap(lambda v: lax.pmax(v, "i") * 2, axis_name="i")(x)))
    expected = [8.0 if i == X[0].argmax() else 0.0 for i in range(4)]
    assert inside(X[0]).tolist() == outside(X[0]).tolist() == expected


def test_a_jitted_function_is_traced_for_the_axes_around_it() -> None:
    size = volta.jit(lambda x: x * lax.axis_size("i"))
    assert volta.vmap(size, axis_name="i")(np.ones(3, F)).tolist() == [3.0] * 3
    assert (
        volta.vmap(lambda x: volta.vmap(size, axis_name="i")(x), axis_name="i")(np.ones((3, 2), F)).tolist()
        == [[2.0] * 2] * 3
    )
    wide = volta.vmap(lambda x: size(x[0]), axis_name="i")(np.ones((5, 1), F))
    assert wide.tolist() == [5.0] * 5


def test_programs_can_be_made_for_axes_that_are_named() -> None:
    program = volta.make_jaxpr(lambda x: lax.psum(x, "i"), axis_env=[("i", 3)])(F(1))
    assert "names=(i,) sizes=(3,)]" in str(program)


@pytest.mark.parametrize(
    ("f", "error", "said"),
    [
        (lambda x: lax.psum(x, "j"), NameError, "psum: unbound axis name: 'j'. The axes that have names here are 'i'"),
        (volta.jit(lambda x: lax.pmean(x, "j")), errors.AxisNameError, "psum: unbound axis name: 'j'"),
        (lambda x: lax.ppermute(x, "i", [(0, 1), (1, 1)]), errors.ShapeError, "must be different numbers below 3"),
        (lambda x: lax.ppermute(x, "i", [(0, 3)]), errors.ShapeError, "below 3, the size of axis 'i'"),
        (lambda x: lax.pshuffle(x, "i", [0, 0, 1]), errors.ShapeError, "is no permutation"),
        (
            lambda x: lax.psum_scatter(x, "i"),
            errors.ShapeError,
            "axis 0 of shape (4,) must have the size of axis 'i', 3",
        ),
        (
            lambda x: lax.psum_scatter(x, "i", tiled=True),
            errors.ShapeError,
            "must be a multiple of the size of axis 'i', 3",
        ),
        (lambda x: lax.all_to_all(x, "i", 0, 0), errors.ShapeError, "all_to_all"),
        (lambda x: lax.all_gather(x, "i", axis=3), errors.ShapeError, "all_gather: axis 3 is out of range"),
        (lambda x: lax.psum(x, "i", axis_index_groups=[[0]]), NotImplementedError, "axis_index_groups are not there"),
        (lambda x: lax.ppermute(x, ("i", "j"), []), NameError, "ppermute: unbound axis name: 'j'"),
        (lambda x: lax.ppermute(x, ("i", "i"), []), NotImplementedError, "takes the name of one axis"),
    ],
)
def test_what_is_refused(f, error, said) -> None:
    with pytest.raises(error) as caught:
        over(f, X)
    assert said in str(caught.value) and "test_api_collectives.py" in str(caught.value)


def test_names_outside_of_vmap() -> None:
    with pytest.raises(errors.AxisNameError, match="unbound axis name: 'i'. No axis has a name here"):
        lax.psum(1.0, "i")
    with pytest.raises(errors.AxisNameError):
        volta.jit(lambda x: lax.axis_index("i"))(1.0)
    over(lambda x: lax.psum(x, "i"), X)
    with pytest.raises(errors.AxisNameError):
        lax.axis_size("i")
