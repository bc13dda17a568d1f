"""Texts of kernels for a GPU: what numba-cuda makes of them is strict PTX, and the host finds what breaks the rules."""

from __future__ import annotations

import ast
import builtins
import importlib

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import errors, lax, nn
from volta.numba_cuda.codegen import nvjitlink, ptx
from volta.numba_cuda.codegen.numba_tools import tools
from volta.numba_cuda.host.host import run_plan
from volta.numba_cuda.launches import every
from volta.numba_source import dialects, dots
from volta.numba_source.cuda.host import TextKernels
from volta.numba_source.cuda.launches import TextSource
from volta.numba_source.words import ON_GRIDS
from volta.testing import fill
from volta.testing.kernel_kinds import has_numba_cuda
from volta.testing.text_grid import check_texts, plan_of_texts

pytestmark = pytest.mark.turns(6)


def model(x, i):
    h = nn.gelu(x)
    moved = (h[i], x.at[i].add(h[:2]), vnp.sort(x, 1), vnp.cumsum(x, 0))
    parts = vnp.sum(x.astype("bfloat16")), vnp.round(x * 7.5), vnp.sqrt(abs(x)), vnp.copysign(x, x[::-1])
    return nn.softmax(h, -1), vnp.argmax(x, 0), parts, x @ x.T, lax.lgamma(x), lax.population_count(i), moved


ARGS = fill("normal", (4, 70)), np.array([1, 3], np.int32)


def texts(f, *args) -> list[TextSource]:
    launches = plan_of_texts(f, *args)[0].launches
    found = {x.source.name: x.source for x in every(launches)}
    return [x for x in found.values() if isinstance(x, TextSource)]


def test_a_text_is_a_module_whose_names_are_all_there() -> None:
    for source in texts(model, *ARGS):
        tree = ast.parse(source.kernel().source)
        made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        made |= {name.id for node in tree.body if isinstance(node, ast.Assign) for name in node.targets}
        for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            own = {a.arg for a in function.args.args}
            own |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
            unknown = read - own - made - ON_GRIDS - set(dir(builtins))
            assert not unknown, (function.name, unknown)
            assert ast.get_docstring(function)


def test_threads_have_a_task_each_where_they_can() -> None:
    (launch,) = plan_of_texts(lambda x: x * 2, ARGS[0])[0].launches
    assert launch.grid * launch.threads >= 280 > launch.grid * launch.threads - 64
    assert launch.alone and launch.source.build is None


def test_a_row_too_long_for_many_threads_of_its_kind() -> None:
    """Scratch memory bounds the threads, and they take several rows each."""
    plan, _ = plan_of_texts(lambda x: vnp.sort(x, 1), np.zeros((9, 1 << 22), np.float32))
    (launch,) = (x for x in plan.launches if x.label == "sort")
    assert launch.grid * launch.threads < 9
    assert plan.workspace_bytes <= 1 << 29


def test_a_context_for_gpus_plans_with_constants_of_the_cpu() -> None:
    with volta.execution_context(kernels="cuda.jit"):
        plan, _ = plan_of_texts(lambda x: x * vnp.exp(vnp.float32(2)), ARGS[0])
    (launch,) = plan.launches
    assert launch.label == "map(mul)"


# -- the host ----------------------------------------------------------------------------------------------------------


def test_the_texts_run_on_the_host_in_any_order_of_threads() -> None:
    for order in ("ascending", "descending", "shuffled"):
        check_texts(model, *ARGS, orders=(order,))


@pytest.mark.slow
def test_numba_compiles_the_same_texts_for_the_host() -> None:
    check_texts(model, *ARGS, kernels=TextKernels(compiled=True))


def test_an_access_outside_of_what_a_launch_says_is_found() -> None:
    plan, consts = plan_of_texts(lambda x: x * 2, ARGS[0])
    (launch,) = plan.launches
    for wrong in (attrs.evolve(launch, reads=()), attrs.evolve(launch, writes=())):
        report = run_plan(plan, ARGS[:1], consts, kernels=TextKernels(), launches=[wrong], races=False)
        assert "which the launch does not say" in str(report.violations[0])


def test_threads_that_meet_in_memory_are_found(monkeypatch) -> None:
    """Every thread computes every element."""
    monkeypatch.setattr(
        "volta.numba_source.cuda.launches.cuda_jit",
        lambda words: attrs.evolve(dialects.cuda_jit(words), tasks=f"range(args[{words}])"),
    )
    with pytest.raises(AssertionError, match=r"as thread \d+ does"):
        check_texts(lambda x: x * 2, ARGS[0])


