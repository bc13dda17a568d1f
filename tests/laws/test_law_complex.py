"""Laws of complex programs: eager, jitted, batched, by other kernels and on CUDA's grid they have the same bits."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.testing.bits import assert_bits_equal
from volta.testing.data import fill
from volta.testing.host_grid import HostKernels, check_on_host
from volta.testing.kernel_kinds import assert_kernels_agree

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()


def plane(kind, *shape, dtype="complex64", seed=0):
    return fill(kind, shape, dtype, seed)


def loop(z, w):
    carry, ys = lax.scan(lambda c, x: (c * x + 1j, vnp.abs(c)), w[0], z)
    found, _ = lax.while_loop(lambda c: vnp.abs(c[0]) < 100, lambda c: (c[0] * 2 + 1, c[1]), (carry * 0 + 1, carry))
    return found, ys, lax.cond(vnp.real(carry) > 0, lambda c: c, lambda c: c.conj(), carry)


PROGRAMS = {
    "arithmetic": lambda z, w: (z * w + 1, z / w, -z, z.conj() - 2j, z**3, abs(z), z == w),
    "functions": lambda z, w: (vnp.exp(z), vnp.log(z), vnp.sqrt(z), vnp.tanh(z), vnp.arcsin(z), z**w),
    "reductions": lambda z, w: (vnp.sum(z), vnp.prod(z[:9]), vnp.mean(z), vnp.var(z), vnp.cumsum(z), vnp.cumprod(z)),
    "order": lambda z, w: (vnp.sort(z), vnp.argsort(w), vnp.unique(z, size=4)),
    "movement": lambda z, w: (z[::-1], z[3:].reshape(-1, 1).T, vnp.concatenate([z, w]), z.at[2].add(w[0])),
    "indices": lambda z, w: (w[(z.real > 0) * 1], z.at[vnp.array([3, 99, 3])].add(w[:3]), vnp.where(z == z, z, w)),
    "products": lambda z, w: (vnp.outer(z, w) @ w, vnp.vdot(z, w), vnp.einsum("i,i->", z, w)),
    "parts": lambda z, w: (z, lax.complex(z.real, w.imag), vnp.angle(z), vnp.real(w), z + z.real),
    "loops": loop,
    "gradient": volta.grad(lambda z, w: vnp.sum(abs(vnp.exp(z / 10) * w) ** 2)),
    "through loops": volta.grad(lambda z, w: abs(lax.scan(lambda c, x: (c * x + 1, c), w[0], z / 9)[0])),
}  # fmt: skip


@sampled("kind", ("normal", "specials", "ladder"), quick=("normal", "specials"))
@sampled("dtype", ("complex64", "complex128"), quick=("complex64",))
@pytest.mark.parametrize("name", PROGRAMS)
def test_eager_is_jitted_is_batched(name, dtype, kind):
    if kind != "normal" and name in ("loops", "through loops"):
        pytest.skip("a loop until a size is reached would not end at NaN")
    f = PROGRAMS[name]
    z, w = plane(kind, 3, 12, dtype=dtype), plane(kind, 3, 12, dtype=dtype, seed=7)
    batched = volta.vmap(f)(z, w)
    for i in range(3):
        eager = f(vnp.asarray(z[i]), vnp.asarray(w[i]))
        assert_bits_equal(volta.jit(f)(z[i], w[i]), eager)
        assert_bits_equal(volta.tree.map(lambda x, i=i: x[i], batched), eager)


@sampled("name", PROGRAMS, quick=("arithmetic", "loops"))
def test_cudas_kernels_have_the_cpus_bits(name):
    check_on_host(
        PROGRAMS[name], plane("normal", 12), plane("normal", 12, seed=7), orders=("shuffled",), kernels=KERNELS
    )


@sampled("kind", ("python", "njit"), quick=("python",))
@sampled("name", PROGRAMS, quick=("parts", "products"))
def test_texts_of_kernels_have_their_bits(name, kind):
    assert_kernels_agree(PROGRAMS[name], plane("normal", 12), plane("normal", 12, seed=7), kinds=[kind])


def test_layouts_of_arguments_do_not_matter():
    z = plane("normal", 6, 8)
    f = volta.jit(lambda z: (vnp.exp(z) @ z.T, z.sum(0)))
    want = f(z)
    assert_bits_equal(f(np.asfortranarray(z)), want)
    assert_bits_equal(f(np.repeat(z, 2, axis=1)[:, ::2]), want)
    assert_bits_equal(f(z.astype(">c8")), want)


def test_empty_arrays_and_rank_0():
    none = vnp.zeros((0, 3), "complex64")
    assert vnp.exp(none).shape == (0, 3) and complex(vnp.sum(none)) == 0 and complex(vnp.prod(none)) == 1
    assert (none.T @ none).dtype == np.complex64 and np.array_equal(none.T @ none, np.zeros((3, 3)))
    assert complex(volta.jit(lambda z: z * z)(1 + 2j)) == (1 + 2j) ** 2


def test_an_argument_that_is_handed_on_is_itself():
    z = vnp.asarray(plane("normal", 5))
    same, twice = volta.jit(lambda z: (z, z * 2))(z)
    assert np.shares_memory(np.asarray(same), np.asarray(z))
    assert_bits_equal(same, z)
    given = vnp.asarray(plane("normal", 5))
    moved = volta.jit(lambda z: z * 2, donate_argnums=0)(given)
    assert given.is_deleted()
    assert_bits_equal(moved, twice)
