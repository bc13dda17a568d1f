"""Weights in blocks, of random bytes."""

import numpy as np

from volta.core.block_formats import FORMATS, INTERLEAVED


def random_blocks(name, *shape, seed=0):
    """Random bytes, with float16 numbers of moderate size where a block's scales stand."""
    fmt, rng = FORMATS[name], np.random.default_rng(seed)
    *rows, blocks = shape
    packed = rng.integers(0, 256, (*rows, blocks, fmt.nbytes), dtype=np.uint8)
    for halves in (fmt.scale, fmt.offset):
        if halves is not None:
            numbers = (rng.standard_normal((*rows, blocks, 1)) / 64).astype(np.float16)
            packed[..., halves.at : halves.at + 2] = numbers.view(np.uint8)
    return packed.reshape(*rows, blocks * fmt.nbytes)


def interleaved(name, packed):
    """The same blocks with words of 64 rows side by side, chunk by chunk: (rows / 64, bytes)."""
    fmt, (count, nbytes) = FORMATS[name], packed.shape
    size = 256 // fmt.elements * fmt.nbytes
    chunks = packed.reshape(count // INTERLEAVED, INTERLEAVED, nbytes // size, size)
    chunks = np.pad(chunks, [(0, 0)] * 3 + [(0, -size % 4)])
    words = chunks.reshape(*chunks.shape[:3], -1, 4)
    return np.ascontiguousarray(words.transpose(0, 2, 3, 1, 4)).reshape(count // INTERLEAVED, -1)
