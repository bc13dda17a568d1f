"""What is flipped is read in vectors, turned round."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta.testing import assert_bits_equal, fill

FUNCTIONS = {
    "map": lambda x: x[..., ::-1] + 1,
    "both ways": lambda x: x[..., ::-1] * 2 - x,
    "every axis": lambda x: vnp.flip(x) * 3,
    "part": lambda x: x[..., -2:3:-1] + 1,
    "row": lambda x: (x[..., ::-1] * x).sum(-1),
    "col": lambda x: (x[..., ::-1] + 1).sum(0),
    "of two dtypes": lambda x: x[..., ::-1].astype("float64") + x,
    "gathered": lambda x: x[:, ::-1][np.arange(5) % x.shape[0]],
}
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "uint64", "bool", "complex64")
SHAPES = [(3, 200), (300, 1), (5, 7), (1, 4099), (70, 8193)]
CASES = {f"{shape} {dtype}": (shape, dtype) for shape in SHAPES for dtype in DTYPES}


@sampled("name", CASES, quick=("(3, 200) float32", "(5, 7) complex64"))
@pytest.mark.turns(2)
def test_flips_have_the_bits_of_what_lies_the_other_way_round(name) -> None:
    shape, dtype = CASES[name]
    x = vnp.asarray(fill("normal", shape, "float32")).astype(dtype)
    flipped = vnp.asarray(np.asarray(x)[:, ::-1].copy())
    for what, f in FUNCTIONS.items():
        if (what == "part" and shape[1] < 8) or (what == "of two dtypes" and dtype == "complex64"):
            continue
        forwards = volta.jit(lambda x, f=f: f(vnp.flip(x, 1)))(flipped)
        assert_bits_equal(volta.jit(f)(x), forwards, what)


def test_the_loads_of_a_flip_are_vectors() -> None:
    def patterns(f):
        plan = volta.jit(f).lower(np.ones((64, 64), "f4")).compile().executable.plan
        return [x.pattern for launch in plan.all_launches() for x in launch.kernel.body if hasattr(x, "terms")]

    assert patterns(lambda x: x[:, ::-1] + x) == ["-", "1"]
    assert patterns(lambda x: x[:, ::-2] + 1) == ["?"]
    assert patterns(lambda x: x[::-1] + x) == ["1", "1"]
