"""Memory, transfers, donation, threads of programs on a GPU: where none is, over a stand-in for the driver."""

import contextlib
import gc
import threading
import weakref

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.thread_support import run_threads
from volta import errors, nn
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.device import driver
from volta.numba_cuda.device.blocks import rounded
from volta.numba_cuda.device.driver import counters
from volta.runtime import devices
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def put(x):
    return volta.device_put(x, "cuda")


def step(w, x):
    """A plan with temporaries, products and reductions."""
    loss = volta.value_and_grad(lambda w: vnp.sum(nn.log_softmax(vnp.tanh(x @ w)) ** 2))
    value, g = loss(w)
    return w - 0.1 * g, value


def plan_of(f, *args):
    with volta.default_device("cuda"):
        return volta.jit(f).lower(*args).compile().plan


def moved():
    return {
        "host_to_device": counters.host_to_device,
        "device_to_host": counters.device_to_host,
        "args": counters.args,
    }


def since(before):
    return {name: n - before[name] for name, n in moved().items()}


# -- transfers ---------------------------------------------------------------------------------------------------------


def test_a_call_on_device_arrays_moves_nothing(gpu):
    f, w, x = volta.jit(step), put(normal(6, 4)), put(normal(3, 6))
    for _ in range(4):
        f(w, x)[1].block_until_ready()
    before, tables = moved(), counters.tables
    for _ in range(5):
        f(w, x)[1].block_until_ready()  # the results' memory comes back, so addresses repeat
    assert since(before) == {"host_to_device": 0, "device_to_host": 0, "args": 0}
    f(put(normal(6, 4) + 1), x)  # an argument that lies elsewhere: a table of addresses is copied, once
    plan = plan_of(step, normal(6, 4), normal(3, 6))
    assert since(before) == {"host_to_device": w.nbytes, "device_to_host": 0, "args": plan.transfers["args"]}
    assert counters.tables == tables + 1


def test_numbers_that_are_kept_on_a_device_are_bounded(gpu, monkeypatch):
    monkeypatch.setattr(devices, "_NUMBERS", 4)
    target = devices.gpu("cuda:0")
    target.numbers.clear()
    kept = [devices.number(vnp.asarray(n / 8), target) for n in range(10)]
    assert len(target.numbers) == 2 and devices.number(vnp.asarray(9 / 8), target) is kept[-1]
    assert [float(x) for x in kept] == [n / 8 for n in range(10)]


def test_a_short_plan_needs_no_table(gpu, monkeypatch):
    """Its args go with the launch, whatever addresses they hold; in tables, the bits are the same."""
    f, arrays = (lambda x: nn.softmax(x * 2, 0)), [put(normal(7, 9) + i) for i in range(12)]
    by_value = volta.jit(f)
    by_value(arrays[0])
    assert plan_of(f, normal(7, 9)).by_value and plan_of(f, normal(7, 9)).transfers["args"] == 0
    before = moved()
    want = [by_value(x) for x in arrays]
    assert since(before) == {"host_to_device": 0, "device_to_host": 0, "args": 0}
    PLAN_CACHE.clear()
    monkeypatch.setattr("volta.numba_cuda.device_plan._MOST_WORDS", 0)
    by_table = volta.jit(lambda x: f(x))
    assert not plan_of(lambda x: f(x), normal(7, 9)).by_value
    got = [by_table(x) for x in arrays]
    assert since(before)["args"] > 0
    assert_bits_equal(got, want)


def test_what_is_moved_is_what_the_plan_says(gpu):
    w, x = normal(6, 4), normal(3, 6)
    plan = plan_of(step, w, x)
    assert plan.transfers == {"host_to_device": w.nbytes + x.nbytes, "device_to_host": 0, "args": plan.table_bytes}
    before = moved()
    with volta.default_device("cuda"):
        out = volta.jit(step)(w, x)
    assert since(before) == plan.transfers
    before = moved()
    np.asarray(out[0])
    assert since(before) == {"host_to_device": 0, "device_to_host": w.nbytes, "args": 0}


