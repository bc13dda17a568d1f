"""Mixed precision: policies, loss scales, and a tiny transformer trained in bfloat16 and float16."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from benchmarks import programs
from volta import nn, optim
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)

CONFIG = programs.TransformerConfig(vocabulary=40, width=16, heads=2, layers=1, length=8, batch=4)
PARAMS, X, Y = programs.transformer_data(CONFIG)
FRAMEWORK = programs.volta()


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("params=float32,compute=bfloat16,output=float32", ("float32", "bfloat16", "float32")),
        ("p=f32,c=f16,o=f32", ("float32", "float16", "float32")),
        ("params=float32, compute=half", ("float32", "bfloat16", "bfloat16")),
        ("params=full", ("float32", "float32", "float32")),
        ("bfloat16", ("bfloat16", "bfloat16", "bfloat16")),
    ],
)
def test_a_policy_from_its_text(text, means):
    policy = optim.get_policy(text)
    assert tuple(x.name for x in (policy.param_dtype, policy.compute_dtype, policy.output_dtype)) == means
    assert optim.get_policy(str(policy)) == policy
    assert policy.with_output_dtype("float64").output_dtype == np.float64


@pytest.mark.parametrize(
    "text", ["", "float31", "int32", "params=float32,weights=float32", "compute=float16", "p=f32,p=f16"]
)
def test_what_is_no_policy_is_refused(text):
    with pytest.raises(ValueError, match="policy"):
        optim.get_policy(text)


def test_only_floats_are_cast_and_gradients_come_back():
    policy = optim.get_policy("params=float32,compute=bfloat16,output=float32")
    tree = {"w": vnp.ones(3), "n": vnp.arange(3), "flag": vnp.asarray(True)}
    cast = policy.cast_to_compute(tree)
    assert [cast[k].dtype.name for k in ("w", "n", "flag")] == ["bfloat16", "int32", "bool"]
    assert policy.cast_to_output(cast)["w"].dtype == policy.cast_to_param(cast)["w"].dtype == np.float32
    gradient = volta.grad(lambda w: vnp.sum(policy.cast_to_compute(w) ** 2).astype("float32"))(vnp.ones(3, "float32"))
    assert gradient.dtype == np.float32


def test_the_dynamic_scale_reacts():
    scale = optim.DynamicLossScale(vnp.asarray(8.0, "float32"), period=3)
    good, bad = vnp.asarray(True), vnp.asarray(False)
    adjust = volta.jit(lambda s, ok: s.adjust(ok))
    seen = []
    for finite in (good, good, good, good, bad, bad, bad, bad, bad, bad):
        scale = adjust(scale, finite)
        seen.append((float(scale.loss_scale), int(scale.counter)))
    assert seen == [(8, 1), (8, 2), (16, 0), (16, 1), (8, 0), (4, 0), (2, 0), (1, 0), (1, 0), (1, 0)]
    largest = optim.DynamicLossScale(vnp.asarray(3e38, "float32"), period=1)
    assert float(largest.adjust(good).loss_scale) == float(np.float32(3e38))


STRONG = optim.DynamicLossScale(vnp.asarray(8.0, "float32"), period=2)
SCALES = {
    "strong": STRONG,
    "python numbers": optim.DynamicLossScale(8.0, 0, period=2, min_loss_scale=1.0),
    "weak arrays": optim.DynamicLossScale(vnp.asarray(8.0), vnp.asarray(0), period=2),
    "float64": optim.DynamicLossScale(vnp.asarray(8.0, "float64"), vnp.asarray(0, "int64"), period=2),
    "weak smallest": optim.DynamicLossScale(vnp.asarray(8.0, "float32"), period=2, min_loss_scale=1),
}


@pytest.mark.parametrize("kind", SCALES)
def test_a_step_is_compiled_once_whatever_kind_the_scale_is(kind):
    traces = []

    @volta.jit
    def step(scale, x):
        traces.append(None)
        return scale.adjust(vnp.isfinite(x)), scale.scale(x)

    found, strong = SCALES[kind], STRONG
    for x in (1.0, 1.0, np.inf, 1.0):
        x = vnp.asarray(x, "float32")
        (found, scaled), (strong, want) = step(found, x), (strong.adjust(vnp.isfinite(x)), strong.scale(x))
        assert_bits_equal(scaled, want)
        assert (float(found.loss_scale), int(found.counter)) == (float(strong.loss_scale), int(strong.counter))
    assert (len(traces), step.cache_size()) == (1, 1)


@pytest.mark.parametrize("make", [optim.NoOpLossScale, lambda: optim.StaticLossScale(vnp.asarray(2.0**10, "float32"))])
def test_scaling_by_a_power_of_two_moves_no_bit(make):
    tree = {"w": vnp.asarray(np.random.default_rng(0).standard_normal(100), "float32")}
    scale = make()
    assert_bits_equal(scale.unscale(scale.scale(tree)), tree)
    assert type(volta.jit(lambda s: s.adjust(vnp.asarray(False)))(scale)) is type(scale)


def test_finite_and_selected_trees():
    a, b = {"x": vnp.ones(3), "y": vnp.zeros(())}, {"x": vnp.zeros(3), "y": vnp.asarray(np.inf)}
    assert bool(optim.all_finite(a)) and not bool(optim.all_finite(b)) and bool(optim.all_finite({}))
    assert_bits_equal(optim.select_tree(vnp.asarray(False), a, b), b)
    with pytest.raises(TypeError, match="boolean of rank 0"):
        optim.select_tree(vnp.ones(2), a, b)


def transformer(params, x, y):
    return programs.transformer_loss(FRAMEWORK, CONFIG, params, x, y)


def classifier(params, x, y):
    """One hidden layer; nothing in it is too large for float16 but the scaled loss."""
    hidden = nn.gelu(params["emb"][x].mean(1) * 8 @ params["layers"][0]["w1"])
    logits = hidden @ params["layers"][0]["w2"] @ params["emb"].T * 8
    return nn.softmax_cross_entropy_with_integer_labels(logits, y[:, 0]).mean()


def training(model, policy, first_scale, steps, level="strict", precision=None):
    """Losses, scales and last parameters of a model that is stepped with float32 master weights."""
    policy, optimizer = optim.get_policy(policy), optim.adam(3e-3)

    @volta.jit
    def step(params, state, scale, x, y):
        def loss(params):
            return scale.scale(policy.cast_to_output(model(policy.cast_to_compute(params), x, y)))

        value, gradients = volta.value_and_grad(loss)(params)
        gradients = scale.unscale(gradients)
        finite = optim.all_finite(gradients)
        updates, following = optimizer.update(gradients, state, params)
        params = optim.select_tree(finite, optim.apply_updates(params, updates), params)
        return params, optim.select_tree(finite, following, state), scale.adjust(finite), scale.unscale(value)

    params = volta.tree.map(vnp.asarray, PARAMS)
    state, scale, losses, scales = optimizer.init(params), first_scale, [], []
    with volta.execution_context(level=level), volta.default_matmul_precision(precision):
        for _ in range(steps):
            params, state, scale, value = step(params, state, scale, X, Y)
            losses.append(float(value))
            scales.append(float(scale.loss_scale))
    return losses, scales, params


@pytest.mark.turns(6)
def test_training_in_bfloat16_falls_and_repeats_its_bits():
    policy = "params=float32,compute=bfloat16,output=float32"
    losses, _, params = training(transformer, policy, optim.NoOpLossScale(), 20)
    assert losses[-1] < 0.8 * losses[0]
    assert all(x.dtype == np.float32 for x in volta.tree.leaves(params))
    again, _, same = training(transformer, policy, optim.NoOpLossScale(), 20, "device", "bfloat16")
    assert again == losses, "on the CPU level device keeps the bits of strict"
    assert_bits_equal(same, params)


def test_training_in_float16_finds_its_scale():
    first = optim.DynamicLossScale(vnp.asarray(2.0**30, "float32"), period=8)
    losses, scales, params = training(classifier, "params=float32,compute=float16,output=float32", first, 60)
    assert scales[0] == 2.0**29, "the first step overflows float16: the scale shrinks"
    assert min(scales) < 2.0**28 and any(b > a for a, b in zip(scales, scales[1:], strict=False)), scales
    assert losses[-1] < 0.9 * losses[0]
    assert bool(optim.all_finite(params))
