"""Python numbers as arguments: every transform computes with them what the function computes by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

few = settings(max_examples=max(8, settings().max_examples // 2), suppress_health_check=list(HealthCheck))

FLOATS = [0.0, -0.0, 1.0, 0.1, -2.5, 3.0, 0.5, 1e300, 1e-310, 1 / 3, 2.0**-149, 65504.1, math.inf, math.nan]
INTS = [0, 1, -1, 2, 3, 7, 100, 2**24 + 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**40 + 1]
ARRAYS = [
    np.array([0.3, -1.7, 2.6, 0.0, 5.0]).astype(dtype)
    for dtype in (np.float64, np.float32, np.float16, volta.numpy.bfloat16, np.int32, np.int64)
] + [np.uint8([0, 1, 2, 5, 200])]

UNARY = {
    "neg": lambda a: -a,
    "abs": abs,
    "sin": vnp.sin,
    "exp": vnp.exp,
    "asarray": vnp.asarray,
    "sum": lambda a: vnp.sum(vnp.asarray(a)),
    "where": lambda a: vnp.where(vnp.asarray(a) > 0, a, 0.25),
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "maximum": vnp.maximum,
    "arctan2": vnp.arctan2,
    "stack": lambda a, b: vnp.sum(vnp.array([vnp.sum(vnp.asarray(a)), vnp.sum(vnp.asarray(b))])),
}

# (operation, operands): operands are leaves by name, or expressions.
leaves = st.sampled_from(["x", "s", "t", "n", "n", "s", "x"])
expressions = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(st.sampled_from(sorted(UNARY)), inner) | st.tuples(st.sampled_from(sorted(BINARY)), inner, inner)
    ),
    max_leaves=6,
)


def evaluate(e: Any, env: dict[str, Any]) -> Any:
    if isinstance(e, str):
        return env[e]
    function = UNARY[e[0]] if len(e) == 2 else BINARY[e[0]]
    return function(*(evaluate(part, env) for part in e[1:]))


def scanned(f: Any) -> Any:
    """Numbers are carried; what is stacked is an array."""
    return lambda x, *numbers: lax.scan(lambda c, _: (c, f(x, *c)), numbers, None, length=2)[1][1]


TRANSFORMS = {
    "jit": volta.jit,
    "checkpoint": volta.checkpoint,
    "jit of checkpoint": lambda f: volta.jit(volta.checkpoint(f)),
    "jit in jit": lambda f: volta.jit(lambda x, *numbers: volta.jit(f)(x, *numbers)),
    "vmap": lambda f: lambda x, *numbers: volta.vmap(f, in_axes=(0, None, None, None))(np.stack([x, x]), *numbers)[1],
    "jit of vmap": lambda f: volta.jit(
        lambda x, *numbers: volta.vmap(f, in_axes=(0, None, None, None))(vnp.stack([x, x]), *numbers)[1]
    ),
    "cond": lambda f: lambda *args: lax.cond(True, f, f, *args),
    "jit of cond": lambda f: volta.jit(lambda p, *args: lax.cond(p, f, f, *args)).__get__(True),
    "scan": scanned,
    "jit of scan": lambda f: volta.jit(scanned(f)),
    "jvp": lambda f: (
        lambda x, *numbers: (
            volta.jvp(lambda v: f(v, *numbers), (x,), (np.zeros_like(x),))[0]
            if x.dtype.kind == "f"
            else volta.jit(f)(x, *numbers)
        )
    ),
}
ARRAYS_COME_OUT = {"scan", "jit of scan", "vmap", "jit of vmap"}


@pytest.mark.parametrize("name", TRANSFORMS)
@given(expressions, st.sampled_from(ARRAYS), st.sampled_from(FLOATS), st.sampled_from(FLOATS), st.sampled_from(INTS))
@few
@pytest.mark.few(5)
def test_a_number_is_the_same_known_and_traced(name, e, x, s, t, n) -> None:
    def f(x, s, t, n):
        return evaluate(e, {"x": vnp.asarray(x), "s": s, "t": t, "n": n})

    try:
        want = f(x, s, t, n)
    except OverflowError:  # an integer that does not fit what it meets: refused, or computed modulo
        return
    is_wide = type(want) is int and not -(2**31) <= want < 2**31
    if name in ARRAYS_COME_OUT and is_wide:
        return  # what a program computes wraps around where it becomes an array
    found = TRANSFORMS[name](f)(x, s, t, n)
    if name in ARRAYS_COME_OUT:  # a number that comes out of a loop is an array of the default dtype
        want = vnp.asarray(want)
    assert_bits_equal(np.asarray(found), np.asarray(want), f"{e} of {x.dtype}, {s}, {t}, {n}")


@given(expressions, st.sampled_from(ARRAYS[:2]), st.sampled_from(FLOATS), st.sampled_from(FLOATS))
@few
def test_gradients_by_numbers_are_the_same_known_and_traced(e, x, s, t) -> None:
    def loss(x, s, t):
        return vnp.sum(vnp.asarray(evaluate(e, {"x": vnp.asarray(x), "s": s, "t": t, "n": 3})).astype(np.float64))

    for numbers in [(0,), (1,), (1, 2), (0, 2)]:
        gradient = volta.grad(loss, argnums=numbers)
        assert_bits_equal(volta.jit(gradient)(x, s, t), gradient(x, s, t), f"{e} by {numbers}")
        again = volta.grad(volta.checkpoint(loss), argnums=numbers)
        assert_bits_equal(again(x, s, t), gradient(x, s, t), f"{e} by {numbers}, checkpoint")


POWERS = [0, 1, 2, 3, 5, -1, -3, 64, 65, 2.0, 0.5, -1.0, 3.0, 2.5, -0.5, 0.0, math.inf, math.nan]


@pytest.mark.parametrize("y", POWERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "uint8"])
def test_powers_to_a_traced_number_are_those_to_a_known_one(dtype, y) -> None:
    x = vnp.asarray([0.0, -0.0, 1.0, -1.0, 0.3, 2.7, -3.0, 1e30 if "float" in dtype else 5]).astype(dtype)
    if "int" in dtype and isinstance(y, int) and y < 0:
        pytest.skip("integers have no negative integer powers where the exponent is known")
    assert_bits_equal(volta.jit(lambda x, y: x**y)(x, y), x**y)
    if "float" in dtype:

        def gradient(x, y):
            return volta.grad(lambda v: vnp.sum((v**y).astype("float32")))(x)

        assert_bits_equal(volta.jit(gradient)(x, y), gradient(x, y))


def test_programs_of_the_people_who_found_this() -> None:
    x = np.linspace(0.0, 1.0, 11)
    assert_bits_equal(volta.jit(lambda x, s: x * s)(x, 0.1), x * 0.1)
    assert_bits_equal(volta.jit(lambda x, s: x + s)(x, 1e300), x + 1e300)

    def step(y, dt):
        f = lambda y: -y  # noqa: E731
        k1 = f(y)
        k2 = f(y + dt / 2 * k1)
        return y + dt * k2

    y = z = vnp.asarray(x)
    jitted = volta.jit(step)
    for _ in range(100):
        y, z = step(y, 0.001), jitted(z, 0.001)
    assert_bits_equal(z, y)
    assert_bits_equal(lax.fori_loop(0, 100, lambda i, c: (step(c[0], c[1]), c[1]), (vnp.asarray(x), 0.001))[0], y)


def test_a_number_meets_an_array_of_its_own_64_bits() -> None:
    for x, s in ((np.int64(12), 64), (np.float64(1.5), 0.1)):
        for function in (vnp.add, vnp.maximum, vnp.remainder, vnp.gcd if s == 64 else vnp.hypot):
            assert_bits_equal(volta.jit(function)(x, s), function(x, s))


def test_integers_that_do_not_fit_are_refused_traced_or_not() -> None:
    x = np.uint8([1, 2])
    f = lambda x, n: vnp.asarray(x) + n  # noqa: E731
    for call in (f, volta.jit(f), volta.checkpoint(f), volta.jit(lambda x, n: volta.jit(f)(x, n))):
        assert call(x, 3).tolist() == [4, 5]
        for n in (300, -1):
            with pytest.raises(OverflowError, match=f"{n} does not fit uint8, which holds 0 to 255"):
                call(x, n)
    with pytest.raises(OverflowError, match=r"args\[1\] of `<lambda>` meets an array of that dtype"):
        volta.jit(f)(x, 300)
    with pytest.raises(OverflowError, match="300 does not fit uint8"):
        volta.vmap(f, in_axes=(0, None))(x, 300)
    with pytest.raises(OverflowError, match="does not fit int32"):
        volta.jit(lambda n: vnp.asarray(n))(2**40)


WIDE = {
    "asarray": vnp.asarray,
    "array": vnp.array,
    "list": lambda n: vnp.array([n, 1]),
    "nested": lambda n: vnp.asarray([[n], [1]]),
    "add": lambda n: vnp.add(n, 1),
    "full": lambda n: vnp.full((2,), n),
    "stack": lambda n: vnp.stack([n, n]),
    "abs": vnp.abs,
    "fori_loop": lambda n: lax.fori_loop(n, n, lambda i, c: c, 0.0),
}


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("n", [2**31, -(2**31) - 1, 2**40, 2**63])
def test_an_integer_by_itself_has_int32_known_or_traced(name, n) -> None:
    f = WIDE[name]
    for call in (lambda: f(n), lambda: volta.jit(f)(n), volta.jit(lambda: f(n)), lambda: volta.checkpoint(f)(n)):
        with pytest.raises(OverflowError, match=f"{n} does not fit int32"):
            call()


def test_a_dtype_takes_wide_integers() -> None:
    for make in (lambda n: vnp.asarray(n, "int64"), lambda n: vnp.full((), n, "int64"), lambda n: vnp.int64(n)):
        assert make(2**40).tolist() == 2**40
    assert volta.jit(lambda n: vnp.asarray(n, "int64"))(2**40).tolist() == 2**40
    assert vnp.array([2**63], "uint64").tolist() == volta.jit(lambda n: vnp.array([n], "uint64"))(2**63).tolist()


def test_integers_from_2_to_the_63_meet_arrays_only() -> None:
    x = np.uint64([1, 2])
    assert volta.jit(lambda x, n: x + n)(x, 2**63).tolist() == (vnp.asarray(x) + 2**63).tolist()
    assert volta.jit(lambda n: n)(2**63).tolist() == 2**63
    for f in (lambda n: n + 1, lambda n: -n, lambda n: n > 5, lambda n: n - n, lambda n: lax.add(n, 1)):
        with pytest.raises(OverflowError, match=r"does not fit int64, .*: args\[0\] of `<lambda>` meets other numbers"):
            volta.jit(f)(2**63)


# Where an integer meets a uint8 array within a loop or a branch: carried, read from around it, or handed on.
MEETINGS = {
    "cond": lambda x, n: lax.cond(x[0] > 0, lambda x, n: x + n, lambda x, n: x, x, n),
    "cond, around": lambda x, n: lax.cond(x[0] > 0, lambda x: x, lambda x: x * n, x),
    "cond, out": lambda x, n: lax.cond(x[0] > 0, lambda x: n, lambda x: x[0], x),
    "switch": lambda x, n: lax.switch(1, [lambda x, n: x, lambda x, n: x * n], x, n),
    "scan": lambda x, n: lax.scan(lambda c, v: (c, v + c), n, x)[1],
    "scan, around": lambda x, n: lax.scan(lambda c, v: (c, v + n), 0, x)[1],
    "scan, first": lambda x, n: lax.scan(lambda c, v: (v, v), n, x)[1],
    "scan, out": lambda x, n: lax.scan(lambda c, v: (n, v), x[0], x)[1],
    "scan of checkpoint": lambda x, n: lax.scan(lambda c, v: (c, volta.checkpoint(vnp.add)(v, c)), n, x)[1],
    "map": lambda x, n: lax.map(lambda v: v + n, x),
    "fori_loop": lambda x, n: lax.fori_loop(0, 2, lambda i, c: (c[0] + c[1], c[1]), (x, n))[0],
    "fori_loop, around": lambda x, n: lax.fori_loop(0, vnp.max(x), lambda i, c: c + n, x),
    "while_loop": lambda x, n: lax.while_loop(lambda c: c[0] < 1, lambda c: (2, c[1] + c[2], c[2]), (0, x, n))[1],
    "while_loop, around": lambda x, n: lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, c[1] + n), (0, x))[1],
    "while_loop, its condition": lambda x, n: lax.while_loop(lambda c: c[1][0] > n, lambda c: c, (0, x))[1],
}


@sampled("name", MEETINGS, quick=("cond", "scan", "while_loop, around"))
def test_integers_that_do_not_fit_are_refused_within_loops_and_branches(name) -> None:
    f, x = MEETINGS[name], vnp.asarray(np.uint8([1, 2]))
    ways = (
        f,
        volta.jit(f),
        volta.jit(lambda x, n: volta.jit(f)(x, n)),
        lambda x, n: volta.vmap(f, in_axes=(0, None))(vnp.stack([x, x]), n),
    )
    for call in ways:
        call(x, 3)
        for n in (256, -1, 2**63):
            with pytest.raises(OverflowError, match=f"{n} does not fit u?int8"):
                call(x, n)


def test_integers_that_do_not_fit_a_compiled_program_are_refused() -> None:
    compiled = volta.jit(lambda x, n: x + n).lower(np.uint8([1]), 3).compile()
    assert compiled(np.uint8([1]), 7).tolist() == [8]
    with pytest.raises(OverflowError, match=r"300 does not fit uint8.*args\[1\] of `<lambda>`"):
        compiled(np.uint8([1]), 300)


def test_an_integer_must_fit_every_dtype_that_it_meets() -> None:
    f = volta.jit(lambda x, y, n: (x + n, y + n))
    x, y = np.uint8([1]), np.int8([1])
    for n, dtype in ((200, "int8"), (-1, "uint8"), (300, "uint8")):
        with pytest.raises(OverflowError, match=f"{n} does not fit {dtype}"):
            f(x, y, n)
    assert [r.item() for r in f(x, y, 100)] == [101, 101]


def test_what_a_loop_returns_must_fit_what_it_carries_and_stacks() -> None:
    with pytest.raises(OverflowError, match=r"2000 does not fit int8.*output\[0\] of `<lambda>`"):
        lax.scan(lambda c, v: (2000, v), np.int8(1), np.int8([1, 2]))
    with pytest.raises(OverflowError, match="does not fit int32"):
        lax.scan(lambda c, v: (c, 2**40), 0, np.int8([1, 2]))


def test_a_number_that_is_not_mapped_or_differentiated_stays_one() -> None:
    seen = []
    volta.vmap(lambda x, flag, n: seen.append((flag, n)) or x, in_axes=(0, None, None))(np.ones(2), True, 3)
    assert seen == [(True, 3)] and type(seen[0][1]) is int