def test_state_that_is_donated_is_not_counted(gpu):
    w, x = normal(6, 4), normal(3, 6)
    f = volta.jit(step, donate_argnums=0)
    with volta.default_device("cuda"):
        plan = f.lower(w, x).compile().plan
    assert plan.transfers["host_to_device"] == x.nbytes
    state = put(w)
    state, _ = f(state, x)
    before = moved()
    state, _ = f(state, x)
    assert since(before)["host_to_device"] == plan.transfers["host_to_device"]


def test_a_plan_lists_its_transfers(gpu):
    table = vnp.arange(12.0).reshape(3, 4) * 1.5
    plan = plan_of(lambda x: vnp.sum(x * table, 1), normal(3, 4))
    by_placement = {placement: (when, nbytes) for _, placement, when, nbytes in plan.transfer_list()}
    assert by_placement["host_input"] == ("each call, unless it is on the device", 48)
    assert by_placement["device_output"] == ("when read", 12)
    assert "host to device 48 bytes (host_input; each call" in plan.as_text()


# -- memory ------------------------------------------------------------------------------------------------------------


def test_the_planned_peak_is_the_measured_peak(gpu):
    """Inputs and results, temporaries, workspace and args: what the pool held at most during the first call."""
    for f, args in ((step, (normal(60, 40), normal(30, 60))), (lambda x: vnp.sum(x), (normal(300, 400),))):
        gc.collect()
        plan = plan_of(f, *args)
        placed = put(args)
        f = volta.jit(f)
        arguments = sum(rounded(x.nbytes) for x in args)
        before = gpu.pool.stats().live - arguments
        gpu.pool.reset_peak()
        f(*placed)
        assert gpu.pool.stats().peak - before == plan.peak_live_bytes == sum(plan.bytes_by_class().values())


def test_temporaries_are_one_allocation(gpu):
    plan = plan_of(step, normal(60, 40), normal(30, 60))
    assert plan.arena_bytes and plan.device_arena_bytes >= plan.arena_bytes + plan.workspace_bytes
    f, args = volta.jit(step), put((normal(60, 40), normal(30, 60)))
    f(*args)
    before = gpu.pool.stats()
    f(*args)
    after = gpu.pool.stats()
    assert after.reuses + after.allocations - before.reuses - before.allocations == 3  # two results and the arena


@contextlib.contextmanager
def full(gpu, spare=256):
    """Inside the block the pool has about so many bytes to give, in one piece, and gets no more."""
    gpu.pool.trim()
    left, held = gpu.pool.take(spare, gpu.main), []
    with devices.memory_limit(gpu.pool.stats().reserved):
        size = gpu.pool.stats().largest
        while size >= 256:
            try:
                held.append(gpu.pool.take(size, gpu.main))
            except MemoryError:
                size //= 2
        left.give_back()
        try:
            yield
        finally:
            for block in held:
                block.give_back()


def test_out_of_memory_says_what_is_needed_and_changes_nothing(gpu):
    f = volta.jit(lambda w, x: (w + vnp.sum(x @ x.T), vnp.exp(x @ x.T) @ x), donate_argnums=0)
    w, x = put(normal(50, 50)), put(normal(300, 300))
    want = volta.jit(lambda w, x: w + vnp.sum(x))(w, x)
    with full(gpu, 400 << 10):  # less than the call needs
        live = gpu.pool.stats().live
        with pytest.raises(errors.OutOfMemoryError) as caught:
            f(w, x)
        text = str(caught.value)
        for (
            part
        ) in "RESOURCE_EXHAUSTED cuda:0 temp output workspace device_parameter largest limit donate_argnums".split():
            assert part in text, part
        assert isinstance(caught.value, MemoryError) and isinstance(caught.value, errors.MemoryBudgetError)
        assert not w.is_deleted()
        assert gpu.pool.stats().live == live
        smaller = volta.jit(lambda w, x: w + vnp.sum(x))(w, x)  # the process goes on, and what was there is as it was
        assert_bits_equal(smaller, want)
    f(w, x)
    assert w.is_deleted()


