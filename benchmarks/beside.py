"""This checkout beside another, in one run: whether a change of the house made anything slower.

    python benchmarks/beside.py --beside e2b7bc0                     a commit, on the CPU
    python benchmarks/beside.py --beside ../old --device cuda        a checkout, on a GPU
    python benchmarks/beside.py --beside ../old --only attention --only first

Both run the same programs in processes of their own and take turns (`checkouts`). Times are of a call, compiled; "first
step" is that of a fresh process with nothing on disk, from tracing to the result. On the CPU, with one thread, they are
what the processor gave to the process. The ratios are of this checkout to the other: 1.00 where nothing changed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402  (the path above comes first)

from benchmarks import checkouts, control_flow, harness, programs  # noqa: E402
from benchmarks.checkouts import Contender, measure  # noqa: E402

Call = Callable[[], Any]
CONFIGS = {"width 64, 2 layers": programs.SMALL, "width 128, 4 layers": programs.LARGE}


def _data(*shape: int, seed: int = 0) -> Any:
    """Normal float32 numbers; large arrays repeat the first million (and one, so that rows differ)."""
    return np.resize(np.random.default_rng(seed).standard_normal((1 << 20) + 1, dtype=np.float32), shape)


def _compiled(fw: Any, f: Callable[..., Any], *shapes: tuple[int, ...], scale: float = 1) -> Call:
    ours, operands = fw.jit(f), fw.arrays([_data(*shape, seed=i) * np.float32(scale) for i, shape in enumerate(shapes)])
    return lambda: ours(*operands)


def _functions(fw: Any) -> dict[str, Callable[..., Any]]:
    xp = fw.xp
    return {
        "exp": xp.exp,
        "gelu": fw.gelu,
        "softmax of rows": fw.softmax,
        "layer norm of rows": lambda x: programs.layer_norm(fw, x, x[0]),
        "sum of rows": lambda x: xp.sum(x, axis=1),
        "sum of columns": lambda x: xp.sum(x, axis=0),
        "sum of all": xp.sum,
        "cumulative sum of rows": lambda x: xp.cumsum(x, axis=1),
        "sort of rows": lambda x: xp.sort(x, axis=1),
        "rows gathered": lambda x: x[xp.arange(x.shape[0])[::-1]],
        "rows scattered": lambda x: x.at[xp.arange(x.shape[0]) // 2].add(x),
    }


def _attention(fw: Any, gradient: bool, length: int, batch: int) -> Call:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return fw.attention(q, k, v, is_causal=True)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return fw.xp.sum(attend(q, k, v) * q)

    f = fw.value_and_grad(loss, argnums=(0, 1, 2)) if gradient else attend
    return _compiled(fw, f, *[(batch, length, 8, 64)] * 3)


def _step(fw: Any, config: str) -> Call:
    f = fw.jit(programs.transformer_step(fw, CONFIGS[config]), donate_argnums=(0, 1, 2))
    *state, x, y = programs.step_arguments(fw, CONFIGS[config])

    def run() -> Any:
        *state[:], loss = f(*state, x, y)
        return loss

    return run


def calls(fw: Any, device: str) -> dict[str, Callable[[], Call]]:
    """What is measured, by name: a function that makes the call."""
    large = device != "cpu"
    rows, sizes = (1 << 14, 1 << 11) if large else (1 << 10, 1 << 10), (1024, 4096) if large else (256, 1024)
    length, batch = (1024, 8) if large else (512, 2)
    found: dict[str, Callable[[], Call]] = {
        "call of one argument": partial(_compiled, fw, lambda x: x + 1, (8,)),
        "call of twenty": partial(_compiled, fw, lambda *xs: [x + 1 for x in xs], *[(8,)] * 20),
    }
    for name, f in _functions(fw).items():
        found[f"{name}, {rows[0]} x {rows[1]}"] = partial(_compiled, fw, f, rows)
    for n in sizes:
        found[f"product of {n}"] = partial(_compiled, fw, fw.xp.matmul, (n, n), (n, n))
    for gradient in (False, True):
        name = f"attention {batch} x {length} x 8 x 64{', with gradient' * gradient}"
        found[name] = partial(_attention, fw, gradient, length, batch)
    for name, program, shapes in (control_flow.PROGRAMS[i] for i in (0, 2, 3)):
        found[name] = partial(_compiled, fw, program(fw), *shapes, scale=0.1)
    for name in CONFIGS:
        found[f"training step: {name}"] = partial(_step, fw, name)
    return found


# -- a contender, in a process of its own ------------------------------------------------------------------------------


def child(framework: str, checkout: str, device: str, threads: int) -> None:
    checkouts.use(framework, checkout)
    fw = on(device)
    checkouts.serve(lambda case: (calls(fw, device)[case[0]](), programs.wait), checkouts.clock_of(device, threads))


def on(device: str) -> programs.Framework:
    """Volta, whose arrays lie on a device: so programs run there."""
    import volta

    return replace(programs.volta(), array=lambda x: volta.device_put(x, device))


def first_step(checkout: str, config: str, device: str) -> None:
    """Runs in the fresh process. The clock starts when Volta has started: imported, one small call made."""
    checkouts.use("volta", checkout)
    fw, clock = on(device), checkouts.clock_of(device, 1)
    programs.wait(fw.jit(lambda x: x + 1)(fw.array(np.zeros(3, "f4"))))
    arguments = programs.step_arguments(fw, CONFIGS[config])
    start = clock()
    programs.wait(fw.jit(programs.transformer_step(fw, CONFIGS[config]), donate_argnums=(0, 1, 2))(*arguments))
    print(json.dumps(clock() - start))


def first_steps(found: dict[str, Path], config: str, device: str, rounds: int) -> dict[str, Any]:
    taken: dict[str, list[float]] = {name: [] for name in found}
    for i in range(rounds):
        for name, checkout in list(found.items())[:: 1 if i % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, "--first-step", str(checkout), config, "--device", device]
                environment = {**os.environ, "VOLTA_CACHE_DIR": folder, "VOLTA_NUM_THREADS": "1"}
                answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            taken[name].append(json.loads(answer.stdout.splitlines()[-1]))
    return {"name": f"first step: {config}", **checkouts.compared(taken), "errors": {}}


# -- the run -----------------------------------------------------------------------------------------------------------


def show(rows: list[dict[str, Any]], names: list[str]) -> str:
    lines = [
        [row["name"], *(harness.seconds_text(row["least"].get(name)) for name in names), *checkouts.ratio_texts(row)]
        for row in rows
    ]
    return harness.table(["least", *names, "this/beside, medians", "of the least"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", metavar="COMMIT OR FOLDER", help="the other checkout")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--only", metavar="TEXT", action="append", help="cases whose names have it")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--first-rounds", type=int, default=3, help="of first steps")
    parser.add_argument("--sample", type=float, default=0.03, help="seconds of a sample")
    parser.add_argument("--seconds", type=float, default=300, help="no case begins later")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--first-step", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cpu":
        harness.use_threads(options.threads)
    if options.child:
        child(*options.child, options.device, options.threads)
        return
    if options.first_step:
        first_step(*options.first_step, options.device)
        return
    if not options.beside:
        parser.error("--beside names the other checkout")
    record: dict[str, Any] = {"machine": harness.machine(options.threads), "device": options.device, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        found = {"this": harness.ROOT, "beside": checkouts.checkout_of(options.beside, Path(folder))}
        run(found, options, record)
    print(show(record["rows"], list(found)))
    for row in record["rows"]:
        for name, text in row["errors"].items():
            print(f"{row['name']}: {name}: {text}")


def run(found: dict[str, Path], options: argparse.Namespace, record: dict[str, Any]) -> None:
    """Measure what is asked for, noting each case, so that a run that is cut short leaves some."""
    start = time.perf_counter()
    common = options.device, options.threads
    contenders = [Contender(__file__, name, "volta", folder, *common) for name, folder in found.items()]
    names: dict[str, Callable[[], dict[str, Any]]] = {
        name: partial(measure, contenders, [name], options.rounds, options.sample)
        for name in calls(programs.volta(), options.device)
    }
    for config in CONFIGS:
        names[f"first step: {config}"] = partial(first_steps, found, config, options.device, options.first_rounds)
    for name, measured in names.items():
        wanted = not options.only or any(text in name for text in options.only)
        if wanted and time.perf_counter() - start < options.seconds:
            record["rows"].append(measured())
            print(f"  {name}", file=sys.stderr, flush=True)
            if options.json:
                harness.save(options.json, record)
    for c in contenders:
        c.end()


if __name__ == "__main__":
    main()
