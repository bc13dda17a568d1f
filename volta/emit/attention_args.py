"""What the attention kernels of the backends share: their args block."""

from __future__ import annotations

import enum
import struct

from volta.xla_like.attention import Array, Attention, AttentionSpec
from volta.xla_like.kernels import KernelCall


class Arg(enum.IntEnum):
    """Positions in the args block of attention's kernels; behind them come those of a backend's own.

    First the addresses of the arrays (`Array`; 0 for one that a kernel lacks), then sizes, then strides in bytes.
    """

    Q = 0
    K = 1
    V = 2
    START = 3
    MASK = 4
    OUT = 5
    M = 6
    L = 7
    DO = 8
    DELTA = 9
    DQ = 10
    DK = 11
    DV = 12
    B = 13  # sizes
    N = 14
    GROUP = 15
    T = 16
    S = 17
    SCALE = 18  # the bits of the scale in the accumulator's dtype
    Q_B = 19
    Q_N = 20
    Q_T = 21
    K_B = 22
    K_N = 23  # from one key head to the next
    K_S = 24
    V_B = 25
    V_N = 26
    V_S = 27
    START_B = 28
    MASK_B = 29  # any of the mask's strides may be 0
    MASK_N = 30
    MASK_T = 31
    MASK_S = 32
    OUT_B = 33
    OUT_N = 34
    OUT_T = 35
    DO_B = 36
    DO_N = 37
    DO_T = 38
    DQ_B = 39
    DQ_N = 40
    DQ_T = 41
    DK_B = 42
    DK_N = 43
    DK_S = 44
    DV_B = 45
    DV_N = 46
    DV_S = 47


OPERANDS = tuple(arg for arg in Arg if arg < Arg.B)
"""What the first arguments are: addresses."""


def scale_bits(spec: AttentionSpec, scale: float) -> int:
    """The argument SCALE: ``scale`` rounded to the accumulator's dtype, as an integer."""
    code, integer = ("<d", "<q") if spec.accumulator == "float64" else ("<f", "<i")
    bits: int = struct.unpack(integer, struct.pack(code, scale))[0]
    return bits


def attention_words(call: KernelCall) -> tuple[int, ...]:
    """The words of a call of `Attention` behind the addresses."""
    op = call.kernel
    assert isinstance(op, Attention)
    words = dict.fromkeys((arg for arg in Arg if arg not in OPERANDS), 0)
    words |= {
        Arg.B: op.batch, Arg.N: op.heads, Arg.GROUP: op.group, Arg.T: op.queries, Arg.S: op.keys,
        Arg.SCALE: scale_bits(op.spec, op.scale),
    }  # fmt: skip
    for array, access in zip(Array, call.accesses, strict=True):
        if access.strides:
            first = Arg[f"{array.name}_B"]
            words |= {Arg(first + i): stride for i, stride in enumerate(access.strides)}
    return tuple(words.values())
