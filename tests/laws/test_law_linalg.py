"""Decompositions have the CPU's bits in CUDA's kernels too, run on the host, and in as many threads as there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.numba_cpu import threads
from volta.testing import assert_bits_equal
from volta.testing.host_grid import HostKernels, check_on_host
from volta.verify import checks, matrices

KERNELS = HostKernels()
RNG = np.random.default_rng(0)


def definite(n: int) -> Any:
    a = RNG.standard_normal((2, n, n)).astype("f4")
    return a @ a.transpose(0, 2, 1) + np.eye(n, dtype="f4")


def hermitian(n: int) -> Any:
    a = (RNG.standard_normal((2, n, n)) + 1j * RNG.standard_normal((2, n, n))).astype("c8")
    return a @ a.conj().transpose(0, 2, 1) + np.eye(n, dtype="c8")


def slope(f: Any) -> Any:
    return volta.grad(lambda a: sum(vnp.sum(vnp.sin(abs(x))) for x in f(a)))


PROGRAMS: dict[str, Any] = {
    "cholesky": lambda a: [lax.linalg.cholesky(a)],
    "triangular_solve": lambda a: [lax.linalg.triangular_solve(a, a, lower=True)],
    "lu": lambda a: lax.linalg.lu(a)[:1],
    "solve": lambda a: [vnp.linalg.solve(a, a[..., :1])],
    "qr": lambda a: list(vnp.linalg.qr(a)),
    "eigh": lambda a: list(vnp.linalg.eigh(a)),
    "svd": lambda a: list(vnp.linalg.svd(a)),
    "eig": lambda a: list(vnp.linalg.eig(a + vnp.triu(a))),
}


MATRICES: dict[str, Any] = {"real": definite, "complex": hermitian}


@sampled(
    "name,n,derivative,of",
    [(name, n, d, of) for name in PROGRAMS for n in (4, 35) for d in (False, True) for of in MATRICES],
    [("cholesky", 4, False, "real"), ("lu", 4, False, "real"), ("eigh", 4, False, "real")],
)
@pytest.mark.turns(6)
def test_cuda_kernels_have_the_bits_of_the_cpu(name: str, n: int, derivative: bool, of: str) -> None:
    f = slope(PROGRAMS[name]) if derivative else PROGRAMS[name]
    check_on_host(f, MATRICES[of](n), orders=("shuffled",), kernels=KERNELS)


@sampled("name,of", [(name, of) for name in PROGRAMS for of in MATRICES], [("qr", "real")])
def test_the_number_of_threads_changes_no_bit(name: str, of: str) -> None:
    a = MATRICES[of](70)
    f = volta.jit(PROGRAMS[name])
    found, before = [], threads.get_num_threads()
    try:
        for count in (1, 2):
            threads.set_num_threads(count)
            found.append(f(a))
    finally:
        threads.set_num_threads(before)
    for x, y in zip(*found, strict=True):
        assert_bits_equal(x, y)


@pytest.mark.turns(6)
def test_the_suite_of_volta_verify_passes_on_the_cpu() -> None:
    found = list(matrices.matrices(checks.Setting("cpu")))
    record = checks.kept()
    assert len(found) > 40 and not [x for x in found if checks.against_record("matrices", x, record).problem]
    assert all(f"matrices/{x.name}" in record for x in found)


@pytest.mark.gpu
def test_the_suite_of_volta_verify_passes_on_a_gpu() -> None:
    assert not [x for x in matrices.matrices(checks.Setting("cuda")) if x.problem]
