"""S13 over what is many operations each: transforms, factors, windows, random numbers, small loops, several workers.

Of none is a kernel LLVM's where a context asks for others.
"""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.block_weights import random_blocks
from tests.sampling import sampled
from tests.workers import mesh_of, simulated
from volta import lax, nn, random
from volta.numba_cpu import lower
from volta.runtime import plan_cache
from volta.sharding import NamedSharding, PartitionSpec
from volta.testing import assert_bits_equal, fill
from volta.testing.kernel_kinds import GENERATED, assert_kernels_agree

X = fill("normal", (12, 12))
C = (X + 1j * fill("normal", (12, 12), seed=2)).astype(np.complex64)
SPD = X @ X.T + 12 * np.eye(12, dtype=np.float32)
BLOCKS = random_blocks("Q4_0", 5, 2)


def lorenz(v):
    step = vnp.stack([10 * (v[1] - v[0]), v[0] * (28 - v[2]) - v[1], v[0] * v[1] - 8 / 3 * v[2]])
    return v + 0.01 * step


def convolved(x):
    return lax.conv_general_dilated(x[None, None], x[None, None, :3, :3], (2, 1), "VALID")


PROGRAMS = {
    "fft": (lambda c: (vnp.fft.fft(c), vnp.fft.fft(c[:, :11]), vnp.fft.ifft2(c)), C),
    "real fft": (lambda x: vnp.fft.irfft(vnp.fft.rfft(x)), X),
    "complex": (lambda c: (c * c, vnp.exp(c), vnp.sqrt(c), abs(c), c @ c, vnp.sum(c, 0), vnp.log(c), c / (c + 1)), C),
    "complex gradient": (lambda c: volta.grad(lambda c: vnp.sum(abs(c * c)))(c), C),
    "cholesky": (vnp.linalg.cholesky, SPD),
    "solve": (lambda a: (vnp.linalg.solve(a, a[:, :2]), vnp.linalg.slogdet(a)), SPD),
    "qr": (vnp.linalg.qr, X),
    "svd": (lambda x: vnp.linalg.svd(x[:5, :4]), X),
    "eigh": (lambda a: vnp.linalg.eigh(a[:5, :5]), SPD),
    "convolution": (lambda x: (convolved(x), volta.grad(lambda x: vnp.sum(convolved(x) ** 2))(x)), X),
    "pooling": (lambda x: lax.reduce_window(x, -np.inf, lax.max, (3, 3), (2, 2), "VALID"), X),
    "small loop": (lambda v: lax.fori_loop(0, 40, lambda i, v: lorenz(v), v), X[0, :3]),
    "small scan": (lambda v: lax.scan(lambda v, _: (lorenz(v), v), v, None, length=9), X[0, :3]),
    "small loop's gradient": (
        lambda v: volta.grad(lambda v: vnp.sum(lax.scan(lambda v, _: (lorenz(v), None), v, None, length=9)[0]))(v),
        X[0, :3],
    ),
    "order": (lambda x: (vnp.median(x, 0), vnp.quantile(x, 0.3), lax.top_k(x, 3), vnp.cumprod(x, 0)), X),
    "weights in blocks": (
        lambda w: nn.linear(vnp.ones((2, 64)), nn.QuantizedArray(w, "Q4_0")),
        BLOCKS,
    ),
    "associative scan": (lambda x: lax.associative_scan(vnp.add, x), X),
}

DRAWS = {
    "uniform": lambda k: random.uniform(k, (5,)),
    "normal": lambda k: random.normal(k, (5,)),
    "randint": lambda k: random.randint(k, (5,), 0, 9),
    "bits": lambda k: random.bits(k, (5,)),
    "permutation": lambda k: random.permutation(k, 6),
    "choice": lambda k: random.choice(k, 5, (3,), replace=False),
    "categorical": lambda k: random.categorical(k, np.zeros(4, np.float32)),
    "truncated": lambda k: random.truncated_normal(k, -1.0, 1.0, (4,)),
    "gamma": lambda k: random.gamma(k, 1.5, (4,)),
    "beta": lambda k: random.beta(k, 1.5, 2.0, (4,)),
    "poisson": lambda k: random.poisson(k, 3.0, (4,)),
    "binomial": lambda k: random.binomial(k, 5, 0.3, (4,)),
    "t": lambda k: random.t(k, 3.0, (4,)),
    "several": lambda k: random.multivariate_normal(k, np.zeros(2, np.float32), np.eye(2, dtype=np.float32)),
}


@pytest.fixture(autouse=True)
def no_kernel_of_llvms(monkeypatch):
    """Whoever compiles a kernel by LLVM while a context asks for others is named."""
    real = lower.compiled

    def compiled(calls):
        kinds = {volta.runtime.context.current_context().kernels}
        assert kinds == {"llvm"} or not calls, f"compiled by LLVM where {kinds} were asked for: {list(calls)}"
        return real(calls)

    monkeypatch.setattr(lower, "compiled", compiled)
    monkeypatch.setattr(lower.lower, "__defaults__", (None, compiled))
    plan_cache.PLAN_CACHE.clear()


@pytest.mark.parametrize("kind", ["python", pytest.param("njit", marks=pytest.mark.slow)])
@sampled("name", list(PROGRAMS), quick=("real fft", "cholesky", "small scan"))
def test_programs_of_many_operations(name, kind) -> None:
    f, *args = PROGRAMS[name]
    assert_kernels_agree(f, *args, kinds=[kind])


@pytest.mark.parametrize("kind", ["python", pytest.param("njit", marks=pytest.mark.slow)])
@sampled("name", list(DRAWS), quick=("normal", "permutation"))
def test_random_numbers(name, kind) -> None:
    """The key is an argument, so that nothing is known while the program is compiled."""
    assert_kernels_agree(lambda seed: DRAWS[name](random.fold_in(random.key(7), seed)), np.uint32(5), kinds=[kind])


@pytest.mark.parametrize("kind", ["python", pytest.param("njit", marks=pytest.mark.slow)])
def test_programs_on_several_workers(kind) -> None:
    x, w = fill("normal", (14, 6)), fill("normal", (6, 5), seed=1)

    def f(x, w):
        return vnp.tanh(x @ w), vnp.sum(x, 0), vnp.cumsum(x, 0)

    want = volta.jit(f)(x, w)
    with simulated(2), volta.execution_context(kernels=kind):
        cut = volta.device_put(x, NamedSharding(mesh_of(2), PartitionSpec("data")))
        found = volta.jit(lambda x, w: f(x, w))(cut, w)
        assert_bits_equal([np.asarray(y) for y in found], [np.asarray(y) for y in want])


def test_what_is_evaluated_at_once_runs_on_them_too() -> None:
    """Operations by themselves, and constants that a program is compiled with."""
    want = vnp.tanh(vnp.arange(7.0)) @ vnp.ones(7)
    for kind in GENERATED[1:]:
        with volta.execution_context(kernels=kind):
            assert_bits_equal(np.asarray(vnp.tanh(vnp.arange(7.0)) @ vnp.ones(7)), np.asarray(want))
            folded = volta.jit(lambda: vnp.tanh(vnp.arange(7.0)) @ vnp.ones(7))()
        assert_bits_equal(np.asarray(folded), np.asarray(want))
