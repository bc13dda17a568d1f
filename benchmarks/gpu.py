"""Volta beside JAX and the vendor's libraries on an NVIDIA GPU: times of programs, contenders taking turns.

    python benchmarks/gpu.py                       every group
    python benchmarks/gpu.py loops products        some
    python benchmarks/gpu.py --json record.json    write a record too; groups in it that are not measured now stay
    python benchmarks/gpu.py --show record.json    print a record again

Each group runs in a process of its own. Times are of calls in a row, per call, the device waited for at the end,
unless a row says otherwise. JAX computes float32 products at precision "highest", which is float32; "cublas" is
PyTorch without tf32.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # contenders share the memory

import numpy as np  # noqa: E402

from benchmarks import (  # noqa: E402
    control_flow,
    cuda_attention,
    cuda_epilogues,
    cuda_functions,
    cuda_inference,
    cuda_mixed,
    cuda_movement,
    cuda_runtime,
    harness,
    programs,
)
from benchmarks.gpu_harness import GPT2_SMALL, Row, draw, jax_on, ready, show, train, turns, volta_on  # noqa: E402

GB = 1 << 30


def group_calls() -> Iterator[Row]:
    """A call of one small kernel: waited for, and in a row."""
    import jax

    import volta

    x = draw(1000)
    (v,), (j,) = volta_on(x), jax_on(x)
    f, g = volta.jit(lambda x: x * 2 + 1), jax.jit(lambda x: x * 2 + 1)
    waited = turns(
        {"volta": lambda: f(v).block_until_ready(), "jax": lambda: g(j).block_until_ready()}, lambda out: None
    )
    yield {"name": "call of one kernel, waited for", "seconds": waited}
    yield {
        "name": "call of one kernel, in a row",
        "seconds": turns({"volta": lambda: f(v), "jax": lambda: g(j)}, ready),
    }


def group_loops() -> Iterator[Row]:
    """One array of 1 GB through one fused program, beside a copy on the device."""
    import jax
    import jax.numpy as jnp

    import volta
    import volta.numpy as vnp
    from volta.runtime import devices

    x = draw(1 << 18, 1024)
    (v,), (j,) = volta_on(x), jax_on(x)
    programs: dict[str, tuple[int, Callable[..., Any], Callable[..., Any]]] = {
        "add": (2, lambda x: x + 1, lambda x: x + 1),
        "gelu": (2, lambda x: volta.nn.gelu(x), lambda x: jax.nn.gelu(x)),
        "tanh": (2, vnp.tanh, jnp.tanh),
        "softmax": (2, lambda x: volta.nn.softmax(x, -1), lambda x: jax.nn.softmax(x, -1)),
        "softmax's gradient": (
            3, _gradient(volta, lambda x: volta.nn.softmax(x, -1)), _gradient(jax, lambda x: jax.nn.softmax(x, -1)),
        ),
        "layer norm": (2, _layer_norm(vnp), _layer_norm(jnp)),
        "layer norm's gradient": (3, _gradient(volta, _layer_norm(vnp)), _gradient(jax, _layer_norm(jnp))),
        "sum of rows": (1, lambda x: vnp.sum(x, 1), lambda x: jnp.sum(x, 1)),
        "sum of columns": (1, lambda x: vnp.sum(x, 0), lambda x: jnp.sum(x, 0)),
        "sum of all": (1, vnp.sum, jnp.sum),
    }  # fmt: skip
    gpu, out = devices.gpu("cuda:0"), v + 0

    def copy() -> Any:
        gpu.copy(out.buffer().address, v.buffer().address, GB, gpu.main)
        return out

    yield {"name": "1 GB: copy by the driver", "bytes": 2 * GB, "seconds": turns({"volta": copy}, ready)}
    for name, (passes, f, g) in programs.items():
        ours, theirs = volta.jit(f), jax.jit(g)
        args = (v, v) if passes == 3 else (v,), (j, j) if passes == 3 else (j,)
        seconds = turns({"volta": partial(ours, *args[0]), "jax": partial(theirs, *args[1])}, ready)
        yield {"name": f"1 GB: {name}", "bytes": passes * GB, "seconds": seconds}


def group_functions() -> Iterator[Row]:
    """Elementwise functions, an array of 1 GB through each."""
    yield from cuda_functions.function_rows()


def group_movement() -> Iterator[Row]:
    """Stencils of rolls, paddings, rotary embeddings: loops that read what is moved."""
    yield from cuda_movement.movement_rows()


def _layer_norm(xp: Any) -> Callable[..., Any]:
    def norm(x: Any) -> Any:
        d = x - xp.mean(x, -1, keepdims=True)
        return d / xp.sqrt(xp.mean(d * d, -1, keepdims=True) + 1e-5)

    return norm


def _gradient(framework: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    """(x, cotangent) to the cotangent of x."""
    return lambda x, y: framework.vjp(f, x)[1](y)[0]


def group_products() -> Iterator[Row]:
    """Square products in every strict precision, and those of a GPT-2's training."""
    import jax
    import jax.numpy as jnp
    import torch

    import volta
    import volta.numpy as vnp

    torch.backends.cuda.matmul.allow_tf32 = False
    jax.config.update("jax_default_matmul_precision", "highest")
    product, highest = volta.jit(lambda a, b: a @ b), volta.jit(lambda a, b: vnp.matmul(a, b, precision="highest"))
    exact = volta.jit(lambda a, b: vnp.matmul(a, b, precision="exact"))
    theirs = jax.jit(jnp.matmul)
    for n in (1024, 2048, 4096, 8192):
        a, b = draw(n, n), draw(n, n, seed=1)
        va, vb = volta_on(a, b)
        ja, jb = jax_on(a, b)
        ta, tb = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
        single = {
            "volta": partial(product, va, vb),
            "jax": partial(theirs, ja, jb),
            "cublas": partial(torch.matmul, ta, tb),
        }
        yield {"name": f"float32 {n}", "flops": 2 * n**3, "seconds": turns(single, ready)}
        best = {"volta": partial(highest, va, vb), "cublas": partial(torch.matmul, ta, tb)}
        yield {"name": f"float32 highest {n}", "flops": 2 * n**3, "seconds": turns(best, ready)}
        whole = {"volta": partial(exact, va, vb), "cublas": partial(torch.matmul, ta, tb)}
        errors = _errors(ta, tb, {name: run() for name, run in whole.items()})
        yield {"name": f"float32 exact {n}", "flops": 2 * n**3, "seconds": turns(whole, ready), "errors": errors}
        wa, wb = volta_on(a.astype(np.float64), b.astype(np.float64))
        da, db = ta.double(), tb.double()
        double = {"volta": partial(product, wa, wb), "cublas": partial(torch.matmul, da, db)}
        yield {"name": f"float64 {n}", "flops": 2 * n**3, "seconds": turns(double, ready)}
        whole = {"volta": partial(exact, wa, wb), "cublas": partial(torch.matmul, da, db)}
        yield {"name": f"float64 exact {n}", "flops": 2 * n**3, "seconds": turns(whole, ready)}
    tokens = 8192
    for k, n in ((768, 2304), (768, 3072), (3072, 768), (768, 50304)):
        x, w, dy = draw(tokens, k), draw(k, n, seed=1), draw(tokens, n, seed=2)
        for name, f, operands in (
            ("x w", lambda x, w: x @ w, (x, w)),
            ("dy wᵀ", lambda dy, w: dy @ w.T, (dy, w)),
            ("xᵀ dy", lambda x, dy: x.T @ dy, (x, dy)),
        ):
            ours, other = volta.jit(f), jax.jit(f)
            v, j = volta_on(*operands), jax_on(*operands)
            t = [torch.from_numpy(z).cuda() for z in operands]
            contenders = {"volta": partial(ours, *v), "jax": partial(other, *j), "cublas": partial(f, *t)}
            yield {"name": f"GPT-2 {k}→{n}: {name}", "flops": 2 * tokens * k * n, "seconds": turns(contenders, ready)}


