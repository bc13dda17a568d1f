"""volta.nn against plain float64 NumPy, and against JAX (values, dtypes and gradients) where it is installed."""

import math

import numpy as np
import pytest
from scipy import special

import volta
import volta.numpy as vnp
from volta import nn
from volta.errors import DTypeError, ShapeError
from volta.testing import assert_bits_equal, fill

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(3)
X = RNG.normal(0, 2, (4, 6)).astype(np.float32)
WIDE = np.float32([-1e4, -90, -20, -3, -1e-3, 0, 1e-3, 1, 3, 20, 90, 1e4])


def close(got, want, rtol=3e-6, atol=1e-6):
    assert isinstance(got, volta.Array)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=rtol, atol=atol)


EXACT = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "sigmoid": special.expit,
    "log_sigmoid": lambda x: -np.logaddexp(0, -x),
    "softplus": lambda x: np.logaddexp(0, x),
    "silu": lambda x: x * special.expit(x),
    "swish": lambda x: x * special.expit(x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard_silu": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "soft_sign": lambda x: x / (1 + abs(x)),
    "squareplus": lambda x: (x + np.sqrt(x * x + 4)) / 2,
}


@pytest.mark.parametrize("name", EXACT)
def test_activations(name):
    for x in (X, WIDE) if name != "squareplus" else (X,):
        close(getattr(nn, name)(x), EXACT[name](x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_softplus_is_the_logarithm_of_a_sum_with_1(dtype):
    """Its bits and its derivatives', in fewer operations: none of it is for two infinities."""
    x = np.concatenate([fill(kind, (60,), dtype) for kind in ("specials", "ladder", "normal")])
    plain = lambda x: vnp.logaddexp(x, vnp.zeros_like(x))  # noqa: E731
    slope = lambda f: volta.grad(lambda x: vnp.sum(f(x)))  # noqa: E731
    for derived in (lambda f: f, slope, lambda f: slope(slope(f))):
        for run in (lambda f: f, volta.jit):
            assert_bits_equal(run(derived(nn.softplus))(x), run(derived(plain))(x))
    counted = str(volta.make_jaxpr(nn.softplus)(x)).count
    assert counted(" = ") < str(volta.make_jaxpr(plain)(x)).count(" = ")


def test_gelu_and_glu():
    x = X.astype(np.float64)
    close(nn.gelu(X), 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), rtol=1e-4)
    close(nn.gelu(X, approximate=False), x * special.ndtr(x), rtol=1e-5)
    close(nn.glu(X), x[:, :3] * special.expit(x[:, 3:]), rtol=1e-5)
    with pytest.raises(ShapeError, match="even size"):
        nn.glu(X[:, :5])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["normal", "specials", "subnormal", "ladder"])
def test_gelu_halves_one_plus_the_tangent_in_one_operation_with_the_bits_of_two(dtype, kind):
    x = vnp.asarray(fill(kind, (20000,), dtype, 1))
    tanh = vnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    assert_bits_equal(nn.gelu(x), x * (0.5 * (1 + tanh)))


@pytest.mark.parametrize("name", [*EXACT, "gelu"])
@pytest.mark.few(6)
def test_gradients_are_finite_and_equal_to_jax(name):
    jax = pytest.importorskip("jax")
    ours, theirs = getattr(nn, name), getattr(jax.nn, name)
    got = volta.grad(lambda x: vnp.sum(ours(x)))(vnp.asarray(X))
    want = jax.jit(jax.grad(lambda x: theirs(x).sum()))(X)
    close(got, np.asarray(want, np.float64), rtol=1e-4, atol=1e-5)
    assert ours(vnp.asarray(X)).dtype == np.float32
    wide = volta.grad(lambda x: vnp.sum(ours(x)))(vnp.asarray(WIDE[1:-1]))
    assert np.isfinite(np.asarray(wide)).all()


def test_gradients_at_the_kinks():
    assert volta.grad(nn.relu)(0.0).item() == 0.0
    assert np.isnan(nn.relu(vnp.array(np.nan)).item())
    assert volta.grad(nn.relu6)(6.0).item() == 0.0
    assert volta.grad(nn.elu)(100.0).item() == 1.0
    assert volta.grad(volta.grad(vnp.sinc))(0.0).item() == pytest.approx(-(math.pi**2) / 3, rel=1e-5)
    assert volta.grad(vnp.logaddexp)(-np.inf, 0.0).item() == 0.0


