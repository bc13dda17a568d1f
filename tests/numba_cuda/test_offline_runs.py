"""What is compiled offline is what a GPU is given: the same PTX, and machine code that runs to the same bits."""

import itertools
import re

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import errors, nn, offline
from volta.numba_cuda import backend
from volta.numba_cuda.codegen import modules, nvjitlink, ptx
from volta.numba_cuda.device import launch
from volta.numba_cuda.device.graph import Module
from volta.numba_cuda.device_plan import device_plan
from volta.runtime import devices
from volta.testing.bits import assert_bits_equal

pytestmark = pytest.mark.turns(6)


def normal(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


TABLE = normal(40, 8, seed=3)


def train(w, x, labels):
    def loss(w):
        logits = nn.layer_norm(nn.gelu(x @ w)) @ TABLE.T
        return vnp.mean(nn.softmax_cross_entropy_with_integer_labels(logits, labels))

    value, g = volta.value_and_grad(loss)(w)
    return w - 0.1 * g, value


def attend(q):
    return volta.grad(lambda q: vnp.sum(nn.dot_product_attention(q, q * 2, q + 1, is_causal=True) ** 2))(q)


FUNCTIONS = {
    "products": (
        lambda x, w: (x @ w, vnp.matmul(x, w, precision="highest"), x[0] @ w),
        (normal(40, 300), normal(300, 72)),
    ),
    "softmax": (nn.softmax, (normal(9, 300),)),
    "training": (train, (normal(16, 8), normal(20, 16), np.arange(20, dtype=np.int32))),
    "attention": (attend, (normal(1, 20, 8, 8),)),
    "order": (lambda x: (vnp.sort(x, 1), vnp.cumsum(x, 0), x.at[vnp.arange(50) % 7].add(x[:50])), (normal(60, 9),)),
}


def entries(text):
    """The kernels of a PTX text by name; labels are numbered through a module, so their module's part goes."""
    found = re.split(r"^\.visible \.entry ", re.sub(r"\$L__BB\d+_", "$L__BB_", text), flags=re.M)[1:]
    return {entry.split("(")[0]: re.sub(r"//.*", "", entry[: entry.index("\n}\n")]) for entry in found}


@pytest.fixture
def by_address(monkeypatch):
    """A device's kernels read their args from a table, as those made offline do, however short the plan."""
    monkeypatch.setattr("volta.numba_cuda.device_plan._MOST_WORDS", 0)


@sampled(
    "capability, name",
    itertools.product(("7.5", "9.0a"), FUNCTIONS),
    quick=lambda x: x == ("7.5", "products") or (x[0] == "9.0a" and x[1] not in ("attention", "training")),
)
def test_ptx_made_offline_is_what_a_gpu_of_that_capability_is_given(by_address, name, capability):
    """Offline all kernels are one module, for a device each is its own."""
    f, args = FUNCTIONS[name]
    (found,) = offline.compile_functions([offline.Function(f, args, name)], [capability])
    sources = {x.source.name: x.source for x in device_plan(found.plan, capability).launches}
    got = entries(found.targets[0].ptx)
    assert got == {symbol: entries(ptx.compile_ptx([s], capability))[symbol] for symbol, s in sources.items()}


@pytest.mark.gpu
def test_ptx_made_offline_for_this_gpu_is_what_it_is_given(by_address):
    f, args = FUNCTIONS["training"]
    with volta.default_device("cuda"):
        online = volta.jit(lambda *a: f(*a)).lower(*args).compile()
    capability = modules.capability_of(devices.gpu("cuda:0"))
    (found,) = offline.compile_functions([offline.Function(f, args, "training")], [capability])
    got = entries(found.targets[0].ptx)
    assert set(got) == set(online.kernel_texts())
    for symbol, text in got.items():
        assert entries(online.asm(symbol))[symbol] == text


def run_loaded(gpu, monkeypatch, name, image, capability):
    """A function's results by kernels that were compiled offline for a capability, loaded from PTX or a cubin."""
    f, args = FUNCTIONS[name]
    (found,) = offline.compile_functions([offline.Function(f, args, name)], [capability], cubin=image == "cubin")
    target = found.targets[0]
    module = Module(gpu, getattr(target, image))
    functions = {kernel: module.function(kernel) for kernel in target.kernels}
    plan = device_plan(found.plan, capability)
    assert [attrs.astuple(x)[:4] for x in target.launches] == [
        (x.source.name, x.grid, x.threads, x.shared) for x in plan.launches
    ]
    monkeypatch.setattr(launch.modules, "functions_of", lambda device, sources: functions)
    consts = volta.device_put([vnp.asarray(c) for c in found.constants], "cuda")
    inputs = volta.device_put(volta.tree.leaves(args), "cuda")
    outputs = [b for b in plan.buffers if b.kind == "output" and b.alias is None]
    made = [devices.empty(b.nbytes, gpu.main) for b in outputs]
    arena = devices.empty(plan.device_arena_bytes, gpu.main)
    run = backend.prepare(plan, [c.buffer().address for c in consts], consts, gpu)
    addresses = [x.address for x in (*(x.buffer() for x in inputs), *made)]
    run.call(gpu.main, (*addresses, arena.address) if plan.device_arena_bytes else tuple(addresses))
    by_buffer = {b.id: (m, b.aval) for b, m in zip(outputs, made, strict=True)}
    found = [by_buffer[number] for number in plan.outputs]
    return [m.read(aval).view(aval.dtype).reshape(aval.shape) for m, aval in found]


def wanted(name):
    f, args = FUNCTIONS[name]
    return [np.asarray(x) for x in volta.tree.leaves(volta.jit(f)(*volta.device_put(args, "cuda")))]


@sampled(
    "capability, name",
    itertools.product(("its own", "7.0", "8.0", "8.9"), FUNCTIONS),
    quick=lambda x: x[0] == "its own" or x == ("7.0", "products"),
)
@pytest.mark.few(3)
def test_ptx_made_offline_runs_to_the_same_bits(gpu, by_address, monkeypatch, name, capability):
    """Of an older capability too: a GPU's driver takes its PTX, and other kernels run."""
    want = wanted(name)
    capability = modules.capability_of(gpu) if capability == "its own" else capability
    if ptx.level_of(capability) > gpu.info.capability:
        pytest.skip(f"PTX for {capability} is newer than this GPU")
    assert_bits_equal(run_loaded(gpu, monkeypatch, name, "ptx", capability), want)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_machine_code_made_offline_runs_to_the_same_bits(gpu, by_address, monkeypatch, name):
    capability = modules.capability_of(gpu)
    try:
        nvjitlink.library_for(capability)
    except errors.DeviceError as error:
        pytest.skip(str(error))
    want = wanted(name)
    assert_bits_equal(run_loaded(gpu, monkeypatch, name, "cubin", capability), want)
