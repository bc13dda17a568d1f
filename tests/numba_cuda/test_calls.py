"""What a call of a small program costs: calls of the driver, allocations, Python functions that run."""

import gc
import sys
from collections import Counter

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.numba_cuda import args
from volta.numba_cuda.device import graph
from volta.numba_cuda.device.graph import Launches, Row
from volta.runtime import devices
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing.bits import assert_bits_equal


def put(x):
    return volta.device_put(x, "cuda")


def numbers(n, dtype="float32"):
    return np.arange(n).astype(dtype)


def double():
    return volta.jit(lambda x: x * 2 + 1)


def calls_since(fake, before):
    return Counter(fake.log) - before


def test_a_small_program_is_one_launch_and_waiting_is_one_call(fake):
    f, x = double(), put(numbers(1000))
    f(x).block_until_ready()
    before, pool = Counter(fake.log), devices.memory_stats()
    out = f(x)
    assert calls_since(fake, before) == {"cuCtxSetCurrent": 1, "cuLaunchKernel": 1}
    out.block_until_ready()
    assert calls_since(fake, before) == {"cuCtxSetCurrent": 2, "cuLaunchKernel": 1, "cuStreamSynchronize": 1}
    after = devices.memory_stats()
    assert (after.allocations, after.reuses) == (pool.allocations, pool.reuses + 1)


def test_a_loop_is_one_launch_and_an_event_and_ordinary_calls_beside_it_are_as_ever(fake):
    f, g, x = volta.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: c + 1, x)), double(), put(numbers(1000))
    for _ in range(2):
        g(f(x)).block_until_ready()
    before = Counter(fake.log)
    y = f(x)
    assert calls_since(fake, before) == {"cuCtxSetCurrent": 1, "cuGraphLaunch": 1, "cuEventRecord": 1}
    before = Counter(fake.log)
    z = g(y)
    assert calls_since(fake, before) == {"cuCtxSetCurrent": 1, "cuLaunchKernel": 1}
    z.block_until_ready()
    before = Counter(fake.log)
    g(x).block_until_ready()
    assert calls_since(fake, before) == {"cuCtxSetCurrent": 2, "cuLaunchKernel": 1, "cuStreamSynchronize": 1}


def test_addresses_that_come_again_get_a_graph(fake):
    f, x = double(), put(numbers(1000))
    for _ in range(graph.OFTEN):
        f(x).block_until_ready()  # the result's memory comes back, so addresses repeat
    before = Counter(fake.log)
    assert before["cuGraphInstantiateWithFlags"] == 1
    out = f(x)
    assert calls_since(fake, before) == {"cuCtxSetCurrent": 1, "cuGraphLaunch": 1}
    assert_bits_equal(out, numbers(1000) * 2 + 1)
    other = put(numbers(1000) + 7)  # there is no graph for this one
    before = Counter(fake.log)
    assert_bits_equal(f(other), (numbers(1000) + 7) * 2 + 1)
    assert calls_since(fake, before)["cuLaunchKernel"] == 1
    assert_bits_equal(f(x), numbers(1000) * 2 + 1)


def test_graphs_are_few_and_not_made_at_every_call(fake, monkeypatch):
    monkeypatch.setattr(args, "_GRAPHS", 2)
    monkeypatch.setattr(args, "_PAUSE", 30)
    monkeypatch.setattr(graph, "OFTEN", 3)
    f, xs = double(), [put(numbers(10) + i) for i in range(5)]
    for _ in range(20):
        for i, x in enumerate(xs):
            assert_bits_equal(f(x), (numbers(10) + i) * 2 + 1)
    # Two at once; of the calls without, 100 at most, one in 30 makes another.
    assert 2 < fake.log["cuGraphInstantiateWithFlags"] <= 2 + 1 + 100 // 30
    made = fake.log["cuGraphInstantiateWithFlags"]
    assert fake.log["cuGraphExecDestroy"] == made - 2
    f.clear_cache()
    PLAN_CACHE.clear()
    del f
    gc.collect()
    assert fake.log["cuGraphExecDestroy"] == fake.log["cuGraphDestroy"] == made


def test_few_kernels_with_a_table_become_a_graph(fake, monkeypatch):
    monkeypatch.setattr("volta.numba_cuda.device_plan._MOST_WORDS", 0)
    f, x = volta.jit(lambda x: vnp.sum(x * 2, 1) + 1), put(numbers(600).reshape(2, 300))
    want = f(np.asarray(x))
    for _ in range(graph.OFTEN):
        assert_bits_equal(f(x), want)
    before = Counter(fake.log)
    assert before["cuGraphInstantiateWithFlags"] == 1 and "cuGraphLaunch" not in before
    out = f(x)
    assert calls_since(fake, before) == {"cuCtxSetCurrent": 1, "cuGraphLaunch": 1}
    assert_bits_equal(out, want)
    assert_bits_equal(f(put(np.asarray(x) + 1)), f(np.asarray(x) + 1))


