"""Volta's functions for code that Numba compiles: their bits, instead of those of the machine's mathematics library.

Every elementwise function of floats of ``volta.lax`` (``exp``, ``tanh``, ``erf``, …), for numbers of float32 and
float64, and the ordered :func:`sum` and :func:`dot` of arrays. ``@njit`` functions call them, and so may plain Python,
where they compute the same.

>>> import math
>>> import numba
>>> import numpy as np
>>> import volta
>>> import volta.numba as vn
>>> @numba.njit
... def softplus(x):
...     return vn.log1p(vn.exp(x))
>>> bool(softplus(0.5) == volta.lax.log1p(volta.lax.exp(np.float64(0.5))))
True
"""

from volta.numba.elementwise import FUNCTIONS as _functions
from volta.numba.reductions import dot as dot
from volta.numba.reductions import sum as sum  # noqa: A004 - as in volta.numpy

globals().update(_functions)
__all__ = sorted(["dot", "sum", *_functions])  # noqa: PLE0605 - names follow from the vocabulary
