"""Products on tensor cores: what is compiled for which GPU, and how a kernel is chosen. No GPU is needed."""

import functools
import re

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import errors
from volta.core.policy import DeterminismLevel
from volta.numba_cuda.codegen import ptx, ptx_mbarrier
from volta.numba_cuda.host import host
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.products import dot_tensor
from volta.numba_cuda.products.dot_tensor_persistent import PersistentProduct
from volta.numba_cuda.schedule import Schedule
from volta.testing.bits import assert_bits_equal
from volta.testing.host_grid import HostKernels
from volta.xla_like.compile import CompileOptions, build_plan

pytestmark = pytest.mark.turns(6)

OPTIONS = CompileOptions(epilogues=False)
KERNELS = HostKernels()
planned = functools.partial(build_plan, level=DeterminismLevel.DEVICE, scheduler=Schedule())
INSTRUCTION = {
    ("9.0a", "bf16"): r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.bf16\.bf16",
    ("9.0a", "tf32"): r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k8\.f32\.tf32\.tf32",
    ("8.0", "bf16"): r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32",
    ("8.9", "tf32"): r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32",
}


def launches(f, *args, capability="9.0a"):
    plan = planned(volta.make_jaxpr(f)(*args), options=OPTIONS)[0]
    found = [x for x in launches_of(plan, capability) if x.source.name.startswith("dot_tc")]
    assert found
    return found


def struct(*shape, dtype="float32"):
    return volta.ShapeDtypeStruct(shape, np.dtype(dtype) if dtype != "bfloat16" else vnp.bfloat16)


def product(precision):
    return lambda x, w: vnp.matmul(x, w, precision=precision)


@pytest.mark.parametrize(("capability", "precision"), INSTRUCTION)
def test_kernels_compile_to_the_gpus_own_instruction(capability, precision):
    found = launches(product(precision), struct(300, 200), struct(200, 64), capability=capability)
    text = ptx.compile_ptx([x.source for x in found], capability)
    assert f".target {ptx.CAPABILITIES[capability][0]}" in text
    assert re.search(INSTRUCTION[capability, precision], text)
    assert ptx.violations(text) == []


@pytest.mark.parametrize("capability", ["7.0", "7.5"])
def test_a_gpu_without_these_tensor_cores_is_refused(capability):
    text = rf"bf16.*8\.0 or newer, not {capability}.*--capability 8\.0 8\.6 8\.9 9\.0\)"
    with pytest.raises(errors.UnsupportedOperationError, match=text):
        launches(product("bf16"), struct(30, 20), struct(20, 6), capability=capability)


def test_hoppers_own_instructions_are_for_hopper_alone():
    assert [ptx.best_for(*c) for c in ((8, 0), (8, 7), (9, 0), (10, 0), (12, 1))] == [
        "8.0",
        "8.6",
        "9.0a",
        "9.0",
        "9.0",
    ]


def test_a_driver_that_cannot_read_hoppers_own_code_is_given_none():
    assert ptx.best_for(9, 0, driver=12030) == "9.0a"
    assert ptx.best_for(9, 0, driver=12020) == "9.0"


@pytest.mark.parametrize(
    ("left", "right", "part"),
    [
        (struct(8192, 4096, dtype="bfloat16"), struct(4096, 8192, dtype="bfloat16"), "128x256x4x1_km_mnm_pieces"),
        (struct(8, 64, 64, dtype="bfloat16"), struct(8, 64, 64, dtype="bfloat16"), "64x64x6x2_km_mnm_pieces"),
        (struct(33, 77, dtype="float16"), struct(77, 51, dtype="float16"), "float16_64x64x2x1_ks_mns_single"),
        (struct(4096, 4096), struct(4096, 4096), "tf32_128x256x4x1_km_km_pairs"),
        (struct(4096, 90), struct(90, 4096), "tf32_128x128x2x1_ks_ks_pairs"),
    ],
)
def test_the_kernel_follows_sizes_and_alignment(left, right, part):
    (found,) = launches(product("tf32"), left, right)
    assert part in found.source.name
    assert found.shared <= 227 << 10 and found.alone


def test_a_vector_is_multiplied_by_the_same_instructions():
    """Nothing but k decides how an element is added up, so a row alone has the bits that it has in a batch."""
    (one,) = launches(product("bf16"), struct(768), struct(768, 64))
    (many,) = launches(product("bf16"), struct(4096, 768), struct(768, 64))
    assert "wgmma_bfloat16" in one.source.name and "wgmma_bfloat16" in many.source.name


def integers(*shape, dtype="float32"):
    return np.asarray(vnp.asarray(np.random.default_rng(len(shape)).integers(-8, 9, shape), dtype))


