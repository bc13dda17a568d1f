"""S13 on a GPU: plans on ``cuda.jit`` functions have the bits of LLVM's kernels on the CPU.

Without a GPU the same texts run on the host, thread by thread, in an order of threads that is no grid's own.
"""

from __future__ import annotations

import importlib
import re

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import volta
from tests.laws.test_law_kernels import DTYPES, FIRST, LOOPS, PAIRS, SMOOTH, of_dtype, taken
from tests.sampling import sampled
from volta import nn
from volta import numpy as vnp
from volta.core import dtypes
from volta.numba_cuda.codegen.numba_tools import tools
from volta.numba_cuda.launches import every
from volta.numba_source.cuda.launches import TextSource
from volta.testing import FILLS, assert_bits_equal, fill
from volta.testing.cases import cases
from volta.testing.kernel_kinds import has_numba_cuda
from volta.testing.loops import total
from volta.testing.strategies import programs
from volta.testing.text_grid import check_texts, plan_of_texts
from volta.verify.checks import on_device
from volta.verify.kernels import training
from volta.verify.laws import PROGRAMS

pytestmark = pytest.mark.turns(6)


def bound(case):
    return lambda *args: case.primitive.bind(*args, **case.params)


@sampled("name", list(PAIRS), quick=FIRST[:: len(FIRST) // 8])
def test_the_text_of_every_primitive(name) -> None:
    for case in taken(*PAIRS[name]):
        check_texts(bound(case), *case.args)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SMOOTH))
def test_rare_branches_of_functions(name) -> None:
    primitive, dtype = SMOOTH[name]
    case = cases(primitive, dtype)[0]
    for data in ("ladder", "specials", "subnormal"):
        args = [fill(data, (50,), x.dtype.name, seed=i) if dtypes.is_float(x.dtype) else
                np.resize(x, 50) for i, x in enumerate(case.args)]  # fmt: skip
        check_texts(bound(attrs.evolve(case, args=tuple(args))), *args)


@sampled("dtype", DTYPES, quick=("bfloat16", "int64"))
def test_every_dtype(dtype) -> None:
    x = fill("specials" if "float" in dtype else "normal", (4, 9), dtype)
    check_texts(of_dtype, x, np.array([3, -9], np.int32))


@pytest.mark.slow
def test_long_sums_and_products() -> None:
    x = fill("ladder", (3 * 4096 + 5, 3))
    check_texts(lambda x: (vnp.sum(x, 0), vnp.sum(x.T, 1), vnp.sum(x), vnp.argmax(x, 0)), x)
    check_texts(lambda x: (x.T @ x, x[:, 0] @ x), x)
    for precision in ("highest", "exact"):
        check_texts(lambda x, p=precision: vnp.matmul(x[:700].T, x[:700], precision=p), x)
    many, rows = fill("ladder", (5000, 2)), np.arange(5000, dtype=np.int32) % 3
    check_texts(lambda t, x, i: t.at[i].add(x), x[:3, :2], many, rows)


@sampled("name", list(LOOPS), quick=("swapped",))
def test_loops_and_choices(name) -> None:
    p = LOOPS[name]
    check_texts(p.f, *map(np.asarray, p.args))
    if p.differentiable:
        check_texts(volta.grad(total(p.f), p.floats), *map(np.asarray, p.args))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_attention_and_its_gradients(dtype) -> None:
    q = fill("normal", (2, 3, 4, 3), dtype)
    k, v = (fill("normal", (2, 70, 2, 3), dtype, seed=i) for i in (1, 2))
    mask = fill("normal", (2, 1, 3, 70), seed=3) > -0.5
    mask[:, :, 1] = False
    starts = np.array([3, 66], np.int32)

    def attend(**options):
        def value(q, k, v):
            return vnp.sum(nn.dot_product_attention(q, k, v, **options).astype(np.float32) ** 2)

        return lambda q, k, v: (nn.dot_product_attention(q, k, v, **options), volta.grad(value, (0, 1, 2))(q, k, v))

    check_texts(attend(mask=mask, is_causal=True, query_start=starts), q, k, v)
    check_texts(attend(), q[:, :1], k, v)


