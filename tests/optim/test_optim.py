"""Optimizers against the published formulas written in plain NumPy, and their behaviour under jit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from volta import optim

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.standard_normal((5, 3)), "b": [RNG.standard_normal(3), None, RNG.standard_normal(())]}
GRADIENTS = [volta.tree.map(lambda x: RNG.standard_normal(np.shape(x)), PARAMS) for _ in range(6)]


def arrays(tree, dtype="float64"):
    return volta.tree.map(lambda x: vnp.asarray(np.asarray(x, dtype)), tree)


def run(optimizer, steps=6, wrap=lambda f: f, dtype="float64"):
    @wrap
    def step(params, state, gradients):
        updates, state = optimizer.update(gradients, state, params)
        return optim.apply_updates(params, updates), state

    params = arrays(PARAMS, dtype)
    state = optimizer.init(params)
    for gradients in GRADIENTS[:steps]:
        params, state = step(params, state, arrays(gradients, dtype))
    return params, state


def run_numpy(update):
    """``update(parameter, gradient, memory, t) -> parameter`` for each leaf, with a dict of its own to remember in."""
    out = []
    for i, p in enumerate(volta.tree.leaves(PARAMS)):
        memory = {}
        for t, gradients in enumerate(GRADIENTS, start=1):
            p = update(p, volta.tree.leaves(gradients)[i], memory, t)
        out.append(p)
    return out


def assert_close(ours, reference, rtol=1e-6):
    for a, b in zip(volta.tree.leaves(ours), reference, strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=rtol, atol=1e-9)


def test_sgd():
    assert_close(run(optim.sgd(0.1))[0], run_numpy(lambda p, g, m, t: p - 0.1 * g))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov):
    def update(p, g, m, t):
        m["t"] = g + 0.9 * m.get("t", 0.0)
        return p - 0.1 * (g + 0.9 * m["t"] if nesterov else m["t"])

    assert_close(run(optim.sgd(0.1, 0.9, nesterov))[0], run_numpy(update))


def adam_numpy(rate, decay=0.0, b1=0.9, b2=0.999, eps=1e-8):
    def update(p, g, m, t):
        m["m"] = b1 * m.get("m", 0.0) + (1 - b1) * g
        m["v"] = b2 * m.get("v", 0.0) + (1 - b2) * g * g
        direction = (m["m"] / (1 - b1**t)) / (np.sqrt(m["v"] / (1 - b2**t)) + eps)
        return p - rate(t - 1) * (direction + decay * p)

    return update


def test_adam():
    # The bias correction is computed in float32, where 1 - 0.999**t keeps about 4 digits, as in optax.
    assert_close(run(optim.adam(0.01))[0], run_numpy(adam_numpy(lambda t: 0.01)), rtol=1e-3)


def test_adamw_with_a_schedule():
    schedule = optim.linear_schedule(0.1, 0.0, 10)
    reference = adam_numpy(lambda t: 0.1 * (1 - t / 10), decay=0.3)
    assert_close(run(optim.adamw(schedule, weight_decay=0.3))[0], run_numpy(reference), rtol=2e-3)


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_rmsprop(momentum):
    def update(p, g, m, t):
        m["v"] = 0.8 * m.get("v", 0.5) + 0.2 * g * g
        step = -0.01 * g / np.sqrt(m["v"] + 1e-8)
        m["t"] = step + (momentum or 0.0) * m.get("t", 0.0)
        return p + m["t"]

    optimizer = optim.rmsprop(0.01, decay=0.8, initial_scale=0.5, momentum=momentum)
    assert_close(run(optimizer)[0], run_numpy(update))
    with pytest.raises(ValueError, match="needs a momentum"):
        optim.rmsprop(0.01, nesterov=True)


def test_adagrad():
    def update(p, g, m, t):
        m["s"] = m.get("s", 0.1) + g * g
        return p - 0.1 * g / np.sqrt(m["s"] + 1e-7)

    assert_close(run(optim.adagrad(0.1))[0], run_numpy(update))
    zeros = arrays({"a": np.zeros(3)})
    still, _ = optim.scale_by_rss(0.0, eps=0.0).update(zeros, optim.ScaleByRssState(zeros))
    assert still["a"].tolist() == [0.0, 0.0, 0.0]


def test_lion():
    def update(p, g, m, t):
        direction = np.sign(0.9 * m.get("m", 0.0) + 0.1 * g)
        m["m"] = 0.99 * m.get("m", 0.0) + 0.01 * g
        return p - 0.01 * (direction + 0.3 * p)

    assert_close(run(optim.lion(0.01, weight_decay=0.3))[0], run_numpy(update))


def test_adamw_mask():
    mask = {"w": True, "b": [False, None, False]}
    decayed, _ = run(optim.adamw(0.1, weight_decay=0.5, mask=mask), steps=1)
    plain, _ = run(optim.adamw(0.1, weight_decay=0.5, mask=lambda p: volta.tree.map(lambda x: x.ndim > 1, p)), steps=1)
    adam, _ = run(optim.adam(0.1), steps=1)
    for a, b in zip(volta.tree.leaves(decayed), volta.tree.leaves(plain), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert np.asarray(decayed["b"][0]).tobytes() == np.asarray(adam["b"][0]).tobytes()
    assert np.asarray(decayed["w"]).tobytes() != np.asarray(adam["w"]).tobytes()


def test_clipping():
    gradients = arrays({"a": np.full(4, 3.0), "b": np.full((), 8.0)})
    assert float(optim.global_norm(gradients)) == 10.0
    clipped, _ = optim.clip_by_global_norm(5.0).update(gradients, optim.EmptyState())
    np.testing.assert_array_equal(np.asarray(clipped["a"]), 1.5)
    untouched, _ = optim.clip_by_global_norm(11.0).update(gradients, optim.EmptyState())
    assert np.asarray(untouched["a"]).tobytes() == np.asarray(gradients["a"]).tobytes()
    zeros = arrays({"a": np.zeros(3)})
    kept, _ = optim.clip_by_global_norm(1.0).update(zeros, optim.EmptyState())
    np.testing.assert_array_equal(np.asarray(kept["a"]), 0.0)
    cut, _ = optim.clip(2.0).update(gradients, optim.EmptyState())
    np.testing.assert_array_equal(np.asarray(cut["a"]), 2.0)
    assert float(optim.global_norm({})) == 0.0


OPTIMIZERS = {
    "sgd": optim.sgd(0.1, 0.9, True),
    "adam": optim.adam(optim.exponential_decay(0.1, 2, 0.5)),
    "adamw": optim.chain(optim.clip_by_global_norm(0.5), optim.adamw(optim.warmup_cosine_decay_schedule(0, 0.1, 2, 5))),
    "rmsprop": optim.rmsprop(0.01, momentum=0.9, nesterov=True),
    "adagrad": optim.adagrad(0.1),
    "lion": optim.lion(optim.constant_schedule(0.01)),
}


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_jit_and_donation_change_no_bit(name):
    plain = run(OPTIMIZERS[name], dtype="float32")
    for wrap in (volta.jit, lambda f: volta.jit(f, donate_argnums=(0, 1))):
        compiled = run(OPTIMIZERS[name], wrap=wrap, dtype="float32")
        assert volta.tree.structure(compiled) == volta.tree.structure(plain)
        for a, b in zip(volta.tree.leaves(compiled), volta.tree.leaves(plain), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_everything_keeps_the_dtype_of_its_parameter(name, dtype):
    params, state = run(OPTIMIZERS[name], dtype=dtype)
    assert {str(x.dtype) for x in volta.tree.leaves((params, state))} - {"int32"} == {dtype}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_and_counts(dtype):
    params, state = run(OPTIMIZERS["adamw"], dtype=dtype)
    assert {str(x.dtype) for x in volta.tree.leaves(params)} == {dtype}
    counts = [x for x in volta.tree.leaves(state) if x.dtype == np.int32]
    assert [int(c) for c in counts] == [len(GRADIENTS)] * 2


def test_the_count_stays_at_the_largest_int():
    state = optim.ScaleByScheduleState(vnp.asarray(2**31 - 1, vnp.int32))
    _, state = optim.scale_by_schedule(optim.constant_schedule(1.0)).update({"a": vnp.ones(2)}, state)
    assert int(state.count) == 2**31 - 1


def cosine(t, steps, alpha=0.0):
    return (1 - alpha) * 0.5 * (1 + math.cos(math.pi * min(t, steps) / steps)) + alpha


@given(st.integers(0, 40))
def test_schedules(t):
    expected = {
        optim.constant_schedule(0.5): 0.5,
        optim.linear_schedule(1.0, 0.1, 10): 1.0 - 0.9 * min(t, 10) / 10,
        optim.linear_schedule(0.0, 1.0, 10, 5): min(max(t - 5, 0), 10) / 10,
        optim.polynomial_schedule(1.0, 0.0, 2, 10): (1 - min(t, 10) / 10) ** 2,
        optim.cosine_decay_schedule(2.0, 20, 0.1): 2 * cosine(t, 20, 0.1),
        optim.warmup_cosine_decay_schedule(0.0, 1.0, 10, 30, 0.2): t / 10 if t < 10 else cosine(t - 10, 20, 0.2),
        optim.exponential_decay(1.0, 5, 0.5): 0.5 ** (t / 5),
        optim.exponential_decay(1.0, 5, 0.5, 3, True, 0.2): max(0.2, 0.5 ** max(0, (t - 3) // 5)),
        optim.piecewise_constant_schedule(1.0, {10: 0.1, 20: 0.5}): 1.0 if t < 10 else 0.1 if t < 20 else 0.05,
        optim.join_schedules([lambda c: 1.0 * c, lambda c: -1.0 * c], [4]): t if t < 4 else -(t - 4),
    }
    for schedule, value in expected.items():
        assert float(schedule(t)) == pytest.approx(value, rel=1e-5, abs=1e-6)
        assert float(schedule(vnp.asarray(t, vnp.int32))) == pytest.approx(value, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: optim.sgd(0.1, nesterov=True), "needs a momentum"),
        (lambda: optim.linear_schedule(1.0, 0.0, 0), "positive number of steps"),
        (lambda: optim.cosine_decay_schedule(1.0, -1), "positive number of steps"),
        (lambda: optim.warmup_cosine_decay_schedule(0.0, 1.0, 10, 10), "warm-up"),
        (lambda: optim.exponential_decay(1.0, 10, 0.0), "decay_rate"),
        (lambda: optim.piecewise_constant_schedule(1.0, {3: -1.0}), "at least 0"),
        (lambda: optim.join_schedules([optim.constant_schedule(1.0)], [3]), "boundaries"),
        (lambda: optim.add_decayed_weights(0.1).update({}, optim.EmptyState()), "needs the parameters"),
        (lambda: optim.adam(0.1).update({}, ()), "own init"),
    ],
)
def test_errors(call, words):
    with pytest.raises(ValueError, match=words):
        call()
