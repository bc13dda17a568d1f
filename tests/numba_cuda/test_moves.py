"""Values that wait in the host's memory while a plan runs on a GPU: copied beside its kernels, bit by bit."""

import numpy as np
import pytest

import volta
from tests.xla_like.test_offload import WIDTH, layers, waits
from volta.core import pytrees
from volta.core.avals import ShapedArray
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.device_plan import device_plan
from volta.numba_cuda.host.host import run_plan
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.moves import BLOCKS, NAME, build_move
from volta.numba_cuda.schedule import Schedule
from volta.runtime import devices
from volta.testing.bits import bits
from volta.xla_like import offload
from volta.xla_like.compile import build_plan
from volta.xla_like.kernels import Access, KernelCall
from volta.xla_like.plan import Buffer, ExecutionPlan

pytestmark = pytest.mark.turns(6)


def arrays(count):
    rng = np.random.default_rng(0)
    ws = [(rng.normal(size=(WIDTH, WIDTH)) / 8).astype(np.float32) for _ in range(count)]
    return ws, rng.normal(size=(256, WIDTH)).astype(np.float32)


def plans(f, args, share):
    program = volta.jit(f).trace(*args).jaxpr
    free, plain = build_plan(program, scheduler=Schedule())
    budget = int(free.arena_bytes * share)
    plan, moving = build_plan(program, scheduler=Schedule(), excess=lambda plan: plan.arena_bytes - budget)
    assert plan.arena_bytes <= budget and plan.moved[0]
    return (free, plain), (plan, moving)


@pytest.mark.parametrize("nbytes", [1, 16, 4095, 65536, 300_001, BLOCKS * 16384 * 2 + 77])
def test_a_copy_copies_every_byte_and_no_other(nbytes):
    byte = ShapedArray((nbytes,), np.dtype(np.uint8))
    buffers = (Buffer(0, byte, "input", "host_input"), Buffer(1, byte, "output", "device_output"))
    call = KernelCall(offload.Move("host", nbytes), (), (Access(0, 0, ()), Access(1, 0, ())), (0,), (1,))
    plan = ExecutionPlan("copy", buffers, (call,), (0,), (), (1,), (byte,), 0)
    given = np.random.default_rng(nbytes).integers(0, 256, nbytes).astype(np.uint8)
    report = run_plan(plan, [given])
    assert not report.violations and bits(report.outputs[0]) == bits(given)
    assert launches_of(plan)[0].grid <= BLOCKS


@pytest.mark.parametrize("capability", ["7.5", "9.0"])
def test_it_compiles_and_keeps_the_rules(capability):
    text = ptx.compile_ptx([KernelSource(NAME, "move", build_move)], capability)
    assert f".entry {NAME}(" in text and not ptx.violations(text)


@pytest.mark.parametrize(
    "f, count, share",
    [pytest.param(waits, 6, 0.95, marks=pytest.mark.slow), (volta.value_and_grad(layers), 6, 0.4)],
)
def test_bits_are_those_of_the_plain_plan(f, count, share, monkeypatch):
    monkeypatch.setattr(offload, "BESIDE", 20)
    args = arrays(count)
    found = []
    for plan, program in plans(f, args, share):
        report = run_plan(plan, pytrees.leaves(args), [np.asarray(c) for c in program.consts])
        assert not report.violations
        found.append(bits(report.outputs))
    assert found[0] == found[1]


def test_copies_run_beside_kernels(monkeypatch):
    """Some kernels wait neither for a copy nor it for them, in both directions."""
    monkeypatch.setattr(offload, "BESIDE", 20)
    _, (plan, _) = plans(volta.value_and_grad(layers), arrays(8), 0.4)
    launches = launches_of(plan)
    reach = []  # of each launch, those before it that it comes after
    for x in launches:
        reach.append(set(x.after).union(*(reach[i] for i in x.after)))
    for label in ("move to host", "move to device"):
        beside = 0
        for i, x in enumerate(launches):
            if x.label == label:
                beside += any(
                    k not in reach[i] and i not in reach[k] and not y.label.startswith("move")
                    for k, y in enumerate(launches) if k != i
                )  # fmt: skip
        assert beside > 0, label


def test_a_plan_says_what_it_holds_on_the_host_and_what_crosses():
    _, (plan, _) = plans(waits, arrays(6), 0.95)
    plan = device_plan(plan)
    nbytes = 4 * 256 * WIDTH
    given = 4 * (6 * WIDTH * WIDTH + 256 * WIDTH)
    assert plan.partitions() == {"host": given + nbytes, "device": plan.peak_live_bytes}
    assert plan.transfers["host_to_device"] == given + nbytes and plan.transfers["device_to_host"] == nbytes
    assert f"device to host {nbytes} bytes (host_temporary; each call, and back)" in plan.as_text()


@pytest.mark.slow
def test_a_program_runs_within_its_budget_and_gives_its_page_locked_memory_back(gpu):
    args = volta.device_put(arrays(6), "cuda")
    want = bits(volta.jit(waits)(*args))
    with volta.default_device("cuda"):
        (free,) = volta.plan_for(waits, args)
        saved = free.plan.arena_bytes // 20
        assert free.moved == 0
        table = str(volta.plan_for(waits, args, [None, free.peak - saved])).splitlines()
        assert table[0].endswith("  moved") and table[1].endswith("       0") and table[2].endswith("  65,536")
        f = volta.jit(lambda *xs: waits(*xs), memory_budget=free.peak - saved)
        plan = f.lower(*args).compile().plan
        assert plan.moved[0] == 1 and plan.peak_live_bytes <= free.peak - saved
        f(*args)
        live = devices.gpu("cuda:0").pinned.stats().live
        for _ in range(2):
            assert bits(f(*args)) == want
    assert devices.gpu("cuda:0").pinned.stats().live == live


@pytest.mark.slow
def test_no_page_locked_memory_is_an_error_that_changes_nothing(gpu, monkeypatch):
    args = volta.device_put(arrays(6), "cuda")
    with volta.default_device("cuda"):
        (free,) = volta.plan_for(waits, args)
        f = volta.jit(lambda *xs: waits(*xs), memory_budget=free.peak - free.plan.arena_bytes // 20)
        f(*args)
    device = devices.gpu("cuda:0")
    live = device.pool.stats().live

    def none(nbytes, stream):
        raise MemoryError

    with volta.default_device("cuda"):
        with monkeypatch.context() as patch, pytest.raises(volta.errors.OutOfMemoryError, match="page-locked"):
            patch.setattr(device.pinned, "take", none)
            f(*args)
        assert device.pool.stats().live == live and bits(f(*args)) == bits(volta.jit(waits)(*args))
