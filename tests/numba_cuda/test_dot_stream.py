"""Products whose weights stream through Hopper's multiprocessors, on the host runner: they have the CPU's bits."""

import re

import attrs
import numpy as np
import pytest

import volta
from tests.numba_cuda.test_cuda_dot_blocks import operands
from volta import nn
from volta.core.block_formats import FORMATS
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.products import dot_choice
from volta.offline import plan_on_cuda
from volta.testing.host_grid import HostKernels, check_on_host

KERNELS = HostKernels()


def check(name, m, n, blocks, orders=("shuffled",)):
    check_on_host(nn.linear, *operands(name, m, n, blocks), orders=orders, kernels=KERNELS, capability="9.0a")


@pytest.mark.parametrize("m, n, blocks", [(1, 70, 3), (2, 9, 16), (1, 13, 18)])
def test_columns_rows_and_chunks_of_any_number(m, n, blocks):
    check("Q4_K", m, n, blocks)


def test_parts_that_lie_side_by_side_are_one_copy():
    """Those of all of k; the last one may have fewer columns."""
    check("Q4_K", 1, 35, 16)
    for blocks, dense in ((16, True), (3, False), (18, False)):
        x, w = operands("Q4_K", 1, 35, blocks)
        (launch,) = launches_of(plan_on_cuda(volta.make_jaxpr(nn.linear)(x, w))[0], "9.0a")
        assert (f"dense={dense}" in launch.source.text) and "StreamVariant" in launch.source.text


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", pytest.param("Q8_0", marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", [{"wide": 2, "warps": 8, "stages": 1}, {"wide": 1, "warps": 8}], ids=str)
def test_lanes_may_have_several_columns(name, change, monkeypatch):
    chosen, taken = dot_choice._choose_stream, []

    def choose(problem, capability):
        found = chosen(problem, capability)
        other = attrs.evolve(found, **change)
        fits = other.shared_bytes(problem.dot.spec) <= dot_choice._chip(capability).block_bytes
        taken.append(fits)
        return other if fits else found

    monkeypatch.setattr(dot_choice, "_choose_stream", choose)
    for m, n, k in ((1, 70, 3), (1, 35, 16), (2, 13, 18)):
        blocks = k * 256 // FORMATS[name].elements
        check_on_host(nn.linear, *operands(name, m, n, blocks), orders=("shuffled",), capability="9.0a")
    assert any(taken)


def loops(text):
    """The innermost loops of a PTX text: their instructions."""
    lines = text.splitlines()
    labels = {m[1]: n for n, line in enumerate(lines) if (m := re.match(r"(\$L\w+):", line))}
    for n, line in enumerate(lines):
        m = re.search(r"\bbra\S*\s+(\$L\w+);", line)
        if m and labels.get(m[1], n) < n:
            yield [x for x in lines[labels[m[1]] : n + 1] if re.match(r"\s+(@\S+ )?[a-z]\w*\.", x)]


def test_a_weight_takes_four_instructions():
    """Its bits, its number, its link of the chain, and a share of reading values and factors: what a multiprocessor
    can do while memory brings the next."""
    w = nn.QuantizedArray(np.zeros((4096, 16 * 144), np.uint8), "Q4_K")
    (launch,) = launches_of(plan_on_cuda(volta.make_jaxpr(nn.linear)(np.zeros((1, 4096), np.float32), w))[0], "9.0a")
    found = [(len(x), sum("fma.rn" in y for y in x)) for x in loops(ptx.compile_ptx([launch.source], "9.0a"))]
    most = max(links for _, links in found)
    assert most >= 128  # of which half make numbers
    assert min(n / (links / 2) for n, links in found if links == most) < 3.85
