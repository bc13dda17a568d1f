"""Functions under the names of ``jax.scipy``: so far those of ``volta.scipy.special`` that Volta has primitives for."""

from volta.scipy import special

__all__ = ["special"]