def test_attention_of_a_row() -> None:
    q, k, v = (fill("normal", (1, n, 2, 3), seed=n) for n in (1, 66, 66))
    f = nn.dot_product_attention
    check_texts(lambda q, k, v: (f(q, k, v), volta.grad(lambda q: vnp.sum(f(q, k, v)))(q)), q, k, v)


few = settings(max_examples=max(4, settings().max_examples // 4), suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@given(programs(), st.sampled_from(sorted(FILLS)))
@few
def test_random_programs(p, data) -> None:
    check_texts(p, *[fill(data if "float" in d else "normal", shape, d, i) for i, (shape, d) in enumerate(p.inputs)])


# -- by numba-cuda, and on a GPU ---------------------------------------------------------------------------------------

by_numba_cuda = pytest.mark.skipif(
    not has_numba_cuda(),
    reason="numba-cuda is not installed (pip install 'volta[numba-cuda]')",
)


@pytest.mark.slow
@by_numba_cuda
@pytest.mark.parametrize("name", list(PAIRS))
def test_numba_cuda_makes_strict_ptx_of_every_text(name) -> None:
    """Where it does not, `ptx_of` raises. It needs no GPU."""
    compiling = importlib.import_module("volta.numba_source.cuda.compiling")
    case = taken(*PAIRS[name])[0]
    sources = [x.source for x in every(plan_of_texts(bound(case), *case.args)[0].launches)]
    for source in sources:
        if isinstance(source, TextSource):
            assert f".entry {source.name}(" in compiling.ptx_of(source, "9.0")


def agree_on_a_gpu(f, *args) -> None:
    want = volta.jit(f)(*args)
    with volta.execution_context(kernels="cuda.jit"):
        assert_bits_equal(on_device(f, args, "cuda"), want)


@pytest.mark.gpu
@by_numba_cuda
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_programs_on_a_gpu(name) -> None:
    agree_on_a_gpu(PROGRAMS[name], fill("normal", (66, 64)), fill("normal", (64, 66), seed=1))


@pytest.mark.gpu
@by_numba_cuda
@sampled("name", list(PAIRS), quick=FIRST)
def test_the_text_of_every_primitive_on_a_gpu(name) -> None:
    for case in taken(*PAIRS[name]):
        agree_on_a_gpu(bound(case), *case.args)


@pytest.mark.gpu
@by_numba_cuda
@sampled("name", list(LOOPS), quick=("swapped", "choosing"))
def test_loops_and_choices_on_a_gpu(name) -> None:
    p = LOOPS[name]
    agree_on_a_gpu(p.f, *map(np.asarray, p.args))


@pytest.mark.gpu
@by_numba_cuda
@pytest.mark.slow
def test_a_transformers_training_on_a_gpu() -> None:
    """A hundred steps of Adam: equal checkpoint files."""
    check = training("cuda", "cuda.jit", 100)
    assert not check.problem


@pytest.mark.gpu
@by_numba_cuda
@pytest.mark.filterwarnings("ignore:.*Grid size")
def test_a_dispatcher_is_launched_by_itself() -> None:
    """`compiled.kernel` on the words that its text reads: a product and a sum, which nothing contracts."""
    cuda = tools().cuda
    with volta.default_device("cuda"), volta.execution_context(kernels="cuda.jit"):
        compiled = volta.jit(lambda x: x * x + x).lower(vnp.ones(100)).compile()
    x, out = fill("normal", (100,)), cuda.device_array(100, np.float32)
    given = cuda.to_device(x)
    words = {"n0": 100, "chunk": 1, "tasks": 100}
    words |= {"in0": given.device_ctypes_pointer.value, "out0": out.device_ctypes_pointer.value}
    text = compiled.source("map").replace("for task in range(cuda.grid(1), args", "tasks = args")
    args = np.zeros(16, np.int64)
    for names, places in re.findall(r"^ *([\w, ]+) = ((?:args\[\d+\](?:, )?)+)", text, flags=re.MULTILINE):
        for name, place in zip(names.split(", "), re.findall(r"\d+", places), strict=True):
            args[int(place)] = words[name]
    compiled.kernel("map")[2, 64](cuda.to_device(args))
    assert_bits_equal(out.copy_to_host(), x * x + x)
