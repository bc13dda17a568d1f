"""The args of a product's kernels that are CUDA's own."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from volta.emit.dot_args import Arg


class Sharing(enum.IntEnum):
    """Positions in the args block behind those of `Arg`: how a product is shared out among blocks of threads, and what
    lies where in its scratch memory, `Arg.WORKSPACE`. A kernel reads those that it has a use for."""

    WHOLE = len(Arg)  # tiles that one block computes each
    PER = len(Arg) + 1  # chunks of a part of the others (dot_split.py)
    TILES = len(Arg) + 2  # first parts, or how many of the others are computed by serial split-K (dot_serial.py)
    TREE_SLOTS = len(Arg) + 3  # slots of DOT's tree that the whole tiles share
    LEVELS = len(Arg) + 4  # levels of DOT's tree that a tile has places for (dot_blocks.py)
    TREE = len(Arg) + 5  # where those places begin


def with_words(sizes: tuple[int, ...], words: Mapping[Sharing, int]) -> tuple[int, ...]:
    """The integers of a call's args, from `Arg.BATCH1` on, with some of `Sharing` set."""
    out = list(sizes)
    for which, word in words.items():
        out[which - Arg.BATCH1] = word
    return tuple(out)
