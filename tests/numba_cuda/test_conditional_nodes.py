"""Loops and choices on a device: one graph for all iterations, other arguments, what a profile says, older drivers."""

import ctypes

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cuda import host_condition
from volta import errors, lax
from volta.numba_cuda import conditional_nodes, iterations
from volta.numba_cuda.conditional_nodes import CONDITION
from volta.numba_cuda.device.driver import counters
from volta.numba_cuda.device.flights import WORDS
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import every
from volta.offline import plan_on_cuda
from volta.runtime import devices
from volta.testing.bits import assert_bits_equal
from volta.testing.host_grid import check_on_host
from volta.testing.loops import loop_programs

PROGRAMS = {p.name: p for p in loop_programs() if p.name in ("recurrent", "nested", "choosing", "newton", "switch 1")}


def put(x):
    return volta.device_put(x, "cuda")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_on_a_device_has_the_bits_of_the_cpu(gpu, name):
    p = PROGRAMS[name]
    f = volta.jit(p.f)
    want = f(*p.args)
    assert_bits_equal(f(*map(put, p.args)), want)


def scanned(length):
    """A loop whose body is no small one: it sorts."""

    def step(c, x):
        w, h = c
        h = vnp.tanh(h @ w + x)
        return (w + 0.1 * (h.T @ x), vnp.sort(h)), (h.sum(0), x * 2)

    return lambda w, h, xs: lax.scan(step, (w, h), xs, length)


def draw(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def loop_of(f, *args):
    """The launch of a program's one loop."""
    plan, _ = plan_on_cuda(volta.make_jaxpr(f)(*args))
    (found,) = [x for x in launches_of(plan) if x.inside]
    return found


@pytest.mark.parametrize("length", [1, 2, 7, 12, 101, 128])
def test_as_many_iterations_as_may_be_stand_between_two_tests(length, monkeypatch):
    args = draw(8, 8), draw(4, 8), draw(length, 4, 8)
    monkeypatch.setattr(iterations, "MOST", 1)
    once = len(loop_of(scanned(length), *args).inside)
    monkeypatch.setattr(iterations, "MOST", 64)
    together, rest = divmod(len(loop_of(scanned(length), *args).inside), once)
    assert rest == 0 and length % together == 0 and together * once <= max(64, once)
    assert not [k for k in range(together + 1, 64 // once + 1) if length % k == 0]
    check_on_host(scanned(length), *args)


def test_iterations_wait_for_all_that_they_share_memory_with_and_for_nothing_else():
    found = loop_of(scanned(12), draw(8, 8), draw(4, 8), draw(12, 4, 8)).inside
    behind = []  # of each launch, all that are done before it
    for x in found:
        behind.append(set(x.after).union(*(behind[i] for i in x.after)))

    def meet(xs, ys):
        return any(a == b and low < end and start < high for a, low, high, *_ in xs for b, start, end, *_ in ys)

    for j, y in enumerate(found):
        for i, x in enumerate(found[:j]):
            conflict = meet(x.writes, (*y.reads, *y.writes)) or meet(x.reads, y.writes)
            assert i in behind[j] or not conflict
    assert any(len(x) < i for i, x in enumerate(behind))  # some run beside each other


def test_a_loop_of_unknown_length_is_tested_each_time():
    def f(n, x):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, vnp.sort(c[1] * 2 - 1)), (0, x))

    assert sum("sort" in x.source.name for x in loop_of(f, np.int32(8), draw(100)).inside) == 1


def test_a_call_is_one_launch_whatever_its_iterations(gpu):
    f = volta.jit(lambda n, x: lax.fori_loop(0, n, lambda i, x: x * 1.5 + 1, x))
    x = put(np.ones(100, np.float32))
    f(put(np.int32(1)), x).block_until_ready()
    for n in (0, 3, 40):
        iterations = put(np.int32(n))
        before = counters.launches
        got = f(iterations, x)
        assert counters.launches == before + 1
        want = np.ones(100, np.float32)
        for _ in range(n):
            want = want * np.float32(1.5) + 1
        assert_bits_equal(got, want)


def test_arguments_at_other_addresses(gpu):
    f = volta.jit(lambda x: lax.scan(lambda c, _: (vnp.cos(c), None), x, None, 3)[0])
    inputs = [put(np.full(10, k, np.float32)) for k in range(5)]
    for x in (*inputs, *inputs):
        assert_bits_equal(f(x), f(volta.device_get(x)))


def test_a_plan_lists_and_a_profile_times_a_loop(gpu):
    f, x = (
        volta.jit(lambda x: lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2 + 1, x) - 1),
        put(np.ones(300, np.float32)),
    )
    want = f(x)
    with volta.default_device("cuda"):
        plan = f.lower(x).compile().plan
    assert "    launch 0: " in plan.as_text() and len(list(every(plan.launches))) > len(plan.launches)
    assert CONDITION.name in plan.kernel_texts()
    with devices.profile() as found:
        assert_bits_equal(f(x), want)
    assert [r.label for r in found.rows] == [x.label for x in plan.launches]
    assert all(r.microseconds > 0 for r in found.rows)


def test_an_iteration_reads_the_stop_word_itself_only_now_and_then():
    kernel, flag, word = host_condition.condition(), ctypes.c_int32(1), ctypes.c_int64(0)
    args = (ctypes.c_int64 * 2)(ctypes.addressof(flag), 1)
    copy = (ctypes.c_int64 * WORDS)(0, 0, ctypes.addressof(word))

    def holds(stop=copy):
        return kernel.run(ctypes.addressof(args), 7, ctypes.addressof(stop) if stop is not None else 0)

    kernel.pass_time(conditional_nodes._OFTEN + 1)
    assert holds() and copy[0] > 0
    word.value = 1
    kernel.pass_time(conditional_nodes._OFTEN)
    assert holds()  # it has been read not long ago
    kernel.pass_time(1)
    assert not holds() and copy[1] == 1 and holds(None)
    word.value = 0
    kernel.pass_time(1)
    assert not holds()
    copy[0] += 1 << 40  # of a multiprocessor that has counted more
    assert holds() and copy[0] < 1 << 40
    flag.value = 0
    assert not holds() and not holds(None)


def test_a_driver_without_conditions_is_an_error_that_breaks_nothing(fake):
    for name in ("cuGraphAddNode", "cuGraphConditionalHandleCreate"):
        setattr(fake.functions, name, None)
    devices.gpu("cuda:0")
    x = put(np.ones(3, np.float32))
    with pytest.raises(errors.UnsupportedOperationError, match=r"driver for CUDA 12\.3"):
        volta.jit(lambda x: lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2, x))(x)
    assert_bits_equal(volta.jit(lambda x: x + 1)(x), np.full(3, 2, np.float32))
