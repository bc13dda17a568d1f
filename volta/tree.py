"""Pytrees: nested dicts, lists, tuples and registered classes as flat lists of leaves. ``None`` is an empty subtree.

>>> from volta import tree
>>> tree.map(lambda x: x + 1, {"a": 1, "b": [2, 3]})
{'a': 2, 'b': [3, 4]}
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any

from volta.core import pytrees
from volta.core.errors import TreeError
from volta.core.pytrees import PyTreeDef, flatten, leaves, structure, unflatten

_MISSING = object()


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Apply ``f`` to each leaf of ``tree`` (and to the leaves of ``rest`` at the same places).

    Raises:
        TreeError: when a tree of ``rest`` does not have the structure of ``tree`` as a prefix.
    """
    try:
        return pytrees.map(f, tree, *rest, is_leaf=is_leaf)
    except ValueError as reason:
        for i, other in enumerate(rest):
            if structure(other, is_leaf) != structure(tree, is_leaf):
                raise TreeError(
                    f"tree.map: tree {i + 1} has the structure {structure(other, is_leaf)}, the first has "
                    f"{structure(tree, is_leaf)} ({reason})"
                ) from None
        raise


def all(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether every leaf is true."""
    return builtins.all(leaves(tree, is_leaf))


def reduce(
    f: Callable[[Any, Any], Any],
    tree: Any,
    initializer: Any = _MISSING,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Fold the leaves, in order, with a function of two values."""
    items = leaves(tree, is_leaf)
    return functools.reduce(f, items) if initializer is _MISSING else functools.reduce(f, items, initializer)


def leaves_with_path(tree: Any) -> list[tuple[str, Any]]:
    """Pairs of a path, as Python would write it (``['a'][0].w``), and a leaf."""
    return list(zip(pytrees.leaf_paths(tree), leaves(tree), strict=True))


def transpose(outer: PyTreeDef, inner: PyTreeDef, tree: Any) -> Any:
    """A tree of structure ``outer`` whose leaves have structure ``inner``, turned inside out."""
    flat = leaves(tree)
    n = inner.num_leaves
    if len(flat) != outer.num_leaves * n:
        raise TreeError(f"tree.transpose: {len(flat)} leaves are not {outer.num_leaves} times {n}")
    rows = [unflatten(outer, flat[k::n]) for k in range(n)]
    return unflatten(inner, rows)


__all__ = [
    "all",
    "flatten",
    "leaves",
    "leaves_with_path",
    "map",
    "reduce",
    "structure",
    "transpose",
    "unflatten",
]
