"""Pytrees: nested dicts, lists, tuples and registered classes as flat lists of leaves. ``None`` is an empty subtree.

>>> from volta import tree
>>> tree.map(lambda x: x + 1, {"a": 1, "b": [2, 3]})
{'a': 2, 'b': [3, 4]}
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs
import optree

from volta.core import pytrees
from volta.core.absent import namespace as _namespace
from volta.core.errors import TreeError
from volta.core.pytrees import (
    KEYS,
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    SequenceKey,
    leaves,
)
from volta.core.source import at_user_line
from volta.core.treedefs import PyTreeDef, spec_of

_MISSING = object()


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], PyTreeDef]:
    """The leaves of a tree, and its structure.

    >>> from volta import tree
    >>> tree.flatten([1, {"a": 2}])
    ([1, 2], PyTreeDef([*, {'a': *}]))
    """
    items, spec = pytrees.flatten(tree, is_leaf)
    return items, PyTreeDef(spec)


def structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> PyTreeDef:
    """The structure of a tree.

    >>> from volta import tree
    >>> tree.structure([1, (2, None)])
    PyTreeDef([*, (*, None)])
    """
    return PyTreeDef(pytrees.structure(tree, is_leaf))


def unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of a structure and its leaves.

    Raises:
        TreeError: there are more or fewer leaves than the structure has.
        TypeError: ``treedef`` is no structure.

    >>> from volta import tree
    >>> tree.unflatten(tree.structure([0, {"a": 0}]), [1, 2])
    [1, {'a': 2}]
    """
    return pytrees.unflatten(spec_of("tree.unflatten", treedef), leaves)


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Apply ``f`` to each leaf of ``tree`` (and to the leaves of ``rest`` at the same places).

    Raises:
        TreeError: when a tree of ``rest`` does not have the structure of ``tree`` as a prefix.
    """
    return pytrees.map(f, tree, *rest, is_leaf=is_leaf)


def all(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether every leaf is true."""
    return builtins.all(leaves(tree, is_leaf))


def reduce(
    function: Callable[[Any, Any], Any],
    tree: Any,
    initializer: Any = _MISSING,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Fold the leaves, in order, with a function of two values."""
    items = leaves(tree, is_leaf)
    if initializer is not _MISSING:
        return functools.reduce(function, items, initializer)
    if not items:
        raise TreeError(at_user_line("tree.reduce: a tree without leaves needs an initializer"))
    return functools.reduce(function, items)


def reduce_associative(
    operation: Callable[[Any, Any], Any],
    tree: Any,
    *,
    identity: Any = _MISSING,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Combine the leaves by an associative function of two values, as in a balanced tree.

    >>> import operator
    >>> from volta import tree
    >>> tree.reduce_associative(operator.add, [1, (2, 3)])
    6
    """
    items = leaves(tree, is_leaf)
    if not items:
        if identity is _MISSING:
            raise TreeError(at_user_line("tree.reduce_associative: a tree without leaves needs an identity"))
        return identity
    while len(items) > 1:
        pairs = [operation(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        items = pairs + items[len(pairs) * 2 :]
    return items[0]


def static(**kwargs: Any) -> Any:
    """A dataclass field that is part of a tree's structure, for classes under ``tree_util.register_dataclass``.

    Takes the arguments of :func:`dataclasses.field`.
    """
    metadata = {**(kwargs.pop("metadata", None) or {}), "static": True}
    return dataclasses.field(metadata=metadata, **kwargs)


def transpose(outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, pytree_to_transpose: Any) -> Any:
    """A tree of structure ``outer_treedef`` whose leaves have structure ``inner_treedef``, turned inside out.

    An inner structure of None is found out.
    """
    flat, outer = leaves(pytree_to_transpose), spec_of("tree.transpose", outer_treedef)
    if inner_treedef is None:
        parts = pytrees.flatten_up_to(outer, pytree_to_transpose, "tree.transpose: the tree")
        if not parts:
            raise TreeError(at_user_line("tree.transpose: an outer structure without leaves needs inner_treedef"))
        inner_treedef = structure(parts[0])
    n = spec_of("tree.transpose", inner_treedef).num_leaves
    if len(flat) != outer.num_leaves * n:
        raise TreeError(at_user_line(f"tree.transpose: {len(flat)} leaves are not {outer.num_leaves} times {n}"))
    rows = [pytrees.unflatten(outer, flat[k::n]) for k in range(n)]
    return unflatten(inner_treedef, rows)


# -- paths -------------------------------------------------------------------------------------------------------------


KeyPath = tuple[SequenceKey | DictKey | GetAttrKey | FlattenedIndexKey, ...]


def _key(entry: Any) -> Any:
    if isinstance(entry.entry, KEYS):
        return entry.entry  # of classes registered with keys
    if isinstance(entry, optree.NamedTupleEntry):
        return GetAttrKey(entry.field)
    if isinstance(entry, optree.GetAttrEntry):  # of dataclasses and attrs classes too
        return GetAttrKey(entry.name)
    if isinstance(entry, optree.SequenceEntry):
        return SequenceKey(entry.index)
    if isinstance(entry, optree.MappingEntry):
        return DictKey(entry.key)
    return FlattenedIndexKey(entry.entry)


def _paths(treedef: PyTreeDef) -> list[KeyPath]:
    return [tuple(_key(e) for e in accessor) for accessor in optree.treespec_accessors(treedef.spec)]


def flatten_with_path(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[tuple[KeyPath, Any]], PyTreeDef]:
    """Like :func:`flatten`, each leaf with the keys that lead to it.

    >>> from volta import tree
    >>> tree.flatten_with_path({"a": [5]})[0]
    [((DictKey(key='a'), SequenceKey(idx=0)), 5)]
    """
    items, treedef = flatten(tree, is_leaf)
    return list(zip(_paths(treedef), items, strict=True)), treedef


def leaves_with_path(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[KeyPath, Any]]:
    """The leaves, each with the keys that lead to it; :func:`keystr` writes these as Python would."""
    return flatten_with_path(tree, is_leaf)[0]


def map_with_path(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Like :func:`map`, with the path of the leaf as the first argument of ``f``.

    >>> from volta import tree
    >>> tree.map_with_path(lambda path, x: x + path[0].idx, [1, 2, 3])
    [1, 3, 5]
    """
    paths = unflatten(structure(tree, is_leaf), [_Boxed(path) for path in _paths(structure(tree, is_leaf))])
    return map(lambda path, *xs: f(path.path, *xs), paths, tree, *rest)


@attrs.frozen
class _Boxed:
    """A path as a leaf (a bare tuple would be a subtree)."""

    path: KeyPath


def keystr(keys: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """A path as text: ``['a'][0].w``, or with ``simple`` only the keys, with a separator between them.

    >>> from volta import tree
    >>> [tree.keystr(path) for path, _ in tree.leaves_with_path({"a": [5]})]
    ["['a'][0]"]
    """
    if not simple:
        return separator.join(str(key) for key in keys)
    return separator.join(str(attrs.astuple(key, recurse=False)[0]) for key in keys)


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """A tree of the structure of ``full_tree``: each leaf of ``prefix_tree`` stands for all that is below it."""
    return map(lambda x, below: map(lambda _: x, below, is_leaf=is_leaf), prefix_tree, full_tree, is_leaf=is_leaf)


__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "KeyPath",
    "SequenceKey",
    "all",
    "broadcast",
    "flatten",
    "flatten_with_path",
    "keystr",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "reduce_associative",
    "static",
    "structure",
    "transpose",
    "unflatten",
]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