# -- softmax and its relatives -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", (-1, 0, (0, 1), None), ids=str)
def test_softmax_family(axis):
    x = X.astype(np.float64)
    axes = tuple(range(x.ndim)) if axis is None else axis
    close(nn.softmax(X, axis), special.softmax(x, axes))
    close(nn.log_softmax(X, axis), special.log_softmax(x, axes), rtol=1e-5)
    for keepdims in (False, True):
        close(nn.logsumexp(X, axis, keepdims=keepdims), special.logsumexp(x, axes, keepdims=keepdims))
        close(
            nn.logmeanexp(X, axis, keepdims=keepdims),
            np.log(np.mean(np.exp(x), axis=axes, keepdims=keepdims)),
            rtol=1e-5,
        )
    mask = np.arange(x.size).reshape(x.shape) % 5 > 0
    close(nn.logmeanexp(X, axis, mask), np.log(np.mean(np.exp(x), axis=axes, where=mask)), rtol=1e-5)


def test_softmax_is_the_declared_sum():
    x = vnp.asarray(X)
    e = vnp.exp(x - vnp.max(x, 1, keepdims=True))
    assert nn.softmax(x).tolist() == (e / vnp.sum(e, 1, keepdims=True)).tolist()
    assert volta.jit(nn.softmax)(x).tolist() == nn.softmax(x).tolist()


def test_large_and_infinite_inputs():
    x = vnp.array([[1e4, 0.0, -1e4], [-np.inf, 0.0, 0.0]])
    assert nn.softmax(x).tolist() == [[1, 0, 0], [0, 0.5, 0.5]]
    assert nn.log_softmax(x).tolist()[0] == [0.0, -1e4, -2e4]
    for values, want in (([-np.inf, -np.inf], -np.inf), ([np.inf, 0.0], np.inf), ([1e4, 1e4], 1e4 + math.log(2))):
        assert nn.logsumexp(vnp.array(values)).item() == pytest.approx(want)
    assert np.isnan(nn.logsumexp(vnp.array([np.nan, 0.0])).item())


def test_masks_and_weights():
    mask = X > 0
    mask[1] = False
    x = X.astype(np.float64)
    e = np.where(mask, np.exp(x), 0)
    total = e.sum(1, keepdims=True)
    close(nn.softmax(X, where=mask), np.divide(e, total, out=np.zeros_like(e), where=total > 0))
    close(nn.logsumexp(X, 1, where=mask)[0], special.logsumexp(x[0][mask[0]]))
    b = np.where(X > 1, -1.0, 2.0).astype(np.float32)
    log, sign = nn.logsumexp(X, 1, b=b, return_sign=True)
    want, want_sign = special.logsumexp(x, 1, b=b, return_sign=True)
    close(log, want, rtol=1e-5)
    close(sign, want_sign)
    grad = volta.grad(lambda x: nn.logsumexp(x, where=mask))(vnp.asarray(X))
    close(grad, np.where(mask, np.exp(x - special.logsumexp(x[mask])), 0), rtol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "standardize"])
def test_derivatives_equal_jax(name):
    jax = pytest.importorskip("jax")
    weights = RNG.normal(size=X.shape).astype(np.float32)
    f = lambda module, np_: lambda x: np_.sum(getattr(module, name)(x, axis=-1, **extra) * weights)  # noqa: E731
    extra = {"keepdims": True} if name == "logsumexp" else {}
    got = volta.grad(f(nn, vnp))(vnp.asarray(X))
    close(got, np.asarray(jax.jit(jax.grad(f(jax.nn, jax.numpy)))(X)), rtol=2e-4, atol=1e-5)


# -- norms, one-hot, embedding -----------------------------------------------------------------------------------------


