"""Pytrees as names and JSON: what lets :func:`volta.io.load` give back the tree that was saved.

Arrays go by their path, ``layers.0.w``. The structure is JSON with one node for each container and leaf; Python
numbers, bools and texts are leaves too and live in it directly. No code is run to rebuild a tree: dict, list, tuple,
OrderedDict and None are built in, a namedtuple class must be imported already, and any other node (a dataclass that
was registered) needs a tree of its kind as ``like``.
"""

from __future__ import annotations

import re
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optree

from volta.core import dtypes, pytrees
from volta.core.array import Array
from volta.core.errors import DTypeError, FormatError, TreeError
from volta.core.extended import KEY_TYPES, is_key
from volta.io.reading import Reader
from volta.runtime.array import plain

PyTree = Any
Node = tuple[str, Any] | None

MAX_DEPTH = 256
"""Levels of a tree: more would need more of Python's stack than a caller may have left."""

_MAX_STORED_DEPTH = 2 * MAX_DEPTH  # of files: earlier versions wrote some deeper ones
_SCALARS = (bool, int, float, str)
_ROOT = "value"  # the name of a tree that is one array
_KEYS = {f"{kind} array": kind for kind in KEY_TYPES}
_ARRAYS = ("array", "weak array", *_KEYS)  # arrays of keys lie in the file as their words
_MAX_DIGITS = 4000  # Python turns 4,300 into text and back, unless it is told otherwise
_TOO_LARGE = 10**_MAX_DIGITS
_INT = re.compile(r"-?[0-9]+")


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
                raise TreeError(f"{_where(path)}: dict keys must be str or int to be saved, not {key!r:.80}")
            _check_digits(key, path)
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
    parts = list(map(str, one.entries))
    if len(set(parts)) < len(parts):
        raise TreeError(f"{_where(path)}: a {kind.__name__} has two children of one name")
    return "node " + _class_name(kind), list(zip(parts, one.children, strict=True))


def describe(tree: PyTree, elements: Callable[[Any], np.ndarray] = plain) -> tuple[Any, dict[str, np.ndarray]]:
    """The structure of ``tree`` as JSON values, and its arrays by name: what ``elements`` gives of each, in order.

    Raises:
        TreeError: for a leaf that is neither an array nor a Python number, bool or text, for keys that collide, and for
            a tree that is nested deeper than `MAX_DEPTH`, or contains itself.
        DTypeError: for an array that Volta's dtypes do not cover, and for a masked one.
    """
    arrays: dict[str, np.ndarray] = {}
    names: set[str] = set()

    def walk(node: PyTree, path: tuple[Any, ...]) -> Any:
        if node is None:
            return None
        inner = _children(node, path)
        if inner is not None:
            if len(path) == MAX_DEPTH:
                raise TreeError(f"the tree is nested more than {MAX_DEPTH} levels deep, or contains itself")
            kind, children = inner
            stored: list[Any] = []
            for part, child in children:
                stored.append([part, walk(child, (*path, part))])
            return [kind, stored]
        name = _join(path)
        if name in names:
            raise TreeError(f"two leaves would have the name {name!r}; rename a key")
        names.add(name)
        if type(node) in _SCALARS:
            _check_digits(node, path)
            return ["float", node.hex()] if type(node) is float else ["scalar", node]
        if not isinstance(node, (Array, np.ndarray, np.generic)):
            raise TreeError(f"{_where(path)}: cannot save a {type(node).__name__}; arrays, numbers and texts can be")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise TreeError(f"{name!r} is not valid Unicode text; rename the key") from None
        given: Any = node
        of_keys = is_key(given.dtype)
        try:
            x = elements(given.stored() if of_keys else given)
            arrays[name] = x.astype(dtypes.canonicalize(x.dtype), copy=False).view()  # its shape is our own
        except DTypeError as error:
            raise DTypeError(f"{_where(path)}: {error}") from None
        if of_keys:
            return [f"{node.dtype} array", name]
        return ["weak array" if isinstance(node, Array) and node.weak_type else "array", name]

    return walk(tree, ()), arrays


def _check_digits(number: Any, path: tuple[Any, ...]) -> None:
    if type(number) is int and abs(number) >= _TOO_LARGE:
        raise TreeError(f"{_where(path)}: an int of more than {_MAX_DIGITS} digits cannot be saved")


def parse(text: str) -> Node:
    """A stored structure as nodes: None, or (kind, value), where a container's value is (part of the path, node) pairs.

    Raises:
        FormatError: for text that is no structure.
    """
    reader = Reader(text, "corrupt: the pytree's structure is none")
    node = _parse_node(reader, 0)
    reader.end()
    return node


def _parse_node(reader: Reader, depth: int) -> Node:
    if reader.word("null"):
        return None
    begin = reader.at
    reader.expect("[")
    kind = sys.intern(reader.string())
    reader.expect(",")
    if kind in ("float", "scalar", *_ARRAYS):
        value = _parse_scalar(reader) if kind == "scalar" else reader.string()
        reader.expect("]")
        return kind, value
    if kind not in ("dict", "ordered", "list", "tuple") and not kind.startswith(("namedtuple ", "node ")):
        raise FormatError(f"corrupt: {reader.text[begin : begin + 60]} is no node of a pytree")
    if depth == _MAX_STORED_DEPTH:
        raise FormatError(f"corrupt: the pytree is nested more than {_MAX_STORED_DEPTH} levels deep")
    children: dict[Any, Node] = {}
    for _ in reader.each("[", "]"):
        reader.expect("[")
        part = reader.string() if reader.next() == '"' else _parse_int(reader)
        reader.expect(",")
        if part in children:
            raise FormatError(f"corrupt: {part!r:.80} occurs twice in a {kind:.80}")
        children[part] = _parse_node(reader, depth + 1)
        reader.expect("]")
    reader.expect("]")
    if kind in ("list", "tuple") and list(children) != list(range(len(children))):
        raise FormatError(f"corrupt: a {kind} whose items are not counted from 0")
    return kind, list(children.items())


