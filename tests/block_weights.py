"""Weights in blocks, of random bytes."""

import numpy as np

from volta.core.block_formats import FORMATS


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