def test_layer_norm():
    x = X.astype(np.float64)
    scale, bias = RNG.normal(size=6).astype(np.float32), RNG.normal(size=6).astype(np.float32)
    want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    close(nn.layer_norm(X), want, rtol=1e-5)
    close(nn.layer_norm(X, scale, bias), want * scale + bias, rtol=1e-5, atol=1e-5)
    close(nn.standardize(X), want, rtol=1e-5)
    y = X.reshape(2, 2, 6)
    z = y.astype(np.float64)
    two = (z - z.mean((0, 2), keepdims=True)) / np.sqrt(z.var((0, 2), keepdims=True) + 1e-3)
    close(nn.layer_norm(y, axis=(0, 2), eps=1e-3), two, rtol=1e-5)
    close(nn.rms_norm(X, scale), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale, rtol=1e-5)
    half = nn.layer_norm(X.astype(np.float16), scale.astype(np.float16))
    assert half.dtype == np.float16
    np.testing.assert_allclose(np.asarray(half, np.float64), want * scale, rtol=4e-3, atol=4e-3)
    with pytest.raises(ShapeError, match=r"layer_norm: scale has shape \(4,\); over axes \(1,\).*must be \(6,\)"):
        nn.layer_norm(X, scale[:4])


def test_one_hot():
    close(nn.one_hot(np.int32([0, 2, 3, -1]), 3), [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]])
    close(nn.one_hot(np.int32([[0, 2]]), 3, axis=1), [[[1, 0], [0, 0], [0, 1]]])
    assert nn.one_hot(1, 3, dtype="int32").tolist() == [0, 1, 0]
    with pytest.raises(DTypeError, match="must be integers"):
        nn.one_hot(1.5, 3)


def test_embedding():
    table = vnp.asarray(X)
    ids = np.int32([[0, 3], [3, 1]])
    close(nn.embedding(table, ids), X[ids])
    assert np.isnan(np.asarray(nn.embedding(table, np.int32([4, -1])))).all()
    grad = volta.grad(lambda t: vnp.sum(nn.embedding(t, ids) * 2.0))(table)
    close(grad, np.float64([2, 2, 0, 4])[:, None] * np.ones(6))
    with pytest.raises(DTypeError, match="integer ids"):
        nn.embedding(table, 1.5)


# -- losses ------------------------------------------------------------------------------------------------------------


def test_cross_entropy():
    x, labels = X.astype(np.float64), np.int32([0, 5, 2, 2])
    want = special.logsumexp(x, 1) - x[range(4), labels]
    close(nn.softmax_cross_entropy_with_integer_labels(X, labels), want, rtol=1e-5)
    close(nn.softmax_cross_entropy_with_integer_labels(X.T, labels, axis=0), want, rtol=1e-5)
    close(nn.softmax_cross_entropy(X, np.eye(6, dtype=np.float32)[labels]), want, rtol=1e-5)
    out = nn.softmax_cross_entropy_with_integer_labels(X, np.int32([0, 6, -1, 2]))
    assert np.isnan(np.asarray(out)).tolist() == [False, True, True, False]
    grad = volta.grad(lambda x: vnp.sum(nn.softmax_cross_entropy_with_integer_labels(x, labels)))(vnp.asarray(X))
    close(grad, special.softmax(x, 1) - np.eye(6)[labels], rtol=1e-5, atol=1e-6)
    with pytest.raises(
        ShapeError, match=r"logits of shape \(4, 6\) and axis 1 need labels of shape \(4,\), got \(3,\)"
    ):
        nn.softmax_cross_entropy_with_integer_labels(X, labels[:3])
    with pytest.raises(DTypeError, match="not integers"):
        nn.softmax_cross_entropy_with_integer_labels(X, X[:, 0])


def test_other_losses():
    labels = (X > 0).astype(np.float32)
    x = X.astype(np.float64)
    close(nn.sigmoid_binary_cross_entropy(X, labels), np.logaddexp(0, x) - labels * x, rtol=1e-5)
    close(nn.squared_error(X, 1.0), (x - 1) ** 2, rtol=1e-5)
    close(nn.l2_loss(X), x**2 / 2, rtol=1e-5)


# -- attention ---------------------------------------------------------------------------------------------------------


def qkv(B=2, T=5, S=7, N=4, K=4, H=8):
    return [RNG.normal(size=s).astype(np.float32) for s in ((B, T, N, H), (B, S, K, H), (B, S, K, H))]


