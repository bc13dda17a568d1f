"""A new shape of an eager operation needs a plan, and no new kernel: kernels take sizes and strides as arguments.

What else decides their code: which operands are broadcast, what lies next to each other, and whether an array is large
(from `loop_schedule.LARGE` elements on kernels have a longer form).
"""

import pytest

import volta.numpy as vnp
from volta import nn
from volta.numba_cpu import unit
from volta.numba_cpu.loop_schedule import LARGE
from volta.testing import fill

SMALL_SHAPES = [(3, 5), (4, 7), (17, 33), (100, 64), (2, 1000), (300, 300)]
LARGE_SHAPES = [(640, 1024), (1024, 2048), (1111, 1030)]
OPERATIONS = {
    "add": lambda x: x + x,
    "exp": vnp.exp,
    "with a row": lambda x: x + x[0],
    "with a column": lambda x: x + x[:, :1],
    "transposed": lambda x: x.T + 1,
    "sum of columns": lambda x: x.sum(0),
    "sum of rows": lambda x: x.sum(1),
    "argmax of rows": lambda x: vnp.argmax(x, 1),
    "concatenate": lambda x: vnp.concatenate([x, x]),
    "slice": lambda x: x[1:, 1:] * 2,
    "roll": lambda x: vnp.roll(x, 2, 1),
    "cumsum": lambda x: vnp.cumsum(x, 1),
    "take": lambda x: vnp.take(x, vnp.asarray([0, 1]), axis=0),
    "softmax": nn.softmax,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_eager_operation_of_a_new_shape_compiles_nothing(name: str) -> None:
    assert all(rows * columns < LARGE for rows, columns in SMALL_SHAPES)
    first, *others = (fill("normal", shape, "float32") for shape in SMALL_SHAPES)
    OPERATIONS[name](first)
    before = unit.stats()
    for x in others:
        OPERATIONS[name](x)
    found = unit.stats()
    assert (found.compiled, found.loaded) == (before.compiled, before.loaded)


@pytest.mark.parametrize("name", OPERATIONS)
def test_nor_does_one_of_another_large_shape(name: str) -> None:
    first, *others = (fill("normal", shape, "float32") for shape in LARGE_SHAPES)
    OPERATIONS[name](first)
    before = unit.stats()
    for x in others:
        OPERATIONS[name](x)
    found = unit.stats()
    assert (found.compiled, found.loaded) == (before.compiled, before.loaded)
