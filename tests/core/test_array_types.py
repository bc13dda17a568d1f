"""``volta.Array`` is every array, traced ones too, and what type checkers know of it is what is there."""

import ast
import inspect

import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.core import array
from volta.core.array import Array
from volta.numpy import methods, updates
from volta.runtime.array import ConcreteArray

TRANSFORMS = {
    "jit": lambda f: volta.jit(f)(1.0),
    "vmap": lambda f: volta.vmap(f)(vnp.ones(2)),
    "grad": lambda f: volta.grad(f)(1.0),
    "jvp": lambda f: volta.jvp(f, (1.0,), (1.0,)),
    "checkpoint": lambda f: volta.grad(volta.checkpoint(f))(1.0),
    "scan": lambda f: lax.scan(lambda c, x: (f(c), x), 1.0, vnp.ones(2)),
    "while_loop": lambda f: lax.while_loop(lambda x: x < 10, f, vnp.ones(())),
    "cond": lambda f: lax.cond(True, f, f, 1.0),
    "eval_shape": lambda f: volta.eval_shape(f, 1.0),
    "make_jaxpr": lambda f: volta.make_jaxpr(f)(1.0),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_values_of_transformed_functions_are_arrays(name):
    seen = []

    def f(x):
        seen.append((isinstance(x, volta.Array), isinstance(x, volta.Tracer)))
        return x * 2.0

    TRANSFORMS[name](f)
    assert seen and set(seen) == {(True, True)}


def test_arrays_with_elements_are_arrays_and_nothing_else_is():
    x = vnp.ones(2)
    assert isinstance(x, volta.Array) and not isinstance(x, volta.Tracer)
    assert not any(isinstance(other, volta.Array) for other in (1.0, [1.0], vnp.float32(1), vnp.asarray(x).numpy()))
    assert issubclass(volta.Tracer, volta.Array) and issubclass(ConcreteArray, volta.Array)


def _declared(cls: str) -> dict[str, ast.FunctionDef]:
    """The methods of a class of ``core/array.py`` that only type checkers see."""
    tree = ast.parse(inspect.getsource(array))
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls)
    only = [n for block in found.body if isinstance(block, ast.If) for n in block.body] or found.body
    return {node.name: node for node in only if isinstance(node, ast.FunctionDef)}


def _real(name: str):
    return getattr(Array, name, None) or getattr(ConcreteArray, name)


def test_each_operator_and_method_is_declared_for_type_checkers():
    both = [f"__{name}__" for name in methods._BINARY] + [f"__r{name}__" for name in methods._BINARY]
    rest = [f"__{name}__" for name in (*methods._COMPARE, *methods._UNARY)]
    installed = {*both, *rest, *methods.METHODS, *methods.METHODS_WITH_OUT, *methods._PROPERTIES}
    assert installed <= _declared("Array").keys()


def test_each_declared_method_is_there_and_takes_what_is_declared():
    for name, declared in _declared("Array").items():
        real = _real(name)
        if isinstance(real, property) or name.startswith("__"):
            continue
        wanted = [a.arg for a in (*declared.args.args[1:], *declared.args.kwonlyargs)]
        taken = list(inspect.signature(real).parameters)
        assert set(wanted) <= set(taken), f"{name}: declared {wanted}, takes {taken}"


def test_each_update_is_declared_for_type_checkers():
    there = {name for name in vars(updates.IndexUpdateRef) if not name.startswith("_")} - {"array", "index"}
    assert there == _declared("IndexUpdate").keys()