def _errors(a: Any, b: Any, products: dict[str, Any]) -> dict[str, float]:
    """The largest error of each product of two float32 matrices, as a share of the product of their sizes."""
    import torch

    a, b = a.double(), b.double()
    right, sizes = a @ b, a.abs() @ b.abs()
    found = {name: torch.as_tensor(np.array(x) if name == "volta" else x).to(a.device) for name, x in products.items()}
    return {name: float(((x.double() - right).abs() / sizes).max()) for name, x in found.items()}


def group_epilogues() -> Iterator[Row]:
    """Products with bias, gelu or residual, as a GPT-2's layers have them."""
    yield from cuda_epilogues.epilogue_rows()


def group_indexing() -> Iterator[Row]:
    """Sorts, scans, and the gradient of an embedding."""
    import jax
    import jax.numpy as jnp

    import volta
    import volta.numpy as vnp

    x = draw(1 << 24)
    rows = x.reshape(1 << 14, 1 << 10)
    for name, f, g, arg in (
        ("sort of 16M", lambda x: vnp.sort(x), lambda x: jnp.sort(x), x),
        ("argsort of 16M", lambda x: vnp.argsort(x), lambda x: jnp.argsort(x), x),
        ("sort of rows of 1024, 16M", lambda x: vnp.sort(x, 1), lambda x: jnp.sort(x, 1), rows),
        ("cumsum of 16M", lambda x: vnp.cumsum(x), lambda x: jnp.cumsum(x), x),
        ("cumsum of rows of 1024, 16M", lambda x: vnp.cumsum(x, 1), lambda x: jnp.cumsum(x, 1), rows),
    ):
        (v,), (j,) = volta_on(arg), jax_on(arg)
        ours, theirs = volta.jit(f), jax.jit(g)
        yield {"name": name, "seconds": turns({"volta": partial(ours, v), "jax": partial(theirs, j)}, ready)}
    table, updates = draw(50304, 768), draw(8192, 768, seed=1)
    index = np.random.default_rng(0).integers(0, 50304, 8192).astype(np.int32)
    v, j = volta_on(table, updates, index), jax_on(table, updates, index)
    ours, theirs = (k.jit(lambda t, u, i: t.at[i].add(u)) for k in (volta, jax))
    seconds = turns({"volta": partial(ours, *v), "jax": partial(theirs, *j)}, ready)
    yield {"name": "scatter-add of 8192 rows of 768 into 50304", "seconds": seconds}


