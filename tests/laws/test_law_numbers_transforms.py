"""A Python number goes through every transform and every rule as itself: the bits are those without the transform."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.core import dtypes
from volta.sharding import NamedSharding, make_mesh
from volta.sharding import PartitionSpec as P
from volta.testing import assert_bits_equal

VALUES = np.float64([0.3, -1.7, 2.6, 0.0, 5.0])
ARRAYS = [
    *(VALUES.astype(dtype) for dtype in (np.float64, np.float32, np.float16, vnp.bfloat16)),
    np.uint8([0, 1, 2, 5, 200]),
    np.int32([1, -2, 3, 7, 0]),
    np.float64(1.7),
]
NUMBERS: tuple[Any, ...] = (0.1, 1e300, -0.0, 1 / 3, 3, 300, -1, 2**31 - 1, 0.5)
MESH = make_mesh((1,), ("d",))
WHOLE = NamedSharding(MESH, P())

Function = Callable[[Any, Any], Any]


def program(x: Any, s: Any) -> dict[str, Any]:
    """What is computed of an array and a number, and of the number alone."""
    x = vnp.asarray(x)
    return {
        "product": x * s,
        "mixed": vnp.sin(x + s) * (s * s + s / 7),
        "power": x.astype("float32") ** s,
        "where": vnp.where(x > s, s, x),
        "sum": vnp.sum(x * s),
        "quotients": divmod(x, s),
        "filled": vnp.full_like(x, s) + vnp.stack([vnp.asarray(s)] * 2).sum().astype(x.dtype),
        "rounded": x.astype("float64") * round(s, 0),
        "placed": x * volta.device_put(s),
        "placed on a mesh": x * volta.device_put(s, WHOLE),
        "constrained": x * lax.with_sharding_constraint(s, WHOLE),
    }


def first(out: Any) -> Any:
    return volta.tree.map(lambda o: o[0], out)


def twice(x: Any) -> Any:
    return vnp.stack([vnp.asarray(x)] * 2)


def custom_jvp(f: Function) -> Function:
    wrapped = volta.custom_jvp(lambda x, s: f(x, s))
    wrapped.defjvp(lambda primals, tangents: (f(*primals), volta.custom_derivatives.zero_from_primal(f(*primals))))
    return wrapped


def custom_vjp(f: Function) -> Function:
    wrapped = volta.custom_vjp(lambda x, s: f(x, s))
    wrapped.defvjp(lambda x, s: (f(x, s), ()), lambda kept, ct: (None, None))
    return wrapped


def custom_vmap(f: Function) -> Function:
    wrapped = volta.custom_batching.custom_vmap(lambda x, s: f(x, s))
    wrapped.def_vmap(lambda size, mapped, x, s: (f(x, s), volta.tree.map(lambda _: False, f(x, s))))
    return wrapped


def converted(f: Function) -> Function:
    def run(x: Any, s: Any) -> Any:
        closed, consts = volta.closure_convert(lambda x: f(x, s), x)
        return closed(x, *consts)

    return run


def by_thread(f: Function) -> Function:
    def run(x: Any, s: Any) -> Any:
        found: list[Any] = []

        def call() -> None:
            try:
                found.append(f(x, s))
            except OverflowError as error:
                found.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        if isinstance(found[0], OverflowError):
            raise found[0]
        return found[0]

    return run


def undone(f: Function) -> Function:
    def run(x: Any, s: Any) -> Any:
        with volta.disable_jit():
            return volta.jit(f)(x, s)

    return run


def sharded(f: Function) -> Function:
    return volta.shard_map(f, mesh=MESH, in_specs=(P(), P()), out_specs=P())


def tangent(x: Any) -> Any:
    return 1.0 if dtypes.is_float(getattr(x, "dtype", np.dtype(type(x)))) else np.zeros(np.shape(x), volta.float0)


def stacked(f: Function, **how: Any) -> Function:
    return lambda x, s: first(lax.scan(lambda c, _: (c, f(*c)), (x, s), None, length=3, **how)[1])


# Each a function of a function. The number is an argument of what is transformed, or closed over where that says so.
TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "jit": volta.jit,
    "jit, a memory budget": lambda f: volta.jit(f, memory_budget=1 << 20),
    "jit, a keyword": lambda f: lambda x, s: volta.jit(lambda *, x, s: f(x, s))(x=x, s=s),
    "jit, a dict": lambda f: lambda x, s: volta.jit(lambda d: f(d["x"], d["s"]))({"x": x, "s": s}),
    "jit, donated": lambda f: volta.jit(f, donate_argnums=1),
    "jit, a Partial": lambda f: lambda x, s: volta.jit(lambda g: g())(volta.tree_util.Partial(f, x, s)),
    "jit, another thread": lambda f: by_thread(volta.jit(f)),
    "compiled": lambda f: lambda x, s: volta.jit(f).lower(x, s).compile()(x, s),
    "disable_jit": undone,
    "named_scope": lambda f: volta.jit(volta.named_scope("here")(f)),
    "export": lambda f: lambda x, s: volta.export(f, x, s)(x, s),
    "checkpoint": volta.checkpoint,
    "checkpoint, a policy": lambda f: volta.checkpoint(f, policy=volta.checkpoint_policies.dots_saveable),
    "custom_jvp": custom_jvp,
    "custom_vjp": custom_vjp,
    "custom_vmap": custom_vmap,
    "custom_gradient": lambda f: volta.custom_gradient(lambda x, s: (f(x, s), lambda ct: (None, None))),
    "sequential_vmap": lambda f: (
        lambda x, s: first(volta.vmap(volta.custom_batching.sequential_vmap(f), (0, None))(twice(x), s))
    ),
    "composite": lambda f: lax.composite(f, "tests.composite"),
    "closure_convert": converted,
    "shard_map": sharded,
    "shard_map, closed over": lambda f: lambda x, s: sharded(lambda x, _: f(x, s))(x, 0),
    "vmap": lambda f: lambda x, s: first(volta.vmap(f, (0, None))(twice(x), s)),
    "vmap of jit": lambda f: lambda x, s: first(volta.vmap(volta.jit(f), (None, None), axis_size=2)(x, s)),
    "vmap, closed over": lambda f: lambda x, s: first(volta.vmap(lambda _: f(x, s))(vnp.zeros(2))),
    "vjp": lambda f: lambda x, s: volta.vjp(f, x, s)[0],
    "vjp, by the number": lambda f: lambda x, s: volta.vjp(lambda s: f(x, s), s)[0],
    "linearize": lambda f: lambda x, s: volta.linearize(f, x, s)[0],
    "jvp": lambda f: lambda x, s: volta.jvp(lambda s: f(x, s), (s,), (tangent(s),))[0],
    "cond": lambda f: lambda x, s: lax.cond(True, f, f, x, s),
    "switch": lambda f: lambda x, s: lax.switch(1, [f, f, f], x, s),
    "scan": stacked,
    "scan, unrolled": lambda f: stacked(f, unroll=2),
    "map": lambda f: lambda x, s: first(lax.map(lambda _: f(x, s), vnp.zeros(4))),
    "map, batches": lambda f: lambda x, s: first(lax.map(lambda _: f(x, s), vnp.zeros(4), batch_size=2)),
}


def outcome(f: Function, x: Any, s: Any) -> Any:
    """The results, or that the number was refused."""
    try:
        return f(x, s)
    except OverflowError:
        return OverflowError


CALLS = [(name, False) for name in TRANSFORMS]
CALLS += [
    (name, True) for name in TRANSFORMS if name not in ("jit, another thread", "compiled")
]  # which take no tracers


@functools.cache
def wanted(i: int, k: int) -> Any:
    return outcome(program, ARRAYS[i], NUMBERS[k])


@pytest.mark.parametrize(
    "name,compiled", CALLS, ids=[f"{name}{' within jit' if compiled else ''}" for name, compiled in CALLS]
)
@pytest.mark.few(2)
@pytest.mark.turns(2)
def test_a_number_goes_through_every_transform(name: str, compiled: bool) -> None:
    transformed = TRANSFORMS[name](program)
    through = volta.jit(transformed) if compiled else transformed
    for i, x in enumerate(ARRAYS):
        for k in range(i % 3, len(NUMBERS), 3) if i else range(len(NUMBERS)):
            s = NUMBERS[k]
            want, found = wanted(i, k), outcome(through, x, s)
            if OverflowError in (want, found):
                assert want is found, f"{x.dtype} and {s}: {want} is {found}"
                continue
            for what in want:
                case = f"{what} of {x.dtype}{x.shape} and {s}"
                for a, b in zip(volta.tree.leaves(want[what]), volta.tree.leaves(found[what]), strict=True):
                    assert a.weak_type == b.weak_type, case
                    assert_bits_equal(np.asarray(b), np.asarray(a), case)


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.few(6)
def test_every_transform_refuses_an_integer_that_does_not_fit(name: str) -> None:
    through, x = TRANSFORMS[name](lambda x, s: vnp.asarray(x) + s), np.uint8([1, 2])
    assert np.asarray(through(x, 3)).tolist() == [4, 5]
    for s in (300, -1):
        with pytest.raises(OverflowError, match=f"{s} does not fit uint8"):
            through(x, s)
        if name != "jvp":  # an array of integers has a tangent of float0, as a Python number of int has here
            with pytest.raises(OverflowError, match=f"{s} does not fit uint8"):
                through(x, volta.jit(lambda s: s)(s))


ROADS: dict[str, Callable[[Any], Any]] = {
    "asarray": vnp.asarray,
    "array": vnp.array,
    "asarray, int8": lambda y: vnp.asarray(y, "int8"),
    "device_put": volta.device_put,
    "device_put on a mesh": lambda y: volta.device_put(y, WHOLE),
    "astype": lambda y: y.astype("int32"),
    "abs": vnp.abs,
    "stack": lambda y: vnp.stack([y, y]),
    "reshape": lambda y: vnp.reshape(y, 1),
    "sum": vnp.sum,
    "where": lambda y: vnp.where(True, y, y),
    "full": lambda y: vnp.full(2, y),
    "full_like": lambda y: vnp.full_like(np.int32([1]), y),
    "broadcast_to": lambda y: vnp.broadcast_to(y, (2,)),
    "with an array": lambda y: vnp.arange(2) + y,
    "set": lambda y: vnp.zeros(2, "int32").at[0].set(y),
    "lax": lambda y: lax.convert_element_type(y, "int32"),
    "lax.add": lambda y: lax.add(np.int32([1, 2]), y),
    "stacked by scan": lambda y: lax.scan(lambda c, _: (c, y), 0, None, length=2)[1],
    "vmap": lambda y: volta.vmap(lambda i: i + y)(np.int32([1, 2])),
    "jit": lambda y: volta.jit(vnp.asarray)(y),
    "jit, closed over": lambda y: volta.jit(lambda x: x + y)(np.int32([1])),
    "grad, closed over": lambda y: volta.grad(lambda x: x * vnp.asarray(y))(1.0),
    "compiled": lambda y: volta.jit(vnp.asarray).lower(3).compile()(y),
}


@pytest.mark.parametrize("road", ROADS)
def test_a_number_that_a_program_gave_becomes_no_other_number(road: str) -> None:
    """What a jitted function gave, or an operator of it, is known: it is refused where a Python number is."""
    given = volta.jit(lambda n: n)
    for make in (lambda n: n, given, volta.jit(lambda n: n * 2), lambda n: given(n) + 1):
        if road == "astype" and type(make(3)) is int:
            continue
        ROADS[road](make(3))
        with pytest.raises((OverflowError, volta.errors.DTypeError), match="does not fit"):
            ROADS[road](make(2**40))


def test_a_number_that_a_program_gave_is_kept_whole() -> None:
    y = volta.jit(lambda n: n)(2**40)
    for got in (y.item(), int(y), y.tolist(), np.asarray(y).item(), volta.device_get(y).item(), (y + 0).item()):
        assert got == 2**40
    assert vnp.asarray(y, "int64").tolist() == y.astype("int64").tolist() == 2**40
    assert np.asarray(vnp.float64(1.0) * y) == 2.0**40


def test_rounded_numbers() -> None:
    for s in (2.5, 3.5, -0.5, 3.14159, 2.0**40 + 0.5):
        assert volta.jit(lambda s: round(s))(s).tolist() == round(s)
        assert volta.jit(lambda x, s: x * round(s, 2))(VALUES, s).tolist() == (VALUES * round(s, 2)).tolist()
    assert volta.jit(lambda n: round(n, -1))(125).tolist() == round(125, -1)
    assert volta.jit(lambda n: round(n))(2**40).tolist() == 2**40


def test_a_number_that_is_placed_is_an_array() -> None:
    for put in (
        volta.device_put,
        lambda s: volta.device_put(s, WHOLE),
        lambda s: lax.with_sharding_constraint(s, WHOLE),
    ):
        for call in (put, volta.jit(put)):
            assert call(0.1).dtype == "float32" and call(7).dtype == "int32"
            with pytest.raises(OverflowError, match="1099511627776 does not fit int32"):
                call(2**40)


def test_numbers_are_not_cut_by_shard_map() -> None:
    seen: list[Any] = []
    volta.shard_map(
        lambda x, s, flag: seen.append((s, flag)) or x, mesh=MESH, in_specs=(P("d"), P(), P()), out_specs=P("d")
    )(VALUES, 3, True)
    assert seen == [(3, True)] and type(seen[0][1]) is bool


def test_a_number_is_placed_within_a_program() -> None:
    for put in (
        volta.device_put,
        lambda s: volta.device_put(s, WHOLE),
        lambda s: lax.with_sharding_constraint(s, WHOLE),
    ):
        assert_bits_equal(volta.jit(lambda x, put=put: x * put(0.1))(VALUES), vnp.asarray(VALUES) * np.float32(0.1))
