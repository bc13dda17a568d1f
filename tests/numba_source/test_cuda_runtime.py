"""Plans on a GPU with ``kernels="cuda.jit"``, from the context to the bits: on a stand-in for the driver, which runs
the kernels' texts. What numba-cuda makes of them is checked where it is installed (`test_cuda_texts`)."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cuda.conftest import fake, install  # noqa: F401 - fixtures
from volta import errors, lax, nn
from volta.numba_cuda.backend import prepare
from volta.numba_source.cuda import planning
from volta.testing import assert_bits_equal, fill
from volta.testing.kernel_kinds import has_numba_cuda
from volta.verify import checks, kernels


def named(source, capability):
    return f".visible .entry {source.name}("


@pytest.fixture
def texts(fake, monkeypatch):  # noqa: F811
    """The stand-in; in place of numba-cuda something that knows only names."""
    backend = SimpleNamespace(
        NAME="cuda", KERNEL_CLASSES=planning.KERNEL_CLASSES, scheduler=planning.scheduler, prepare=prepare,
        complete=lambda plan, device: planning.text_plan(plan, "9.0", named),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "volta.numba_source.cuda.backend", backend)
    return fake


def on_gpu(f, *args, **options):
    with volta.execution_context(kernels="cuda.jit"):
        return volta.jit(f, **options)(*volta.device_put(args, "cuda"))


def model(x, i):
    h = nn.gelu(x @ x.T)
    moved = (x[i], x.at[i].add(x[:2]), vnp.sort(x, 1), vnp.cumsum(x, 0))
    return nn.softmax(h, -1), vnp.argmax(x, 0), vnp.sum(x), moved


def test_a_program_has_the_bits_of_llvm(texts) -> None:
    x, i = fill("normal", (3, 6)), np.array([2, 0], np.int32)
    found = on_gpu(model, x, i)
    assert_bits_equal(found, volta.jit(model)(x, i))
    assert all(y.device == "cuda:0" for y in volta.tree_util.tree_leaves(found))


def test_loops_and_choices_run_on_the_device(texts) -> None:
    def f(x):
        y = lax.while_loop(lambda y: vnp.sum(y) < 50, lambda y: y * 2 + 1, x)
        return lax.cond(vnp.max(y) > 20, lambda y: y - 1, lambda y: y * 3, y)

    x = np.arange(5, dtype=np.float32)
    assert_bits_equal(on_gpu(f, x), volta.jit(f)(x))
    assert texts.iterations > 3


def test_donated_memory_is_used(texts) -> None:
    x = volta.device_put(fill("normal", (70,)), "cuda")
    address, want = x.buffer().address, np.asarray(x) + 1
    with volta.execution_context(kernels="cuda.jit"):
        y = volta.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted() and y.buffer().address == address
    assert_bits_equal(y, want)


def test_gradients_and_constants(texts) -> None:
    x, w = fill("normal", (4, 5)), fill("normal", (5, 3), seed=1)

    def loss(x):
        return vnp.sum(nn.log_softmax(vnp.tanh(x) @ w + vnp.arange(3.0) * 2) ** 2)

    assert_bits_equal(on_gpu(volta.grad(loss), x), volta.jit(volta.grad(loss))(x))


def test_what_the_cpu_runs_is_refused(texts) -> None:
    x = fill("normal", (3,))
    with (
        volta.execution_context(kernels="cuda.jit"),
        pytest.raises(errors.DeviceError, match="runs plans on a GPU; move"),
    ):
        volta.jit(lambda x: x + 1)(x)
    with (
        volta.execution_context(kernels="njit"),
        pytest.raises(errors.DeviceError, match="runs plans on the CPU; use"),
    ):
        volta.jit(lambda x: x + 1)(volta.device_put(x, "cuda"))


def test_at_level_device_tensor_cores_are_not_asked_for(texts) -> None:
    x = fill("normal", (32, 32))
    f = lambda x: vnp.matmul(x, x, precision="bfloat16")  # noqa: E731
    with volta.execution_context(level="device"):
        found, want = on_gpu(f, x), volta.jit(f)(x)
    assert_bits_equal(found, want)


def compiled(kernels: str):
    with volta.default_device("cuda"), volta.execution_context(kernels=kernels):
        return volta.jit(model).lower(fill("normal", (3, 6)), np.array([2, 0], np.int32)).compile()


@pytest.mark.parametrize("kernels", ["llvm", "cuda.jit"])
def test_a_plan_on_a_gpu_shows_its_texts(texts, kernels) -> None:
    """Also one that runs on LLVM's kernels: as it would be with the others."""
    found = compiled(kernels)
    text = found.as_text("numba")
    assert "for task in range(cuda.grid(1), args[" in text and "cuda.local.array(64, np.float32)" in text
    assert "# launch 0" in text and "from volta.numba_source.cuda.words import *" in text
    assert "lanes[lane] = lanes[lane] + lanes[lane + half]" in text
    source = found.source("dot_element")
    assert source.count("@cuda_jit\n") == 1 and "chain = fma(x, y, chain)" in source
    with pytest.raises(errors.ArgumentError, match="no kernel 'weave'"):
        found.source("weave")


def test_its_memory_is_counted(texts) -> None:
    """What a sort's threads need for themselves is in the plan's figures."""
    with volta.default_device("cuda"), volta.execution_context(kernels="cuda.jit"):
        plan = volta.jit(lambda x: vnp.sort(x, 1)).lower(fill("normal", (3, 100))).compile().plan
    assert plan.workspace_bytes >= 3 * 16 * 100
    assert plan.bytes_by_class()["workspace"] == plan.workspace_bytes


def test_a_dispatcher_needs_numba_cuda(texts) -> None:
    found = compiled("cuda.jit")
    if has_numba_cuda():
        assert found.kernel("dot_element").py_func.__name__.startswith("volta_dot_element_")
    else:
        with pytest.raises(errors.UnsupportedOperationError, match=r"pip install 'volta\[numba-cuda\]'"):
            found.kernel("dot_element")


def test_what_is_compiled_for_the_cpu_has_no_text_there(texts) -> None:
    with volta.execution_context(kernels="cuda.jit"):
        found = volta.jit(lambda x: x + 1).lower(fill("normal", (3,))).compile()
    for ask in (lambda: found.as_text("numba"), lambda: found.source("map"), lambda: found.kernel("map")):
        with pytest.raises(errors.DeviceError, match="runs plans on a GPU; move"):
            ask()
    assert "plan" in found.as_text()


def test_volta_verify_compares_them(texts, monkeypatch) -> None:
    setting = checks.Setting("cuda:0")
    with monkeypatch.context() as patched:
        patched.setattr(kernels, "has_numba_cuda", lambda: False)
        (said,) = kernels.kernels(setting)
        assert "numba-cuda is not installed" in said.name and not said.problem
    x = fill("normal", (3, 5))
    good = kernels.on_gpu("cuda:0", "rows", lambda x: nn.softmax(x, -1), (x,))
    assert (good.name, good.elements, good.problem) == ("rows: cuda.jit", 15, "")
    with monkeypatch.context() as patched:
        patched.setattr(kernels, "with_kernels", lambda kind, f, x: np.nextafter(np.asarray(f(x)), np.float32(2)))
        wrong = kernels.on_gpu("cuda:0", "rows", lambda x: nn.softmax(x, -1), (x,))
    assert "15 of 15 elements differ" in wrong.problem
    assert "ZeroDivisionError" in kernels.on_gpu("cuda:0", "error", lambda x: 1 // 0, (x,)).problem
