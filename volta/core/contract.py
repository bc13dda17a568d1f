"""The constants of the bit contract: the one place that states them (docs/determinism.md says what they mean).

A change of any of them moves bits, so it changes ``ID``; plan-cache keys, exported programs and checkpoints carry it.
"""

ID = "strict-v1"

# SUM: blocks of SUM_LANES x SUM_ROWS; a lane adds every SUM_LANES-th element, lanes combine by halves, blocks in pairs.
SUM_LANES = 64
SUM_ROWS = 64
SUM_BLOCK = SUM_LANES * SUM_ROWS

# DOT: chains of this many fused multiply-adds over ascending k, their values added in ascending order.
DOT_CHUNK = 256

# Attention: key blocks of this length, aligned to position 0, merged in ascending order.
ATTENTION_BLOCK = 256

# NaNs that leave a kernel, by the bits of their dtype.
NAN_BITS = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
