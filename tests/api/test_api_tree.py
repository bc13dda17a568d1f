"""volta.tree and volta.tree_util."""

import copy
import dataclasses
import functools
import operator

import attrs
import numpy as np
import optree
import pytest

import volta
import volta.numpy as vnp
from volta import tree, tree_util
from volta.errors import ShapeError

X = np.random.default_rng(5).uniform(-1, 1, (4, 3)).astype(np.float32)


def test_tree_functions() -> None:
    t = {"b": [2, (3, None)], "a": 1}
    assert tree.leaves(t) == [1, 2, 3]
    leaves, treedef = tree.flatten(t)
    assert tree.unflatten(treedef, leaves) == t and tree.structure(t) == treedef
    assert tree.map(lambda x, y: x + y, t, t) == {"a": 2, "b": [4, (6, None)]}
    assert tree.reduce(lambda x, y: x + y, t) == 6 and tree.reduce(lambda x, y: x + y, t, 10) == 16
    assert tree.all([True, (1,)]) and not tree.all([True, 0])
    paths = [(tree.keystr(path), leaf) for path, leaf in tree.leaves_with_path(t)]
    assert paths == [("['a']", 1), ("['b'][0]", 2), ("['b'][1][0]", 3)]
    assert tree.keystr(tree.leaves_with_path(t)[2][0], simple=True, separator="/") == "b/1/0"
    assert tree.map_with_path(lambda path, x, y: (len(path), x + y), t, t) == {
        "b": [(2, 4), ((3, 6), None)],
        "a": (1, 2),
    }
    assert tree.broadcast({"a": 7, "b": 8}, t) == {"a": 7, "b": [8, (8, None)]}
    assert tree.map(len, [[1, 2], [3]], is_leaf=lambda x: isinstance(x, list) and isinstance(x[0], int)) == [2, 1]
    turned = tree.transpose(tree.structure([0, 0]), tree.structure({"x": 0}), [{"x": 1}, {"x": 2}])
    assert turned == {"x": [1, 2]}
    assert tree.transpose(tree.structure([0, 0]), None, [(1, 2), (3, 4)]) == ([1, 3], [2, 4])
    with pytest.raises(volta.errors.TreeError, match="tree 2 has the structure"):
        tree.map(lambda x, y: x, [1, 2], [1, 2, 3])


def test_registration() -> None:
    @tree_util.register_pytree_node_class
    class Point:
        def __init__(self, x, y):
            self.x, self.y = x, y

        def tree_flatten(self):
            return (self.x, self.y), "aux"

        @classmethod
        def tree_unflatten(cls, aux, children):
            assert aux == "aux"
            return cls(*children)

    assert tree.leaves(Point(1, [2])) == [1, 2]
    assert tree.map(lambda x: x * 2, Point(1, 2)).y == 4

    class Box:
        def __init__(self, item):
            self.item = item

    tree_util.register_pytree_node(Box, lambda b: ((b.item,), None), lambda aux, children: Box(children[0]))
    assert float(volta.grad(lambda b: b.item * b.item)(Box(3.0)).item) == 6

    @tree_util.register_dataclass(static=("name",))
    @dataclasses.dataclass(frozen=True)
    class Layer:
        w: object
        name: str

    @tree_util.register_dataclass(meta_fields=["n"])
    @attrs.frozen
    class Net:
        layers: object
        n: int

    net = Net([Layer(np.ones(2, np.float32), "first")], 2)
    traces = []

    @volta.jit
    def f(net):
        traces.append(net.n)
        return tree.map(lambda w: w * net.n, net)

    assert f(net).layers[0].w.tolist() == [2, 2] and f(net).layers[0].name == "first"
    f(attrs.evolve(net, n=3))
    assert traces == [2, 3]


def test_fields_marked_static_and_static_classes() -> None:
    @tree_util.register_dataclass
    @dataclasses.dataclass
    class Layer:
        w: object
        name: str = dataclasses.field(metadata={"static": True})

    @tree_util.register_static
    class Name(str):
        pass

    assert tree.leaves([Layer(1, "a"), Name("b")]) == [1]
    assert tree.keystr(tree.leaves_with_path(Layer(1, "a"))[0][0]) == ".w"
    assert tree.structure(Name("b")) != tree.structure(Name("c"))


def test_partial_is_a_tree() -> None:
    p = tree_util.Partial(lambda w, x: w * x, 2.0)
    assert tree.leaves(p) == [2.0]
    assert float(volta.jit(lambda f, x: f(x))(p, 3.0)) == 6


def test_names_of_jax() -> None:
    assert tree_util.tree_map(lambda x: x + 1, [1]) == [2]
    assert tree_util.tree_leaves([1, 2]) == [1, 2]
    assert tree_util.tree_unflatten(tree_util.tree_structure([0]), [5]) == [5]
    assert tree_util.tree_reduce(max, [1, 3, 2]) == 3 and tree_util.tree_all([1])


