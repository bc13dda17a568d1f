"""Rows are reduced in registers, whether or not values of them are kept for a later pass."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn
from volta.testing import assert_bits_equal, fill

PROGRAMS = {
    "softmax": (nn.softmax, True),
    "divided by its sum": (lambda x: vnp.exp(x) / vnp.exp(x).sum(-1, keepdims=True), True),
    "sum of exponentials": (lambda x: vnp.exp(x).sum(-1), False),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_of_light_rows_are_in_registers(name: str) -> None:
    f, keeps = PROGRAMS[name]
    executable = volta.jit(f).lower(fill("normal", (8, 256), "float32")).compile().executable
    ((symbol, text),) = executable.kernel_texts().items()
    (launch,) = executable.plan.all_launches()
    assert bool(launch.kernel.spills) == keeps, text
    assert "phi <64 x float>" in executable.llvm_ir(symbol)


@pytest.mark.parametrize("length", [1, 15, 63, 64, 65, 130, 4096, 4100])
def test_rows_have_the_bits_of_kernels_that_keep_nothing(length: int) -> None:
    x = fill("normal", (3, length), "float32")
    e = vnp.exp(x - x.max(-1, keepdims=True))
    assert_bits_equal(volta.jit(nn.softmax)(x), np.asarray(e / e.sum(-1, keepdims=True)))
