"""Complex numbers through transforms: derivatives by JAX's conventions, loops, rules of one's own, numbers, workers."""

import pickle

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from tests.workers import mesh_of, simulated
from volta import lax
from volta.core.errors import DTypeError, KernelError, NonScalarGradError, NotFiniteError
from volta.sharding import NamedSharding, PartitionSpec
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

jax = pytest.importorskip("jax")
Z = np.complex64([1 + 2j, 3 - 4j, 0.5j])


REAL = {
    "abs": lambda np, z: np.sum(abs(z)),
    "real": lambda np, z: np.sum((z * z).real),
    "imag": lambda np, z: np.sum(np.exp(z).imag),
    "vdot": lambda np, z: np.vdot(z, z).real,
    "norm": lambda np, z: np.linalg.norm(z),
    "var": lambda np, z: np.var(z),
}


@sampled("name", REAL, quick=("imag", "vdot"))
def test_gradients_of_real_functions_are_jaxs(name):
    gradient = volta.grad(lambda z: REAL[name](vnp, z))
    np.testing.assert_allclose(gradient(Z), jax.grad(lambda z: REAL[name](jax.numpy, z))(Z), rtol=1e-5)
    assert_bits_equal(volta.jit(gradient)(Z), gradient(Z))


def test_the_gradient_of_a_real_argument_is_real():
    gradient = volta.grad(lambda x: abs(x * (1 + 2j)) ** 2)(np.float32(3))
    assert gradient.dtype == np.float32 and np.isclose(float(gradient), 30)


def test_holomorphic_derivatives():
    f = lambda z: z**3 + 2j * z  # noqa: E731
    want = 3 * Z**2 + 2j
    np.testing.assert_allclose(volta.vmap(volta.grad(f, holomorphic=True))(Z), want, rtol=1e-6)
    value, gradient = volta.value_and_grad(f, holomorphic=True)(Z[0])
    np.testing.assert_allclose([complex(value), complex(gradient)], [f(Z[0]), want[0]], rtol=1e-6)
    for jacobian in (volta.jacfwd, volta.jacrev):
        np.testing.assert_allclose(jacobian(f, holomorphic=True)(Z), np.diag(want), rtol=1e-6)
    np.testing.assert_allclose(volta.hessian(f, holomorphic=True)(Z[0]), 6 * Z[0], rtol=1e-6)
    rows = volta.jacrev(abs)(Z[:2])
    np.testing.assert_allclose(rows, jax.jacrev(abs)(Z[:2]), rtol=1e-6)


@pytest.mark.parametrize("transform", [volta.grad, volta.value_and_grad, volta.jacrev])
def test_a_complex_output_must_be_said_to_be_holomorphic(transform):
    with pytest.raises(DTypeError, match=r"needs real outputs, but `square` returned c64\[\].*holomorphic=True"):
        transform(square)(Z[0])
    with pytest.raises(DTypeError, match=r"`square` with holomorphic=True needs complex inputs, not f32\[\]"):
        transform(square, holomorphic=True)(np.float32(1))
    with pytest.raises(DTypeError, match=r"holomorphic=True needs complex outputs, not f32\[\]"):
        transform(abs, holomorphic=True)(Z[0])


def square(z):
    return z * z


def test_jacfwd_needs_real_inputs():
    with pytest.raises(DTypeError, match=r"jacfwd of `square` needs real inputs, not c64\[\].*volta.jvp"):
        volta.jacfwd(square)(Z[0])
    with pytest.raises(NonScalarGradError):
        volta.grad(square, holomorphic=True)(Z)


def test_rules_of_ones_own_checkpoints_and_transposes():
    forward = volta.custom_jvp(square)
    forward.defjvp(lambda x, t: (square(x[0]), 2 * x[0] * t[0]))
    backward = volta.custom_vjp(square)
    backward.defvjp(lambda x: (square(x), x), lambda x, ct: (2 * x * ct,))
    want = volta.grad(lambda z: vnp.sum(square(z).real))(Z)
    for f in (forward, backward, volta.checkpoint(square), volta.jit(square)):
        assert_bits_equal(volta.grad(lambda z, f=f: vnp.sum(f(z).real))(Z), want)
    assert_bits_equal(volta.linearize(square, Z)[1](Z), 2 * Z * Z)
    assert_bits_equal(volta.linear_transpose(lambda z: z * 2j, Z)(Z)[0], Z * 2j)