def test_out_of_memory_for_an_array(gpu):
    with full(gpu):
        with pytest.raises(errors.OutOfMemoryError, match=r"cuda:0 has no memory for 4[0-9,]+ bytes more"):
            put(np.zeros(1 << 20, np.float32))
    assert put(np.zeros(1 << 20, np.float32)).device == "cuda:0"


def test_a_budget_is_checked_before_anything_runs(gpu):
    with volta.execution_context(memory_budget=1000), volta.default_device("cuda"):
        with pytest.raises(errors.MemoryBudgetError, match=r"(?s)on the host.*on the device.*workspace"):
            volta.jit(step)(normal(60, 40), normal(30, 60))
    plan = plan_of(step, normal(60, 40), normal(30, 60))
    assert plan.partitions() == {"host": 4 * (60 * 40 + 30 * 60), "device": plan.peak_live_bytes}


@pytest.mark.turns(6)
def test_dropped_programs_and_arrays_leave_nothing(gpu):
    def use():
        f, args = volta.jit(step), put((normal(6, 4), normal(3, 6)))
        out = f(*args)
        (run,) = next(iter(f._entries.values())).run._there.values()
        found = weakref.ref(run.__self__._kernels)
        np.asarray(out[0])
        return found

    use()
    PLAN_CACHE.clear()
    gc.collect()
    live = gpu.pool.stats().live
    found = use()
    PLAN_CACHE.clear()
    gc.collect()
    assert found() is None
    assert gpu.pool.stats().live == live
    gpu.pool.trim()
    assert gpu.pool.stats().pooled < 128 << 20


@pytest.mark.parametrize("side", [False, True])
def test_what_a_dropped_program_reads_is_overwritten_only_after_its_work(gpu, monkeypatch, side):
    """Tables and constants go back to the pool while the work is queued; the stand-in runs it when somebody waits."""
    monkeypatch.setattr("volta.numba_cuda.device_plan._MOST_WORDS", 0)  # args in tables, however few
    x, table = put(normal(60, 40)), normal(60, 40)
    want = np.asarray(vnp.tanh(table) * table)
    PLAN_CACHE.clear()
    gc.collect()
    live = gpu.pool.stats().live
    with devices.stream() if side else volta.default_device("cuda"):
        f = volta.jit(lambda x: vnp.tanh(x) * table)
        y = f(x)
        assert gpu.pool.stats().live > live + 2 * rounded(y.nbytes)  # the result, the constant and tables
        del f
        PLAN_CACHE.clear()
        gc.collect()
        assert gpu.pool.stats().live == live + rounded(y.nbytes)
        put(np.full_like(table, np.nan))
    for _ in range(3):
        put(np.full_like(table, np.nan)).block_until_ready()
    assert_bits_equal(np.asarray(y), want)


# -- donation and threads ----------------------------------------------------------------------------------------------


def test_a_donor_takes_nothing_from_a_reader(gpu):
    """A donated array's memory is not written while a call in another thread may still have to read it."""
    x = put(normal(100))
    want = np.asarray(x)
    held = x.buffer()  # by a call in some thread, which has looked up the address of x
    y = volta.jit(lambda x: x * 2, donate_argnums=0)(x)
    assert x.is_deleted() and y.buffer().address != held.address
    assert_bits_equal(np.asarray(y), want * 2)
    assert_bits_equal(held.read(x.aval).view(np.float32), want)


def test_of_two_donors_one_gets_the_array(gpu):
    f = volta.jit(lambda x: x + 1, donate_argnums=0)
    f(put(normal(100)))
    for _ in range(20):
        x, got, refused = put(normal(100)), [], []

        def donate(_, x=x, got=got, refused=refused):
            try:
                got.append(f(x))
            except errors.DonatedBufferError:
                refused.append(None)

        run_threads(donate, 2)
        assert (len(got), len(refused)) == (1, 1)
        assert_bits_equal(np.asarray(got[0]), normal(100) + 1)


