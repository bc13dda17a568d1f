"""Every primitive's CUDA kernels compile to PTX without a GPU, and the text keeps the rules of strict kernels."""

import itertools
import re
import subprocess
import sys

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax, nn
from volta.core.avals import ShapedArray
from volta.core.ir import ClosedJaxpr, Eqn, Jaxpr, Var
from volta.core.policy import DeterminismLevel
from volta.numba_cuda import kernels
from volta.numba_cuda.codegen import nvjitlink, offline, ptx
from volta.numba_cuda.schedule import KERNEL_CLASSES
from volta.offline import plan_on_cuda
from volta.testing.cases import cases, dtypes_of, vocabulary
from volta.xla_like.compile import build_plan
from volta.xla_like.kernels import kernel_class


def program_of(case):
    """The program of one equation that a case is."""
    invars = tuple(Var(ShapedArray(x.shape, x.dtype)) for x in case.args)
    result = case.primitive.abstract(*[v.aval for v in invars], **case.params)
    outs = tuple(Var(a) for a in (result if case.primitive.multiple_results else [result]))
    return ClosedJaxpr(Jaxpr((), invars, (Eqn(case.primitive, invars, outs, case.params),), outs), ())


def sources_of(case, capability):
    plan, _ = build_plan(program_of(case))
    return {launch.source.name: launch.source for launch in kernels.launches_of(plan, capability)}


QUICK = ("exp", "sin", "pow", "div", "rem", "convert_element_type", "reduce_sum", "argmax", "gather", "pad", "sort")


@sampled("capability", ("9.0", "7.0", "7.5", "8.0", "8.6", "8.9"), quick=("9.0",))
@sampled("primitive", vocabulary(), quick=lambda p: p.name in QUICK, ids=lambda p: p.name)
@pytest.mark.turns(6)
def test_kernels_of_every_primitive_compile_and_keep_the_rules(primitive, capability):
    sources = {}
    for dtype in dtypes_of(primitive):
        for case in cases(primitive, dtype):
            sources.update(sources_of(case, capability))
    if sources:
        text = ptx.compile_ptx(sources.values(), capability)
        assert ptx.violations(text) == []
        for name in sources:
            assert f".entry {name}(" in text


def zeros(*shape, dtype=np.float32):
    return volta.ShapeDtypeStruct(shape, dtype)


def total(f):
    return volta.grad(lambda *xs: vnp.sum(f(*xs)))


SAMPLES = {
    "map": (lambda x: vnp.tanh(x) * 2, zeros(1000)),
    "rows": (nn.softmax, zeros(64, 300)),
    "columns": (lambda x: vnp.sum(x, 0), zeros(3000, 40)),
    "long rows": (lambda x: (vnp.argmax(x, 1), vnp.sum(x, 1)), zeros(2, 50000)),
    "product": (lambda x, y: nn.gelu(x @ y), zeros(256, 512), zeros(512, 256)),
    "small product": (lambda x, y: x @ y, zeros(3, 5, 7, dtype="bfloat16"), zeros(3, 7, 2, dtype="bfloat16")),
    "float64 product": (lambda x, y: x @ y, zeros(128, 128, dtype="float64"), zeros(128, 128, dtype="float64")),
    "row by matrix": (lambda x, y: x @ y, zeros(1, 512), zeros(512, 256)),
    "embedding": (total(lambda table, i: table[i] * 2), zeros(50, 96), zeros(320, dtype="int32")),
    "few updates": (lambda x, i, y: x.at[i].set(y), zeros(50, 96), zeros(2, dtype="int32"), zeros(2, 96)),
    "scan": (lambda x: vnp.cumsum(x, 1), zeros(9, 600)),
    "sort": (lambda x: vnp.sort(x, 0), zeros(30, 20)),
    "loop": (lambda x: lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2 + 1, x), zeros(300)),
    "choice": (lambda x: lax.cond(x[0] < 9, lambda x: x * 2, lambda x: x + 1, x), zeros(300)),
    "attention": (total(lambda x: nn.dot_product_attention(x, x, x)), zeros(2, 200, 4, 16)),
    "panels": (vnp.linalg.cholesky, zeros(80, 80)),
}


