"""Boxes of arrays are copied within a device's memory: everything inside, and nothing else."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from volta.numba_cuda.device import boxes
from volta.runtime import devices


def draw(rng, ndim):
    """A box, and as large a one in another array."""
    sizes = rng.integers(1, 5, ndim)
    found = []
    for _ in range(2):
        before, after = rng.integers(0, 3, (2, ndim)) * (rng.random((2, ndim)) < 0.4)
        shape = tuple(int(x) for x in sizes + before + after)
        found.append(boxes.Box(shape, tuple((int(a), int(a + n)) for a, n in zip(before, sizes, strict=True))))
    return found


def index(box):
    return tuple(slice(a, b) for a, b in box.bounds)


@pytest.mark.parametrize("itemsize", [1, 2, 8])
@pytest.mark.few(1)
def test_boxes_of_any_shape_are_copied(gpu, itemsize) -> None:
    rng, stream = np.random.default_rng(itemsize), gpu.stream()
    dtype = np.dtype(f"u{itemsize}")
    for number in range(60):
        put, taken = draw(rng, int(rng.integers(0, 6)))
        source, to = (rng.integers(0, 200, box.shape).astype(dtype) for box in (taken, put))
        there = []
        for x in (source, to):
            buffer = devices.empty(x.nbytes, stream)
            gpu.to_device(buffer.address, x.ctypes.data, x.nbytes, stream)
            there.append(buffer)
        boxes.copy(gpu, there[1].address, put, there[0].address, taken, itemsize, stream)
        got = np.empty_like(to)
        gpu.to_host(got.ctypes.data, there[1].address, got.nbytes, stream)
        want = to.copy()
        want[index(put)] = source[index(taken)]
        assert (got == want).all(), (number, put, taken)
        pieces = np.arange(source.size).reshape(taken.shape)[index(taken)].reshape(-1)
        assert taken.in_one_piece == bool((np.diff(pieces) == 1).all())
        assert pieces[0] * itemsize == taken.start(itemsize)


def test_what_is_empty_is_not_copied(gpu) -> None:
    nothing = boxes.Box((3, 4), ((1, 1), (0, 4)))
    boxes.copy(gpu, 0, nothing, 0, nothing, 4, gpu.stream())


def test_rows_far_apart_are_copied_one_by_one(fake, monkeypatch) -> None:
    monkeypatch.setattr(boxes, "_MOST_PITCH", 8)
    gpu = devices.gpu("cuda:0")
    stream = gpu.stream()
    x = np.arange(40, dtype=np.uint8).reshape(4, 10)
    there = devices.empty(40, stream)
    gpu.to_device(there.address, x.ctypes.data, 40, stream)
    out = devices.empty(12, stream)
    taken = boxes.Box((4, 10), ((0, 4), (2, 5)))
    boxes.copy(gpu, out.address, boxes.whole((4, 3)), there.address, taken, 1, stream)
    got = np.empty((4, 3), np.uint8)
    gpu.to_host(got.ctypes.data, out.address, 12, stream)
    assert (got == x[:, 2:5]).all() and "cuMemcpy3DAsync" not in fake.log and fake.log["cuMemcpyDtoDAsync"] == 4


def test_the_record_is_laid_out_as_the_driver_reads_it() -> None:
    """As cuda.h has CUDA_MEMCPY3D, on machines of 64 bits."""
    assert ctypes.sizeof(boxes.Copy3D) == 200
    assert boxes.Copy3D.to.offset == 88 and boxes._Side.device.offset == 48 and boxes._Side.pitch.offset == 72
