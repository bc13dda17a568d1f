"""Loops whose body is small run as one native function, with the bits of their kernels one by one."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.numba_cpu import small_loops, unit
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing import FILLS, assert_bits_equal, fill
from volta.testing.cases import cases, dtypes_of, vocabulary
from volta.testing.strategies import programs

pytestmark = pytest.mark.turns(6)

ROWS = {f"{p.name} {d.name}": (p, d) for p in vocabulary() for d in dtypes_of(p)}
QUICK = ("add float32", "tanh float32", "sin float16", "sort float32", "reduce_sum float32", "dot_general float32",
         "gather float32", "scatter int32", "argmax int32", "cumsum float32", "select_n float32",
         "rev bool")  # fmt: skip


@pytest.fixture
def kernel_by_kernel(monkeypatch):
    """Runs a function with every loop's body as kernels of the launch table."""

    def run(f, *args):
        with monkeypatch.context() as patch:
            patch.setattr(small_loops, "SMALL", -1)
            PLAN_CACHE.clear()
            found = volta.jit(lambda *a: f(*a))(*args)
        PLAN_CACHE.clear()
        return found

    return run


def all_launches(f, *args):
    """What a program's plan launches."""
    return volta.jit(f).lower(*args).compile().executable.plan.all_launches()


def launches(f, *args) -> list[str]:
    """The names of the kernels that a program's plan launches."""
    return [getattr(x.kernel, "name", x.kernel.__class__.__name__) for x in all_launches(f, *args)]


def lorenz(state, _):
    x, y, z = state
    rate = vnp.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3 * z])
    state = state + 0.01 * rate
    return state, state


START = np.array([1, 2, 3], np.float32)


def test_a_small_body_is_one_kernel() -> None:
    names = launches(lambda s: lax.scan(lorenz, s, None, length=100), START)
    assert names.count("small_loop") == 1 and len(names) <= 5


@pytest.mark.parametrize("count", [0, 1, 2, small_loops.ITERATIONS - 1, small_loops.ITERATIONS,
                                   small_loops.ITERATIONS + 1, 2 * small_loops.ITERATIONS + 7])  # fmt: skip
def test_any_number_of_iterations(count) -> None:
    """A launch makes some, and the table launches it again."""

    @volta.jit
    def run(n):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 3 + 1), (np.int32(0), np.uint32(1)))

    value = 1
    for _ in range(count):
        value = (value * 3 + 1) % 2**32
    found = run(count)
    assert (found[0].item(), found[1].item()) == (count, value)


def test_the_bits_of_kernel_by_kernel(kernel_by_kernel) -> None:
    def f(s):
        return lax.scan(lorenz, s, None, length=3000)

    assert_bits_equal(volta.jit(f)(START), kernel_by_kernel(f, START))


@sampled("name", ROWS, quick=QUICK)
def test_every_primitive_in_a_body(name, kernel_by_kernel) -> None:
    """Each iteration computes it of another slice."""
    primitive, dtype = ROWS[name]
    for case in cases(primitive, dtype)[:3]:
        args = [np.stack([x, np.flip(x), x]) for x in case.args]

        def f(*args, case=case):
            step = lambda c, xs: (c + 1, case.primitive.bind(*xs, **case.params))  # noqa: E731 (one line is all of it)
            return lax.scan(step, 0, args, length=3)  # some have no operands

        assert_bits_equal(volta.jit(f)(*args), kernel_by_kernel(f, *args), str(case))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from(sorted(FILLS)))
def test_random_bodies(kernel_by_kernel, p, data) -> None:
    args = [fill(data if "float" in dtype else "normal", shape, dtype, i) for i, (shape, dtype) in enumerate(p.inputs)]
    stacked = [np.stack([x, np.flip(x)]) for x in args]

    def f(*args):
        return lax.scan(lambda c, xs: (c + 1, p(*xs)), 0, args)

    assert_bits_equal(volta.jit(f)(*stacked), kernel_by_kernel(f, *stacked))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), programs(), st.sampled_from(sorted(FILLS)))
def test_random_choices_and_inner_loops(kernel_by_kernel, p, q, data) -> None:
    """In an iteration one program is run or not, and another some times over."""
    shapes = [*p.inputs, *q.inputs]
    args = [fill(data if "float" in dtype else "normal", shape, dtype, i) for i, (shape, dtype) in enumerate(shapes)]
    ps, qs = args[: len(p.inputs)], args[len(p.inputs) :]

    def f(ps, qs):
        def step(i, _):
            chosen = lax.cond(
                i % 2 == 0, lambda: p(*ps), lambda: volta.tree.map(lambda x: x[::-1] if x.ndim else x, p(*ps))
            )
            inner = lax.scan(lambda k, _: (k + 1, q(*qs)), i, None, length=3)
            return inner[0], (chosen, inner[1])

        return lax.scan(step, 0, None, length=4)

    assert_bits_equal(volta.jit(f)(ps, qs), kernel_by_kernel(f, ps, qs))


