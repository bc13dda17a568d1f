"""Pytrees, through optree: nested containers as flat lists of leaves. ``None`` is an empty subtree, as in JAX."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sized
from typing import Any, TypeVar

import attrs
import numpy as np
import optree

from volta.core.errors import TreeError
from volta.core.source import at_user_line

NAMESPACE = "volta"
TreeSpec = optree.PyTreeSpec
T = TypeVar("T", bound=type)


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeSpec]:
    return optree.tree_flatten(tree, is_leaf, namespace=NAMESPACE)


def unflatten(treedef: TreeSpec, leaves: Any) -> Any:
    """The tree of a structure and its leaves.

    Raises:
        TreeError: there are more or fewer leaves than the structure has.
    """
    try:
        return treedef.unflatten(leaves)
    except ValueError:
        count = len(leaves) if isinstance(leaves, Sized) else treedef.num_leaves
        if count == treedef.num_leaves:
            raise  # by a registered class, which says itself what it is about
        raise TreeError(
            at_user_line(f"unflatten: {count} leaves for the structure {text(treedef)}, which has {treedef.num_leaves}")
        ) from None


def flatten_up_to(treedef: TreeSpec, tree: Any, what: str) -> list[Any]:
    """What stands in ``tree`` where ``treedef`` has leaves.

    Raises:
        TreeError: ``tree``, in words ``what``, has another structure above its leaves.
    """
    try:
        return treedef.flatten_up_to(tree)
    except (ValueError, TypeError) as reason:
        raise TreeError(
            at_user_line(
                f"{what} has the structure {text(structure(tree))}, which does not begin as {text(treedef)} "
                f"({reason!s:.200})"
            )
        ) from None


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    return optree.tree_leaves(tree, is_leaf, namespace=NAMESPACE)


def structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    return optree.tree_structure(tree, is_leaf, namespace=NAMESPACE)


def root_of(treedef: TreeSpec) -> tuple[type, Any]:
    """The type of a structure's root, and what it is made of besides its children."""
    level = treedef.one_level()
    assert level is not None, "a leaf has no root"
    kind: type
    data: Any
    kind, data = level.walk([None] * treedef.num_children, lambda kind, data, _: (kind, data), None)
    if optree.is_namedtuple_class(kind):
        return kind, None  # its children are its fields
    if kind is defaultdict:
        return kind, (data[0], tuple(data[1]))
    return kind, data.value if isinstance(data, _Static) else tuple(data) if kind is OrderedDict else data


def text(treedef: TreeSpec) -> str:
    """A structure as JAX writes it: containers of Python's as they are, of others the class with its data."""
    return f"PyTreeDef({_inner_text(treedef)})"


def _inner_text(treedef: TreeSpec) -> str:
    if treedef.is_leaf():
        return "*"
    kind, data = root_of(treedef)
    inside = [_inner_text(child) for child in treedef.children()]
    if kind is type(None):
        return "None"
    if kind is tuple:
        return f"({inside[0]},)" if len(inside) == 1 else f"({', '.join(inside)})"
    if kind is dict:
        return "{" + ", ".join(f"{key!r}: {child}" for key, child in zip(data, inside, strict=True)) + "}"
    children = f"[{', '.join(inside)}]"
    if kind is list:
        return children
    named = f"namedtuple[{kind.__name__}]" if optree.is_namedtuple_class(kind) else f"{kind.__name__}[{data}]"
    return f"CustomNode({named}, {children})"


def is_node_type(kind: type) -> bool:
    """Whether a class is one of containers."""
    return optree.register_pytree_node.get(kind, namespace=NAMESPACE) is not None