def group_control() -> Iterator[Row]:
    """Compiled loops: iterations of almost nothing, and recurrent networks."""
    import jax

    import volta

    jax.config.update("jax_default_matmul_precision", "highest")
    for name, make, shapes in control_flow.PROGRAMS:
        args = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
        v, j = volta_on(*args), jax_on(*args)
        ours, theirs = volta.jit(make(programs.volta())), jax.jit(make(programs.jax()))
        yield {"name": name, "seconds": turns({"volta": partial(ours, *v), "jax": partial(theirs, *j)}, ready)}


def group_attention() -> Iterator[Row]:
    """Attention, forward and backward."""
    yield from cuda_attention.attention_rows()


def group_training() -> Iterator[Row]:
    """A step of Adam on the GPT-2-small shape in float32: 50304 tokens, width 768, 12 layers, length 1024, batch 8."""
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    make = programs.transformer_step
    found = {
        "volta": train(programs.volta(), make, GPT2_SMALL, lambda args: volta_on(*args)),
        "jax": train(programs.jax(), make, GPT2_SMALL, lambda args: args),
    }
    losses = {name: last for name, (_, _, last) in found.items()}
    yield {"name": "GPT-2-small step", "seconds": {n: t for n, (_, t, _) in found.items()}, "losses": losses}
    yield {"name": "GPT-2-small first step", "seconds": {n: t for n, (t, _, _) in found.items()}}