MASKED = RNG.uniform(size=(2, 1, 5, 7)) > 0.4
MASKED[..., 0] = True  # a query that sees no key gives 0 here, and the mean of all values in jax.nn
ATTENTION = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"is_causal": True},
    "mask": {"mask": MASKED},
    "bias": {"bias": RNG.normal(size=(1, 4, 5, 7)).astype(np.float32)},
    "lengths": {"query_seq_lengths": np.int32([5, 3]), "key_value_seq_lengths": np.int32([4, 7])},
    "window": {"local_window_size": (1, 2)},
    "window and causal": {"local_window_size": 2, "is_causal": True},
    "all": {"mask": MASKED, "is_causal": True, "bias": RNG.normal(size=(2, 4, 1, 7)).astype(np.float32)},
}


@pytest.mark.parametrize("heads", (4, 2, 1), ids="heads{}".format)
@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.few(6)
def test_attention_equals_jax(case, heads):
    jax = pytest.importorskip("jax")
    args, options = qkv(K=heads), ATTENTION[case]
    got = nn.dot_product_attention(*args, **options)
    want = jax.jit(lambda *args: jax.nn.dot_product_attention(*args, **options))(*args)
    if case == "lengths":  # rows behind the query length have no keys, and mean nothing
        got, want = got[1, :3], want[1, :3]
    close(got, np.asarray(want, np.float64), rtol=1e-4, atol=1e-5)


def test_attention_against_numpy():
    q, k, v = qkv()
    logits = np.einsum("btnh,bsnh->bnts", q.astype(np.float64), k) / math.sqrt(8)
    logits = np.where(np.tri(5, 7, dtype=bool), logits, -np.inf)
    want = np.einsum("bnts,bsnh->btnh", special.softmax(logits, -1), v)
    close(nn.dot_product_attention(q, k, v, is_causal=True), want, rtol=1e-4, atol=1e-5)
    close(nn.dot_product_attention(q[0], k[0], v[0], is_causal=True), want[0], rtol=1e-4, atol=1e-5)


def test_keys_behind_the_causal_mask_change_no_bit():
    q, k, v = qkv(T=5, S=5)
    whole = np.asarray(nn.dot_product_attention(q, k, v, is_causal=True))
    prefix = np.asarray(nn.dot_product_attention(q[:, :3], k[:, :3], v[:, :3], is_causal=True))
    assert whole[:, :3].tobytes() == prefix.tobytes()


def test_a_query_that_sees_no_key_gives_zero():
    q, k, v = qkv()
    mask = np.ones((5, 7), bool)
    mask[3] = False
    for options in ({}, {"bias": np.zeros((1, 1, 5, 7), np.float32)}):
        loss = lambda q, k, v, options=options: nn.dot_product_attention(q, k, v, mask=mask, **options)  # noqa: E731
        out = np.asarray(loss(q, k, v))
        assert not out[:, 3].any() and out[:, 2].any()
        gradients = volta.grad(lambda *a, f=loss: vnp.sum(f(*a)), (0, 1, 2))(q, k, v)
        assert all(np.isfinite(np.asarray(g)).all() for g in gradients) and not np.asarray(gradients[0])[:, 3].any()


def test_attention_with_a_bias_or_large_heads_agrees_with_the_kernels():
    q, k, v = qkv(K=2)
    start, lengths = np.int32([1, -2]), np.int32([4, 7])
    options = {"is_causal": True, "query_start": start, "key_value_seq_lengths": lengths, "local_window_size": 3}
    want = nn.dot_product_attention(q, k, v, **options)
    close(nn.dot_product_attention(q, k, v, np.zeros((1, 1, 1, 1), np.float32), **options), want, rtol=1e-4, atol=1e-5)
    wide = [np.pad(x, ((0, 0),) * 3 + ((0, 250),)) for x in (q, k, v)]
    got = nn.dot_product_attention(*wide, scale=1 / math.sqrt(8), **options)
    close(got[..., :8], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["plain", "causal", "mask", "bias"])
