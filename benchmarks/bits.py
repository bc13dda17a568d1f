"""How many numbers change when only the way of running changes.

    python benchmarks/bits.py                         every framework that is installed
    python benchmarks/bits.py --must-be-zero volta    exit status 1 unless Volta's whole column is 0
    python benchmarks/bits.py --json results.json

Each cell is the share of output elements whose bits differ between two ways of computing the same function of the same
float32 data: eager or jitted, one example at a time or all at once, with one thread or several, in one process or
another. All NaNs count as one. PyTorch runs in its deterministic mode.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import harness

BATCH = 64
# (row of the table, first output, second output): outputs of one process compared with one another.
WITHIN = (
    ("eager / jit", "eager", "jit"),
    ("gradient, eager / jit", "grad eager", "grad jit"),
    ("loop / vmap", "loop", "vmap"),
    ("loop / vmap, jitted", "loop jit", "vmap jit"),
    ("batch 1 / batch 64", "batch 1", "eager"),
)
# (row of the table, first run, second run): everything computed compared between processes.
BETWEEN = (("1 / N threads", "one", "many"), ("two processes", "many", "again"))


def child(framework: str, threads: int, path: Path) -> None:
    """Compute everything in this process and save it."""
    import numpy as np
    import programs

    if framework == "torch":
        import torch

        torch.set_num_threads(threads)
    fw = programs.ALL[framework]()

    def save(value: Any) -> Any:
        return np.concatenate([np.asarray(leaf).ravel() for leaf in programs.leaves(value)])

    r = np.random.RandomState(2)
    cases = {
        "mlp": (programs.mlp, programs.mlp_params(), r.randn(BATCH, 256).astype("f4")),
        "attention": (programs.attention, programs.attention_params(), r.randn(BATCH, 32, 64).astype("f4")),
    }
    found = {}
    for case, (program, params, data) in cases.items():
        p, x = fw.arrays(params), fw.array(data)
        examples = [fw.array(data[i]) for i in range(BATCH)]

        def f(p: Any, x: Any, program: Callable[..., Any] = program) -> Any:
            return program(fw, p, x)

        def loss(p: Any, x: Any, f: Callable[..., Any] = f) -> Any:
            return fw.xp.sum(f(p, x) * f(p, x))

        outputs: dict[str, Callable[[], Any]] = {
            "eager": lambda f=f, p=p, x=x: f(p, x),
            "loop": lambda f=f, p=p, examples=examples: [f(p, one) for one in examples],
            "batch 1": lambda f=f, p=p, data=data: [f(p, fw.array(data[i : i + 1])) for i in range(BATCH)],
        }
        if fw.vmap is not None:
            vf = fw.vmap(f, in_axes=(None, 0))
            outputs["vmap"] = lambda vf=vf, p=p, x=x: vf(p, x)
        if fw.jit is not None:
            jf = fw.jit(f)
            outputs["jit"] = lambda jf=jf, p=p, x=x: jf(p, x)
            one, many = fw.jit(f), fw.jit(fw.vmap(f, in_axes=(None, 0)))
            outputs["loop jit"] = lambda one=one, p=p, examples=examples: [one(p, example) for example in examples]
            outputs["vmap jit"] = lambda many=many, p=p, x=x: many(p, x)
        if fw.grad is not None:
            g = fw.grad(loss)
            outputs["grad eager"] = lambda g=g, p=p, x=x: g(p, x)
            jg = fw.jit(g)
            outputs["grad jit"] = lambda jg=jg, p=p, x=x: jg(p, x)
        for name, compute in outputs.items():
            found[f"{case}|{name}"] = save(compute())
    np.savez(path, **found)


def _run(framework: str, threads: int, seed: int, path: Path) -> Mapping[str, Any]:
    import numpy as np

    command = [sys.executable, __file__, "--child", framework, str(threads), str(path)]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{answer.stderr[-4000:]}")
    with np.load(path) as file:
        return dict(file)


def _differing(a: Any, b: Any) -> float:
    import numpy as np

    a, b = (np.where(np.isnan(v), np.float32(np.nan), v).astype("f4").view("u4") for v in (a, b))
    return float(np.mean(a != b))


def measure(framework: str, threads: int) -> dict[str, dict[str, float]]:
    """{program: {row: share of differing elements}}; rows the framework cannot run are absent."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        runs = {
            name: _run(framework, count, seed, Path(folder) / f"{name}.npz")
            for seed, (name, count) in enumerate({"one": 1, "many": threads, "again": threads}.items())
        }
    result: dict[str, dict[str, float]] = {}
    many = runs["many"]
    for case in dict.fromkeys(key.split("|")[0] for key in many):
        rows = {}
        for row, first, second in WITHIN:
            if f"{case}|{first}" in many and f"{case}|{second}" in many:
                rows[row] = _differing(many[f"{case}|{first}"], many[f"{case}|{second}"])
        for row, first, second in BETWEEN:
            a, b = (np.concatenate([v for k, v in runs[run].items() if k.startswith(case)]) for run in (first, second))
            rows[row] = _differing(a, b)
        result[case] = rows
    return result


def show(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    names = list(results)
    cases = dict.fromkeys(case for result in results.values() for case in result)
    lines = []
    for case in cases:
        for row in [row for row, *_ in (*WITHIN, *BETWEEN)]:
            shares = [results[name].get(case, {}).get(row) for name in names]
            cells = ["-" if share is None else "0" if share == 0 else f"{100 * share:.3g}%" for share in shares]
            lines.append([f"{case}: {row}", *cells])
    return harness.table(["bits that change", *names], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="FRAMEWORK", choices=["volta", "jax", "torch", "numpy"])
    parser.add_argument("--threads", type=int, default=max(2, min(8, os.cpu_count() or 1)), help="the N of '1 / N'")
    parser.add_argument("--must-be-zero", metavar="FRAMEWORK")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        framework, threads, path = options.child
        harness.use_threads(int(threads))
        child(framework, int(threads), Path(path))
        return

    import programs

    names = list(programs.available(*(options.only or ("volta", "jax", "torch", "numpy"))))
    results = {}
    for name in names:
        print(f"  {name}", file=sys.stderr, flush=True)
        results[name] = measure(name, options.threads)
    described = harness.machine(options.threads)
    print(f"\n{described['cpu']}, N = {options.threads} threads, batch {BATCH}; {described['versions']}\n")
    print(show(results))
    if options.json:
        harness.save(options.json, {"machine": described, "batch": BATCH, "results": results})
    if wanted := options.must_be_zero:
        if wanted not in results:
            sys.exit(f"{wanted} cannot be imported")
        wrong = [f"{case}: {row}" for case, rows in results[wanted].items() for row, share in rows.items() if share]
        if wrong:
            sys.exit(f"{wanted}: bits change in {', '.join(wrong)}")


if __name__ == "__main__":
    main()
