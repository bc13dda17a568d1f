"""Integrals of samples, under the names of ``jax.scipy.integrate``.

>>> trapezoid(vnp.asarray([1.0, 2.0, 3.0])).tolist()
4.0
"""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.numpy.calculus import trapezoid

__all__ = ["trapezoid"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