def test_a_donated_host_array_is_gone_as_well(gpu):
    f = volta.jit(lambda x: x + 1, donate_argnums=0)
    x = vnp.asarray(normal(10))
    with volta.default_device("cuda"):
        y = f(x)
    assert x.is_deleted() and y.device == "cuda:0"
    x = put(normal(10))
    with pytest.raises(errors.DonatedBufferError, match="once more"):
        volta.jit(lambda a, b: a + b, donate_argnums=0)(x, x)
    assert not x.is_deleted()


def test_an_output_that_is_returned_twice_and_one_that_is_an_input(gpu):
    x = put(normal(5))
    a, b, c = volta.jit(lambda x: (x * 2, x * 2, x))(x)
    del a
    gc.collect()
    put(np.zeros(5, np.float32))
    assert_bits_equal((b, c), (normal(5) * 2, normal(5)))


@pytest.mark.parametrize("shared", [True, False])
def test_four_threads_share_a_context(gpu, shared):
    """Each launches the same programs (or programs of its own) many times; nothing is lost, no bit differs."""
    count = 25 if hasattr(gpu.api, "fake") else 1000
    x = put(normal(4, 5))
    programs = [volta.jit(lambda x, n=n: nn.softmax(x * (1.0 + n)) + x) for n in range(1 if shared else 4)]
    want = [np.asarray(f(x)) for f in programs]
    launches = counters.launches

    def work(number):
        f, expected = programs[number % len(programs)], want[number % len(programs)]
        held = []
        for i in range(count):
            held.append(f(x))
            if i % 10 == 9:
                for y in held:
                    assert_bits_equal(np.asarray(y), expected)
                held.clear()

    run_threads(work, 4)
    assert counters.launches >= launches + 4 * count


def test_threads_that_come_first_at_one_time_get_one_device(install):
    fake, met, found = install(), threading.Barrier(2), []

    def load():
        with contextlib.suppress(threading.BrokenBarrierError):
            met.wait(0.3)  # the other thread, if it may come here as well
        return fake.functions

    driver.use(load)
    run_threads(lambda _: found.append(devices.gpu("cuda:0")), 2)
    assert found[0] is found[1]


# -- looking inside ----------------------------------------------------------------------------------------------------


def test_a_profile_has_a_row_for_each_launch(gpu):
    f, w, x = volta.jit(step), put(normal(60, 40)), put(normal(30, 60))
    want = f(w, x)
    with devices.profile() as found:
        got = f(w, x)
    assert_bits_equal(got, want)
    plan = plan_of(step, normal(60, 40), normal(30, 60))
    assert [(r.kernel, r.grid, r.threads) for r in found.rows] == [
        (x.source.name, x.grid, x.threads) for x in plan.launches
    ]
    assert all(r.microseconds > 0 and r.nbytes > 0 for r in found.rows)
    assert sum(count for _, count in found.by_kernel()) == len(found.rows)
    assert found.rows[0].kernel in str(found)
    f(w, x)
    assert len(found.rows) == len(plan.launches)


def test_kernels_are_shown_as_they_are_on_the_device(install):
    if driver.why_none():
        install()
    with volta.default_device("cuda"):
        compiled = volta.jit(lambda x: vnp.tanh(x).sum()).lower(normal(300)).compile()
    (symbol, *_) = compiled.kernel_texts()
    assert f"define void @{symbol}" in compiled.llvm_ir(symbol) or f'@"{symbol}"' in compiled.llvm_ir(symbol)
    assert f".entry {symbol}" in compiled.asm(symbol)
    assert "on cuda" in compiled.as_text() and symbol in compiled.as_text()
    assert ptx.violations(compiled.asm(symbol)) == []
