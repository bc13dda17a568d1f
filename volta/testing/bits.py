"""Comparing results bit by bit; all NaNs count as one, as the bit contract has it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from volta.core import contract, dtypes, pytrees
from volta.core.array import Array
from volta.core.extended import is_key
from volta.runtime.array import as_array


def _plain(x: Any) -> np.ndarray:
    """An array of unsigned integers with the bits of ``x``, its NaNs made one."""
    a = np.array(_parts(x), order="C")
    if a.dtype.kind == "b":
        return a.view(np.uint8)
    plain = a.view(np.dtype(f"u{a.dtype.itemsize}"))
    if dtypes.is_float(a.dtype):
        with np.errstate(invalid="ignore"):  # a signalling NaN is one
            nan = np.isnan(a)
        return np.where(nan, plain.dtype.type(contract.NAN_BITS[a.dtype.name]), plain)
    return plain


def elements(x: Any) -> np.ndarray:
    """An array's elements; of random keys their words, along a last axis."""
    return np.asarray(as_array(x).stored() if is_key(getattr(x, "dtype", None)) else x)


def _dtype(x: Any) -> np.dtype:
    return x.dtype if isinstance(x, Array) else np.asarray(x).dtype


def _parts(x: Any) -> np.ndarray:
    """An array; of complex numbers both parts, along a last axis."""
    a = elements(x)
    return np.stack([a.real, a.imag], -1) if dtypes.is_complex(a.dtype) else a


def differing(x: Any, y: Any) -> np.ndarray:
    """The positions, in the flat order, at which two arrays of one shape and dtype have different bits; of complex
    arrays the positions of parts, two an element, of random keys those of words.

    >>> differing(np.float32([0.0, 1.0]), np.float32([-0.0, 1.0]))
    array([0])
    """
    return np.flatnonzero((_plain(x) != _plain(y)).ravel())


def bits(tree: Any) -> list[tuple[tuple[int, ...], str, bytes]]:
    """Shape, dtype and bytes of every leaf: equal for equal results, whatever their NaNs look like.

    >>> bits(np.float32(1.0)) == bits(np.float32(1.0)), bits(np.float32(0.0)) == bits(np.float32(-0.0))
    (True, False)
    """
    return [(np.shape(x), _dtype(x).name, _plain(x).tobytes()) for x in pytrees.leaves(tree)]


def digest(tree: Any) -> str:
    """A short hexadecimal digest of :func:`bits`, to compare across processes and machines.

    >>> digest(np.arange(3, dtype=np.int32))
    '8150b2e732568243'
    """
    h = hashlib.sha256()
    for shape, dtype, data in bits(tree):
        h.update(repr((shape, dtype)).encode() + data)
    return h.hexdigest()[:16]


def assert_bits_equal(actual: Any, expected: Any, message: str = "") -> None:
    """Assert that two pytrees of arrays have the same structure, shapes, dtypes and bits.

    Raises:
        AssertionError: naming the first leaf and element that differ, and both values in full.

    >>> assert_bits_equal({"a": np.ones(2)}, {"a": np.ones(2)})
    """
    head = f"{message}: " if message else ""
    leaves, tree = pytrees.flatten(actual)
    wanted, other = pytrees.flatten(expected)
    if tree != other:
        raise AssertionError(f"{head}the structures differ: {tree} and {other}")
    for number, (x, y) in enumerate(zip(leaves, wanted, strict=True)):
        a, b = elements(x), elements(y)
        kind, other_kind = (f"{_dtype(z)}{list(np.shape(z))}" for z in (x, y))
        if kind != other_kind:
            raise AssertionError(f"{head}leaf {number} is {kind}, expected {other_kind}")
        a, b = _parts(a), _parts(b)
        p, q = _plain(a), _plain(b)
        wrong = differing(a, b)
        if wrong.size:
            at = np.unravel_index(int(wrong[0]), a.shape)
            shown = [f"{v[at]!r} (0x{int(raw[at]):0{2 * a.dtype.itemsize}x})" for v, raw in ((a, p), (b, q))]
            raise AssertionError(
                f"{head}leaf {number} ({kind}) differs in {wrong.size} of {a.size} elements; the "
                f"first, {tuple(int(k) for k in at)}, is {shown[0]}, expected {shown[1]}"
            )
