"""Where JAX is installed: functions and their gradients under the same name, in float64."""

import numpy as np
import pytest

import volta
from volta import lax
from volta.core import dtypes
from volta.ops.primitive import Family, NoDerivative
from volta.testing.cases import cases, rng_of, vocabulary

jax = pytest.importorskip("jax")


@pytest.fixture(autouse=True)
def with_float64():
    """JAX computes float64 only when told to; other tests compare with its default."""
    with jax.enable_x64(True):
        yield


def pulled(f, ct, *args):
    """What JAX computes, and its cotangents, in one program: eagerly it compiles one for each operation."""

    def program(ct, *args):
        out, pull = jax.vjp(f, *args)
        return out, pull(ct)

    return jax.jit(program)(ct, *args)


# Operands of one shape: jax.lax has no general rank-0 rule. Names that jax.lax lacks, or means otherwise, are left out.
CASES = [
    case
    for p in vocabulary()
    if p.family is Family.ELEMENTWISE and "float" in p.domain.kinds and hasattr(jax.lax, p.name)
    if p.name not in ("convert_element_type", "bitcast_convert_type", "round", "select_n", "integer_pow", "complex")
    for case in cases(p, dtypes.float64)[:1]
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.turns(6)
def test_elementwise_and_its_gradient(case):
    name = case.primitive.name
    ours, theirs = getattr(lax, name), getattr(jax.lax, name)
    ct = rng_of(name).uniform(-1, 1, case.args[0].shape)
    if isinstance(case.primitive.jvp, NoDerivative) or name == "nextafter":  # in JAX it has no derivative
        want, cotangents = theirs(*case.args), None
    else:
        want, cotangents = pulled(theirs, ct, *case.args)
    np.testing.assert_allclose(np.asarray(ours(*case.args)), np.asarray(want), rtol=1e-12, atol=1e-13)
    if cotangents is None:
        return
    for mine, other in zip(volta.vjp(ours, *case.args)[1](ct), cotangents, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min", "reduce_sum", "reduce_prod"])
@pytest.mark.turns(6)
def test_reductions_with_ties(name):
    x = np.array([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 0.0]])
    ct = np.array([1.0, 2.0])
    (mine,) = volta.vjp(lambda v: getattr(lax, name)(v, (1,)), x)[1](ct)
    (other,) = pulled(lambda v: getattr(jax.lax, name)(v, (1,)), ct, x)[1]
    np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=1e-12)


@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_of_two(name):
    x, y = np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])
    ct = np.ones(3)
    for mine, other in zip(
        volta.vjp(getattr(lax, name), x, y)[1](ct), pulled(getattr(jax.lax, name), ct, x, y)[1], strict=True
    ):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other))


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.few(3)
@pytest.mark.turns(3)
def test_scans(name, reverse):
    x, ct = rng_of(name).uniform(-2, 2, (3, 6)), rng_of(name + "ct").uniform(-1, 1, (3, 6))
    ours, theirs = (lambda v, m=m: getattr(m, name)(v, 1, reverse) for m in (lax, jax.lax))
    want, (other,) = pulled(theirs, ct, x)
    np.testing.assert_allclose(np.asarray(ours(x)), np.asarray(want), rtol=1e-12)
    (mine,) = volta.vjp(ours, x)[1](ct)
    np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=1e-10, atol=1e-12)


def test_dot_general():
    rng = rng_of("dot")
    x, y = rng.normal(size=(5, 2, 3)), rng.normal(size=(4, 3, 5))
    numbers = (((2,), (1,)), ((0,), (2,)))
    ct = rng.normal(size=(5, 2, 4))
    mine = volta.vjp(lambda a, b: lax.dot_general(a, b, numbers), x, y)
    other = pulled(lambda a, b: jax.lax.dot_general(a, b, numbers), ct, x, y)
    np.testing.assert_allclose(np.asarray(mine[0]), np.asarray(other[0]), rtol=1e-12)
    for a, b in zip(mine[1](ct), other[1], strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-12)


@pytest.mark.parametrize("config", [((1, 2, 0), (0, 1, 2)), ((-1, 3, 1), (2, -2, 0)), ((-1, -1, 2), (0, 0, 1))])
@pytest.mark.turns(3)
def test_pad(config):
    x, v = rng_of("pad").normal(size=(3, 4)), np.float64(0.5)
    mine = volta.vjp(lambda a, b: lax.pad(a, b, config), x, v)
    ct = rng_of("pad ct").normal(size=mine[0].shape)
    other = pulled(lambda a, b: jax.lax.pad(a, b, config), ct, x, v)
    np.testing.assert_array_equal(np.asarray(mine[0]), np.asarray(other[0]))
    for a, b in zip(mine[1](ct), other[1], strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-12)


def test_top_k_and_sort_keys():
    x = np.float32([[3, 1, 1, 7], [0, 0, 5, 2]])
    for mine, other in zip(lax.top_k(x, 3), jax.lax.top_k(x, 3), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))
