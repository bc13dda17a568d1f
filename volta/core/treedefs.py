"""The structure of a pytree as users hold it: what :func:`volta.tree.structure` returns, with JAX's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from volta.core import pytrees
from volta.core.source import at_user_line


@attrs.frozen(repr=False)
class PyTreeDef:
    """A pytree's structure: its containers, without the leaves. Structures compare, hash and can be pickled.

    >>> from volta import tree
    >>> structure = tree.structure({"a": 1, "b": (2, 3)})
    >>> structure
    PyTreeDef({'a': *, 'b': (*, *)})
    >>> structure.num_leaves, structure.children()
    (3, [PyTreeDef(*), PyTreeDef((*, *))])
    """

    spec: pytrees.TreeSpec

    @property
    def num_leaves(self) -> int:
        """How many leaves a tree of this structure has."""
        return self.spec.num_leaves

    @property
    def num_nodes(self) -> int:
        """How many containers and leaves, the root included."""
        return self.spec.num_nodes

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of these leaves. Raises TreeError where they are too few or too many."""
        return pytrees.unflatten(self.spec, leaves)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """What ``tree`` has where this structure has leaves. Raises TreeError where it does not begin as this."""
        return pytrees.flatten_up_to(self.spec, tree, "flatten_up_to: the tree")

    def children(self) -> list[PyTreeDef]:
        """The structures right below the root."""
        return [PyTreeDef(spec) for spec in self.spec.children()]

    def compose(self, inner: PyTreeDef) -> PyTreeDef:
        """This structure with another in the place of each leaf.

        >>> from volta import tree
        >>> tree.structure([1, 2]).compose(tree.structure((1, 2)))
        PyTreeDef([(*, *), (*, *)])
        """
        return PyTreeDef(self.spec.compose(spec_of("compose", inner)))

    def node_data(self) -> tuple[type, Any] | None:
        """The root's type and what it is made of besides its children: a dict's keys, a registered class's data.

        None for a leaf.
        """
        return None if self.spec.is_leaf() else pytrees.root_of(self.spec)

    def __repr__(self) -> str:
        return pytrees.text(self.spec)


def spec_of(what: str, treedef: Any) -> pytrees.TreeSpec:
    """What a structure holds. Raises TypeError for anything else, in words: ``what`` takes a structure."""
    if not isinstance(treedef, PyTreeDef):
        kind = type(treedef).__name__
        raise TypeError(at_user_line(f"{what} takes a structure, as volta.tree.structure(tree) gives it, got {kind}"))
    return treedef.spec