@pytest.mark.parametrize("name, wrong", [("CHUNK", 128), ("BLOCK", 2048)])
def test_a_mutant_of_the_product_is_caught(monkeypatch, name, wrong) -> None:
    x = fill("ladder", (2, 5000))
    check_texts(lambda x: x @ x.T, x)
    monkeypatch.setattr(dots, name, wrong)
    with pytest.raises(AssertionError, match="differ"):
        check_texts(lambda x: x @ x.T, x)


# -- numba-cuda --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(has_numba_cuda(), reason="numba-cuda is installed")
def test_without_numba_cuda_it_says_what_to_install() -> None:
    with pytest.raises(errors.UnsupportedOperationError, match=r"pip install 'volta\[numba-cuda\]'"):
        import volta.numba_source.cuda.backend  # noqa: F401


@pytest.fixture
def compiling():
    if not has_numba_cuda():
        pytest.skip("numba-cuda is not installed (pip install 'volta[numba-cuda]')")
    from volta.numba_source.cuda import compiling

    return compiling


@pytest.mark.slow
def test_their_ptx_has_no_operation_that_is_not_strict(compiling) -> None:
    """Where it has, `ptx_of` raises; here is what it makes."""
    for source in texts(model, *ARGS):
        text = compiling.ptx_of(source, "9.0")
        assert f".visible .entry {source.name}(" in text and not ptx.violations(text)


def test_a_product_and_a_sum_are_not_contracted(compiling) -> None:
    (source,) = texts(lambda x, y: x * y + x, *ARGS[:1], ARGS[0])
    text = compiling.ptx_of(source, "9.0")
    assert "fma" not in text and "mul.rn.f32" in text and "add.rn.f32" in text


def test_what_is_not_strict_is_refused(compiling, monkeypatch) -> None:
    monkeypatch.setattr(compiling, "dispatcher", lambda *_: _Wrong())
    monkeypatch.setattr(compiling, "_compiled", type(compiling._compiled)(4))
    (source,) = texts(lambda x: x * 3, ARGS[0])
    with pytest.raises(
        errors.UnsupportedOperationError, match="what no strict kernel has: .* an approximate operation"
    ):
        compiling.ptx_of(source, "9.0")


class _Wrong:
    def ptx(self, name: str) -> str:
        return "ex2.approx.f32 %f1, %f2;"


def test_a_kernel_of_the_users_own_runs_beside_texts(compiling) -> None:
    """It is a function of numba-cuda already; before it a text computes its operand, behind it one reads its result."""
    cuda = tools().cuda

    @volta.kernel(out=lambda x: x, grid=2, block=64)
    @cuda.jit
    def twice(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i] * 2

    plan, _ = plan_of_texts(lambda x: vnp.exp(twice(vnp.sin(x))), ARGS[0][0])
    labels = [x.label for x in plan.launches]
    assert labels.index("map(sin)") < labels.index("twice") < labels.index("map(exp)")
    assert [isinstance(x.source, TextSource) for x in plan.launches if x.label in ("map(sin)", "twice")] == [
        True,
        False,
    ]


def test_ptx_links(compiling) -> None:
    try:
        library = nvjitlink.library_for("9.0")
    except errors.DeviceError as reason:
        pytest.skip(str(reason))
    (source,) = texts(lambda x: nn.softmax(x, -1), ARGS[0])
    code = library.assemble(compiling.ptx_of(source, "9.0"), "9.0").code
    assert code[:4] == b"\x7fELF" and source.name.encode() in code


def test_a_dispatcher_is_numba_cudas(compiling) -> None:
    (source,) = texts(lambda x: x * 2, ARGS[0])
    found = compiling.dispatcher(source)
    assert type(found).__mro__[1].__name__ == "CUDADispatcher" and found.py_func.__name__ == source.kernel().name
    assert found.targetoptions["lto"] is False  # the linker would contract products and sums, whatever NVVM is told


def test_the_compiler_is_told_to_contract_nothing_where_it_is_called_by_numba_cuda(compiling, monkeypatch) -> None:
    """For a dispatcher that somebody launches; afterwards numba-cuda is as it was."""
    told: list[dict] = []
    words = importlib.import_module("volta.numba_source.cuda.words")
    usual = lambda *_, **options: told.append(options["nvvm_options"])  # noqa: E731
    monkeypatch.setattr(words._numba.dispatcher, "compile_cuda", usual)
    with words._uncontracted():
        words._numba.dispatcher.compile_cuda(model, nvvm_options={"fastmath": False, "opt": 3})
    assert told == [{"fastmath": False, "opt": 3, "fma": 0}] and words._numba.dispatcher.compile_cuda is usual
