"""S13: plans on Numba functions, and on the text of these as Python runs it, have the bits of LLVM's kernels."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax, nn
from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.errors import VoltaError
from volta.numba_source import dots, loops, ordering, python_ir, python_words, reductions
from volta.ops.primitive import Family
from volta.runtime import plan_cache
from volta.testing import FILLS, fill
from volta.testing.cases import cases, dtypes_of, kinds_of, vocabulary
from volta.testing.kernel_kinds import GENERATED, assert_kernels_agree
from volta.testing.loops import loop_programs, total
from volta.testing.strategies import programs
from volta.testing.transformer import Transformer
from volta.verify import model
from volta.verify.model import train

pytestmark = pytest.mark.turns(6)

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
          "uint64", "bool", "complex64", "complex128")  # fmt: skip
LOOPS = {p.name: p for p in loop_programs()}


def kind_of(dtype) -> str:
    kinds = {"b": "bool", "c": "complex"}
    return "float" if dtypes.is_float(dtype) else kinds.get(dtype.kind, "int")


def taken(primitive, dtype) -> list:
    """The cases of a primitive for a dtype: those that its domain and its shape rule take."""
    kind = kind_of(dtype)
    if (primitive.domain is not None or kind == "complex") and kind not in kinds_of(primitive):
        return []

    def fits(case) -> bool:
        try:
            primitive.abstract(*(ShapedArray(x.shape, x.dtype) for x in case.args), **case.params)
        except (VoltaError, TypeError):
            return False
        return True

    return [case for case in cases(primitive, dtype) if fits(case)]


PAIRS = {f"{p.name} {d.name}": (p, d) for p in vocabulary() for d in map(dtypes.canonicalize, DTYPES) if taken(p, d)}
FIRST = [f"{p.name} {dtypes_of(p)[0].name}" for p in vocabulary()]
SMOOTH = {name: pair for name, pair in PAIRS.items() if pair[0].family is Family.ELEMENTWISE and "float" in name}


@pytest.mark.turns(6)
def test_numba_functions_have_the_bits_of_llvm() -> None:
    x = fill("normal", (5, 130))
    assert_kernels_agree(lambda x: (nn.softmax(nn.gelu(x), -1), vnp.sum(x, 0)), x, kinds=["njit"])


def agree_on(case, kind) -> None:
    assert_kernels_agree(lambda *a: case.primitive.bind(*a, **case.params), *case.args, kinds=[kind])


@sampled("name", list(PAIRS), quick=FIRST)
@pytest.mark.turns(4, each=True)
def test_the_text_of_every_primitive_has_its_bits_in_python(name) -> None:
    for case in taken(*PAIRS[name]):
        agree_on(case, "python")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PAIRS))
def test_the_text_of_every_primitive_has_its_bits_compiled(name) -> None:
    agree_on(taken(*PAIRS[name])[0], "njit")


@pytest.mark.parametrize("kind", ["python", pytest.param("njit", marks=pytest.mark.slow)])
@sampled("name", list(SMOOTH), quick=("sin float32", "exp float64", "rem float32", "convert_element_type float64"))
def test_rare_branches_of_functions(name, kind) -> None:
    """Numbers of all magnitudes, infinities and NaNs: what small arguments never reach."""
    primitive, dtype = SMOOTH[name]
    case = cases(primitive, dtype)[0]
    for data in ("ladder", "specials", "subnormal"):
        args = [fill(data, (50,), x.dtype.name, seed=i) if dtypes.is_float(x.dtype) else
                np.resize(x, 50) for i, x in enumerate(case.args)]  # fmt: skip
        agree_on(attrs.evolve(case, args=tuple(args)), kind)


def of_dtype(x, i):
    """An operation of each kind of kernels, for any dtype: map, gather, row, column, scan, sort, scatter, product."""
    sums = (vnp.sum(x, 0), vnp.sum(x, 1), vnp.cumsum(x, 1))
    moved = (x[i], x.at[i].set(x[:2]), vnp.sort(x, 1), vnp.concatenate([x, x[::-1]]))
    product = () if x.dtype == bool else (x @ x.T, x[0] @ x.T, x * x + x)
    chosen = vnp.where(x == x[0], x, x[1])
    if dtypes.is_complex(x.dtype):
        return sums, moved, product, x.astype(np.complex64), chosen
    ordered = (vnp.max(x, 1), vnp.argmin(x, 0), x.at[i].max(x[:2]))
    return sums, moved, product, ordered, x.astype(np.float32), x.astype(np.int32), chosen


@pytest.mark.parametrize("kind", ["python", pytest.param("njit", marks=pytest.mark.slow)])
@sampled("dtype", DTYPES, quick=("float16", "uint64", "bool"))
@pytest.mark.turns(6)
def test_every_dtype(dtype, kind) -> None:
    x = fill("specials" if "float" in dtype else "normal", (4, 9), dtype)
    assert_kernels_agree(of_dtype, x, np.array([3, -9], np.int32), kinds=[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", GENERATED)
def test_long_sums_and_products(kind) -> None:
    """Blocks and their tree: in one task, by several, across, and along what a product contracts."""
    x = fill("ladder", (3 * 4096 + 5, 3))
    assert_kernels_agree(lambda x: (vnp.sum(x, 0), vnp.sum(x.T, 1), vnp.sum(x), vnp.argmax(x, 0)), x, kinds=[kind])
    assert_kernels_agree(lambda x: (x.T @ x, x[:, 0] @ x), x, kinds=[kind])
    assert_kernels_agree(lambda x: vnp.matmul(x[:700].T, x[:700], precision="highest"), x, kinds=[kind])
    assert_kernels_agree(lambda x: vnp.matmul(x[:700].T, x[:700], precision="exact"), x, kinds=[kind])
    many, rows = fill("ladder", (5000, 2)), np.arange(5000, dtype=np.int32) % 3
    assert_kernels_agree(lambda t, x, i: t.at[i].add(x), x[:3, :2], many, rows, kinds=[kind])


@pytest.mark.parametrize("kind", ["python", pytest.param("njit", marks=pytest.mark.slow)])
@sampled("name", list(LOOPS), quick=("swapped", "choosing"))
def test_loops_and_choices(name, kind) -> None:
    p = LOOPS[name]
    assert_kernels_agree(p.f, *map(np.asarray, p.args), kinds=[kind])
    if p.differentiable and kind == "njit":
        assert_kernels_agree(volta.grad(total(p.f), p.floats), *map(np.asarray, p.args), kinds=[kind])


@sampled("dtype", ("float32", "float64", "float16", "bfloat16"), quick=("bfloat16",))
@pytest.mark.parametrize("kind", ["python", pytest.param("njit", marks=pytest.mark.slow)])
@pytest.mark.turns(6)
def test_attention_and_its_gradients(dtype, kind) -> None:
    """Two blocks of keys; masks, positions, shared key heads, a row that sees nothing, one row a head, many heads."""
    q = fill("normal", (2, 3, 4, 3), dtype)
    k, v = (fill("normal", (2, 70, 2, 3), dtype, seed=i) for i in (1, 2))
    mask = fill("normal", (2, 1, 3, 70), seed=3) > -0.5
    mask[:, :, 1] = False
    starts = np.array([3, 66], np.int32)

    def attend(**options):
        def value(q, k, v):
            return vnp.sum(nn.dot_product_attention(q, k, v, **options).astype(np.float32) ** 2)

        return lambda q, k, v: (nn.dot_product_attention(q, k, v, **options), volta.grad(value, (0, 1, 2))(q, k, v))

    assert_kernels_agree(attend(mask=mask, is_causal=True, query_start=starts), q, k, v, kinds=[kind])
    assert_kernels_agree(attend(), q[:, :1], k, v, kinds=[kind])


@pytest.mark.slow
def test_a_transformers_training_compiled(tmp_path) -> None:
    """A hundred steps of Adam: equal checkpoint files."""
    saved = {}
    for kind in ("llvm", "njit"):
        with volta.execution_context(kernels=kind):
            train("cpu", 100, tmp_path / kind)
        saved[kind] = (tmp_path / kind).read_bytes()
    assert saved["njit"] == saved["llvm"]


@pytest.mark.slow
def test_a_small_transformers_training_in_every_kind(tmp_path, monkeypatch) -> None:
    """As Python runs the text, too, which takes minutes a step for the one above."""
    monkeypatch.setattr(model, "_MODEL", Transformer(vocabulary=16, width=8, heads=2, layers=1, length=4, batch=2))
    for kind in ("llvm", *GENERATED):
        train("cpu", 3, tmp_path / kind, kind)
    for kind in GENERATED:
        assert (tmp_path / kind).read_bytes() == (tmp_path / "llvm").read_bytes()


def agrees(p, data, kind) -> None:
    xs = [fill(data if "float" in dtype else "normal", shape, dtype, i) for i, (shape, dtype) in enumerate(p.inputs)]
    assert_kernels_agree(p, *xs, kinds=[kind])


few = settings(max_examples=max(4, settings().max_examples // 4), suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@given(programs(), st.sampled_from(sorted(FILLS)))
@few
def test_random_programs_in_python(p, data) -> None:
    agrees(p, data, "python")


@pytest.mark.slow
@given(programs(), st.sampled_from(sorted(FILLS)))
@few
def test_random_programs_compiled(p, data) -> None:
    agrees(p, data, "njit")


# -- mutants --


def check() -> None:
    """What every mutant of the generator breaks."""
    x, y = np.zeros(2 * 4096 + 1, np.float32), fill("normal", (2, 300), seed=1)
    x[::4096] = 1, 2.0**-24, 2.0**-24  # (1 + small) + small is 1, 1 + (small + small) is not
    assert_kernels_agree(lambda x, y: (vnp.sum(x), vnp.sum(y, 1)), x, y, kinds=["python"])
    assert_kernels_agree(lambda y: (vnp.tanh(y[:, :9]), vnp.sum(abs(y[:, :70]) * -0.0, 1)), y, kinds=["python"])
    assert_kernels_agree(lambda y: (y @ y.T, vnp.cumsum(y, 1)), y, kinds=["python"])
    keys = np.array([[2, 1, 1, 2]], np.int32)
    rows = np.arange(4, dtype=np.int32)[None]
    assert_kernels_agree(lambda k, v: lax.sort((k, v), num_keys=1), keys, rows, kinds=["python"])


@pytest.fixture
def anew():
    plan_cache.PLAN_CACHE.clear()
    yield
    plan_cache.PLAN_CACHE.clear()


def test_the_checks_pass_without_a_mutation(anew) -> None:
    check()


REAL_PUSHED = reductions.ReductionText.pushed


@pytest.mark.parametrize(
    "place, name, mutant",
    [
        (loops, "LANES", 32),
        (reductions.ReductionText, "pushed", lambda self, block, *rest: REAL_PUSHED(self, "0", *rest)),
        (reductions.ReductionText, "clear", lambda self, b: b.lines.line(f"lanes{self.parts[0]}[:] = f32(0.0)")),
        (dots, "CHUNK", 128),
        (ordering, "_SCAN_BLOCK", 128),
        (ordering, "_less", lambda b, x, y: x <= y),
        (python_ir.PythonIR, "fsub", python_ir.PythonIR.fadd),
    ],
    ids=["lanes", "tree", "identity", "chunk", "scan", "ties", "operator"],
)
def test_a_mutant_of_the_generator_is_caught(anew, monkeypatch, place, name, mutant) -> None:
    monkeypatch.setattr(place, name, mutant)
    with pytest.raises(AssertionError, match="differ"):
        check()


def test_a_second_rounding_is_caught(anew, monkeypatch) -> None:
    monkeypatch.setitem(python_words.NAMES, "fma", lambda x, y, z: x * y + z)
    with pytest.raises(AssertionError, match="differ"):
        check()
