"""Classes that JAX knows as pytrees, made known to Volta."""

from __future__ import annotations

from typing import Any

import jax
import optree

from volta.core import pytrees


def adopt(tree: Any) -> None:
    """Register with Volta the class of every node of ``tree`` that JAX takes apart and Volta would not."""
    todo = [tree]
    while todo:
        node = todo.pop()
        children, structure = _one_level(node)
        if jax.tree_util.treedef_is_leaf(structure) and structure.num_leaves:
            continue
        if optree.tree_is_leaf(node, namespace=pytrees.NAMESPACE):
            _register(type(node))
        todo.extend(children)


def adopt_known() -> None:
    """Register with Volta the classes that JAX knows by now, so that Volta's own transforms take them apart too.

    JAX has no public list of them; without it those of arguments are registered when they are first met.
    """
    known = getattr(jax.tree_util, "_registry", None) or getattr(jax._src.tree_util, "_registry", {})
    for cls in [cls for cls in known if cls not in _seen]:
        _seen.add(cls)
        try:
            _register(cls)
        except ValueError:
            continue  # Volta has it


_seen: set[type] = set()


def _one_level(node: Any) -> tuple[list[Any], Any]:
    return jax.tree_util.tree_flatten(node, is_leaf=lambda x: x is not node)


def _register(cls: type) -> None:
    """The structure of one level, as JAX has it, is what Volta compares and rebuilds from."""
    pytrees.register_node(cls, _one_level, jax.tree_util.tree_unflatten)