CASES = {
    "rows and columns": (product("bf16"), (70, 72), (72, 80), "float32"),
    "turned": (lambda x, w: product("bf16")(x.T, w.T), (136, 72), (80, 136), "bfloat16"),
    "batches": (product("bf16"), (2, 3, 16, 40), (3, 40, 24), "float16"),
    "any size": (product("bf16"), (2, 33, 37), (2, 37, 35), "float16"),
    "converted": (product("tf32"), (66, 36), (36, 68), "float32"),
    "converted, turned": (lambda x, w: product("tf32")(x.T, w.T), (36, 66), (70, 36), "float32"),
    "wide": (product("bf16"), (130, 64), (64, 600), "bfloat16"),
    "deep": (product("bf16"), (20, 400), (400, 24), "bfloat16"),
    "a part": (lambda x, w: product("bf16")(x[:, 3:70, 16:53], w[8:45, 24:96]), (3, 80, 56), (48, 104), "bfloat16"),
    "reversed": (lambda x, w: product("bf16")(x[::-1], w), (70, 72), (72, 80), "bfloat16"),
    "repeated": (lambda x, w: product("bf16")(vnp.broadcast_to(x, (66, 40)), w), (40,), (40, 72), "bfloat16"),
    "nothing to add": (product("bf16"), (5, 0), (0, 4), "float32"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("capability", [pytest.param("8.0", marks=pytest.mark.slow), "9.0a"])
@pytest.mark.few(4)
def test_where_every_sum_is_exact_the_bits_are_those_of_strict(capability, case):
    f, left, right, dtype = CASES[case]
    args = integers(*left, dtype=dtype), integers(*right, dtype=dtype)
    plan, program = planned(volta.make_jaxpr(f)(*args), options=OPTIONS, scheduler=Schedule())
    found = host.run_plan(
        plan, args, program.consts, kernels=KERNELS, launches=launches_of(plan, capability), order="shuffled"
    )
    assert found.violations == []
    with volta.execution_context(level="device"):
        assert_bits_equal(found.outputs[0], f(*args))


@pytest.mark.parametrize("capability", ["8.0", "9.0a"])
@pytest.mark.parametrize("size", [33, 40])
def test_a_left_operand_in_tf32_is_rounded_by_its_product(capability, size):
    """To 10 bits of mantissa, ties away from zero, a NaN stays one; no launch but the product's reads it."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in ((70, size), (size, 24)))
    x.view(np.int32)[0] = x.view(np.int32)[0] & -0x2000 | 0x1000
    words = x.view(np.int32) + 0x1000 & -0x2000
    rounded = words.view(np.float32).copy()
    x.view(np.int32)[5, 7] = rounded.view(np.int32)[5, 7] = 0x7F800001
    results = []
    for left in (x, rounded):
        plan, program = planned(volta.make_jaxpr(product("tf32"))(left, w), options=OPTIONS)
        found = launches_of(plan, capability)
        assert len(found) == 2  # the right operand is turned and rounded
        done = host.run_plan(plan, (left, w), program.consts, kernels=KERNELS, launches=found, order="shuffled")
        assert done.violations == []
        results.append(done.outputs[0])
    assert_bits_equal(*results)
    assert np.isnan(results[0]).all(1).nonzero()[0].tolist() == [5]


MANY = integers(264, 328, dtype="bfloat16"), integers(328, 200, dtype="bfloat16")
"""A product of many tiles, each deeper in k than there are slots."""


def run_many(monkeypatch, shape, kernels):
    """Run that product with so few blocks that each has many tiles, of one shape."""
    monkeypatch.setitem(dot_tensor._SHAPES, "persistent", (shape,))
    options = attrs.evolve(OPTIONS, processors=1)
    plan, program = planned(volta.make_jaxpr(product("bf16"))(*MANY), options=options, scheduler=Schedule())
    (found,) = launches_of(plan, "9.0a")
    assert found.mapped and found.grid == shape.resident
    return host.run_plan(plan, MANY, program.consts, kernels=kernels, launches=[found], order="shuffled", races=False)


@pytest.mark.parametrize("shape", dot_tensor._SHAPES["persistent"], ids=lambda s: f"{s.rows}x{s.cols}")
@pytest.mark.few(2)
def test_a_block_computes_one_tile_after_another(monkeypatch, shape):
    found = run_many(monkeypatch, shape, KERNELS)
    assert found.violations == []
    with volta.execution_context(level="device"):
        assert_bits_equal(found.outputs[0], product("bf16")(*MANY))


@pytest.mark.parametrize("forgotten", ["_full", "_empty"])
def test_who_does_not_wait_is_caught(monkeypatch, forgotten):
    """A slot that is read before it is full, or filled before it is empty, shows on the host."""
    wait = ptx_mbarrier.wait
    names = {}
    for name in ("_full", "_empty"):
        method = getattr(PersistentProduct, name)

        def noted(self, slot, name=name, method=method):
            found = method(self, slot)
            names[id(found)] = name, found
            return found

        monkeypatch.setattr(PersistentProduct, name, noted)
    monkeypatch.setattr(
        ptx_mbarrier, "wait", lambda b, x, parity: None if names[id(x)][0] == forgotten else wait(b, x, parity)
    )
    found = run_many(monkeypatch, dot_tensor._SHAPES["persistent"][-1], HostKernels())
    with volta.execution_context(level="device"):
        right = np.asarray(product("bf16")(*MANY))
    assert found.violations or not np.array_equal(found.outputs[0], right)


def rounded(x, precision):
    """float32 values rounded as the operands of products are, by their bits."""
    bits = x.view(np.uint32).astype(np.uint64)
    if precision == "tf32":
        return ((bits + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("size", [36, 37])
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_operands_are_rounded_once_and_right(precision, size):
    """A product with the identity is the rounding: of numbers, ties, subnormals and infinities."""
    x = np.random.default_rng(0).standard_normal((66, size)).astype(np.float32)
    ties = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-11, 1e-40, -1e-39], np.float32)
    x[0, :7] = ties
    args = x, np.eye(size, dtype=np.float32)
    plan, program = planned(volta.make_jaxpr(product(precision))(*args), options=OPTIONS)
    found = host.run_plan(plan, args, program.consts, kernels=KERNELS, launches=launches_of(plan, "9.0a"))
    assert found.violations == []
    assert_bits_equal(found.outputs[0], rounded(x, precision) + np.float32(0))
