"""Pytrees as names and JSON: what lets :func:`volta.io.load` give back the tree that was saved.

Arrays go by their path, ``layers.0.w``. The structure is JSON with one node for each container and leaf; Python
numbers, bools and texts are leaves too and live in it directly. No code is run to rebuild a tree: dict, list, tuple,
OrderedDict and None are built in, a namedtuple class must be imported already, and any other node (a dataclass that
was registered) needs a tree of its kind as ``like``.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import numpy as np
import optree

from volta.core import dtypes, pytrees
from volta.core.array import Array
from volta.core.errors import DTypeError, FormatError, TreeError

PyTree = Any
_SCALARS = (bool, int, float, str)
_ROOT = "value"  # the name of a tree that is one array


def _escape(part: Any) -> str:
    """A path part as text without dots, and never ``__metadata__``, which the file keeps for itself."""
    text = str(part).replace("%", "%25").replace(".", "%2E")
    return "%5F" + text[1:] if text == "__metadata__" else text


def _join(path: tuple[Any, ...]) -> str:
    return ".".join(map(_escape, path)) or (_ROOT if not path else "%")


def _where(path: tuple[Any, ...]) -> str:
    return f"at {_join(path)!r}" if path else "at the top"


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _key_order(key: Any) -> tuple[str, Any]:
    return type(key).__name__, key


def _children(tree: PyTree, path: tuple[Any, ...]) -> tuple[str, list[tuple[Any, PyTree]]] | None:
    """A container's kind and its (part of the path, child) pairs; None for a leaf."""
    kind = type(tree)
    if kind in (dict, OrderedDict):
        for key in tree:
            if type(key) not in (str, int):
                raise TreeError(f"{_where(path)}: dict keys must be str or int to be saved, not {key!r}")
        keys = sorted(tree, key=_key_order) if kind is dict else list(tree)
        return ("dict" if kind is dict else "ordered"), [(key, tree[key]) for key in keys]
    if kind in (list, tuple):
        return kind.__name__, list(enumerate(tree))
    if optree.is_namedtuple(tree):
        return "namedtuple " + _class_name(kind), list(zip(tree._fields, tree, strict=True))
    if kind in _SCALARS or isinstance(tree, (Array, np.ndarray, np.generic)):
        return None
    try:
        one = optree.tree_flatten_one_level(tree, namespace=pytrees.NAMESPACE)
    except ValueError:
        return None
    return "node " + _class_name(kind), list(zip(one.entries, one.children, strict=True))


def describe(tree: PyTree) -> tuple[Any, dict[str, np.ndarray]]:
    """The structure of ``tree`` as JSON values, and its arrays by name.

    Raises:
        TreeError: for a leaf that is neither an array nor a Python number, bool or text, and for keys that collide.
    """
    arrays: dict[str, np.ndarray] = {}
    names: set[str] = set()

    def walk(node: PyTree, path: tuple[Any, ...]) -> Any:
        if node is None:
            return None
        inner = _children(node, path)
        if inner is not None:
            kind, children = inner
            if kind.startswith("node "):
                children = [(str(part), child) for part, child in children]
            return [kind, [[part, walk(child, (*path, part))] for part, child in children]]
        name = _join(path)
        if name in names:
            raise TreeError(f"two leaves would have the name {name!r}; rename a key")
        names.add(name)
        if type(node) in _SCALARS:
            return ["float", node.hex()] if type(node) is float else ["scalar", node]
        if not isinstance(node, (Array, np.ndarray, np.generic)):
            raise TreeError(f"{_where(path)}: cannot save a {type(node).__name__}; arrays, numbers and texts can be")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise TreeError(f"{name!r} is not valid Unicode text; rename the key") from None
        x = np.asarray(node)
        try:
            arrays[name] = x.astype(dtypes.canonicalize(x.dtype.newbyteorder("=")), copy=False)
        except DTypeError as error:
            raise DTypeError(f"{_where(path)}: {error}") from None
        return ["weak array" if isinstance(node, Array) and node.weak_type else "array", name]

    return walk(tree, ()), arrays


def leaves_by_name(structure: Any) -> dict[str, Any]:
    """The leaf nodes of a stored structure by name. Raises FormatError for JSON that is no structure."""
    found: dict[str, Any] = {}

    def walk(node: Any, path: tuple[Any, ...]) -> None:
        if node is None:
            return
        kind, value = _node(node)
        if isinstance(value, list):
            for part, child in value:
                walk(child, (*path, str(part)))
        else:
            found[_join(path)] = node

    walk(structure, ())
    return found


