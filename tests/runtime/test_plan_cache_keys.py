"""Keys of the plan cache: programs that differ inside a nested program, or in a param without a text of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

import volta
import volta.numpy as vnp
from volta.core.ir import ClosedJaxpr, Eqn, Jaxpr, Var
from volta.runtime import gateway
from volta.runtime.array import ConcreteArray
from volta.runtime.context import current_context
from volta.runtime.plan_cache import PLAN_CACHE, _param, has_constants, program_key
from volta.testing import assert_bits_equal

X = np.arange(3, dtype=np.float32)


def key(program: ClosedJaxpr) -> tuple[Any, ...]:
    return program_key(program, (), "main", current_context())


def with_constant(number: float) -> ClosedJaxpr:
    """``x + constant`` inside a call, the constant belonging to the called program."""
    closed = volta.make_jaxpr(lambda c, x: c + x)(X, X)
    inner, (c, x) = closed.jaxpr, closed.jaxpr.invars
    constant = ConcreteArray.from_numpy(np.full(3, number, np.float32))
    called = ClosedJaxpr(inner.replace(constvars=(c,), invars=(x,)), (constant,))
    outer = volta.make_jaxpr(volta.jit(lambda x: x * 2))(X)
    (call,) = outer.eqns
    return ClosedJaxpr(outer.jaxpr.replace(eqns=(call.replace(params={**call.params, "jaxpr": called}),)), ())


def test_constants_of_nested_programs_are_not_conflated() -> None:
    one, two = with_constant(1), with_constant(2)
    assert key(one) == key(two)  # the key alone does not tell them apart, ...
    assert has_constants(one) and not has_constants(volta.make_jaxpr(volta.jit(vnp.sin))(X))
    PLAN_CACHE.clear()
    x = ConcreteArray.from_numpy(X)
    assert_bits_equal(gateway.compile(one)([x])[0], X + 1)
    assert_bits_equal(gateway.compile(two)([x])[0], X + 2)  # ... so such programs are not kept
    assert len(PLAN_CACHE) == 0


def program_with(param: Any) -> ClosedJaxpr:
    template = volta.make_jaxpr(vnp.sin)(X)
    (eqn,) = template.eqns
    x, y = Var(eqn.inputs[0].aval), Var(eqn.outputs[0].aval)
    return ClosedJaxpr(Jaxpr((), (x,), (Eqn(eqn.primitive, (x,), (y,), {"param": param}),), (y,)), ())


def test_params_count_as_themselves() -> None:
    def rule(scale: float) -> Any:
        def f(x: float) -> float:
            return scale * x

        return f

    first, second = rule(1.0), rule(2.0)
    assert first.__name__ == second.__name__
    params = [first, second, (first,), 1, 1.0, True, "1", "first", None, (1,), ((1,),), (1, 1), -0.0, 0.0, 0]
    keys = [key(program_with(p)) for p in params]
    assert len(set(keys)) == len(keys)
    assert [key(program_with(p)) for p in params] == keys


def test_nested_programs_are_part_of_the_key() -> None:
    def nested(factor: float) -> ClosedJaxpr:
        return volta.make_jaxpr(volta.jit(volta.jit(lambda x: x * factor)))(X)

    assert key(nested(2.0)) == key(nested(2.0))
    assert len({key(nested(f)) for f in (2.0, 3.0, 0.0, -0.0, float("nan"))}) == 5


def test_params_that_python_calls_equal_are_not() -> None:
    def text(value: Any) -> tuple[str, tuple[Any, ...]]:
        objects: list[Any] = []
        return _param(value, objects), tuple(objects)

    equal = [1, 1.0, True, (1,), (1.0,), (True,), ((1,),), ((True,),), 0.0, -0.0, (0.0,), (-0.0,)]
    assert len({text(value) for value in equal}) == len(equal)
