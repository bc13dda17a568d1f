"""The thirteen claims of the CUDA runtime's specification, H1 to H13: each tried on this machine, with its figures.

What is a matter of bits or of errors fails where it is not so. A claim about time that is not met is said to be not
met, and is no failure: other work on the machine may be why.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import nn, offline
from volta.api.devices import device_put
from volta.api.jit import jit
from volta.core.block_formats import FORMATS
from volta.core.errors import OutOfMemoryError, VoltaError
from volta.numba_cuda.device.graph import Module
from volta.runtime import devices
from volta.testing.bits import bits
from volta.testing.data import fill
from volta.verify import raw_launches
from volta.verify.checks import Check, Setting

CAPABILITIES = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0")

_NO_GPU = "needs a GPU"


@attrs.frozen
class Sizes:
    """How large the trials are: rows of products, of attention and of weights in blocks; bytes, as a power of two;
    steps of a random walk and blocks live in it; terms of small products; launches of a thread."""

    product: int = 2048
    attention: int = 1024
    weights: int = 4096
    transfer: int = 24
    walk: int = 10_000
    live: int = 200
    terms: int = 200_000
    launches: int = 1000


SIZES = Sizes()


@attrs.frozen
class Found:
    """What a claim's trial found: ``problem`` is empty where nothing is wrong; ``met``: whether the claim holds (None:
    it could not be tried); ``says`` is the table's entry."""

    says: str
    figures: dict[str, Any] = attrs.field(factory=dict)
    problem: str = ""
    met: bool | None = True


Trial = Callable[[Setting, Any], Found]
"""Tries a claim on a device; the second argument is the driver's record of a GPU, or None on the CPU."""


def runtime(setting: Setting) -> Iterator[Check]:
    """The claims in order; on the CPU those that can be tried there, in part or in whole."""
    gpu = None if setting.device == "cpu" else devices.gpu(devices.resolve(setting.device))
    for number, (claim, (trial, without)) in enumerate(CLAIMS.items(), 1):
        name = f"H{number} {claim}"
        if gpu is None and not without:
            yield Check(name, figures={"met": None}, says=_line(name, Found(_NO_GPU, met=None)))
            continue
        try:
            found = trial(setting, gpu)
        except Exception as error:  # one failure must not hide the others
            found = Found("failed", problem=f"{type(error).__name__}: {error}")
        figures = {**found.figures, "met": found.met and not found.problem}
        yield Check(name, problem=found.problem, figures=figures, says=_line(name, found))


def _line(name: str, found: Found) -> str:
    verdict = "FAILED" if found.problem else {True: "met", False: "not met", None: "-"}[found.met]
    return f"{name:58s} {verdict:8s} {found.says}"


def _same(*pairs: tuple[Any, Any]) -> str:
    """A problem where arrays of a pair have other bits."""
    wrong = [i for i, (x, y) in enumerate(pairs) if bits(np.asarray(x)) != bits(np.asarray(y))]
    return f"other bits in {len(wrong)} of {len(pairs)} results" if wrong else ""


def _both(f: Callable[..., Any], setting: Setting, *args: Any) -> tuple[Any, Any]:
    """A result of the device and the CPU's."""
    found = jit(f)(*device_put(args, setting.device))
    return np.asarray(found), np.asarray(jit(f)(*device_put(args, "cpu")))


def _seconds(f: Callable[[], Any], times: int = 5) -> float:
    """The best of several."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        f()
        best = min(best, time.perf_counter() - start)
    return best


# -- modules, launches, transfers --------------------------------------------------------------------------------------


def _modules(setting: Setting, gpu: Any) -> Found:
    """PTX for every capability; the GPU loads what is for it or for an older one."""
    x = np.ones((64, 64), np.float32)
    wanted = offline.Function(lambda x: nn.softmax(x @ x) + vnp.sort(x), (x,), "modules")
    loaded = []
    (done,) = offline.compile_functions([wanted], CAPABILITIES)
    for target in done.targets:
        if gpu is None or tuple(map(int, target.capability.split("."))) > gpu.info.capability:
            continue
        module = Module(gpu, target.ptx)
        for kernel in target.kernels:
            module.function(kernel)
        module.unload()
        loaded.append(target.capability)
    says = f"compiled for {', '.join(CAPABILITIES)}; " + (f"loaded: {', '.join(loaded)}" if loaded else _NO_GPU)
    return Found(says, {"compiled": list(CAPABILITIES), "loaded": loaded}, met=None if gpu is None else True)


def _launches(setting: Setting, gpu: Any) -> Found:
    """Kernels over grids of one block to thousands have the CPU's bits."""
    sizes = [1, 2, 31, 33, 255, 257, 1000, 4097, 65_537]
    every = [_both(lambda x: nn.gelu(x) + 1, setting, fill("ladder", (n,), "float32", n)) for n in sizes]
    return Found(f"{len(sizes)} sizes to {sizes[-1]:,}, the CPU's bits", {"sizes": sizes}, _same(*every))