def sorted_table(c):
    return vnp.sort(vnp.outer(c, vnp.arange(99.0)), 0)


CONTROL = {
    "cond": lambda c, x: lax.cond(x[0] > 0, lambda c: vnp.tanh(c) + x, lambda c: c * x, c),
    "a branch that is its operand": lambda c, x: lax.cond(x[0] > 0, lambda c: c, lambda c: c * x, c),
    "branches that exchange": lambda c, x: sum(lax.cond(x[0] > 0, lambda a, b: (a, b * 2), lambda a, b: (b, a), c, x)),
    "switch": lambda c, x: lax.switch((x[0] * 3).astype("int32"), [lambda c: c * 2, lambda c: c - x, lambda c: -c], c),
    "cond in cond": lambda c, x: lax.cond(x[0] > 0, lambda c: lax.cond(x[1] > 0, vnp.sin, vnp.cos, c), lambda c: c, c),
    "fori": lambda c, x: lax.fori_loop(0, 5, lambda i, c: c * 0.5 + x + i, c),
    "scan": lambda c, x: lax.scan(lambda c, y: (c * 0.5 + y, c), c, x)[1].sum(0),
    "cond in fori": lambda c, x: lax.fori_loop(0, 5, lambda i, c: lax.cond(i > 2, vnp.exp, lambda c: c - x, c), c),
    "fori in cond": lambda c, x: lax.cond(x[0] > 0, lambda c: lax.fori_loop(0, 3, lambda i, c: -c / 2, c), vnp.sin, c),
    "a large temporary": lambda c, x: lax.cond(x[0] > 0, lambda c: sorted_table(c)[:, 7], vnp.sin, c),
    "products": lambda c, x: lax.fori_loop(0, 3, lambda i, c: vnp.tanh(vnp.outer(x, c) @ c), c),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTROL)
def test_choices_and_counted_loops_in_a_body_are_in_its_kernel(name, kernel_by_kernel) -> None:
    def f(c, xs):
        def step(c, x):
            c = CONTROL[name](c, x)
            return c, c

        return lax.scan(step, c, xs)

    c, xs = fill("normal", (6,), "float32"), fill("normal", (40, 6), "float32", 1)
    names = launches(f, c, xs)
    assert names.count("small_loop") == 1
    assert len(names) <= 6
    assert_bits_equal(volta.jit(f)(c, xs), kernel_by_kernel(f, c, xs))


SIZES = [(1, 8, 8), (4, 4, 4), (3, 5, 7), (6, 1, 9), (1, 1, 128), (2, 17, 3), (1, 3, 257), (1, 16, 0), (5, 16, 33)]
PRODUCTS = {f"{m}x{k}x{n} {how} {dtype}": (m, n, k, how, dtype)
            for m, n, k in SIZES for how in ("plain", "transposed", "batched", "with a map", "of a row")
            for dtype in ("float32", "float64", "float16", "int32", "uint8")}  # fmt: skip


@sampled("name", PRODUCTS, quick=("4x4x4 with a map float32", "3x7x5 transposed float64", "1x257x3 of a row float32"))
def test_small_products_in_a_body(name, kernel_by_kernel) -> None:
    m, n, k, how, dtype = PRODUCTS[name]
    flipped, batch = how == "transposed", (3,) if how == "batched" else ()
    xs = fill("normal", (20, *batch, *((k, m) if flipped else (m, k))), dtype)
    w = fill("normal", (*batch, *((n, k) if flipped else (k, n))), dtype, 1)

    def f(w, xs):
        def step(c, x):
            x, y = (x.T, w.T) if flipped else (x, w)
            y = (x[0] if how == "of a row" else x) @ y
            y = vnp.maximum(y, 0) + c.astype(y.dtype) if how == "with a map" else y
            return c + 1, y

        return lax.scan(step, np.float32(0), xs)

    assert "small_loop" in launches(f, w, xs) or w.nbytes > 4000
    assert_bits_equal(volta.jit(f)(w, xs), kernel_by_kernel(f, w, xs))


JOINED = {f"{rows} of {n} {dtype} {how}": (rows, n, dtype, how)
          for rows in (2, 3, 5) for n in range(1, 21) for how in ("fori", "scan")
          for dtype in ("float16", "float32", "float64", "int32", "complex64")}  # fmt: skip