def _node(node: Any) -> tuple[str, Any]:
    """A stored node as (kind, value), checked."""
    if not isinstance(node, list) or len(node) != 2 or not isinstance(node[0], str):
        raise FormatError(f"corrupt: {str(node)[:60]} is no node of a pytree")
    kind, value = node
    if kind in ("array", "weak array"):
        good = isinstance(value, str)
    elif kind == "scalar":
        good = type(value) in (bool, int, str)
    elif kind == "float":
        good = isinstance(value, str)
    else:
        good = isinstance(value, list) and all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 and type(pair[0]) in (str, int) for pair in value
        )
        good = good and (kind in ("dict", "ordered", "list", "tuple") or kind.startswith(("namedtuple ", "node ")))
    if not good:
        raise FormatError(f"corrupt: {str(node)[:60]} is no node of a pytree")
    return kind, value


def leaf(node: Any, arrays: dict[str, Any], weak: Any) -> Any:
    """A stored leaf as a value; ``weak(x)`` marks an array as weakly typed."""
    kind, value = node
    if kind == "scalar":
        return value
    if kind == "float":
        try:
            return float.fromhex(value)
        except (ValueError, OverflowError):
            raise FormatError(f"corrupt: {value!r} is no float") from None
    if value not in arrays:
        raise FormatError(f"corrupt: the pytree names an array {value!r} that the file does not have")
    return weak(arrays[value]) if kind == "weak array" else arrays[value]


def rebuild(structure: Any, arrays: dict[str, Any], weak: Any) -> PyTree:
    """The tree that :func:`describe` was given.

    Raises:
        FormatError: for JSON that is no structure.
        TreeError: for a node whose class is not at hand: pass ``like``.
    """

    def walk(node: Any) -> PyTree:
        if node is None:
            return None
        kind, value = _node(node)
        if not isinstance(value, list):
            return leaf(node, arrays, weak)
        children = [(part, walk(child)) for part, child in value]
        if kind == "dict":
            return dict(children)
        if kind == "ordered":
            return OrderedDict(children)
        if kind in ("list", "tuple"):
            items = [child for _, child in children]
            return items if kind == "list" else tuple(items)
        kind, _, name = kind.partition(" ")
        if kind == "node":
            raise TreeError(
                f"the file holds a {name}, which load cannot build by itself; pass a tree of its kind as like="
            )
        return _named_tuple(name, tuple(str(part) for part, _ in children))(*(child for _, child in children))

    return walk(structure)


def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and optree.is_namedtuple_class(found) and found._fields == fields):  # type: ignore[attr-defined]
        raise TreeError(
            f"the file holds a namedtuple {name} with fields {', '.join(fields) or '(none)'}, which is not imported "
            "here (load runs no code from a file); import its module first, or pass a tree of its kind as like="
        )
    return found


def fill(like: PyTree, leaves: dict[str, Any], value_of: Any) -> PyTree:
    """A tree with the structure of ``like`` and the stored leaves, matched by name.

    Raises:
        FormatError: when names, shapes or dtypes differ; the message lists what is missing and what is left over.
    """
    wanted: dict[str, Any] = {}

    def walk(node: PyTree, path: tuple[Any, ...]) -> None:
        inner = None if node is None else _children(node, path)
        if inner is not None:
            for part, child in inner[1]:
                walk(child, (*path, str(part)))
        elif node is not None:
            wanted[_join(path)] = node

    walk(like, ())
    missing = [name for name in wanted if name not in leaves]
    extra = [name for name in leaves if name not in wanted]
    if missing or extra:
        parts = [f"{what} {_some(names)}" for what, names in (("it lacks", missing), ("has in excess", extra)) if names]
        raise FormatError(f"the file does not fit like=: {' and '.join(parts)}")
    values = {name: _fitting(name, node, value_of(leaves[name])) for name, node in wanted.items()}

    def build(node: PyTree, path: tuple[Any, ...]) -> PyTree:
        inner = None if node is None else _children(node, path)
        if inner is None:
            return None if node is None else values[_join(path)]
        kind, children = inner
        built = [(part, build(child, (*path, str(part)))) for part, child in children]
        if kind in ("dict", "ordered"):
            return type(node)(built)
        items = [value for _, value in built]
        if kind in ("list", "tuple"):
            return type(node)(items)
        if kind.startswith("namedtuple "):
            return type(node)(*items)
        one = optree.tree_flatten_one_level(node, namespace=pytrees.NAMESPACE)
        return one.unflatten_func(one.metadata, items)

    return build(like, ())


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _fitting(name: str, template: Any, value: Any) -> Any:
    if type(template) in _SCALARS or type(value) in _SCALARS:
        if type(template) is not type(value):
            raise FormatError(
                f"the file does not fit like= at {name!r}: it has a {type(value).__name__}, "
                f"like= has a {type(template).__name__}"
            )
        return value
    if not (hasattr(template, "shape") and hasattr(template, "dtype")):
        raise TreeError(f"at {name!r}: like= has a {type(template).__name__}; it must have a shape and a dtype")
    if tuple(template.shape) != value.shape or dtypes.canonicalize(template.dtype) != value.dtype:
        raise FormatError(
            f"the file does not fit like= at {name!r}: it has {value.dtype}{list(value.shape)}, "
            f"like= has {dtypes.canonicalize(template.dtype)}{list(template.shape)}"
        )
    return value
