"""jit and checkpoint inside transforms: no bit changes, no recomputation is lost, nothing is traced twice."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.core.ir import subjaxprs

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal(100).astype(np.float32) for _ in range(2))


def bits(tree) -> list[bytes]:
    return [np.asarray(v).tobytes() for v in volta.tree.leaves(tree)]


def pieces(x, y):
    """Outputs that are inputs, intermediate values used again, and two uses of each input."""
    a = vnp.sin(x)
    return a, x, y + 1.0, a * y * x, a


def entangled(wrap):
    """A loss in which every value is used inside and outside of calls, and calls get equal arguments."""
    f = wrap(pieces)

    def loss(x, y):
        first = f(x, y)
        terms = [*first, *f(first[1], first[1]), *f(first[2], y)]
        products = [v * w for v in terms for w in (x, y, first[0])]
        total = products[0]
        for p in products[1:]:
            total = total + p
        return vnp.sum(vnp.tanh(total))

    return loss


WRAPPERS = {
    "jit": volta.jit,
    "checkpoint": volta.checkpoint,
    "jit of jit": lambda f: volta.jit(volta.jit(f)),
    "jit of checkpoint of jit": lambda f: volta.jit(volta.checkpoint(volta.jit(f))),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_wrapping_changes_no_bit_of_a_gradient(wrap) -> None:
    plain = volta.value_and_grad(entangled(lambda f: f), (0, 1))(X, Y)
    assert bits(volta.value_and_grad(entangled(wrap), (0, 1))(X, Y)) == bits(plain)
    assert bits(volta.jit(volta.value_and_grad(entangled(wrap), (0, 1)))(X, Y)) == bits(plain)
    assert bits(volta.value_and_grad(volta.jit(entangled(wrap)), (0, 1))(X, Y)) == bits(plain)


def test_second_derivatives_through_jit_keep_their_bits() -> None:
    def second(wrap):
        gradient = volta.grad(entangled(wrap))
        return volta.grad(lambda x, y: vnp.sum(gradient(x, y) * vnp.sin(x)), (0, 1))

    plain = second(lambda f: f)(X, Y)
    assert bits(second(volta.jit)(X, Y)) == bits(plain)
    # The gradient of a checkpoint computes values again, so its own gradient has more uses of them to add up.
    for a, b in zip(second(volta.checkpoint)(X, Y), plain, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-5)


def primitives(program) -> list[str]:
    return [e.primitive.name for e in program.eqns]


def test_grad_of_jit_is_one_forward_and_one_backward_call() -> None:
    f = volta.jit(lambda x: vnp.sum(vnp.sin(x) * x))
    program = volta.make_jaxpr(volta.grad(f))(X)
    assert primitives(program) == ["jit", "jit"]
    assert [e.params["name"] for e in program.eqns] == ["<lambda>", "transpose(jvp(<lambda>))"]


def test_derived_programs_are_made_once() -> None:
    traces = []

    @volta.jit
    def f(x):
        traces.append(1)
        return vnp.sum(vnp.sin(x) * x)

    for _ in range(3):
        volta.grad(f)(X)
        volta.vmap(f)(X[:, None])
    assert len(traces) == 2  # one a shape
    first, second = (volta.make_jaxpr(volta.grad(f))(X) for _ in range(2))
    for a, b in zip(first.eqns, second.eqns, strict=True):
        assert a.params["jaxpr"] is b.params["jaxpr"]


def test_residuals_that_are_inputs_are_not_outputs_of_the_forward_call() -> None:
    f = volta.jit(lambda x, y: vnp.sum(x * y))
    forward, backward = volta.make_jaxpr(volta.value_and_grad(f, (0, 1)))(X, Y).eqns
    assert len(forward.outputs) == 1
    assert set(forward.inputs) <= set(backward.inputs)


def test_checkpoint_recomputes_behind_a_barrier() -> None:
    def f(x):
        return vnp.sum(vnp.exp(vnp.sin(x)))

    program = volta.make_jaxpr(volta.grad(volta.checkpoint(f)))(X)
    assert primitives(program) == ["checkpoint"]  # the forward value itself is not needed by grad
    (body,) = subjaxprs(program.eqns[0].params)
    assert primitives(body)[0] == "optimization_barrier"
    assert "sin" in primitives(body)
    program = volta.make_jaxpr(volta.value_and_grad(volta.checkpoint(f)))(X)
    assert primitives(program) == ["checkpoint", "checkpoint"]
    forward, backward = program.eqns
    assert len(forward.outputs) == 1
    assert set(backward.inputs) & set(program.jaxpr.invars)


def test_a_call_may_close_over_values_of_an_enclosing_trace() -> None:
    def f(x, y):
        @volta.jit
        def inner(z):
            return vnp.sum(z * x)

        return inner(y) * 2.0

    def plain(x, y):
        return vnp.sum(y * x) * 2.0

    assert bits(volta.grad(f, (0, 1))(X, Y)) == bits(volta.grad(plain, (0, 1))(X, Y))
    assert bits(volta.jit(volta.grad(f, (0, 1)))(X, Y)) == bits(volta.grad(plain, (0, 1))(X, Y))
    rows = np.stack([X, Y])
    assert bits(volta.vmap(f, in_axes=(0, None))(rows, Y)) == bits(volta.vmap(plain, in_axes=(0, None))(rows, Y))


def test_functions_that_differ_only_in_an_array_constant_are_not_confused() -> None:
    def scaled(table):
        table = vnp.asarray(table)
        return volta.jit(lambda x: vnp.sum(vnp.sin(x) * table))

    for transform in (volta.grad, lambda f: volta.jit(volta.grad(f)), lambda f: volta.jit(volta.checkpoint(f))):
        first, second = transform(scaled(X))(Y), transform(scaled(2 * X))(Y)
        np.testing.assert_array_equal(np.asarray(second), 2 * np.asarray(first))
    program = volta.make_jaxpr(volta.grad(scaled(X)))(Y)
    assert len(program.consts) == 1
    assert all(not body.consts for e in program.eqns for body in subjaxprs(e.params))


def test_jvp_and_vmap_of_calls() -> None:
    f, g = entangled(lambda f: f), entangled(volta.checkpoint)
    assert bits(volta.jvp(g, (X, Y), (Y, X))) == bits(volta.jvp(f, (X, Y), (Y, X)))
    rows = np.stack([X, Y])
    per_example = volta.vmap(volta.grad(g), in_axes=(0, None))(rows, Y)
    for i in range(2):
        assert bits(per_example[i]) == bits(volta.grad(f)(rows[i], Y))


def test_integer_inputs_and_outputs_pass_through_calls() -> None:
    @volta.jit
    def f(x, n):
        return x * n.astype("float32"), n + 1

    value, gradient = volta.value_and_grad(lambda x, n: vnp.sum(f(x, n)[0]))(X, np.arange(100))
    np.testing.assert_array_equal(np.asarray(gradient), np.arange(100, dtype=np.float32))
    assert np.asarray(value).dtype == np.float32
