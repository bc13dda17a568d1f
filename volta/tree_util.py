"""``volta.tree`` under the names of ``jax.tree_util``, and the registration of container classes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from volta.core import pytrees
from volta.core.pytrees import PyTreeDef
from volta.tree import all as tree_all
from volta.tree import flatten as tree_flatten
from volta.tree import leaves as tree_leaves
from volta.tree import leaves_with_path as tree_leaves_with_path
from volta.tree import map as tree_map
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


def register_dataclass(cls: T | None = None, *, static: Sequence[str] = (), meta_fields: Sequence[str] = ()) -> Any:
    """Register a dataclass or an attrs class: its fields are children, but those named ``static`` are structure.

    Works as a decorator, with or without arguments. ``meta_fields`` is another name of ``static``.

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
        return functools.partial(register_dataclass, static=static, meta_fields=meta_fields)
    return pytrees.register_dataclass(cls, static=(*static, *meta_fields))


class Partial(functools.partial):
    """``functools.partial`` as a pytree: the bound arguments are children, the function is structure."""


pytrees.register_node(
    Partial,
    lambda p: ((p.args, p.keywords), p.func),
    lambda func, children: Partial(func, *children[0], **children[1]),
)

__all__ = [
    "Partial",
    "PyTreeDef",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "tree_all",
    "tree_flatten",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_reduce",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
]
