"""Fourier transforms have one value: in a batch, along any axis, compiled or not, in CUDA's kernels, in any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.numba_cpu import threads
from volta.numpy import fft
from volta.testing import assert_bits_equal
from volta.testing.host_grid import HostKernels, check_on_host

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()
RNG = np.random.default_rng(0)

LENGTHS = (1, 2, 3, 5, 6, 7, 8, 11, 13, 16, 60, 97, 101, 2 * 97, 1000, 1024)
FUNCTIONS: dict[str, Any] = {"fft": fft.fft, "ifft": fft.ifft, "rfft": fft.rfft, "irfft": fft.irfft, "hfft": fft.hfft}


def given(name: str, *shape: int) -> Any:
    x = RNG.standard_normal(shape).astype("f4")
    return x if name == "rfft" else (x + 1j * RNG.standard_normal(shape)).astype("c8")


def slope(f: Any) -> Any:
    return volta.grad(lambda x: vnp.sum(vnp.square(vnp.abs(f(x)))))


ALL = [(name, n) for n in LENGTHS for name in FUNCTIONS if name not in ("irfft", "hfft") or n > 1]
FEW = [("fft", 8), ("rfft", 6), ("irfft", 6), ("fft", 11)]


@sampled("name,n", ALL, FEW)
def test_an_element_of_a_batch_is_transformed_as_it_is_alone(name: str, n: int) -> None:
    f, x = FUNCTIONS[name], given(name, 5, n)
    for i, row in enumerate(vnp.asarray(f(x))):
        assert_bits_equal(row, f(x[i]))
    assert_bits_equal(volta.vmap(f)(x), f(x))
    assert_bits_equal(volta.vmap(f, 1, 1)(np.ascontiguousarray(x.T)), f(x).T)


@sampled("name,n", ALL, FEW)
def test_neither_the_axis_nor_the_layout_counts(name: str, n: int) -> None:
    f, x = FUNCTIONS[name], given(name, 2, n, 3)
    assert_bits_equal(f(x, axis=1), vnp.moveaxis(f(np.moveaxis(x, 1, 2)), 2, 1))
    assert_bits_equal(f(x[::-1, :, ::2], axis=1), f(np.ascontiguousarray(x[::-1, :, ::2]), axis=1))


@sampled("name,n", ALL, FEW)
def test_it_is_the_same_jitted_and_within_a_program(name: str, n: int) -> None:
    f, x = FUNCTIONS[name], given(name, 3, n)
    assert_bits_equal(volta.jit(f)(x), f(x))
    assert_bits_equal(volta.jit(lambda x: f(x * 2) + 1)(x), f(vnp.asarray(x) * 2) + 1)
    assert_bits_equal(volta.jit(slope(f))(x), slope(f)(x))


def of_parts(f: Any) -> Any:
    """A function of complex numbers, or to them, as one of real and imaginary parts."""

    def parts(x: Any, y: Any) -> Any:
        out = f(lax.complex(x, y) if y is not None else x)
        return [out.real, out.imag] if vnp.iscomplexobj(out) else [out]

    return parts


def operands(name: str, *shape: int) -> Any:
    x = given(name, *shape)
    return (x.real.copy(), None if name == "rfft" else x.imag.copy())


@sampled("name,n", ALL, [("fft", 6), ("irfft", 8)])
def test_cuda_kernels_have_the_bits_of_the_cpu(name: str, n: int) -> None:
    f = of_parts(FUNCTIONS[name])
    check_on_host(f, *operands(name, 3, n), orders=("shuffled",), kernels=KERNELS)


@sampled("name,n", ALL, [("rfft", 8)])
def test_cuda_kernels_of_gradients_have_the_bits_of_the_cpu(name: str, n: int) -> None:
    f = of_parts(slope(FUNCTIONS[name]))
    check_on_host(f, *operands(name, 2, n), orders=("shuffled",), kernels=KERNELS)


@sampled("kernels,n", [(k, n) for k in ("njit", "python") for n in (1, 6, 11)], [("python", 6)])
def test_kernels_as_numba_functions_have_the_bits_of_llvms(kernels: str, n: int) -> None:
    x = given("fft", 2, n)
    with volta.execution_context(kernels=kernels):
        found = volta.jit(lambda x: fft.fft(x))(x)
    assert_bits_equal(found, fft.fft(x))


@sampled("n", [60, 97, 1 << 15], [60])
def test_the_number_of_threads_changes_no_bit(n: int) -> None:
    x, f = given("fft", 40, n), volta.jit(fft.fft)
    found, before = [], threads.get_num_threads()
    try:
        for count in (1, 2):
            threads.set_num_threads(count)
            found.append(f(x))
    finally:
        threads.set_num_threads(before)
    assert_bits_equal(*found)
