"""Vector quantization, under the names of ``jax.scipy.cluster.vq``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import volta.numpy as vnp
from volta.core.absent import namespace as _namespace
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy.promotion import promote_floats

__all__ = ["vq"]


def vq(obs: ArrayLike, code_book: ArrayLike, check_finite: bool = True) -> tuple[Array, Array]:
    """The nearest of several vectors to each observation, and how far it is.

    Args:
        obs: (n, d) observations, or (n,).
        code_book: (k, d) vectors, or (k,).
        check_finite: accepted for SciPy's sake.

    Returns:
        int32 numbers of vectors (n,), the first of several, and distances (n,).

    >>> [x.tolist() for x in vq(vnp.asarray([[0.0], [4.0]]), vnp.asarray([[1.0], [3.5]]))]
    [[0, 1], [1.0, 0.5]]
    """
    obs, code_book = promote_floats("vq", obs, code_book)
    if obs.ndim != code_book.ndim or obs.ndim not in (1, 2) or obs.shape[1:] != code_book.shape[1:]:
        text = f"observations of shape {obs.shape} and vectors of shape {code_book.shape} are not of one length"
        raise ShapeError(at_user_line(f"vq: {text}"))
    if obs.ndim == 1:
        obs, code_book = obs[:, None], code_book[:, None]
    distances = vnp.linalg.norm(obs[:, None, :] - code_book[None, :, :], axis=-1)
    return vnp.argmin(distances, -1), vnp.min(distances, -1)


if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
