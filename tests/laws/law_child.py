"""Run by tests in a process of its own: reads pickled programs, prints digests of their results and of their plans."""

import hashlib
import pickle
import sys

import numpy as np

import volta
from volta.numba_cpu import unit
from volta.testing import digest, fill


def digests(programs: list) -> list[str]:
    """A line a program: its bits eager and compiled, its gradient, its plan and the text of its kernels."""
    lines = []
    for number, p in enumerate(programs):
        xs = [fill("normal", shape, dtype, seed=number + i) for i, (shape, dtype) in enumerate(p.inputs)]
        compiled = volta.jit(p).lower(*xs).compile()
        text = hashlib.sha256(compiled.as_text().encode()).hexdigest()[:16]
        gradient = volta.jit(volta.grad(p.loss))(*xs)
        lines.append(f"{digest(p(*xs))} {digest(compiled(*xs))} {digest(gradient)} {text}")
    return lines


def state() -> dict:
    """A tree of many dtypes to save."""
    names = ("float32", "float64", "float16", "bfloat16", "int8", "uint64", "bool")
    tree = {name: volta.numpy.asarray(fill("specials", (3, 5), np.dtype(volta.numpy.dtype(name)))) for name in names}
    return {"layers": [tree, (tree["float32"][:0], 7, 1.5)], "none": None}


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as f:
        found = digests(pickle.load(f))
    volta.io.save(sys.argv[2], state(), metadata={"b": "2", "a": "1"})
    print("\n".join([*found, str(unit.stats().compiled)]))