def plan_of(name):
    f, *args = SAMPLES[name]
    return plan_on_cuda(volta.make_jaxpr(f)(*args), name.replace(" ", "_"))[0]


def test_the_samples_have_every_class_of_kernels():
    calls = [c for name in SAMPLES for call in plan_of(name).all_calls() for c in (call, *call.parts)]
    seen = {kernel_class(c.kernel) for c in calls} - {"joined"}
    launched = {x.source.text for name in SAMPLES for x in kernels.launches_of(plan_of(name))}
    assert any(text.startswith("combine") for text in launched)
    strict = {name for name, level in KERNEL_CLASSES.items() if level is DeterminismLevel.STRICT}
    elsewhere = {"combine", "user", "move"}  # users' own: test_user_functions.py; to the host and back: test_moves.py
    assert seen | elsewhere == strict


EVERY_CLASS = list(itertools.product(SAMPLES, ("7.5", "8.0", "8.9", "9.0")))
QUICK_CLASSES = [("attention", "8.9"), *((name, "9.0") for name in SAMPLES if name != "attention")]
QUICK_CLASSES += [(name, capability) for name in ("rows", "product", "few updates") for capability in ("7.5", "8.0")]


@sampled("name, capability", EVERY_CLASS, quick=QUICK_CLASSES)
@pytest.mark.few(6)
@pytest.mark.turns(6)
def test_every_class_of_kernels_compiles_for_each_capability(name, capability):
    (x,) = offline.compile_plan(plan_of(name), [capability], cubin=bool(nvjitlink.libraries()))
    assert f".target {ptx.CAPABILITIES[capability][0]}" in x.ptx
    assert set(x.kernels) == set(re.findall(r"\.entry (\w+)\(", x.ptx))
    for launch in x.launches:
        assert launch.threads <= 1024 and launch.shared <= ptx.shared_of(capability)
        needs = x.resources.get(launch.kernel)
        assert needs is None or needs.registers * launch.threads <= 65536


@pytest.mark.parametrize(
    "line",
    [
        "ex2.approx.f32 %f1, %f2;",
        "add.ftz.f32 %f1, %f2, %f3;",
        "mul.f32 %f1, %f2, %f3;",
        "mad.f32 %f1, %f2, %f3, %f4;",
        "div.full.f32 %f1, %f2, %f3;",
        "sqrt.approx.f32 %f1, %f2;",
        "atom.global.add.f32 %f1, [%rd1], %f2;",
        "red.global.add.f64 [%rd1], %fd1;",
    ],
)
def test_each_rule_of_strict_kernels_is_seen_to_break(line):
    assert ptx.violations(line)


def test_what_strict_kernels_use_breaks_no_rule():
    lines = [
        "fma.rn.f32 %f1, %f2, %f3, %f4;",
        "add.rn.f64 %f1, %f2, %f3;",
        "div.rn.f32 %f1, %f2, %f3;",
        "mad.lo.s32 %r1, %r2, %r3, %r4;",
        "mul.lo.s64 %rd1, %rd2, %rd3;",
        "atom.global.add.u64 %rd1, [%rd2], 1;",
    ]
    assert ptx.violations("\n".join(lines)) == []


def test_an_unknown_capability_is_refused():
    with pytest.raises(ValueError, match=r"no compute capability '6\.0'"):
        ptx.compile_ptx([], "6.0")


@pytest.mark.turns(6)
def test_importing_volta_imports_no_cuda():
    code = "import sys, volta; assert not [m for m in sys.modules if 'cuda' in m]"
    subprocess.run([sys.executable, "-c", code], check=True)