def test_a_device_has_no_more_graphs_than_there_is_room_for(fake, monkeypatch):
    monkeypatch.setattr(graph, "ROOM", 3)
    x, kept = put(numbers(10)), []
    for i in range(5):
        f = volta.jit(lambda x, i=i: x + i)
        kept.append(f)
        for _ in range(graph.OFTEN + 1):
            assert_bits_equal(f(x), numbers(10) + i)
    assert fake.log["cuGraphInstantiateWithFlags"] == len(devices.gpu("cuda:0").graphs) == 3


def test_addresses_that_are_ever_new_get_none(fake):
    f, kept = double(), []
    for i in range(3 * args._SEEN):
        kept.append(f(put(numbers(3) + i)))
    assert "cuGraphCreate" not in fake.log
    assert_bits_equal(kept[100], (numbers(3) + 100) * 2 + 1)


@pytest.mark.parametrize("name", ["cuGraphCreate", "cuGraphInstantiateWithFlags"])
def test_a_graph_that_cannot_be_made_is_done_without(fake, name):
    f, x = double(), put(numbers(10))
    for _ in range(graph.OFTEN + 2):
        fake.fail[name] = 2
        assert_bits_equal(f(x), numbers(10) * 2 + 1)
    assert "cuGraphLaunch" not in fake.log


def functions_run(call):
    """Volta's Python functions that run in a call, by name."""
    found = []

    def note(frame, event, arg):
        module, name = frame.f_globals["__name__"], frame.f_code.co_qualname
        if event == "call" and module.startswith("volta.") and "host" not in module and "<" not in name:
            found.append(name)

    gc.collect()
    sys.setprofile(note)
    try:
        out = call()
    finally:
        sys.setprofile(None)
    del out
    return found


def test_few_functions_run_in_a_call(gpu):
    """Each costs some 50 ns, and those before the launch are waited for."""
    f, x = double(), put(numbers(1000))
    for _ in range(graph.OFTEN + 1):
        f(x).block_until_ready()
    assert functions_run(lambda: f(x)) == [
        "JitFunction.__call__", "Deferred.__call__", "DeviceExecutable._run", "Pool.take", "Executable.call",
        "WithLaunch.launch", "DeviceBuffer.__init__", "ConcreteArray.__init__",
    ]  # fmt: skip
    y = f(x)
    assert functions_run(y.block_until_ready) == [
        "ConcreteArray.block_until_ready", "DeviceBuffer.wait", "Stream.synchronize",
    ]  # fmt: skip


def test_calls_of_several_kinds_find_their_programs(gpu):
    traced = []

    def f(x, y):
        traced.append(x.dtype)
        return x + y

    f = volta.jit(f)
    kinds = [(numbers(n, d), numbers(m, d)) for d in ("float32", "int32") for n, m in ((4, 4), (4, 1), (1, 4))]
    for _ in range(3):
        for x, y in kinds:
            assert_bits_equal(f(x, y), x + y)
            assert_bits_equal(f(put(x), put(y)), x + y)
            with volta.execution_context(memory_budget=1 << 20):
                assert_bits_equal(f(put(x), put(y)), x + y)
    assert len(traced) == len(kinds)
    assert f.cache_size() == 2 * len(kinds)
    f.clear_cache()
    f(*kinds[0])
    assert f.cache_size() == 1


def test_an_address_that_is_missing_is_an_error(gpu):
    """The native call reads no list beyond its end."""
    words, patches = np.zeros(4, np.int64), np.array([[0, 0, 8], [1, 1, 0]], np.int64)
    launches = Launches(gpu.main, [Row(0, 1, 32, words.ctypes.data)], words)
    with pytest.raises(IndexError):
        launches.kernel_by_kernel(patches)([1 << 20])
    assert not words.any()


def test_results_of_a_call_are_told_apart(gpu):
    """Outputs of their own, one that is returned twice, an input that is passed on."""
    x = put(numbers(5))
    f = volta.jit(lambda x: (x + 1, vnp.sum(x), x * 2))
    g = volta.jit(lambda x: (lambda y: (y, x, y * y, y))(x + 1))
    host = numbers(5)
    assert_bits_equal(f(x), (host + 1, np.float32(10), host * 2))
    assert_bits_equal(g(x), (host + 1, host, (host + 1) ** 2, host + 1))