def _parse_scalar(reader: Reader) -> bool | int | str:
    if reader.next() == '"':
        return reader.string()
    if reader.word("true"):
        return True
    return False if reader.word("false") else _parse_int(reader)


def _parse_int(reader: Reader) -> int:
    reader.next()
    found = _INT.match(reader.text, reader.at)
    if found is None:
        raise reader.fail("no integer")
    reader.at = found.end()
    try:
        return int(found[0])
    except ValueError as error:  # this process takes fewer digits than others
        raise reader.fail(str(error)) from None


def leaves_by_name(structure: Node) -> dict[str, Node]:
    """The leaves of a stored structure by name. Raises FormatError where names are not those of the places."""
    found: dict[str, Node] = {}

    def walk(node: Node, path: tuple[str, ...]) -> None:
        if node is None:
            return
        kind, value = node
        if isinstance(value, list):
            for part, child in value:
                walk(child, (*path, str(part)))
            return
        name = _join(path)
        if name in found or (kind.endswith("array") and value != name):
            raise FormatError(f"corrupt: the pytree has another leaf than {name!r:.80} in its place")
        found[name] = node

    walk(structure, ())
    return found


def leaf(node: Node, arrays: dict[str, Any], weak: Any) -> Any:
    """A stored leaf as a value; ``weak(x)`` marks an array as weakly typed.

    Raises:
        FormatError: for a float that is none, and for words that are none of keys.
    """
    assert node is not None
    kind, value = node
    if kind == "scalar":
        return value
    if kind == "float":
        try:
            return float.fromhex(value)
        except (ValueError, OverflowError):
            raise FormatError(f"corrupt: {value!r:.80} is no float") from None
    if kind in _KEYS:
        words, of = arrays[value], _KEYS[kind]
        if words.dtype != dtypes.uint32 or words.shape[-1:] != (of.words,):
            raise FormatError(f"corrupt: {value!r:.80} is {words.aval}, which are no words of {of}")
        return words.keyed(of)
    return weak(arrays[value]) if kind == "weak array" else arrays[value]


def rebuild(structure: Node, arrays: dict[str, Any], weak: Any) -> PyTree:
    """The tree that :func:`describe` was given.

    Raises:
        TreeError: for a node whose class is not at hand: pass ``like``.
    """

    def walk(node: Node) -> PyTree:
        if node is None:
            return None
        kind, value = node
        if not isinstance(value, list):
            return leaf(node, arrays, weak)
        children = []
        for part, child in value:
            children.append((part, walk(child)))
        if kind == "dict":
            return dict(children)
        if kind == "ordered":
            return OrderedDict(children)
        items = [child for _, child in children]
        if kind in ("list", "tuple"):
            return items if kind == "list" else tuple(items)
        kind, _, name = kind.partition(" ")
        if kind == "node":
            raise TreeError(
                f"the file holds a {name:.80}, which load cannot build by itself; pass a tree of its kind as like="
            )
        return tuple.__new__(_named_tuple(name, tuple(str(part) for part, _ in children)), items)

    return walk(structure)


def _own(found: Any) -> Mapping[str, Any]:
    """The names of a module or a class, without asking it."""
    if issubclass(type(found), types.ModuleType):
        return types.ModuleType.__getattribute__(found, "__dict__")
    return type.__getattribute__(found, "__dict__") if issubclass(type(found), type) else {}


def _named_tuple(name: str, fields: tuple[str, ...]) -> type[tuple]:
    """A namedtuple class that is there already. Nothing is asked that could run code: a module's own ``__getattr__``
    may import others, and a class may make its instances as it likes.
    """
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = _own(found).get(part)
    if not (isinstance(found, type) and optree.is_namedtuple_class(found) and found._fields == fields):  # type: ignore[attr-defined]
        raise TreeError(
            f"the file holds a namedtuple {name:.80} with fields {', '.join(fields) or '(none)':.80}, which is not "
            "imported here (load runs no code from a file); import its module first, or pass a tree of its kind as "
            "like="
        )
    return found


def named(tree: PyTree, kind: type) -> dict[str, Any]:
    """The leaves of a class, by the names that they have in a file."""
    found: dict[str, Any] = {}

    def walk(node: PyTree, path: tuple[Any, ...]) -> None:
        inner = None if node is None else _children(node, path)
        if inner is not None:
            for part, child in inner[1]:
                walk(child, (*path, str(part)))
        elif node is not None and isinstance(node, kind):
            found[_join(path)] = node

    walk(tree, ())
    return found


def fill(like: PyTree, leaves: dict[str, Any], value_of: Any) -> PyTree:
    """A tree with the structure of ``like`` and the stored leaves, matched by name.

    Raises:
        FormatError: when names, shapes or dtypes differ; the message lists what is missing and what is left over.
    """
    wanted = named(like, object)
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
        built = []
        for part, child in children:
            built.append((part, build(child, (*path, str(part)))))
        if kind in ("dict", "ordered"):
            return type(node)(built)
        items = [value for _, value in built]
        if kind in ("list", "tuple"):
            return type(node)(items)
        if kind.startswith("namedtuple "):
            return tuple.__new__(type(node), items)
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
