"""Operators of arrays that were seen before: what they run is found by types alone, and is what it was."""

import operator
import sys

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.core.recent import Recent
from volta.runtime import eager
from volta.testing import assert_bits_equal

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "eq", "ge")
BITWISE = ("and_", "or_", "xor", "lshift", "rshift")


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch):
    monkeypatch.setattr(eager, "_executables", Recent(2048))


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.random.RandomState(0).randint(1, 7, shape).astype(dtype)
    if numbers.dtype.kind == "f" and numbers.size:
        numbers.flat[0] = np.nan
        numbers.flat[-1] = -0.0
    return numbers


@pytest.mark.parametrize("name", [*ARITHMETIC, *BITWISE])
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 4), (4,)), ((), (3,)), ((0, 2), (0, 2)), ((), ())], ids=str)
@pytest.mark.parametrize("dtypes", [("int32", "int32"), ("float32", "float32"), ("float32", "int32"), ("int8", "bool")])
def test_the_second_call_has_the_bits_of_the_first(name, shapes, dtypes) -> None:
    if name in BITWISE and "float32" in dtypes:
        pytest.skip("no bits of floats")
    run = getattr(operator, name)
    x, y = (vnp.asarray(values(dtype, shape)) for dtype, shape in zip(dtypes, shapes, strict=True))
    first, second = run(x, y), run(x, y)
    assert_bits_equal(second, first)
    assert second.aval == first.aval
    assert_bits_equal(first, volta.jit(run)(x, y))
    assert_bits_equal(run(y, x), volta.jit(run)(y, x))  # the same key but for the order


def test_the_order_of_operands_counts_where_their_types_are_alike() -> None:
    x, y = vnp.asarray(np.float32([1, 2])), vnp.asarray(np.float32([5, 7]))
    for _ in range(2):
        assert (x - y).tolist() == [-4, -5] and (y - x).tolist() == [4, 5] and (x - x).tolist() == [0, 0]
        assert (y @ y).item() == 74 and (x > y).tolist() == [False, False] and (y > x).tolist() == [True, True]


def test_one_array_twice_is_not_remembered_as_the_square_of_one() -> None:
    x, y = vnp.asarray(np.float32([1, 2])), vnp.asarray(np.float32([5, 7]))
    assert (x * x).tolist() == [1, 4]
    assert (x * y).tolist() == [5, 14] and (y * y).tolist() == [25, 49]


def test_an_operator_that_turns_its_operands_round_is_not_taken_for_one_that_does_not() -> None:
    def less(x, y):
        return volta.lax.sub(y, x)

    x, y = vnp.asarray(np.float32([1, 2])), vnp.asarray(np.float32([5, 7]))
    for _ in range(2):
        assert eager.operate(less, x, x).tolist() == [0, 0]
        assert eager.operate(less, x, y).tolist() == [4, 5]


def test_an_operator_of_several_operations_is_run_by_its_function() -> None:
    called = []

    def both(x, y):
        called.append(1)
        return volta.lax.add(volta.lax.mul(x, y), y)

    def inner(x, y):
        called.append(1)
        return x * y + y

    x, y = vnp.asarray(np.float32([1, 2])), vnp.asarray(np.float32([5, 7]))
    _ = x * y
    for function in (both, inner):
        assert [eager.operate(function, x, y).tolist() for _ in range(3)] == [[10, 21]] * 3
    assert len(called) == 6


def test_arrays_that_are_weak_stay_what_they_are() -> None:
    weak, x = vnp.asarray(300), vnp.ones(2, "uint8")
    for _ in range(2):
        assert (vnp.asarray(3) + x).dtype == "uint8"
        assert (vnp.ones((), "int32") + x).dtype == "int32"
        with pytest.raises(OverflowError):
            _ = x + 300
        assert (weak * weak).item() == 90000


def test_what_holds_where_an_operator_runs_is_part_of_what_it_is() -> None:
    x = vnp.asarray(np.float32([[1, 2.0**-24], [1, -1]]))
    y = vnp.asarray(np.float32([[1, 1], [1, 1]]))
    plain = x @ y
    with volta.default_matmul_precision("highest"):
        highest = x @ y
        assert_bits_equal(x @ y, highest)
        assert_bits_equal(highest, vnp.matmul(x, y))
    assert_bits_equal(x @ y, plain)
    zero = y - y
    with volta.debug_nans(True), pytest.raises(FloatingPointError):
        _ = zero / zero
    assert np.isnan((zero / zero).tolist()).all()
    with volta.debug_nans(True), pytest.raises(FloatingPointError):
        _ = zero / zero
    with volta.execution_context(kernels="python"):
        assert_bits_equal(x @ y, plain)


def test_traced_operands_are_traced_though_the_types_were_seen() -> None:
    x = vnp.asarray(np.float32([1, 2]))
    assert (x * x).tolist() == [1, 4]
    assert volta.grad(lambda v: (v * v).sum())(x).tolist() == [2, 4]
    assert volta.vmap(lambda v: v * v)(x).tolist() == [1, 4]
    held = []
    volta.jit(lambda v: held.append(type(x * x)) or v * v)(x)
    assert held != []
    assert "mul" in str(volta.make_jaxpr(lambda v: v + x * x)(x))


def test_an_operand_that_is_gone_says_so() -> None:
    x = vnp.asarray(np.float32([1, 2]))
    _ = x + x
    volta.jit(lambda v: v + 1, donate_argnums=0)(x)
    with pytest.raises(volta.errors.DonatedBufferError, match="donated to a jitted call"):
        _ = x + x


def test_errors_are_raised_each_time() -> None:
    x, y = vnp.ones((2, 3)), vnp.ones((2, 4))
    for _ in range(2):
        with pytest.raises(volta.errors.ShapeError):
            _ = x @ y
        with pytest.raises(volta.errors.ShapeError):
            _ = x + y


@pytest.mark.parametrize("run", [operator.matmul, operator.add, operator.lt])
def test_an_operator_calls_few_functions(run) -> None:
    x = vnp.ones((8, 8), "float32")
    run(x, x)
    called = []
    sys.setprofile(lambda frame, event, arg: called.append(frame.f_code) if event == "call" else None)
    try:
        run(x, x)
    finally:
        sys.setprofile(None)
    assert len(called) <= 13, called
