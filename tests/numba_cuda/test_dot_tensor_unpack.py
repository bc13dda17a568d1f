"""Products on tensor cores with weights in blocks, on the host runner: with the bits of the product with an array."""

import numpy as np
import pytest

from tests.numba_cuda.test_cuda_dot_blocks import operands
from tests.numba_cuda.test_dot_rounded import UNPACKED, any_scales, linear, planned, run, with_array
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.products import dot_tensor
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)

SHAPES = dot_tensor._SHAPES["unpacking"]


def check(x, w):
    got, names = run(linear, x, w)
    assert any(f"_{w.format}_" in name for name in names)
    assert_bits_equal(got, run(with_array, x, w)[0])


@pytest.mark.parametrize("name", UNPACKED)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.rows}x{s.cols}x{s.stages}x{s.unpacking}")
def test_every_tile_has_the_bits_of_the_product_with_an_array(shape, name, monkeypatch):
    """Stages are filled again and again; beyond the last row and column there is nothing."""
    monkeypatch.setitem(dot_tensor._SHAPES, "unpacking", (shape,))
    for m, n, blocks in ((70, 200, 3), (1, 33, 1), (128, 257, 2)):
        check(*operands(name, m, n, blocks))


def test_a_block_of_threads_has_several_tiles(monkeypatch):
    monkeypatch.setattr(dot_tensor, "filling", lambda processors: 2)
    x, w = operands("Q4_K", 70, 800, 2)
    plan, _ = planned(linear, x, w)
    assert launches_of(plan, "9.0a")[-1].grid == 2
    check(x, w)


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_the_order_of_threads_does_not_matter(order):
    x, w = operands("Q4_K", 3, 140, 2)
    assert_bits_equal(run(linear, x, w, order=order)[0], run(linear, x, w)[0])


@pytest.mark.parametrize("name", UNPACKED)
def test_scales_of_any_bits(name):
    for first in range(0, 512, 128):
        check(np.eye(128, 512, first, dtype=np.float32), any_scales(name))


def test_many_rows_have_an_array():
    few, many = (run(linear, *operands("Q4_K", m, 33, 1))[1] for m in (128, 129))
    assert not any("volta_unpack" in name for name in few) and "volta_unpack_Q4_K" in many


def test_no_array_of_the_weights_is_in_memory():
    x, w = operands("Q4_K", 40, 512, 4)
    plan, _ = planned(linear, x, w)
    assert plan.arena_bytes < 2 * 512 * 1024
    assert not any(buffer < 0 for launch in launches_of(plan, "9.0a") for _, buffer, _ in launch.addresses)
    text = ptx.compile_ptx([launches_of(plan, "9.0a")[-1].source], "9.0a")
    assert "wgmma.mma_async" in text and "cvt.rn.bf16x2" in text and ptx.violations(text) == []
