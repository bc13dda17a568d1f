"""Kernels that tests of users' kernels share: each is compiled once a process."""

import numba
import numpy as np

import volta


@volta.kernel(out=lambda x: x)
@numba.njit
def smooth(x, out):
    n = x.shape[0]
    for i in range(n):
        out[i] = x[i] / 2 + (x[max(i - 1, 0)] + x[min(i + 1, n - 1)]) / 4


@volta.kernel(out=lambda x: x)
@numba.njit
def smooth_back(ct, out):
    n = ct.shape[0]
    for i in range(n):
        share = ct[i] / 4
        out[i] += ct[i] / 2
        out[max(i - 1, 0)] += share
        out[min(i + 1, n - 1)] += share


@smooth.vjp
def _(operands, result, ct):
    return (smooth_back(ct),)


@smooth.jvp
def _(operands, result, tangents):
    return smooth(tangents[0])


@smooth_back.vjp
def _(operands, result, ct):
    return (smooth(ct),)


@smooth_back.jvp
def _(operands, result, tangents):
    return smooth_back(tangents[0])


def smooth_by_hand(x: np.ndarray) -> np.ndarray:
    """What `smooth` computes, in NumPy, operation by operation."""
    two, four = np.asarray(2, x.dtype), np.asarray(4, x.dtype)
    left, right = np.concatenate([x[:1], x[:-1]]), np.concatenate([x[1:], x[-1:]])
    return x / two + (left + right) / four


@volta.kernel(out=lambda x, scale, shift: {"moved": x, "count": volta.ShapeDtypeStruct((), "int32")})
@numba.njit
def move(x, scale, shift, count, moved):
    """An array and two numbers; a dict of results, in the order of its keys. Large elements raise."""
    for i in range(x.size):
        if x[i] > 100:
            raise ValueError("too large", i)
        moved[i] = x[i] * scale + shift
        count[()] += 1


@move.vjp
def _(operands, results, cts):
    x, scale, _ = operands
    ct = cts["moved"]
    return ct * scale, (ct * x).sum(), ct.sum()
