"""The public package's word for what weights in blocks stand for."""

import gguf
import numpy as np


def numbers_of(packed, name):
    """What the blocks stand for, as float32."""
    with np.errstate(invalid="ignore"):
        return gguf.quants.dequantize(packed, getattr(gguf.GGMLQuantizationType, name))
