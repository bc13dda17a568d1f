"""The gateway is the only door to execution: by the source, and by watching."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn, offline, optim, random
from volta.core.errors import DeviceError, MemoryBudgetError
from volta.core.ir import ClosedJaxpr, Jaxpr, Var
from volta.runtime import gateway
from volta.runtime.context import ExecutionContext

PACKAGE = Path(volta.__file__).parent
EXECUTES = {"volta.numba_cpu.backend", "volta.numba_cpu.lower", "volta.numba_cpu.launch", "volta.numba_cpu.dot"}


def imports_of(path: Path, word: str) -> set[str]:
    """What a file imports, when it is imported or later; nothing of one that does not even contain a word."""
    text, found = path.read_text(encoding="utf-8"), set()
    for node in ast.walk(ast.parse(text if word in text else "")):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Call) and "import_later" in ast.dump(node.func):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return found


def test_only_the_gateway_imports_a_backend() -> None:
    doors = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if not {"numba_cpu", "numba_source"} & set(path.parts) and imports_of(path, "numba_cpu") & EXECUTES
    }
    assert doors == {"runtime/gateway.py"}


def test_only_the_gateway_makes_plans() -> None:
    """What compiles for a GPU without one goes through the same checks. A listing's plan is shown, and never runs."""
    makers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "xla_like" not in path.parts and "volta.xla_like.compile.build_plan" in imports_of(path, "build_plan")
    }
    assert makers == {"runtime/gateway.py", "numba_source/listing.py"}


def test_a_budget_holds_for_plans_of_a_gpu_that_is_not_there() -> None:
    x = np.zeros((100, 100), np.float32)
    functions = [offline.Function(lambda x: x @ x + 1, (x,), "f")]
    with volta.execution_context(memory_budget=1000), pytest.raises(MemoryBudgetError, match="the budget is 1,000"):
        offline.compile_functions(functions, ["9.0"])
    with volta.execution_context(memory_budget=1 << 20):
        (done,) = offline.compile_functions(functions, ["9.0"])
    assert done.plan.peak_live_bytes <= 1 << 20


def test_only_compile_runs_a_backend() -> None:
    """Within the gateway, `prepare` is called in one place, after the checks."""
    tree = ast.parse((PACKAGE / "runtime" / "gateway.py").read_text(encoding="utf-8"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "prepare"]
    assert len(calls) == 1


@pytest.fixture
def runs(monkeypatch):
    """The names of the plans that run, in order."""
    seen: list[str] = []
    real = gateway.Executable.__call__

    def watched(self, arrays):
        seen.append(self.plan.name)
        return real(self, arrays)

    monkeypatch.setattr(gateway.Executable, "__call__", watched)
    return seen


X = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
OPTIMIZER = optim.adam(1e-3)


def train():
    params = {"w": vnp.ones((4, 2))}
    state = OPTIMIZER.init(params)
    gradients = volta.grad(lambda p: vnp.sum(nn.gelu(X @ p["w"])))(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optim.apply_updates(params, updates)


WORK = {
    "an operation": lambda: vnp.tanh(vnp.asarray(X)),
    "an operator": lambda: vnp.asarray(X) + 1,
    "indexing": lambda: vnp.asarray(X)[1, ::2],
    "an update": lambda: vnp.asarray(X).at[0].add(1),
    "a jitted function": lambda: volta.jit(lambda x: x * 2)(X),
    "a gradient": lambda: volta.grad(lambda x: vnp.sum(x * x))(X),
    "vmap": lambda: volta.vmap(nn.softmax)(X),
    "checkpoint": lambda: volta.checkpoint(lambda x: vnp.sin(x))(X),
    "random numbers": lambda: random.normal(random.key(0), (3,)),
    "an optimizer": train,
    "sorting": lambda: vnp.sort(vnp.asarray(X)),
    "a new array": lambda: vnp.zeros(3) + vnp.arange(3),
}


@pytest.mark.parametrize("name", WORK)
def test_everything_goes_through_the_gateway(name, runs) -> None:
    out = WORK[name]()
    assert runs, f"{name} ran around the gateway"
    assert all(isinstance(x, volta.Array) for x in volta.tree.leaves(out))


def test_nothing_runs_without_the_backend(monkeypatch) -> None:
    """With the door to the backend closed, nothing computes: no operation has another way."""

    def closed(*args, **kwargs):
        raise RuntimeError("closed")

    monkeypatch.setattr(gateway.cpu_backend(), "prepare", closed)
    monkeypatch.setattr(gateway.Executable, "__call__", closed)  # what was compiled before
    for name, work in WORK.items():
        with pytest.raises(RuntimeError, match="closed"):
            work()
            pytest.fail(f"{name} ran without a backend")


def test_an_unknown_backend() -> None:
    program = volta.make_jaxpr(lambda x: x + 1)(X)
    with pytest.raises(DeviceError, match="abacus"):
        gateway.compile(program, context=ExecutionContext(backend="abacus"))


def test_a_program_of_nothing() -> None:
    assert gateway.compile(ClosedJaxpr(Jaxpr((), (), (), ()), ()))([]) == []
    assert volta.jit(lambda: ())() == ()
    var = Var(volta.make_jaxpr(lambda x: x)(X).in_avals[0])
    same = gateway.compile(ClosedJaxpr(Jaxpr((), (var,), (), (var, var)), ()))
    x = vnp.asarray(X)
    assert all(y.address == x.address for y in same([x]))


FORK_DURING_A_COMPILATION = """
import os, threading
import volta.numpy as vnp
from volta.runtime import gateway

compiling, forked = threading.Event(), threading.Event()

def compile_for_long():
    with gateway._lock:
        compiling.set()
        forked.wait()

thread = threading.Thread(target=compile_for_long)
thread.start()
compiling.wait()
pid = os.fork()
if pid == 0:
    os._exit(int(float(vnp.ones(3).sum()) != 3))
forked.set()
thread.join()
assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.turns(6)
def test_a_child_forked_while_another_thread_compiles_can_compile() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK_DURING_A_COMPILATION], check=True, timeout=60)
