"""Keys and values of the tokens seen so far, as pytrees: rows of one length each, or pages that requests share.

What a query sees is decided by positions alone, and keys that it does not see take no part (see attention in
docs/determinism.md). So neither the size of a cache nor what it holds beyond a row's length ever changes a bit, and a
text taken at once, in pieces or token by token gives the same.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta.core import pytrees
from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.nn.attention import dot_product_attention


class _Attends:
    """What caches have in common: they know how all keys and values lie."""

    def rows(self) -> tuple[Array, Array]:
        """Keys and values of each row, (B, S, K, H)."""
        raise NotImplementedError

    def attend(
        self, query: ArrayLike, start: ArrayLike, *, scale: float | None = None, window: int | None = None
    ) -> Array:
        """Causal attention of queries at positions ``start``, ``start + 1``, … of each row to the keys up to these.

        Args:
            query: (B, T, N, H); each key head serves N / K query heads in a row.
            start: (B,) integers.
            scale: of the logits; 1 / sqrt(H) where not given.
            window: how many keys a query sees at most, its own among them (None: all).
        """
        keys, values = self.rows()
        near = None if window is None else (window - 1, 0)
        return dot_product_attention(
            query, keys, values, scale=scale, is_causal=True, query_start=start, local_window_size=near
        )


@pytrees.register_dataclass
@attrs.frozen
class KeyValueCache(_Attends):
    """Keys and values (B, S, K, H) of up to S tokens for each of B rows. A pytree.

    >>> from volta import nn
    >>> cache = nn.KeyValueCache.zeros(1, 8, heads=2, size=4)
    >>> k = np.ones((1, 3, 2, 4), np.float32)
    >>> cache = cache.update(k, k, np.array([0]))
    >>> cache.attend(k, np.array([0])).shape
    (1, 3, 2, 4)
    """

    keys: Any
    values: Any

    @staticmethod
    def zeros(batch: int, length: int, *, heads: int, size: int, dtype: Any = np.float32) -> KeyValueCache:
        """An empty cache: for ``batch`` rows of up to ``length`` tokens, key heads of ``size`` elements."""
        keys, values = (vnp.zeros((batch, length, heads, size), dtype) for _ in range(2))  # two: both may be donated
        return KeyValueCache(keys, values)

    def update(self, key: ArrayLike, value: ArrayLike, start: ArrayLike) -> KeyValueCache:
        """With those of further tokens (B, T, K, H) at positions ``start``, ``start + 1``, … of each row, (B,).

        Positions beyond the cache are dropped.
        """
        _check("KeyValueCache.update", key, self.keys.shape)
        rows = vnp.arange(self.keys.shape[0])[:, None]
        at = vnp.asarray(start)[:, None] + vnp.arange(np.shape(key)[1])
        put = lambda x, new: x.at[rows, at].set(vnp.asarray(new, x.dtype), mode="drop")  # noqa: E731
        return KeyValueCache(put(self.keys, key), put(self.values, value))

    def rows(self) -> tuple[Array, Array]:
        return self.keys, self.values


@pytrees.register_dataclass
@attrs.frozen
class PagedKeyValueCache(_Attends):
    """Keys and values in pages (P, tokens of a page, K, H), and which pages each row has, in order: ``table`` (B, n).

    Rows of different lengths share one memory. Which page is whose, whoever makes the table decides; an entry of -1 is
    no page. A pytree.

    >>> from volta import nn
    >>> cache = nn.PagedKeyValueCache.zeros(4, 2, heads=1, size=4, table=np.array([[2, 0]]))
    >>> k = np.ones((1, 3, 1, 4), np.float32)
    >>> cache.update(k, k, np.array([0])).keys[:, :, 0, 0].tolist()
    [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    """

    keys: Any
    values: Any
    table: Any

    @staticmethod
    def zeros(
        pages: int, length: int, *, heads: int, size: int, table: ArrayLike, dtype: Any = np.float32
    ) -> PagedKeyValueCache:
        """Empty pages of ``length`` tokens each."""
        keys, values = (vnp.zeros((pages, length, heads, size), dtype) for _ in range(2))
        return PagedKeyValueCache(keys, values, vnp.asarray(table, np.int32))

    def update(self, key: ArrayLike, value: ArrayLike, start: ArrayLike) -> PagedKeyValueCache:
        """As of :class:`KeyValueCache`; what has no page is dropped."""
        _check("PagedKeyValueCache.update", key, (self.table.shape[0], *self.keys.shape[1:]))
        length, pages = self.keys.shape[1], self.table.shape[1]
        at = vnp.asarray(start, np.int32)[:, None] + vnp.arange(np.shape(key)[1])
        place = vnp.minimum(at // length, pages - 1)
        page = vnp.take_along_axis(self.table, place, axis=1)
        page = vnp.where((page < 0) | (at >= length * pages), self.keys.shape[0], page)  # beyond all: dropped
        put = lambda x, new: x.at[page, at % length].set(vnp.asarray(new, x.dtype), mode="drop")  # noqa: E731
        return PagedKeyValueCache(put(self.keys, key), put(self.values, value), self.table)

    def rows(self) -> tuple[Array, Array]:
        """Each row's pages side by side."""
        (batch, pages), length = self.table.shape, self.keys.shape[1]
        found = (vnp.take(x, self.table, axis=0, mode="clip") for x in (self.keys, self.values))
        keys, values = (x.reshape(batch, pages * length, *x.shape[3:]) for x in found)
        return keys, values


def _check(name: str, key: Any, shape: tuple[int, ...]) -> None:
    own = tuple(np.shape(key))
    if len(own) != 4 or (own[0], *own[2:]) != (shape[0], *shape[2:]):
        text = f"{name}: keys {own} do not fit: wanted ({shape[0]}, tokens, {shape[2]}, {shape[3]})"
        raise ShapeError(at_user_line(text))
