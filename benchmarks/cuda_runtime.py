"""What the runtime over CUDA costs and overlaps: launches, copies, streams. Rows of `benchmarks/gpu.py runtime`.

"serial" is the same work one after the other: in one stream, or the copy after the program.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu_harness import Row, ready, turns


def runtime_rows() -> Iterator[Row]:
    import jax

    import volta
    from volta.runtime import devices

    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    v, j = volta.device_put(x, "cuda"), jax.device_put(x)
    yield {
        "name": "an operation without jit, waited for",
        "seconds": turns({"volta": lambda: ready(v + 1), "jax": lambda: ready(j + 1)}, lambda out: None),
    }
    many_v, many_j = [v + i for i in range(20)], [j + i for i in range(20)]
    f, g = volta.jit(lambda x: x * 2 + 1), jax.jit(lambda x: x * 2 + 1)
    yield {
        "name": "20 calls, each on another array, waited for",
        "seconds": turns(
            {"volta": lambda: [ready(f(x)) for x in many_v], "jax": lambda: [ready(g(x)) for x in many_j]},
            lambda out: None,
        ),
    }

    def in_stream() -> Any:
        with devices.stream():
            return f(v)

    yield {
        "name": "a call in a stream of its own, in a row",
        "seconds": turns({"volta": in_stream, "serial": lambda: f(v)}, ready),
    }

    host = np.ones(50_000_000, np.float32)  # 200 MB
    kept = volta.device_put(host)
    on_gpu, on_jax = volta.device_put(host, "cuda"), jax.device_put(host)
    yield {
        "name": "200 MB to the device",
        "bytes": host.nbytes,
        "seconds": turns(
            {"volta": lambda: ready(devices.place(kept)), "jax": lambda: ready(jax.device_put(host))}, lambda out: None
        ),
    }
    yield {
        "name": "200 MB to the host",
        "bytes": host.nbytes,
        "seconds": turns(
            {"volta": lambda: np.asarray(on_gpu), "jax": lambda: np.asarray(on_jax + 0)}, lambda out: None
        ),
    }
    square = volta.device_put(np.random.default_rng(1).standard_normal((4096, 4096)).astype(np.float32), "cuda")
    product = volta.jit(lambda a: (a @ a) @ a)

    def together() -> None:
        out, copied = product(square), devices.place(kept)
        ready(copied)
        ready(out)

    def serial() -> None:
        ready(product(square))
        ready(devices.place(kept))

    yield {
        "name": "a copy beside a program",
        "seconds": turns({"volta": together, "serial": serial}, lambda out: None),
    }
    long = volta.device_put(np.random.default_rng(2).standard_normal((16, 200_000)).astype(np.float32), "cuda")
    small = volta.jit(lambda x: x @ x.T)  # few blocks: most of the GPU is idle

    def streams() -> None:
        out = []
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(devices.stream())
                out.append(small(long))
        for y in out:
            ready(y)

    def one_stream() -> None:
        for y in [small(long) for _ in range(8)]:
            ready(y)

    yield {
        "name": "eight small products, each in a stream",
        "seconds": turns({"volta": streams, "serial": one_stream}, lambda out: None),
    }