@pytest.mark.parametrize("heads", (2, pytest.param(4, marks=pytest.mark.slow)))
def test_gradient_of_attention_equals_jax(case, heads):
    jax = pytest.importorskip("jax")
    args, options = qkv(K=heads), ATTENTION[case]
    ct = RNG.normal(size=(2, 5, 4, 8)).astype(np.float32)
    got = volta.grad(lambda *a: vnp.sum(ct * nn.dot_product_attention(*a, **options)), (0, 1, 2))(*args)
    theirs = jax.grad(lambda *a: jax.numpy.sum(ct * jax.nn.dot_product_attention(*a, **options)), (0, 1, 2))
    want = jax.jit(theirs)(*args)
    for g, w in zip(got, want, strict=True):
        close(g, np.asarray(w, np.float64), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", (4, 2))
def test_derivatives_of_attention_of_every_order(heads):
    """Gradient, forward derivative and second derivatives, in float64, against finite differences."""
    q, k, v = (x.astype(np.float64) for x in qkv(K=heads))
    directions = [RNG.normal(size=x.shape) for x in (q, k, v)]

    def f(q, k, v):
        return vnp.sum(vnp.sin(nn.dot_product_attention(q, k, v, is_causal=True, mask=MASKED)))

    def slope(*xs):
        return sum(vnp.sum(g * d) for g, d in zip(volta.grad(f, (0, 1, 2))(*xs), directions, strict=True))

    def difference(g, step=1e-5):
        at = [float(g(*(x + t * d for x, d in zip((q, k, v), directions, strict=True)))) for t in (-step, step)]
        return (at[1] - at[0]) / (2 * step)

    assert float(slope(q, k, v)) == pytest.approx(difference(f), rel=1e-6)
    assert float(volta.jvp(f, (q, k, v), directions)[1]) == pytest.approx(difference(f), rel=1e-6)
    assert float(volta.linearize(f, q, k, v)[1](*directions)) == pytest.approx(difference(f), rel=1e-6)
    second = difference(slope)
    assert float(volta.jvp(slope, (q, k, v), directions)[1]) == pytest.approx(second, rel=1e-6)
    twice = volta.grad(slope, (0, 1, 2))(q, k, v)
    assert float(sum(np.vdot(g, d) for g, d in zip(twice, directions, strict=True))) == pytest.approx(second, rel=1e-6)
    forward = volta.jvp(lambda *a: volta.jvp(f, a, directions)[1], (q, k, v), directions)[1]
    assert float(forward) == pytest.approx(second, rel=1e-6)
    plain = volta.grad(lambda *a: volta.jvp(f, a, directions)[1])(q, k, v)
    jitted = volta.jit(volta.grad(lambda *a: volta.jvp(volta.jit(f), a, directions)[1]))(q, k, v)
    assert_bits_equal(jitted, plain)
    np.testing.assert_allclose(np.asarray(plain), np.asarray(twice[0]), rtol=1e-9, atol=1e-12)  # another program


def test_gradients_of_attention_are_its_kernels():
    q, k, v = qkv(K=2)
    f = volta.grad(volta.checkpoint(lambda *a: vnp.sum(nn.dot_product_attention(*a))), (0, 1, 2))
    text = volta.jit(f).lower(q, k, v).compile().as_text()
    assert {"attention", "attention_dq", "attention_dkv"} <= {*text.replace("(", " ").split()}
    alone = volta.jit(volta.grad(lambda q: vnp.sum(nn.dot_product_attention(q, k, v)))).lower(q).compile().as_text()
    assert "attention_dq" in alone and "attention_dkv" not in alone


def test_attention_errors():
    q, k, v = qkv()
    with pytest.raises(ShapeError, match=r"query \(2, 5, 4, 8\), key \(2, 7, 4, 4\).*do not fit"):
        nn.dot_product_attention(q, k[..., :4], v)
    with pytest.raises(ShapeError, match=r"mask of shape \(3, 7\) does not broadcast to \(2, 4, 5, 7\)"):
        nn.dot_product_attention(q, k, v, mask=np.ones((3, 7), bool))
    with pytest.raises(DTypeError, match="mask must be boolean.*use bias"):
        nn.dot_product_attention(q, k, v, mask=np.ones((5, 7), np.float32))
    with pytest.raises(ShapeError, match="query_start is for causal"):
        nn.dot_product_attention(q, k, v, query_start=3)
    with pytest.raises(ShapeError, match=r"query_start \(3,\) must be an integer or \(2,\)"):
        nn.dot_product_attention(q, k, v, query_start=np.int32([1, 2, 3]), is_causal=True)