@sampled("name", JOINED, quick=("3 of 6 float64 fori", "3 of 6 float32 scan", "5 of 6 complex64 fori"))
def test_rows_joined_in_a_body(name, kernel_by_kernel) -> None:
    """They are stored piece by piece, and read as other pieces."""
    rows, n, dtype, how = JOINED[name]
    x, vs = fill("normal", (rows + 3, n), dtype), [fill("normal", (n,), dtype, 1 + i) for i in range(rows)]

    def f(x, *vs):
        def body(k, x):
            joined = lax.concatenate([lax.expand_dims(v * x[k, 0], (0,)) for v in vs], 0)
            return lax.dynamic_update_slice(x, joined, (k, 0))

        if how == "fori":
            return lax.fori_loop(0, 3, body, x)
        return lax.scan(lambda x, k: (body(k, x), x[0]), x, np.arange(3))

    assert launches(f, x, *vs).count("small_loop") == 1
    assert_bits_equal(volta.jit(f)(x, *vs), kernel_by_kernel(f, x, *vs))


def test_small_products_are_written_out() -> None:
    def f(x, w):
        return lax.fori_loop(0, 9, lambda i, x: vnp.tanh(x @ w), x)

    for n, called in ((8, False), (48, True)):
        found = all_launches(f, np.ones((2, n), "f4"), np.ones((n, n), "f4"))
        (loop,) = [x for x in found if getattr(x.kernel, "name", "") == "small_loop"]
        assert any(x.kernel.name.startswith(("dot", "epilogue")) for _, x in loop.functions) == called


def test_of_inner_loops_that_may_run_for_long_the_table_decides() -> None:
    """Between its rows it looks for signals."""

    def counted(n):
        return lambda x: lax.fori_loop(0, 9, lambda i, x: lax.fori_loop(0, n, lambda j, x: x * 0.5 + 1, x) - i, x)

    (few,), (many,) = (
        [n for n in all_launches(counted(k), START) if getattr(n.kernel, "name", "") == "small_loop"] for k in (2, 600)
    )
    assert "while" in few.kernel.text() and f"most={small_loops.ITERATIONS // 2}" in few.kernel.text()
    assert "while" not in many.kernel.text()


def test_another_constant_and_another_length_compile_nothing() -> None:
    def run(c, n):
        return volta.jit(lambda x: lax.fori_loop(0, n, lambda i, x: x * c + 0.25, x))(START)

    run(0.3, 7)
    before = unit.stats().compiled
    run(0.7, 9)
    assert unit.stats().compiled == before


def test_what_is_not_small_is_not_one_kernel() -> None:
    wide = np.ones((200, 200), np.float32)
    assert "small_loop" not in launches(lambda x: lax.fori_loop(0, 3, lambda i, x: vnp.tanh(x) @ x, x), wide)


def test_of_nested_loops_the_inner_one_is() -> None:
    def f(x):
        return lax.fori_loop(0, 4, lambda i, x: lax.fori_loop(0, i, lambda j, x: x * 0.5 + 1, x) - i, x)

    assert launches(f, START).count("small_loop") == 1
    x = START
    for i in range(4):
        for _ in range(i):
            x = x * np.float32(0.5) + np.float32(1)
        x = x - np.float32(i)
    assert_bits_equal(volta.jit(f)(START), x)


def test_bodies_with_kernels_of_the_users_own_are_not() -> None:
    @volta.kernel(out=lambda x: x)
    @numba.njit
    def double(x, y):
        for i in range(x.size):
            y[i] = 2 * x[i]

    def f(x):
        return lax.fori_loop(0, 3, lambda i, x: double(x) + 1, x)

    assert "small_loop" not in launches(f, START)
    assert_bits_equal(volta.jit(f)(START), ((START * 2 + 1) * 2 + 1) * 2 + 1)


def test_large_arrays_around_a_small_body_stay_where_they_are() -> None:
    """The body reads and writes one row each time; the array is in no iteration's way."""
    x = fill("normal", (3000, 4))

    def f(x):
        return lax.scan(lambda c, row: (c + row, c * row), np.zeros(4, np.float32), x)

    assert launches(f, x).count("small_loop") == 1
    total, rows = np.zeros(4, np.float32), []
    for row in x:
        rows.append(total * row)
        total = total + row
    assert_bits_equal(volta.jit(f)(x), (total, np.stack(rows)))


@pytest.mark.parametrize("shape", [(33, 1), (2, 33), (1, 33)])
def test_places_that_shifts_leave_are_known(kernel_by_kernel, shape) -> None:
    """Of an element beyond vectors that a roll brings from elsewhere, the place was a sum of a number and a text."""

    def step(h, x):
        h = vnp.exp(-abs(vnp.roll(h, 1, axis=0) * 0.5 + x))
        return vnp.concatenate([h[:, 1:], x[:, :1]], 1), h

    f = lambda h, xs: lax.scan(step, h, xs)  # noqa: E731
    args = fill("normal", shape, "float32"), fill("normal", (5, *shape), "float32", 1)
    for got, want in zip(volta.jit(f)(*args), kernel_by_kernel(f, *args), strict=True):
        assert_bits_equal(got, want)
