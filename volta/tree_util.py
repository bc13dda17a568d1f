"""``volta.tree`` under the names of ``jax.tree_util``, and the registration of container classes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs

from volta.core import pytrees
from volta.core.pytrees import PyTreeDef
from volta.tree import DictKey, FlattenedIndexKey, GetAttrKey, KeyPath, SequenceKey, keystr
from volta.tree import all as tree_all
from volta.tree import broadcast as tree_broadcast
from volta.tree import flatten as tree_flatten
from volta.tree import flatten_with_path as tree_flatten_with_path
from volta.tree import leaves as tree_leaves
from volta.tree import leaves_with_path as tree_leaves_with_path
from volta.tree import map as tree_map
from volta.tree import map_with_path as tree_map_with_path
from volta.tree import reduce as tree_reduce
from volta.tree import structure as tree_structure
from volta.tree import transpose as tree_transpose
from volta.tree import unflatten as tree_unflatten

T = TypeVar("T", bound=type)


def register_pytree_node(
    cls: type, flatten_fn: Callable[[Any], tuple[Any, Any]], unflatten_fn: Callable[[Any, Any], Any]
) -> None:
    """Register a container class: ``flatten_fn(x) -> (children, aux)``, ``unflatten_fn(aux, children) -> x``.

    ``aux`` must be hashable and comparable: it is part of the tree's structure.
    """
    pytrees.register_node(cls, flatten_fn, unflatten_fn)


def register_pytree_node_class(cls: T) -> T:
    """Class decorator: ``tree_flatten(self)`` and a classmethod ``tree_unflatten(cls, aux, children)`` say how."""
    pytrees.register_node(cls, lambda x: x.tree_flatten(), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


def register_static(cls: T) -> T:
    """Class decorator: instances are trees without leaves, part of the structure (they must hash and compare)."""
    pytrees.register_node(cls, lambda x: ((), x), lambda x, children: x)
    return cls


def register_dataclass(
    cls: T | None = None,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] = (),
    *,
    static: Sequence[str] = (),
) -> Any:
    """Register a dataclass or an attrs class: its fields are children, but static ones are part of the structure.

    Static are the fields named in ``static`` (or ``meta_fields``), those with ``metadata={"static": True}``, and, where
    ``data_fields`` is given, all others. Works as a decorator, with or without arguments.

    >>> import dataclasses
    >>> from volta import tree_util
    >>> @tree_util.register_dataclass
    ... @dataclasses.dataclass
    ... class Point:
    ...     x: float
    ...     y: float
    >>> tree_util.tree_map(lambda v: v * 2, Point(1.0, 2.0))
    Point(x=2.0, y=4.0)
    """
    if cls is None:
        return functools.partial(register_dataclass, data_fields=data_fields, meta_fields=meta_fields, static=static)
    fields: list[Any] = list(attrs.fields(cls) if attrs.has(cls) else getattr(cls, "__dataclass_fields__", {}).values())
    marked = [f.name.lstrip("_") if attrs.has(cls) else f.name for f in fields if f.metadata.get("static", False)]
    rest = [] if data_fields is None else [f.name for f in fields if f.init and f.name not in data_fields]
    return pytrees.register_dataclass(cls, static=tuple(dict.fromkeys((*static, *meta_fields, *marked, *rest))))


class Partial(functools.partial):
    """``functools.partial`` as a pytree: the bound arguments are children, the function is structure."""


pytrees.register_node(
    Partial,
    lambda p: ((p.args, p.keywords), p.func),
    lambda func, children: Partial(func, *children[0], **children[1]),
)

__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "KeyPath",
    "Partial",
    "PyTreeDef",
    "SequenceKey",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_static",
    "tree_all",
    "tree_broadcast",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
]