def flatten_one_level(tree: Any) -> tuple[tuple[Any, ...], Any]:
    """The children of a container and what else it is made of.

    Raises:
        TreeError: ``tree`` is no container.
    """
    if tree is None:
        return (), None
    try:
        children, aux, *_ = optree.tree_flatten_one_level(tree, namespace=NAMESPACE)
    except (ValueError, TypeError):
        raise TreeError(at_user_line(f"flatten_one_level: a value of type {type(tree).__name__} is a leaf")) from None
    return tuple(children), aux.value if isinstance(aux, _Static) else tuple(aux) if isinstance(aux, list) else aux


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """``f`` of each leaf, and of what the other trees have at its place.

    Raises:
        TreeError: another tree does not have the structure of the first as a prefix.
    """
    items, treedef = flatten(tree, is_leaf)
    others = [flatten_up_to(treedef, other, f"tree.map: tree {i}") for i, other in enumerate(rest, 2)]
    return treedef.unflatten([f(*xs) for xs in zip(items, *others, strict=True)])


@attrs.frozen
class SequenceKey:
    """A place in a list or a tuple."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx}]"


@attrs.frozen
class DictKey:
    """A key of a dict."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@attrs.frozen
class GetAttrKey:
    """A field of a dataclass, an attrs class or a named tuple."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@attrs.frozen
class FlattenedIndexKey:
    """A child of a registered class that says no more of it than its number."""

    key: Any

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


KEYS = SequenceKey, DictKey, GetAttrKey, FlattenedIndexKey
"""What paths are made of, and what classes that are registered with keys name their children by."""


def leaf_paths(tree: Any) -> list[str]:
    """The path of each leaf as Python would write it: ``['layers'][0].w``."""
    return structure_paths(structure(tree))


def structure_paths(treedef: TreeSpec) -> list[str]:
    """The path of each leaf of a structure, as :func:`leaf_paths`."""
    return ["".join([_spelled(key) for key in path]) for path in optree.treespec_accessors(treedef)]


def _spelled(entry: Any) -> str:
    return str(entry.entry) if isinstance(entry.entry, KEYS) else entry.codify("")


def exact(value: Any) -> Any:
    """A key for a setting that a program is traced for: equal only for values that compute the same.

    ``1``, ``1.0`` and ``True`` are three keys, ``0.0`` and ``-0.0`` two, also inside of tuples. What is neither a
    number nor a tuple counts by its own ``==``.
    """
    kind = type(value)
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if kind in (float, complex):
        return kind, repr(value)
    if isinstance(value, tuple):
        return kind, tuple([exact(x) for x in value])
    return kind, value


class _Static:
    """The part of a registered class that is structure, compared by :func:`exact`. Every jitted call makes some."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static):
            return False
        return self.value is other.value or bool(exact(self.value) == exact(other.value))

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def register_node(cls: T, flatten_fn: Callable[[Any], Any], unflatten_fn: Callable[[Any, Any], Any]) -> T:
    """Register a container class. ``flatten_fn(x) -> (children, aux)``, ``unflatten_fn(aux, children) -> x``."""

    def flatten_exactly(x: Any) -> Any:
        children, aux, *names = flatten_fn(x)
        return (children, _Static(aux), *names)

    def unflatten_exactly(aux: Any, children: Any) -> Any:
        return unflatten_fn(aux.value, children)

    optree.register_pytree_node(cls, flatten_exactly, unflatten_exactly, namespace=NAMESPACE)
    return cls


def register_dataclass(cls: T, static: tuple[str, ...] = ()) -> T:
    """Register a dataclass or an attrs class: its fields are children, except those named in ``static``.

    Can be used as a decorator. Raises TypeError for a class that is neither.
    """
    if dataclasses.is_dataclass(cls):
        names = [f.name for f in dataclasses.fields(cls) if f.init]
    elif attrs.has(cls):
        names = [f.name.lstrip("_") for f in attrs.fields(cls) if f.init]
    else:
        raise TypeError(f"{cls!r} is neither a dataclass nor an attrs class; use register_pytree_node instead")
    dynamic = tuple(n for n in names if n not in static)

    def flatten_fn(x: Any) -> Any:
        return tuple(getattr(x, n) for n in dynamic), tuple(getattr(x, n) for n in static), dynamic

    def unflatten_fn(aux: Any, children: Any) -> Any:
        return cls(**dict(zip(dynamic, children, strict=True)), **dict(zip(static, aux, strict=True)))

    return register_node(cls, flatten_fn, unflatten_fn)
