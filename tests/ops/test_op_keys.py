"""Random keys and the vocabulary: a primitive moves them as it moves integers of as many bytes, or refuses them."""

import numpy as np
import pytest

import volta
from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.errors import DTypeError
from volta.core.extended import FRY, is_key
from volta.core.ir import subjaxprs
from volta.ops.primitive import REGISTRY, Family
from volta.runtime.array import as_array
from volta.testing import assert_bits_equal
from volta.testing.cases import cases, vocabulary
from volta.xla_like.keys import has_keys, without_keys

REFUSING = [p for p in REGISTRY.values() if not p.of_keys]
SELECTING = ("select_n", "eq", "ne", "copy", "stop_gradient", "sort")
MOVING = [c for p in vocabulary() if p.of_keys and p.name != "iota" for c in cases(p, dtypes.uint64)]


def as_keys(x):
    """An array of integers as one of keys that are the same bytes."""
    return x.retyped(x.aval.update(dtype=FRY)) if x.aval.dtype == dtypes.uint64 else x


def as_integers(x):
    return x.retyped(x.aval.update(dtype=dtypes.uint64)) if is_key(x.dtype) else x


def test_what_takes_keys_is_what_moves_chooses_or_compares():
    moving = (Family.MOVEMENT, Family.INDEXING, Family.CONTROL, Family.CALL, Family.KEYS)
    named = [p.name for p in REGISTRY.values() if p.of_keys and p.family not in moving]
    assert sorted(named) == sorted(SELECTING)


@pytest.mark.parametrize("primitive", REFUSING, ids=lambda p: p.name)
def test_others_refuse_them_by_name(primitive):
    """Whatever their params are: their shape rules are asked for numbers alone."""
    keys, exponent = ShapedArray((2,), FRY), ShapedArray((2,), dtypes.int64)
    for args in [(keys, exponent)] if primitive.name == "pow_int" else [(keys,), (keys, keys), (keys, keys, keys)]:
        try:
            primitive.abstract(*args)
        except DTypeError as error:
            assert str(error).startswith(f"{primitive.name}(key<fry>[2]") and "random.key_data" in str(error)
            return
        except (TypeError, ValueError):
            continue  # an elementwise rule asks for its number of operands first, others for their params
    assert primitive.name in ("convert_element_type", "bitcast_convert_type", "axis_index"), "it takes keys"


@pytest.mark.parametrize("case", MOVING, ids=str)
@pytest.mark.turns(4)
def test_keys_move_as_integers_do(case):
    """The cases of each primitive: with keys in the place of uint64 it gives the same bytes."""
    if case.params.get("op", "set") != "set":
        return
    args = [as_array(np.asarray(x)) for x in case.args]
    keyed = [as_keys(x) for x in args]
    if case.primitive.name == "sort":  # what is sorted by is a number
        keyed[: case.params["num_keys"]] = args[: case.params["num_keys"]]

    def run(*xs):
        out = case.primitive.bind(*xs, **case.params)
        return list(out) if case.primitive.multiple_results else [out]

    for f in (run, volta.jit(run)):
        assert_bits_equal(list(map(as_integers, f(*keyed))), f(*args))


def values(program):
    jaxpr = program.jaxpr
    yield from (v.aval for v in (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars))
    for eqn in program.eqns:
        yield from (v.aval for v in (*eqn.inputs, *eqn.outputs))
        for inner in subjaxprs(eqn.params):
            yield from values(inner)


def test_compiled_programs_have_none():
    closed_over = volta.random.split(volta.random.key(1), 3)

    def f(key, n):
        def body(key, other):
            return volta.lax.cond(n > 1, lambda k: volta.random.split(k)[0], lambda k: other, key), key == other

        key, same = volta.lax.scan(body, key, closed_over)
        return volta.lax.while_loop(
            lambda k: volta.random.uniform(k) < 0.9, lambda k: volta.random.split(k)[1], key
        ), same

    program = volta.make_jaxpr(f)(volta.random.key(0), np.int32(2))
    assert has_keys(program)
    lowered = without_keys(program)
    assert not has_keys(lowered) and without_keys(lowered) is lowered
    assert not any(is_key(a.dtype) for a in values(lowered))
    assert not any(is_key(x.dtype) for x in lowered.consts)
    assert [a.stored for a in program.in_avals] == lowered.in_avals
    assert [a.stored for a in program.out_avals] == lowered.out_avals
    raw = volta.random.PRNGKey(0)

    def drawn(key):
        first, second = volta.random.split(key)
        return volta.random.key_data(volta.random.fold_in(first, 2)), volta.random.normal(second, (50,))

    typed, plain = (volta.jit(drawn).lower(k).compile().plan.as_text() for k in (volta.random.key(0), raw))
    assert typed == plain
    plan = volta.jit(f).lower(volta.random.key(0), np.int32(2)).compile().plan
    assert not any(is_key(b.aval.dtype) for b in plan.buffers)
