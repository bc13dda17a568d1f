"""Structures of pytrees as users hold them: JAX's texts and methods, and what they refuse."""

import collections
import copy
import dataclasses
import pickle

import pytest

from volta import tree, tree_util
from volta.core.errors import TreeError
from volta.tree_util import PyTreeDef

Point = collections.namedtuple("Point", "a b")


@tree_util.register_dataclass
@dataclasses.dataclass
class Operation:
    x: object
    name: str = dataclasses.field(metadata={"static": True}, default="add")


@tree_util.register_static
class Name(str):
    pass


TREES = {
    "*": 1,
    "None": None,
    "()": (),
    "(*,)": (1,),
    "[*, (*, *), [*, *]]": [1, (2, 3), [4, 5]],
    "{'a': [*], 'b': None}": {"b": None, "a": [2]},
    "{}": {},
    "CustomNode(namedtuple[Point], [*, (*, *)])": Point(1, (2, 3)),
    "CustomNode(OrderedDict[('z', 'a')], [*, *])": collections.OrderedDict(z=1, a=2),
    "CustomNode(defaultdict[(<class 'list'>, ('q',))], [*])": collections.defaultdict(list, q=1),
    "CustomNode(Operation[('add',)], [*])": Operation(1),
    "CustomNode(Name[add], [])": Name("add"),
}


@pytest.mark.parametrize("text", TREES)
def test_texts_are_jaxs(text):
    assert repr(tree.structure(TREES[text])) == f"PyTreeDef({text})"


@pytest.mark.parametrize("text", TREES)
def test_a_structure_is_a_value(text):
    """It is rebuilt, compared, hashed, copied and pickled; its children and its root's data are the tree's."""
    leaves, structure = tree.flatten(TREES[text])
    assert isinstance(structure, PyTreeDef) and structure.num_leaves == len(leaves)
    assert structure.unflatten(leaves) == tree.unflatten(structure, leaves) == TREES[text]
    for other in (tree.structure(TREES[text]), copy.deepcopy(structure), pickle.loads(pickle.dumps(structure))):
        assert other == structure and hash(other) == hash(structure)
    assert structure.num_nodes == 1 + sum(child.num_nodes for child in structure.children())
    assert (structure.node_data() is None) == tree_util.treedef_is_leaf(structure)
    assert structure.compose(tree.structure(0)) == structure
    assert structure.flatten_up_to(TREES[text]) == leaves


def test_texts_and_data_are_those_of_the_installed_jax():
    jax = pytest.importorskip("jax")
    jax.tree_util.register_dataclass(Operation, ["x"], ["name"])
    jax.tree_util.register_static(Name)
    for value in TREES.values():
        ours, theirs = tree.structure(value), jax.tree_util.tree_structure(value)
        assert (repr(ours), ours.num_leaves) == (repr(theirs), theirs.num_leaves)
        data = theirs.node_data()
        if isinstance(value, Point):
            data = data and (data[0], None)
        assert ours.node_data() == data


def test_what_composes_puts_a_structure_in_each_leaf_s_place():
    inner = tree.structure({"k": (1, 2)})
    assert tree.structure([1, None, 2]).compose(inner) == tree.structure([{"k": (1, 2)}, None, {"k": (3, 4)}])


def test_what_is_no_structure_is_refused():
    for function in (tree.unflatten, tree.transpose):
        with pytest.raises(TypeError, match="takes a structure, as volta.tree.structure"):
            function([1, 2], *([1, 2] for _ in range(1 if function is tree.unflatten else 2)))
    with pytest.raises(TypeError, match="treedef_is_leaf takes a structure.*got list"):
        tree_util.treedef_is_leaf([1])
    with pytest.raises(TreeError, match=r"3 leaves for the structure PyTreeDef\(\(\*, \*\)\)"):
        tree.structure((1, 2)).unflatten([1, 2, 3])
    with pytest.raises(TreeError, match=r"flatten_up_to: the tree has the structure PyTreeDef\(\[\*\]\)"):
        tree.structure((1, 2)).flatten_up_to([1])
