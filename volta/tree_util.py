"""``volta.tree`` under the names of ``jax.tree_util``, and the registration of container classes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from volta.core import pytrees
from volta.core.absent import namespace as _namespace
from volta.core.source import at_user_line
from volta.core.treedefs import PyTreeDef, spec_of
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
from volta.tree import reduce_associative as tree_reduce_associative
from volta.tree import structure as tree_structure
from volta.tree import transpose as tree_transpose
from volta.tree import unflatten as tree_unflatten

T = TypeVar("T", bound=type)


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Any, Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_with_keys_func: Callable[[Any], tuple[Any, Any]] | None = None,
) -> None:
    """Register a container class: ``flatten_func(x) -> (children, aux)``, ``unflatten_func(aux, children) -> x``.

    ``aux`` must be hashable and comparable: it is part of the tree's structure. ``flatten_with_keys_func`` gives the
    children with their keys, as in :func:`register_pytree_with_keys`.
    """
    if flatten_with_keys_func is not None:
        register_pytree_with_keys(nodetype, flatten_with_keys_func, unflatten_func)
    else:
        pytrees.register_node(nodetype, flatten_func, unflatten_func)


def register_pytree_node_class(cls: T) -> T:
    """Class decorator: ``tree_flatten(self)`` and a classmethod ``tree_unflatten(cls, aux, children)`` say how."""
    pytrees.register_node(cls, lambda x: x.tree_flatten(), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


def register_pytree_with_keys(
    nodetype: T,
    flatten_with_keys: Callable[[Any], tuple[Any, Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_func: Callable[[Any], tuple[Any, Any]] | None = None,
) -> T:
    """Register a container class whose children have keys: ``flatten_with_keys(x) -> (((key, child), …), aux)``.

    Keys such as ``GetAttrKey("x")`` appear in paths. ``flatten_func`` is a quicker way to the children alone; it is
    accepted for JAX's sake.
    """

    def flatten(x: Any) -> Any:
        pairs, aux = flatten_with_keys(x)
        pairs = tuple(pairs)
        return tuple(child for _, child in pairs), aux, tuple(key for key, _ in pairs)

    pytrees.register_node(nodetype, flatten, unflatten_func)
    return nodetype


def register_pytree_with_keys_class(cls: T) -> T:
    """Class decorator: ``tree_flatten_with_keys(self)`` and a classmethod ``tree_unflatten(cls, aux, children)``."""
    flatten: Callable[[Any], Any] = lambda x: x.tree_flatten_with_keys()  # noqa: E731
    return register_pytree_with_keys(cls, flatten, cls.tree_unflatten)  # type: ignore[attr-defined]


def all_leaves(iterable: Iterable[Any], is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether every item is a leaf.

    >>> from volta import tree_util
    >>> tree_util.all_leaves([1, 2]), tree_util.all_leaves([1, [2]])
    (True, False)
    """
    items = list(iterable)
    flat = tree_leaves(items, is_leaf)
    return len(flat) == len(items) and all(a is b for a, b in zip(items, flat, strict=True))


def flatten_one_level(tree: Any) -> tuple[tuple[Any, ...], Any]:
    """What a container has right inside, and what its class keeps besides: a dict's keys, a registered class's data.

    Raises:
        TreeError: ``tree`` is no container (a ValueError too).

    >>> from volta import tree_util
    >>> tree_util.flatten_one_level({"a": [1, 2], "b": {"c": 3}})
    (([1, 2], {'c': 3}), ('a', 'b'))
    """
    return pytrees.flatten_one_level(tree)


def flatten_one_level_with_keys(tree: Any) -> tuple[tuple[tuple[Any, Any], ...], Any]:
    """As :func:`flatten_one_level`, each child with its key.

    Raises:
        TreeError: ``tree`` is no container (a ValueError too).

    >>> from volta import tree_util
    >>> tree_util.flatten_one_level_with_keys({"a": [1, 2]})
    (((DictKey(key='a'), [1, 2]),), ('a',))
    """
    _, rest = pytrees.flatten_one_level(tree)
    found, _ = tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    return tuple((path[0], child) for path, child in found), rest


def is_tree_node(typ: type) -> bool:
    """Whether a class is one of containers: Python's own, named tuples, and those that are registered.

    >>> from volta import tree_util
    >>> tree_util.is_tree_node(dict), tree_util.is_tree_node(int)
    (True, False)
    """
    if not isinstance(typ, type):
        raise TypeError(at_user_line(f"is_tree_node: takes a class, not {typ!r:.60}; it is type(x)"))
    return pytrees.is_node_type(typ)


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """Whether a structure is that of a single leaf."""
    return spec_of("treedef_is_leaf", treedef).is_leaf()


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """The structures right below the root."""
    return treedef.children()


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple of trees of the given structures.

    >>> from volta import tree_util
    >>> leaf = tree_util.tree_structure(1)
    >>> tree_util.treedef_tuple([leaf, leaf]) == tree_util.tree_structure((1, 2))
    True
    """
    parts = [tree_unflatten(t, [object()] * t.num_leaves) for t in treedefs]
    return tree_structure(tuple(parts))


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


class _Whole:
    """A ``functools.partial`` that another one is not merged with; equal to it."""

    def __init__(self, function: functools.partial[Any]):
        self.function = function
        self.func, self.args, self.keywords = function.func, function.args, function.keywords

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self.function == (other.function if isinstance(other, _Whole) else other)

    def __hash__(self) -> int:
        return hash(self.function)

    def __repr__(self) -> str:
        return repr(self.function)


class Partial(functools.partial):
    """``functools.partial`` as a pytree: the bound arguments are children, the function is structure.

    So is what a ``functools.partial`` has bound already that is given as the function, as in JAX.
    """

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Partial:
        return super().__new__(cls, _Whole(func) if isinstance(func, functools.partial) else func, *args, **kwargs)


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
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "is_tree_node",
    "PyTreeDef",
    "SequenceKey",
    "all_leaves",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
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
    "tree_reduce_associative",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
    "treedef_children",
    "treedef_is_leaf",
    "treedef_tuple",
]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