def test_pythons_complex_numbers_are_weak():
    assert (vnp.ones(2) * 1j).dtype == np.complex64
    assert (vnp.ones(2, "float64") * 1j).dtype == np.complex128
    assert (vnp.ones(2, "bfloat16") + 1j).dtype == np.complex64
    assert (vnp.arange(2) + 1j).dtype == np.complex64 and vnp.asarray(1j).weak_type
    known = lambda z, s: z * (s + 1) / s.real - abs(s) * s.conjugate()  # noqa: E731
    number = 0.1 + 0.3j
    assert_bits_equal(volta.jit(known)(Z, number), known(vnp.asarray(Z), number))
    assert volta.jit(lambda s: s * s)(number) == number * number  # among numbers: in 128 bits
    with pytest.raises(DTypeError, match="does not fit"):
        lax.mul(np.float32(1), 1j)


@pytest.mark.parametrize("pair", [("float16", "complex64"), ("float64", "complex64"), ("int64", "complex64")])
def test_dtypes_meet_as_in_jax(pair):
    with jax.enable_x64(True):
        assert vnp.promote_types(*pair) == jax.numpy.promote_types(*pair)
        if pair[0] != "int64":  # of which JAX's default, with float64, is complex128
            assert vnp.result_type(pair[0], 1j) == jax.numpy.result_type(pair[0], 1j)


def test_conversions_say_what_they_drop():
    with pytest.warns(vnp.ComplexWarning, match="the imaginary part is dropped.*x.real"):
        assert vnp.asarray(Z).astype("float32").dtype == np.float32
    for convert, word in ((float, "float"), (int, "int")):
        with pytest.raises(TypeError, match=f"a complex number is no {word}: take x.real"):
            convert(vnp.asarray(Z[0]))
    assert complex(vnp.asarray(Z[0])) == 1 + 2j and bool(vnp.asarray(1j))


def test_views_pickles_dlpack_and_files(tmp_path):
    z = vnp.asarray(Z)
    parts = z.view("float32")
    assert_bits_equal(parts, Z.view(np.float32))
    assert_bits_equal(parts.view("complex64"), z)
    assert_bits_equal(pickle.loads(pickle.dumps(z)), z)
    assert_bits_equal(vnp.from_dlpack(z), z)
    assert np.from_dlpack(z).dtype == np.complex64
    tree = {"z": z, "w": vnp.asarray(Z.astype(np.complex128))}
    volta.io.save(tmp_path / "z", tree)
    assert_bits_equal(volta.io.load(tmp_path / "z"), tree)
    for refused in ("complex128", "float64", "int32"):
        with pytest.raises(DTypeError, match="view"):
            vnp.ones(3, "float32").view("complex64") if refused == "int32" else z.view(refused)


def test_callbacks_and_nans():
    host = lambda z: np.asarray(z) * 2j  # noqa: E731
    f = volta.jit(lambda z: volta.pure_callback(host, volta.ShapeDtypeStruct((3,), "complex64"), z + 1) * z)
    assert_bits_equal(f(Z), (Z + 1) * np.complex64(2j) * Z)
    with volta.debug_nans(), pytest.raises(NotFiniteError, match="`div` made the first NaN"):
        volta.jit(lambda z: (z - z) / 0)(Z)


def test_refused_by_kernels_of_ones_own_and_by_njit():
    numba = pytest.importorskip("numba")
    own = volta.kernel(out=lambda x: volta.ShapeDtypeStruct(x.shape, x.dtype))(numba.njit(lambda x, out: None))
    with pytest.raises(KernelError, match="called with complex64.*x.real and x.imag"):
        own(vnp.asarray(Z))
    with pytest.raises(KernelError, match=r"takes or gives c64\[3\].*lax.complex inside"):
        volta.njit(volta.jit(square).lower(Z).compile())


def sharded(x):
    return vnp.exp(x) @ x.T, vnp.sum(x), vnp.sum(x, 1), x.conj().T @ x, vnp.cumsum(x, 0), vnp.prod(x, 0), vnp.mean(x)


def test_several_workers_have_the_bits_of_one():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 4)) + 1j * rng.standard_normal((9, 4))
    want = [np.asarray(y) for y in volta.jit(sharded)(x)]
    with simulated(3):
        cut = volta.device_put(x, NamedSharding(mesh_of(3), PartitionSpec("data")))
        assert_bits_equal([np.asarray(y) for y in volta.jit(sharded)(cut)], want)
        gradient = volta.grad(lambda x: vnp.sum(abs(vnp.exp(x) @ x.T)))
        got = np.asarray(volta.jit(gradient)(cut))
    assert_bits_equal(got, np.asarray(volta.jit(gradient)(x)))


def test_random_normals_are_jaxs():
    got = volta.random.normal(volta.random.key(3), (50,), "complex64")
    want = jax.random.normal(jax.random.key(3), (50,), np.complex64)
    np.testing.assert_allclose(np.asarray(got), want, atol=1e-6)
