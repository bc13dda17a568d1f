"""What exchanges cost on up to 1,024 GPUs, by a model: the table of docs/distributed.md.

    python benchmarks/distributed_model.py

Gradients are brought to where they are joined and the joined parts to all, each by one message a pair of workers and an
array, as the NCCL engine does. Beside it a ring of NCCL's all-reduce in its best case. Rates within a host and the time
of a round are those that `benchmarks/distributed.py` measured on two GPUs; a network and its latency are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

RATE = 50e12
"""Operations a second of strict float32 on a GPU."""

LINK, NETWORK, MEMORY = 266e9, 50e9, 4e12
"""Bytes a second that a GPU sends to those of its host (measured), by its network card, and moves in its memory."""

ROUND, MESSAGE, HOP = 1e-4, 1.5e-6, 1.2e-5
"""Seconds of a round without bytes (measured), to issue a message, and from one host to another."""

A_HOST = 8
"""GPUs of one host."""


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float
    arrays: int
    tokens: int  # of a step

    def compute(self, workers: int) -> float:
        """Seconds of a step without exchanges."""
        return 6 * self.parameters * self.tokens / workers / RATE


MODELS = (Model("GPT-2 small", 124.4e6, 148, 1 << 19), Model("7B", 6.74e9, 291, 1 << 22))
WORKERS = (2, 4, 8, 16, 64, 128, 256, 1024)


def exchange(nbytes: float, arrays: int, workers: int) -> float:
    """Seconds of the exchange of partial sums, one node of the tree a worker, of their folding and of gathering."""
    near = (min(workers, A_HOST) - 1) / workers * nbytes / LINK
    far = max(0, workers - A_HOST) / workers * nbytes / NETWORK
    issued = arrays * (workers - 1) * MESSAGE
    one = ROUND + max(near, far) + issued + (HOP if workers > A_HOST else 0)
    return 2 * one + (nbytes + nbytes / workers) / MEMORY


def ring(nbytes: float, workers: int) -> float:
    """Seconds of an all-reduce of NCCL's in its best case: in the host, then over hosts with an eighth each."""
    near = min(workers, A_HOST)
    seconds = 2 * (near - 1) / near * nbytes / LINK + 2 * (near - 1) * 6e-6
    hosts = workers // A_HOST
    if hosts > 1:
        seconds += 2 * ((hosts - 1) / hosts * nbytes / A_HOST / NETWORK + math.ceil(math.log2(hosts)) * HOP)
    return seconds


def rows() -> Iterator[str]:
    """The table's lines."""
    yield "| workers | " + " | ".join(f"{m.name}: step | exchange | ring" for m in MODELS) + " |"
    yield "| --- |" + " --- | --- | --- |" * len(MODELS)
    for workers in WORKERS:
        cells = []
        for m in MODELS:
            step = m.compute(workers)
            if m.tokens // 4096 < workers:  # fewer blocks than workers: sums are not shared by all
                cells.append("- | - | -")
                continue
            times = (exchange(4 * m.parameters, m.arrays, workers), ring(4 * m.parameters, workers))
            cells.append(f"{seconds(step)} | " + " | ".join(f"{seconds(t)} ({100 * t / step:.2g}%)" for t in times))
        yield f"| {workers:,} | " + " | ".join(cells) + " |"


def seconds(t: float) -> str:
    return f"{t:,.0f} s" if t >= 100 else f"{t:.3g} s" if t >= 1 else f"{1e3 * t:.3g} ms"


def share(part: float) -> str:
    return f"{100 * part:.2g}%" if part < 0.1 else f"{100 * part:.0f}%"


if __name__ == "__main__":
    print("\n".join(rows()))
