"""GFLOP/s of the CPU matrix-product kernels beside np.matmul.

    python benchmarks/dot_kernel.py [threads] [vector bits] [dtype] [precision]

Threads are Python threads that call the compiled kernels, which hold no lock; set OPENBLAS_NUM_THREADS to the same
number for a fair comparison. Figures are the best of several runs, with the two sides taking turns.
"""

import ctypes
import functools
import sys
import threading
import time

import numpy as np

from volta.emit.dot_args import dot_words
from volta.numba_cpu import target, unit
from volta.numba_cpu.dot_schedule import TileSpec, dot_plan
from volta.numba_cpu.lower import source_of
from volta.xla_like.dot import Dot, DotStrides, canonical, column_as_row
from volta.xla_like.kernels import LibraryKernel

KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
CASES = [  # batch, m, n, k, layout of the operands (T: stored transposed)
    *[(1, n, n, n, layout) for n in (256, 512, 1024, 2048) for layout in ("NN",)],
    *[(1, 1024, 1024, 1024, layout) for layout in ("TN", "NT", "TT")],
    (32, 64, 64, 16, "NN"), (32, 64, 64, 16, "NT"), (32, 64, 16, 64, "NN"), (32, 64, 16, 64, "TN"),
    (1, 512, 192, 64, "NN"), (1, 512, 64, 192, "NT"), (1, 512, 256, 64, "NN"), (1, 512, 64, 256, "NN"),
    (1, 64, 256, 512, "TN"), (1, 64, 64, 512, "TN"), (1, 2048, 512, 128, "NN"),
    (64, 128, 128, 32, "NT"), (64, 128, 32, 128, "NN"), (1, 2048, 256, 64, "NN"), (1, 128, 512, 2048, "TN"),
    (1, 8, 768, 768, "NN"), (1, 8, 768, 768, "NT"), (1, 33, 65, 100, "NN"), (1, 32, 10, 128, "NN"), (1, 8, 8, 8, "NN"),
    (1, 1, 256, 256, "NN"), (1, 1, 256, 256, "NT"), (1, 1, 2048, 2048, "NN"), (1, 1, 2048, 2048, "NT"),
    (1, 2048, 1, 2048, "NN"), (1, 2048, 1, 2048, "TN"),
]  # fmt: skip


def aligned(nbytes: int) -> np.ndarray:
    """Zeroed memory that starts at a multiple of 64."""
    raw = np.zeros(nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def filled(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Normal numbers in aligned memory, as the runtime's arrays are."""
    x = aligned(int(np.prod(shape)) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)
    x[...] = rng.standard_normal(shape)
    return x


class Product:
    """One product, ready to run: operands, memory and launches."""

    def __init__(self, spec: TileSpec, batch: int, m: int, n: int, k: int, layout: str, threads: int):
        rng = np.random.default_rng(0)
        lhs_t, rhs_t = (letter == "T" for letter in layout)
        a = filled((batch, k, m) if lhs_t else (batch, m, k), spec.lhs, rng)
        b = filled((batch, n, k) if rhs_t else (batch, k, n), spec.rhs, rng)
        self.a, self.b = a.swapaxes(1, 2) if lhs_t else a, b.swapaxes(1, 2) if rhs_t else b
        self.out = filled((batch, m, n), spec.out, rng)
        strides = DotStrides(*((0, *x.strides) for x in (self.a, self.b, self.out)))
        problem, first, second = canonical(Dot(spec, (1, batch), m, n, k), strides), self.a, self.b
        turned = column_as_row(*problem)
        if turned is not None:
            problem, first, second = turned, second, first
        self.plan = dot_plan(*problem, spec.vector_bits)
        self.memory = [aligned(self.plan.workspace_bytes), *(aligned(self.plan.scratch_bytes) for _ in range(threads))]
        self.scratch = [memory.ctypes.data for memory in self.memory[1:]]
        addresses = [x.ctypes.data for x in (first, second, self.out, self.memory[0])]
        self.launches, self.args, self.barrier = [], [], threading.Barrier(threads)
        for launch in self.plan.launches:
            words = (launch.batch1, *dot_words(*problem)[1:], *launch.tiling)
            self.args.append(np.array([*addresses, *words], np.int64))
            kernel = compiled(launch.name, TileSpec.of(problem[0].spec, spec.vector_bits))
            self.launches.append((kernel, self.args[-1].ctypes.data, launch.tasks))

    def run(self, part: int = 0, parts: int = 1) -> None:
        """One thread's part of the product."""
        for function, args, tasks in self.launches:
            function(args, tasks * part // parts, tasks * (part + 1) // parts, self.scratch[part])
            if parts > 1:
                self.barrier.wait()

    def seconds(self, threads: int, repeat: int) -> float:
        """The best time of one product."""
        best = [float("inf")]

        def work(part: int) -> None:
            for _ in range(repeat):
                if threads > 1:
                    self.barrier.wait()
                start = time.perf_counter()
                self.run(part, threads)
                best[0] = min(best[0], time.perf_counter() - start) if part == 0 else best[0]

        workers = [threading.Thread(target=work, args=(part,)) for part in range(1, threads)]
        for worker in workers:
            worker.start()
        work(0)
        for worker in workers:
            worker.join()
        return best[0]


@functools.cache
def compiled(which: str, spec: TileSpec) -> object:
    """A kernel as a Python callable."""
    source = source_of(LibraryKernel(which, spec))
    return KERNEL(unit.compile_kernels([source])[source.name])


def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    bits = int(sys.argv[2]) if len(sys.argv) > 2 else target.vector_bits()
    dtype = sys.argv[3] if len(sys.argv) > 3 else "float32"
    spec = TileSpec(dtype, dtype, dtype, "highest" if "highest" in sys.argv else "default", bits)
    print(f"{dtype} {spec.precision}, {threads} thread(s), {bits}-bit vectors; GFLOP/s, microseconds")
    for batch, m, n, k, layout in CASES:
        product = Product(spec, batch, m, n, k, layout, threads)
        flops = 2 * batch * m * n * k
        repeat = max(2, min(200, int(5e8 / flops)))
        product.seconds(threads, 1)
        np.matmul(product.a, product.b, out=product.out)
        ours = theirs = float("inf")
        for _ in range(4):
            ours = min(ours, product.seconds(threads, repeat))
            for _ in range(repeat):
                start = time.perf_counter()
                np.matmul(product.a, product.b, out=product.out)
                theirs = min(theirs, time.perf_counter() - start)
        shape = f"{batch}x {m}x{n}x{k} {layout}"
        print(
            f"{shape:24} volta {flops / ours / 1e9:7.1f} {ours * 1e6:9.1f} us   numpy {flops / theirs / 1e9:7.1f} "
            f"{theirs * 1e6:9.1f} us   x{theirs / ours:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
