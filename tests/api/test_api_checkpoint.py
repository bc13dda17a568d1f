"""Policies of checkpoint: what they keep is not computed again, and no bit moves."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import errors
from volta.ad_checkpoint import checkpoint_name
from volta.testing import assert_bits_equal
from volta.xla_like.passes import inline_calls

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(0)
W = RNG.standard_normal((4, 4)).astype(np.float32)
X = RNG.standard_normal((3, 4)).astype(np.float32)
KEEP = volta.checkpoint_policies


def block(w, x):
    h = vnp.tanh(checkpoint_name(x @ w, "hidden"))
    h = volta.jit(lambda h: vnp.exp(h @ w))(h)
    batched = vnp.einsum("bij,bjk->bik", h[None], w[None])[0]
    return vnp.sum(checkpoint_name(vnp.sin(batched), "out") ** 2)


POLICIES = {
    "none": None,
    "everything": KEEP.everything_saveable,
    "nothing": KEEP.nothing_saveable,
    "dots": KEEP.dots_saveable,
    "dots without batch": KEEP.dots_with_no_batch_dims_saveable,
    "names": KEEP.save_only_these_names("hidden"),
    "other names": KEEP.save_any_names_but_these("hidden"),
    "either": KEEP.save_from_both_policies(KEEP.dots_saveable, KEEP.save_only_these_names("out")),
    "offloaded": KEEP.offload_dot_with_no_batch_dims("device", "pinned_host"),
    "offloaded names": KEEP.save_and_offload_only_these_names(
        names_which_can_be_saved=["hidden"], names_which_can_be_offloaded=["out"], offload_src="device",
        offload_dst="pinned_host",
    ),
    "one's own": lambda primitive, *avals, **params: primitive.name == "tanh",
}  # fmt: skip

DOTS = {"none": 12, "nothing": 12, "everything": 9, "dots": 9, "dots without batch": 10, "names": 11, "other names": 12}
"""Products of a value and its gradient: three forwards, three again, and six backwards; less those that are kept."""


@sampled("name", POLICIES, ["dots", "names"])
def test_no_policy_moves_a_bit(name: str) -> None:
    expected = volta.grad(block, (0, 1))(W, X)
    f = volta.checkpoint(block, policy=POLICIES[name])
    for gradient in (volta.grad(f, (0, 1)), volta.jit(volta.grad(f, (0, 1))), volta.grad(volta.jit(f), (0, 1))):
        for x, y in zip(gradient(W, X), expected, strict=True):
            assert_bits_equal(x, y)
    mapped = volta.vmap(volta.grad(f), (None, 0))(W, np.stack([X, 2 * X]))
    assert_bits_equal(mapped[0], expected[0])
    outside = volta.grad(lambda w: vnp.sum(volta.vmap(f, (None, 0))(w, X[None])))(W)
    assert_bits_equal(outside, expected[0])


def products(program) -> int:
    program = inline_calls(program)
    return sum(e.primitive.name == "dot_general" for e in program.eqns)


@pytest.mark.parametrize("name", DOTS)
def test_what_is_kept_is_not_computed_again(name: str) -> None:
    f = volta.checkpoint(block, policy=POLICIES[name])
    assert products(volta.make_jaxpr(volta.value_and_grad(f, (0, 1)))(W, X)) == DOTS[name]
    many = lambda w, x: vnp.sum(volta.vmap(f, (None, 0))(w, x))  # noqa: E731
    assert name != "dots" or products(volta.make_jaxpr(volta.value_and_grad(many, (0, 1)))(W, X[None])) == DOTS[name]


@sampled("name", POLICIES, ["dots"])
def test_derivatives_of_gradients_forwards_have_the_bits(name: str) -> None:
    """Backwards they go through what is computed again, and add other terms (docs/determinism.md)."""
    along = lambda f: volta.jvp(volta.grad(f, (0, 1)), (W, X), (X[:1].T * W, X + 1))  # noqa: E731
    found = along(volta.checkpoint(block, policy=POLICIES[name]))
    for x, y in zip(volta.tree.leaves(found), volta.tree.leaves(along(block)), strict=True):
        assert_bits_equal(x, y)


def test_derivatives_of_gradients() -> None:
    f = lambda policy: volta.checkpoint(lambda x: vnp.sin(checkpoint_name(vnp.exp(x), "e")) * x, policy=policy)  # noqa: E731
    second = lambda g: volta.grad(volta.grad(g))(np.float32(0.3))  # noqa: E731
    for policy in (None, KEEP.everything_saveable, KEEP.save_only_these_names("e")):
        np.testing.assert_allclose(second(f(policy)), second(lambda x: vnp.sin(vnp.exp(x)) * x), rtol=1e-5)


def test_policies_that_are_equal_are_one() -> None:
    assert KEEP.save_only_these_names("a", "b") == KEEP.save_only_these_names("b", "a")
    assert hash(KEEP.save_from_both_policies(KEEP.dots_saveable, KEEP.checkpoint_dots))
    assert KEEP.save_anything_except_these_names("a") == KEEP.everything_saveable


def test_names_change_nothing() -> None:
    tree = {"a": X, "b": 2.0}
    found = checkpoint_name(tree, "n")
    assert_bits_equal(found["a"], X)
    assert float(found["b"]) == 2.0 and "name" in str(volta.make_jaxpr(lambda x: checkpoint_name(x, "n"))(X))
    assert_bits_equal(volta.vmap(lambda x: checkpoint_name(x, "n"))(X), X)
    assert_bits_equal(volta.jvp(lambda x: checkpoint_name(x, "n"), (X,), (X,))[1], X)


def test_static_arguments_that_cannot_be_compared_have_it_traced_anew() -> None:
    f = volta.checkpoint(lambda settings, x: settings["scale"] * x * x, static_argnums=0)
    settings = {"scale": 2.0}
    assert volta.grad(lambda x: f(settings, x))(3.0) == 12.0
    settings["scale"] = 3.0
    assert volta.grad(lambda x: f(settings, x))(3.0) == 18.0


def test_what_is_refused() -> None:
    with pytest.raises(TypeError, match="checkpoint's policy takes a function"):
        volta.checkpoint(block, policy="dots")
    with pytest.raises(errors.ArgumentError, match=r"\['a'\] are named as both"):
        KEEP.save_and_offload_only_these_names(
            names_which_can_be_saved=["a"], names_which_can_be_offloaded=["a"], offload_src="d", offload_dst="h"
        )