def _transfers(setting: Setting, gpu: Any) -> Found:
    """Bytes go to the device and come back as they were: below, at and above what is staged in pieces."""
    rng, total, pairs = np.random.default_rng(0), 0, []
    for size in (0, 1, 7, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (1 << SIZES.transfer) + 3):
        x = rng.integers(0, 256, size, dtype=np.uint8)
        pairs.append((device_put(x, setting.device), x))
        total += 2 * size
    return Found(f"{total:,} bytes, all as they were", {"bytes": total}, _same(*pairs))


def _launch_time(setting: Setting, gpu: Any) -> Found:
    cost = min(raw_launches.launch_microseconds(gpu) for _ in range(3))  # as beside C
    return Found(f"{cost:.2f} us", {"microseconds": cost}, met=cost <= 2)


def _launch_beside_c(setting: Setting, gpu: Any) -> Found:
    cc = raw_launches.compiler()
    if cc is None:
        return Found("needs a C compiler", met=None)
    own, other = float("inf"), float("inf")
    for _ in range(3):  # in turns
        own = min(own, raw_launches.launch_microseconds(gpu))
        other = min(other, raw_launches.launch_microseconds_in_c(cc, int(gpu.name.split(":")[1])))
    figures = {"microseconds": own, "in C": other, "ratio": own / other}
    return Found(f"{own:.2f} us, in C {other:.2f}: {own / other:.2f}", figures, met=own <= 1.05 * other)


# -- kernels -----------------------------------------------------------------------------------------------------------


def _products(setting: Setting, gpu: Any) -> Found:
    n = SIZES.product
    x, w = (fill("normal", (n, n), "float32", seed) for seed in (1, 2))
    got, want = _both(lambda x, w: x @ w, setting, x, w)
    exact, size = x.astype(np.float64) @ w, np.abs(x).astype(np.float64) @ np.abs(w)
    error = float(np.max(np.abs(got - exact) / size))
    there, f = device_put((x, w), setting.device), jit(lambda x, w: x @ w)
    rate = 2e-12 * n**3 / _seconds(lambda: f(*there).block_until_ready())
    figures = {"n": n, "error": error, "TFLOP/s": rate}
    return Found(
        f"error {error:.1e}, the CPU's bits, n={n}: {rate:.2f} TFLOP/s", figures, _same((got, want)), error < 1e-3
    )


def _attention(setting: Setting, gpu: Any) -> Found:
    length = SIZES.attention
    q, k, v = (fill("normal", (1, length, 2, 64), "float32", seed) for seed in range(3))
    attend = partial(nn.dot_product_attention, is_causal=True)
    got, want = _both(attend, setting, q, k, v)
    scores = np.einsum("btnh,bsnh->bnts", q.astype(np.float64), k) / 8
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    exact = np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v.astype(np.float64))
    error = float(np.max(np.abs(got - exact)))
    found = Found(f"error {error:.1e}, the CPU's bits", {"error": error}, _same((got, want)), error < 1e-2)
    return found


