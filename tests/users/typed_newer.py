"""More programs as users write them, with types, of the newer parts: see ``typed_code.py``."""

import os
import tempfile
from typing import Any, assert_type

import numpy as np

import volta
import volta.numpy as vnp
import volta.scipy.fft
import volta.scipy.linalg
import volta.scipy.signal
import volta.scipy.special
import volta.scipy.stats
from volta import Array, lax


def signals(x: Array, host: np.ndarray) -> None:
    for y in (
        vnp.fft.fft(x, n=8, axis=-1, norm="ortho"),
        vnp.fft.ifft2(x),
        vnp.fft.rfftn(host, axes=(0, 1)),
        vnp.fft.irfft(x),
        vnp.fft.fftshift(vnp.fft.fftfreq(8, d=0.1)),
        volta.scipy.fft.dct(x),
        volta.scipy.signal.convolve(x, x, mode="same"),
        vnp.convolve(x[:, 0], x[:3, 0], "valid"),
    ):
        assert_type(y, Array)


def factors(x: Array) -> None:
    for y in (
        vnp.linalg.inv(x),
        vnp.linalg.det(x),
        vnp.linalg.qr(x).R,
        vnp.linalg.eigvalsh(x),
        vnp.linalg.eig(x).eigenvectors,
        vnp.linalg.matrix_power(x, 3),
        vnp.linalg.pinv(x),
        vnp.linalg.cond(x),
        vnp.linalg.multi_dot([x, x, x]),
        volta.scipy.linalg.solve_triangular(x, x, lower=True),
        volta.scipy.linalg.lu_solve(volta.scipy.linalg.lu_factor(x), x),
        volta.scipy.linalg.sqrtm(x),
        volta.scipy.special.gammainc(2.0, x),
        volta.scipy.stats.norm.logpdf(x, loc=1.0),
    ):
        assert_type(y, Array)
    solution: Array = vnp.linalg.lstsq(x, x)[0]
    p, low, up = volta.scipy.linalg.lu(x)
    assert_type(p @ low @ up - solution, Array)


def loops(x: Array) -> None:
    running: Array = lax.associative_scan(vnp.add, x)
    rows: Array = lax.map(vnp.sum, x, batch_size=2)
    chosen: Array = lax.switch(1, [vnp.sin, vnp.cos], x)
    total: Array = lax.fori_loop(0, 3, lambda i, c: c + i, running)
    print(rows, chosen, total)


@volta.custom_batching.custom_vmap
def library(x: Array, s: float) -> Array:
    return x * s


@library.def_vmap
def _library(size: int, mapped: Any, x: Array, s: float) -> tuple[Array, bool]:
    return x * s, True


def travelling(x: Array, path: str) -> None:
    program = volta.export(library, x, 2.0)
    assert_type(program, volta.Exported)
    program.save(path)
    again: Array = volta.load_program(path)(x, 2.0)
    assert_type(volta.jit(library, memory_budget=1 << 20)(again, 2.0), Array)


def mistakes(x: Array) -> None:
    volta.jit(library, memory_budgt=1)(x, 2.0)  # refused
    library(x, 2.0, 3)  # refused
    vnp.fft.fft(x, norms="ortho")  # refused
    vnp.linalg.qr(x).Q.summ()  # refused
    p, low, up = volta.scipy.linalg.lu(x, True)  # refused


def main() -> None:
    x = vnp.eye(4) * 4 + vnp.arange(16.0).reshape(4, 4) / 16
    signals(x, np.asarray(x))
    factors(x)
    loops(x)
    with tempfile.TemporaryDirectory() as folder:
        travelling(x, os.path.join(folder, "program.volta"))


if __name__ == "__main__":
    main()