def group_small_training() -> Iterator[Row]:
    """A step of Adam on tiny transformers (benchmarks/programs.py)."""
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    make = programs.transformer_step
    for name, config in (("width 64, 2 layers", programs.SMALL), ("width 128, 4 layers", programs.LARGE)):
        found = {
            "volta": train(programs.volta(), make, config, lambda args: volta_on(*args), 100),
            "jax": train(programs.jax(), make, config, lambda args: args, 100),
        }
        yield {"name": f"training step: {name}", "seconds": {n: t for n, (_, t, _) in found.items()}}
        yield {"name": f"first step: {name}", "seconds": {n: t for n, (t, _, _) in found.items()}}


def group_mixed() -> Iterator[Row]:
    """The same step in bfloat16 on tensor cores, below strict."""
    yield from cuda_mixed.mixed_rows()


def group_inference() -> Iterator[Row]:
    """A decoder of 7 billion parameters: a prompt and a token."""
    yield from cuda_inference.inference_rows()


def group_runtime() -> Iterator[Row]:
    """Launches, copies and streams."""
    yield from cuda_runtime.runtime_rows()


GROUPS = [name.removeprefix("group_") for name in globals() if name.startswith("group_")]


def run_group(name: str, part: Path) -> None:
    """Measure a group, writing its rows down after each, so that a run which is cut short leaves what it did."""
    rows: list[Row] = []
    steps = globals()[f"group_{name}"]()
    while True:
        try:
            rows.append({"group": name, **next(steps)})
        except StopIteration:
            return
        except Exception as error:  # the rows before it stay
            rows.append(_failed(name, f"{type(error).__name__}: {error}"))
            return
        finally:
            part.write_text(json.dumps(rows))


def in_own_process(name: str, limit: float) -> list[Row]:
    """The rows of a group, with one more that says why where not all of it was measured."""
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "rows.json"
        command, failed = [sys.executable, __file__, "--one", str(part), name], ""
        cold = {**os.environ, "VOLTA_CACHE_DIR": str(Path(folder) / "kernels")}  # first steps compile all they run
        try:
            done = subprocess.run(command, timeout=limit, capture_output=True, text=True, env=cold)
            if done.returncode:
                failed = f"exit {done.returncode}: {done.stderr[-800:]}"
        except subprocess.TimeoutExpired:
            failed = f"not done in {limit:.0f} s"
        rows: list[Row] = json.loads(part.read_text()) if part.exists() else []
    return [*rows, _failed(name, failed)] if failed else rows


def _failed(group: str, why: str) -> Row:
    return {"group": group, "name": group, "error": why[:1000]}


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """Rows in the order of their groups: new ones in place of the old of their group."""
    measured = {row["group"] for row in new}
    rows = [*(row for row in old if row["group"] not in measured), *new]
    return sorted(rows, key=lambda row: GROUPS.index(row["group"]))


def describe() -> dict[str, Any]:
    from volta.core import contract
    from volta.runtime import devices

    info = devices.cuda().driver.info()
    return {"gpu": info.name, "capability": list(info.capability), "contract": contract.ID, **harness.machine(0)}


def why_not() -> str:
    """Why nothing can be measured on this machine; empty where there is a GPU."""
    from volta.core.errors import DeviceError
    from volta.runtime import devices

    try:
        devices.cuda()
    except DeviceError as error:
        return str(error)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--json", type=Path, help="write a record")
    parser.add_argument("--show", type=Path, help="print a record, measure nothing")
    parser.add_argument("--limit", type=float, default=300, help="seconds for a group")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.show:
        print(show(json.loads(options.show.read_text())["rows"]))
        return
    if options.one:
        run_group(options.groups[0], options.one)
        return
    if why := why_not():
        sys.exit(f"gpu.py: {why}")
    old = json.loads(options.json.read_text())["rows"] if options.json and options.json.exists() else []
    rows: list[Row] = []
    commit = harness.commit()
    for name in options.groups or GROUPS:
        new = [{**row, "commit": commit} for row in in_own_process(name, options.limit)]
        rows += new
        print(show(new), flush=True)
        if options.json:
            harness.save(options.json, {"machine": describe(), "rows": merged(old, rows)})


if __name__ == "__main__":
    main()