def _blocks(setting: Setting, gpu: Any) -> Found:
    """Q4_K's numbers against llama.cpp's; products with the CPU's bits."""
    n, fmt = SIZES.weights, FORMATS["Q4_K"]
    rng = np.random.default_rng(4)
    packed = rng.integers(0, 256, (n, n // fmt.elements, fmt.nbytes), dtype=np.uint8)
    packed[..., :4] = (rng.standard_normal((*packed.shape[:2], 2)) / 2000).astype(np.float16).view(np.uint8)
    packed = packed.reshape(n, -1)
    figures: dict[str, Any] = {"n": n}
    pairs = [_both(lambda w: nn.QuantizedArray(w, "Q4_K").dequantize(), setting, packed[:256])]
    says = "llama.cpp's numbers, the CPU's bits"
    pairs.append((pairs[0][0], _llama_cpps_numbers(packed[:256])))
    product = jit(lambda x, w: nn.linear(x, nn.QuantizedArray(w, "Q4_K")))
    x = fill("normal", (1, n), "float32")
    pairs.append(_both(product, setting, x, packed))
    if gpu is not None:
        there = device_put((x, packed), setting.device)
        figures["GB/s"] = 1e-9 * packed.nbytes / _seconds(lambda: product(*there).block_until_ready(), 20)
        says += f"; a row by {n} x {n}, waited for: {figures['GB/s']:.0f} GB/s of weights"
    return Found(says, figures, _same(*pairs), met=None if gpu is None else True)


def _llama_cpps_numbers(packed: np.ndarray) -> np.ndarray:
    """Q4_K as `dequantize_row_q4_K` of ggml has it."""
    blocks = packed.reshape(-1, 144)
    d, least = (blocks[:, i : i + 2].copy().view(np.float16).astype(np.float32) for i in (0, 2))
    s = blocks[:, 4:16]
    scales = np.concatenate([s[:, :4] & 63, s[:, 8:] & 15 | s[:, :4] >> 6 << 4], 1)
    mins = np.concatenate([s[:, 4:8] & 63, s[:, 8:] >> 4 | s[:, 4:8] >> 6 << 4], 1)
    q = blocks[:, 16:].reshape(-1, 4, 1, 32) >> np.array([[0], [4]], np.uint8) & 15
    y = (d * scales)[..., None] * q.reshape(-1, 8, 32).astype(np.float32) - (least * mins)[..., None]
    return y.reshape(packed.shape[0], -1)


# -- memory ------------------------------------------------------------------------------------------------------------


def _few_allocations(setting: Setting, gpu: Any) -> Found:
    """How many blocks a thousand operations take for each time that the driver is asked."""
    before = gpu.pool.stats()
    x = device_put(np.ones(1000, np.float32), setting.device)
    for i in range(SIZES.launches):
        x = x + i
    after = gpu.pool.stats()
    asked = after.allocations - before.allocations
    blocks = asked + after.reuses - before.reuses
    figures = {"blocks": blocks, "allocations of the driver": asked}
    return Found(f"{blocks} blocks, the driver asked {asked} times", figures, met=blocks >= 10 * max(1, asked))


def _no_fragmentation(setting: Setting, gpu: Any) -> Found:
    """Ten thousand blocks of 1 KB to 10 MB, taken and given back at random: what is reserved at most, and that all goes
    back. About 200 are live, 1 GB; where less than eight times that is free, fewer."""
    pool, r = gpu.pool, random.Random(0)
    pool.trim()
    pool.reset_peak()
    base = pool.stats().reserved
    free, _ = gpu.memory_info()
    most = max(1, min(SIZES.live, free // (8 * 5 << 20)))
    live: list[tuple[Any, int]] = []
    now = peak = 0
    for _ in range(SIZES.walk):
        if live and (len(live) >= most or r.random() < 0.4):
            block, nbytes = live.pop(r.randrange(len(live)))
            block.give_back()
            now -= nbytes
        else:
            nbytes = r.randint(1 << 10, 10 << 20)
            live.append((pool.take(nbytes, gpu.main), nbytes))
            now += nbytes
            peak = max(peak, now)
    reserved = pool.stats().reserved_peak - base
    for block, _ in live:
        block.give_back()
    del live
    pool.trim()
    left = pool.stats().reserved - base
    problem = f"{left:,} bytes stay reserved" if left > 0 else ""
    figures = {"asked": peak, "reserved": reserved, "ratio": reserved / peak, "left": left}
    says = f"{reserved / peak:.2f} of what {most} live blocks need at most; all given back"
    return Found(says, figures, problem, reserved <= 1.1 * peak)


# -- errors, streams, threads ------------------------------------------------------------------------------------------


def _faults(setting: Setting, gpu: Any) -> Found:
    """What is wrong is an error with a name, and what comes after it works."""
    x = device_put(np.ones((8, 8), np.float32), setting.device)
    module = Module(gpu, raw_launches.NOTHING)

    def out_of_memory() -> Any:
        gpu.pool.trim()
        stats = gpu.pool.stats()
        with devices.memory_limit(stats.reserved + (1 << 20), setting.device):
            return vnp.broadcast_to(x, (stats.pooled // x.nbytes + (1 << 16), 8, 8)) + 1

    wrong: dict[str, Callable[[], Any]] = {
        "an invalid module": lambda: Module(gpu, ".version 7.8\n.target sm_75\n.address_size 64\nno PTX\n"),
        "an unknown kernel": lambda: module.function("something"),
        "a device that is not there": lambda: device_put(1.0, "cuda:999"),
        "sizes that do not fit": lambda: x @ device_put(np.ones((7, 8), np.float32), setting.device),
        "too little memory": out_of_memory,
    }
    silent = []
    for what, call in wrong.items():
        try:
            call()
            silent.append(f"{what}: no error")
        except (VoltaError, OutOfMemoryError):
            pass
    module.unload()
    if float(jit(vnp.sum)(x)) != 64:
        silent.append("what comes after gives another number")
    silent += raw_launches.lost_device(int(gpu.name.split(":")[1]))
    return Found(
        f"{len(wrong) + 1} faults, each an error", {"faults": [*wrong, "an illegal address"]}, "; ".join(silent)
    )


def _overlap(setting: Setting, gpu: Any) -> Found:
    """Eight products of few blocks, each in a stream of its own and one after the other."""
    x = device_put(fill("normal", (16, SIZES.terms), "float32"), setting.device)
    small = jit(lambda x: x @ x.T)
    want = np.asarray(small(x))

    def beside() -> list[Any]:
        out = []
        with ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(devices.stream(setting.device))
                out.append(small(x))
        return [y.block_until_ready() for y in out]

    def in_turn() -> list[Any]:
        return [y.block_until_ready() for y in [small(x) for _ in range(8)]]

    problem = _same(*((y, want) for y in (*beside(), *in_turn())))
    ratio = _seconds(in_turn) / _seconds(beside)
    return Found(f"{ratio:.1f} times as fast as one after the other", {"ratio": ratio}, problem, ratio > 1.5)


def _threads(setting: Setting, gpu: Any) -> Found:
    """Four threads, a thousand launches each, on arrays of their own in one context."""
    count, add = SIZES.launches, jit(lambda x: x + 1)
    problems: list[str] = []

    def work(number: int) -> None:
        try:
            x = device_put(np.full(1000 + number, number, np.float32), setting.device)
            for _ in range(count):
                x = add(x)
            if np.any(np.asarray(x) != number + count):
                problems.append(f"thread {number} has other numbers")
        except Exception as error:
            problems.append(f"thread {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return Found(f"4 x {count} launches, all numbers right", {"launches": 4 * count}, "; ".join(problems))


CLAIMS: dict[str, tuple[Trial, bool]] = {
    "modules load for capabilities 7.0 to 9.0": (_modules, True),
    "kernels are launched": (_launches, False),
    "transfers are exact": (_transfers, False),
    "a launch in a stream costs at most 2 us": (_launch_time, False),
    "products: error below 1e-3": (_products, False),
    "attention: error below 1e-2": (_attention, False),
    "Q4_K: llama.cpp's numbers": (_blocks, True),
    "a tenth of the driver's allocations": (_few_allocations, False),
    "faults are errors": (_faults, False),
    "streams overlap: more than 1.5 times": (_overlap, False),
    "a launch costs at most 1.05 of one in C": (_launch_beside_c, False),
    "no fragmentation: at most 1.1 of the ideal": (_no_fragmentation, False),
    "four threads share a context": (_threads, False),
}
"""What is claimed: how it is tried, and whether any of that can be done without a GPU."""