def test_ravel_pytree():
    params = {"w": X, "b": (np.zeros(2, np.float32), 3.0), "none": None, "empty": np.zeros((0, 2), np.float32)}
    flat, unravel = volta.flatten_util.ravel_pytree(params)
    assert flat.shape == (X.size + 3,) and flat.dtype == np.float32
    again = unravel(flat)
    assert tree.structure(again) == tree.structure(params)
    for a, b in zip(tree.leaves(again), tree.leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ShapeError, match=rf"needs shape \({X.size + 3},\), not \(4,\)"):
        unravel(flat[:4])
    mixed, back = volta.flatten_util.ravel_pytree([np.int32([1, 2]), np.float64([0.5])])
    assert mixed.dtype == np.float64 and [x.dtype.name for x in back(mixed)] == ["int32", "float64"]
    nothing, back = volta.flatten_util.ravel_pytree(())
    assert nothing.shape == (0,) and back(nothing) == ()


def test_a_gradient_through_ravel_pytree_has_the_bits_of_the_tree():
    def loss(p):
        return vnp.sum(vnp.tanh(X @ p["w"] + p["b"]) ** 2)

    params = {"w": np.ones((X.shape[-1], 2), np.float32), "b": np.ones(2, np.float32)}
    flat, unravel = volta.flatten_util.ravel_pytree(params)
    gradient = volta.grad(lambda v: loss(unravel(v)))
    assert gradient(flat).tolist() == volta.jit(gradient)(flat).tolist()
    assert gradient(flat).tolist() == volta.flatten_util.ravel_pytree(volta.grad(loss)(params))[0].tolist()


def test_errors_in_functions_that_trees_and_numpy_call_show_the_users_line() -> None:
    def grow(x):
        return x + vnp.ones(5)  # the line

    calls = {
        "tree.map": lambda: tree.map(grow, {"a": vnp.ones(3)}),
        "map_with_path": lambda: tree.map_with_path(lambda path, x: grow(x), {"a": vnp.ones(3)}),
        "tree.reduce": lambda: tree.reduce(lambda a, b: grow(a), [vnp.ones(3), vnp.ones(3)]),
        "optree's": lambda: optree.tree_map(grow, {"a": vnp.ones(3)}),
        "NumPy's": lambda: np.apply_along_axis(lambda x: grow(vnp.asarray(x)), 0, np.ones(3)),
        "functools": lambda: functools.reduce(lambda a, b: grow(a), [vnp.ones(3), vnp.ones(3)]),
    }
    for name, call in calls.items():
        with pytest.raises(volta.errors.ShapeError, match="# the line") as caught:
            call()
        assert "test_api_tree.py" in str(caught.value), name
    with pytest.raises(volta.errors.ShapeError, match="in <lambda>\n.*np.sum"):
        (lambda: np.sum(vnp.ones(3), axis=7))()
    program = volta.make_jaxpr(lambda t: tree.map(lambda x: x * 2, t))({"a": 1.0})
    assert program.eqns[0].source.file == __file__


def test_trees_that_do_not_agree_are_tree_errors() -> None:
    """Wherever two trees meet, with the user's line, and without the leaves, which may be long."""
    a, b = {"w": vnp.ones(10000)}, {"v": vnp.ones(10000)}
    adam = volta.optim.adam(1e-3)
    calls = {
        "map": lambda: tree.map(lambda x, y: x, a, b),
        "map of lists": lambda: tree.map(lambda x, y: x, [1], (1,)),
        "map_with_path": lambda: tree.map_with_path(lambda p, x, y: x, a, b),
        "broadcast": lambda: tree.broadcast(a, b),
        "too few leaves": lambda: tree.unflatten(tree.structure(a), []),
        "too many leaves": lambda: tree_util.tree_unflatten(tree.structure(a), [1, 2]),
        "transpose": lambda: tree.transpose(tree.structure([0, 0]), None, {"a": 1}),
        "transpose of none": lambda: tree.transpose(tree.structure([]), None, []),
        "transpose of others": lambda: tree.transpose(tree.structure([0]), tree.structure([0]), [1, 2, 3]),
        "reduce": lambda: tree.reduce(lambda x, y: x, []),
        "reduce_associative": lambda: tree.reduce_associative(lambda x, y: x, []),
        "apply_updates": lambda: volta.optim.apply_updates(a, b),
        "adam": lambda: adam.update(b, adam.init(a), a),
        "select_tree": lambda: volta.optim.select_tree(True, a, b),
    }
    for name, call in calls.items():
        with pytest.raises(volta.errors.TreeError) as caught:
            call()
        text = str(caught.value)
        assert "test_api_tree.py" in text and "in <lambda>" in text and len(text) < 700, name
    with pytest.raises(ValueError, match="mine"):  # what a function says itself stays
        tree.map(lambda x: (_ for _ in ()).throw(ValueError("mine")), a)


def test_what_a_partial_has_bound_already_is_structure():
    inner = functools.partial(operator.sub, 5)
    outer = tree_util.Partial(inner, 3)
    assert outer() == 2 and outer.args == (3,) and outer.func == inner and inner == outer.func
    assert tree_util.tree_leaves(outer) == [3] and hash(outer.func) == hash(tree_util.Partial(inner, 4).func)
    assert tree_util.tree_structure(outer) == tree_util.tree_structure(tree_util.Partial(inner, 4))
    assert tree_util.tree_map(lambda x: x + 1, outer)() == 1 and copy.copy(outer)() == 2
    assert volta.jit(lambda f: f())(outer) == 2
