"""Habits of JAX's users at the top level, in trees, in volta.lax and with keys."""

import operator

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax, random, tree, tree_util
from volta.errors import DeviceError, ShapeError

X = np.random.default_rng(3).uniform(-2, 2, (5, 3)).astype(np.float32)


def test_devices():
    assert volta.devices() == ["cpu:0"] and volta.device_count() == 1 and volta.default_backend() == "cpu"
    assert (volta.process_index(), volta.process_count()) == (0, 1)
    put = volta.device_put({"a": X, "b": 2})
    assert isinstance(put["a"], volta.Array) and put["b"].weak_type
    got = volta.device_get(put)
    assert type(got["a"]) is np.ndarray
    np.testing.assert_array_equal(got["a"], X)
    waited = volta.block_until_ready(put)
    assert waited.keys() == put.keys() and all(waited[name] is put[name] for name in put)
    with pytest.raises(DeviceError, match="gpu"):
        volta.devices("gpu")
    with pytest.raises(DeviceError, match=r"'cuda:1' is one device, no backend; devices\('cuda'\) lists"):
        volta.devices("cuda:1")
    for use in (lambda d: volta.device_put(X, d), lambda d: volta.default_device(d).__enter__()):
        with pytest.raises(DeviceError, match="there is no device 0; devices are strings: 'cpu:0'"):
            use(0)
    f = volta.jit(volta.named_scope("layer")(lambda x: x * 2))
    np.testing.assert_array_equal(f(X), X * 2)


def test_linear_transpose():
    a = volta.ShapeDtypeStruct((3,), np.float32)
    transposed = volta.linear_transpose(lambda v: vnp.asarray(X) @ v, a)
    ct = np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(transposed(ct)[0], X.T @ ct, rtol=1e-5)


def test_pullbacks_pass_through_jit():
    fwd, bwd = volta.fwd_and_bwd(lambda w, x: vnp.sum(vnp.tanh(x @ w) ** 2), argnums=0)
    w = np.ones((3, 2), np.float32)
    out, residuals = volta.jit(fwd)(w, X)
    value, grad = volta.value_and_grad(lambda w: vnp.sum(vnp.tanh(X @ w) ** 2))(vnp.asarray(w))
    np.testing.assert_array_equal(out, value)
    np.testing.assert_array_equal(volta.jit(bwd)(residuals, 1.0), grad)
    assert volta.jacobian is volta.jacrev


class Keyed:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def tree_flatten_with_keys(self):
        return ((tree_util.GetAttrKey("x"), self.x), (tree_util.GetAttrKey("y"), self.y)), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


tree_util.register_pytree_with_keys_class(Keyed)


def test_paths_of_classes_with_keys_are_spelled_by_them():
    with pytest.raises(volta.errors.VoltaError, match=r"args\[0\]\.y\[0\]"):
        volta.jit(lambda k: k)(Keyed(1.0, ["text"]))
    with pytest.raises(volta.errors.VmapAxesError, match=r"args\[0\]\.x: axis 0 of f64\[2\]"):
        volta.vmap(lambda k: k.x)(Keyed(np.ones(2), np.ones(3)))


def test_trees():
    paths = [tree.keystr(path) for path, _ in tree.leaves_with_path({"k": Keyed(1, [2])})]
    assert paths == ["['k'].x", "['k'].y[0]"]
    assert tree.map(operator.neg, Keyed(1, 2)).y == -2
    definition = tree.structure([(1, 2), 3])
    assert [tree_util.treedef_is_leaf(d) for d in tree_util.treedef_children(definition)] == [False, True]
    assert tree_util.treedef_tuple(tree_util.treedef_children(definition)) == tree.structure(((1, 2), 3))
    assert tree_util.all_leaves([1, X]) and not tree_util.all_leaves([1, (2,)])
    assert tree.reduce_associative(operator.add, ["a", ("b", "c"), "d", "e"]) == "abcde"
    assert tree.reduce_associative(operator.add, [], identity=0) == 0
    with pytest.raises(TypeError, match="identity"):
        tree.reduce_associative(operator.add, [])


@pytest.mark.parametrize("n", (1, 2, 3, 7, 8, 13))
@pytest.mark.parametrize("reverse", (False, True))
def test_associative_scan(n, reverse):
    x = np.arange(1, n + 1, dtype=np.int32)
    want = np.cumsum(x[::-1])[::-1] if reverse else np.cumsum(x)
    np.testing.assert_array_equal(lax.associative_scan(vnp.add, x, reverse=reverse), want)
    np.testing.assert_array_equal(volta.jit(lambda v: lax.associative_scan(vnp.add, v, reverse=reverse))(x), want)
    # a linear recurrence h[i] = a[i] h[i-1] + b[i] as pairs: not commutative, and a pytree
    a, b = np.linspace(0.5, 1, n).astype(np.float32), np.ones(n, np.float32)
    got = lax.associative_scan(lambda p, q: {"a": p["a"] * q["a"], "b": p["b"] * q["a"] + q["b"]}, {"a": a, "b": b})
    h, want = 0.0, []
    for i in range(n):
        h = a[i] * h + b[i]
        want.append(h)
    np.testing.assert_allclose(got["b"], want, rtol=1e-5)


def test_lax_forms():
    x = np.float32([-2.5, -1.5, -0.5, -0.0, 0.49999997, 0.5, 1.5, 2.5, np.inf, np.nan])
    np.testing.assert_array_equal(lax.round(x), [-3, -2, -1, -0.0, 0, 1, 2, 3, np.inf, np.nan])
    np.testing.assert_array_equal(lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), np.round(x))
    np.testing.assert_array_equal(lax.tile(X, (2, 3, 1)), np.tile(X, (2, 3, 1)))
    np.testing.assert_array_equal(lax.stack(lax.unstack(X, 1), 1), X)
    np.testing.assert_array_equal(lax.broadcast_like(X[0], X), np.broadcast_to(X[0], X.shape))
    np.testing.assert_array_equal(lax.broadcast_in_dim(X, (3, 5), (1, 0)), X.T)  # axes in any order, as in jax.lax
    values, places = lax.approx_min_k(X, 2, reduction_dimension=0)
    np.testing.assert_array_equal(values, np.sort(X, 0)[:2])
    np.testing.assert_array_equal(places, np.argsort(X, 0)[:2])
    with pytest.raises(ShapeError, match="do not broadcast"):
        lax.broadcast_shapes((3, 1), (4, 1))


def test_keys():
    key = random.key(7)
    assert random.wrap_key_data(random.key_data(key)) == key == random.clone(key)
    assert random.key_impl(key) == "threefry2x32"
    with pytest.raises(ValueError, match="threefry2x32"):
        random.wrap_key_data(random.key_data(key), impl="mt19937")


def test_activations_of_jax_nn():
    jax = pytest.importorskip("jax")
    for name in ("identity", "sparse_plus", "sparse_sigmoid"):
        np.testing.assert_allclose(getattr(volta.nn, name)(X), getattr(jax.nn, name)(X), rtol=1e-6)
    x = np.abs(X) + 0.01
    np.testing.assert_allclose(volta.nn.log1mexp(x), jax.nn.log1mexp(x), rtol=1e-5)


def test_the_way_around_rules_of_ones_own():
    stop = lax.stop_gradient
    f, g = lambda x: vnp.round(x), lambda x: x * x  # noqa: E731
    own = lambda x: stop(f(x)) + (g(x) - stop(g(x)))  # noqa: E731
    assert (own(1.7).item(), volta.grad(own)(1.7).item()) == (f(1.7).item(), volta.grad(g)(1.7).item())
