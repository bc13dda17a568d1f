"""Volta beside JAX and NumPy on the CPU: the same programs, the same threads, taking turns in one run.

    python benchmarks/cpu.py                       everything, about five minutes
    python benchmarks/cpu.py --quick               a fifth of the time, less steady
    python benchmarks/cpu.py --only matmul         one section (may be given more than once)
    python benchmarks/cpu.py --json results.json   also keep the record; scripts/docs.py makes docs/performance.md of it

`results/cpu_small.json` is of `--quick --threads 1 --only call --only loops`, on a busy machine: its minima count.

`volta/jax` below 1.00 means that Volta took less. The columns compare medians; the last ratios compare minima, which a
busy machine disturbs less. A framework that is not installed shows as '-'.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import harness

Row = dict[str, Any]  # name, unit, and a value for each framework
PEERS = ("volta", "jax", "numpy")
PAIRS = (("volta", "jax"), ("volta", "numpy"))


class Bench:
    """Collects rows; prints them as they come."""

    def __init__(self, frameworks: Mapping[str, Any], seconds: float, full: bool) -> None:
        self.frameworks, self.seconds, self.full = frameworks, seconds, full
        self.rows: list[Row] = []

    def time(self, section: str, name: str, make: Callable[[Any], Callable[[], object] | None], **facts: Any) -> None:
        """`make(framework)` gives the call to time, or None where the framework has none."""
        runs = {fw.name: run for fw in self.frameworks.values() if (run := make(fw)) is not None}
        self.add(section, name, "s", harness.alternate(runs, self.seconds), **facts)

    def add(self, section: str, name: str, unit: str, values: Mapping[str, Any], **facts: Any) -> None:
        self.rows.append({"section": section, "name": name, "unit": unit, "values": dict(values), **facts})
        print(f"  {section}: {name}", file=sys.stderr, flush=True)


def _value(row: Row, framework: str, statistic: str = "median") -> float | None:
    value = row["values"].get(framework)
    return value[statistic] if isinstance(value, dict) else value


def show(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        volta, jax, numpy = (_value(row, name) for name in ("volta", "jax", "numpy"))

        def text(value: float | None, row: Row = row) -> str:
            if value is None:
                return "-"
            return harness.seconds_text(value) if row["unit"] == "s" else f"{value / 2**20:.2f} MiB"

        rate = f"{row['flops'] / volta / 1e9:.0f} GFLOP/s" if "flops" in row and volta else ""
        lines.append(
            [f"{row['section']}: {row['name']}", text(volta), text(jax), text(numpy)]
            + [harness.ratio_text(volta, jax), harness.ratio_text(volta, numpy)]
            + [harness.ratio_text(*(_value(row, name, "min") for name in pair)) for pair in PAIRS]
            + [rate]
        )
    ratios = ["volta/jax", "volta/numpy", "of minima: jax", "numpy"]
    return harness.table(["medians", "volta", "jax", "numpy", *ratios, ""], lines)


# ------------------------------------------------------------------------------------------------- the sections


def call(bench: Bench) -> None:
    """What a jitted call costs besides its work."""
    import numpy as np
    from programs import wait

    small = np.arange(8, dtype="f4")

    def one(fw: Any) -> Any:
        if fw.jit is None:
            return None
        f, x = fw.jit(lambda x: x + 1), fw.array(small)
        return lambda: wait(f(x))

    def twenty(fw: Any) -> Any:
        if fw.jit is None:
            return None
        f, xs = fw.jit(lambda xs: [x + 1 for x in xs]), [fw.array(small + i) for i in range(20)]
        return lambda: wait(f(xs))

    bench.time("call", "1 argument", one)

    def eager(fw: Any) -> Any:
        x = fw.array(np.ones((8, 8), "f4"))
        return lambda: wait(x @ x)

    bench.time("call", "list of 20", twenty)
    bench.time("call", "eager product, 8 x 8", eager)


def array(bench: Bench) -> None:
    """Functions over 4M float32 elements."""
    import numpy as np
    from programs import layer_norm, wait

    data = np.random.RandomState(0).randn(4096, 1024).astype("f4")
    gain = np.ones(1024, "f4")
    functions: dict[str, Callable[[Any, Any, Any], Any]] = {
        "exp": lambda fw, x, g: fw.xp.exp(x),
        "tanh": lambda fw, x, g: fw.xp.tanh(x),
        "gelu": lambda fw, x, g: fw.gelu(x),
        "sum": lambda fw, x, g: fw.xp.sum(x),
        "sum of columns": lambda fw, x, g: fw.xp.sum(x, axis=0),
        "turned round": lambda fw, x, g: fw.xp.flip(x) * 2 + x,
        "softmax, rows of 1024": lambda fw, x, g: fw.softmax(x),
        "layer norm, rows of 1024": layer_norm,
    }
    for name, function in functions.items():

        def make(fw: Any, function: Callable[..., Any] = function) -> Any:
            f = (fw.jit or (lambda f: f))(lambda x, g: function(fw, x, g))
            x, g = fw.array(data), fw.array(gain)
            return lambda: wait(f(x, g))

        bench.time("4M float32", name, make, elements=data.size)


def matmul(bench: Bench) -> None:
    import numpy as np
    from programs import wait

    for n in (256, 512, 1024, 2048):
        r = np.random.RandomState(n)
        a, b = (r.randn(n, n).astype("f4") for _ in range(2))

        def make(fw: Any, a: Any = a, b: Any = b) -> Any:
            f = (fw.jit or (lambda f: f))(lambda a, b: fw.xp.matmul(a, b))
            x, y = fw.array(a), fw.array(b)
            return lambda: wait(f(x, y))

        bench.time("matmul float32", str(n), make, flops=2 * n**3)

        def exact(fw: Any, a: Any = a, b: Any = b) -> Any:
            """Volta's products by integers, beside the others' float32."""
            how = {"precision": "exact"} if fw.name == "volta" else {}
            f = (fw.jit or (lambda f: f))(lambda a, b: fw.xp.matmul(a, b, **how))
            x, y = fw.array(a), fw.array(b)
            return lambda: wait(f(x, y))

        bench.time("matmul float32 exact", str(n), exact, flops=2 * n**3)
    matvec(bench)


def matvec(bench: Bench) -> None:
    """A matrix that is read once: by rows, along k, and by columns."""
    import numpy as np
    from programs import wait

    r = np.random.RandomState(0)
    matrix, vector = r.randn(4096, 4096).astype("f4"), r.randn(4096).astype("f4")
    products: dict[str, Callable[[Any, Any, Any], Any]] = {
        "matrix @ vector, 4096": lambda fw, a, x: fw.xp.matmul(a, x),
        "vector @ matrix, 4096": lambda fw, a, x: fw.xp.matmul(x, a),
    }
    for name, product in products.items():

        def make(fw: Any, product: Callable[..., Any] = product) -> Any:
            f = (fw.jit or (lambda f: f))(lambda a, x: product(fw, a, x))
            a, x = fw.array(matrix), fw.array(vector)
            return lambda: wait(f(a, x))

        bench.time("matmul float32", name, make, flops=2 * matrix.size)


def attention(bench: Bench) -> None:
    """Attention of 8 heads of 64 elements over 2,048 positions in all, and with its gradient."""
    import numpy as np
    import programs

    r = np.random.RandomState(0)
    for length in (128, 512, 2048) if bench.full else (128, 512):
        data = [r.randn(2048 // length, length, 8, 64).astype("f4") for _ in range(3)]
        for causal in (False, True):
            for backward in (False, True):

                def make(fw: Any, data: Any = data, causal: bool = causal, backward: bool = backward) -> Any:
                    if fw.attention is None:
                        return None

                    def forward(q: Any, k: Any, v: Any) -> Any:
                        return fw.attention(q, k, v, is_causal=causal)

                    def loss(q: Any, k: Any, v: Any) -> Any:
                        return fw.xp.sum(forward(q, k, v) * q)

                    f = fw.jit(fw.value_and_grad(loss, argnums=(0, 1, 2)) if backward else forward)
                    operands = fw.arrays(data)
                    return lambda: programs.wait(f(*operands))

                name = f"{2048 // length} x {length}{' causal' * causal}{', with gradient' * backward}"
                bench.time("attention", name, make)


def control(bench: Bench) -> None:
    """Compiled loops: iterations of almost nothing, and a recurrent network."""
    import control_flow

    _loops(bench, "control", control_flow.PROGRAMS[:4])


def loops(bench: Bench) -> None:
    """Loops of small bodies, as in the sciences."""
    import control_flow

    _loops(bench, "small loops", control_flow.SMALL)


def _loops(bench: Bench, section: str, chosen: list[Any]) -> None:
    import numpy as np
    import programs

    for name, program, shapes in chosen:
        data = [np.random.RandomState(i).randn(*shape).astype("f4") for i, shape in enumerate(shapes)]

        def make(fw: Any, program: Any = program, data: Any = data) -> Any:
            if fw.lax is None:
                return None
            f, operands = fw.jit(program(fw)), fw.arrays(data)
            return lambda: programs.wait(f(*operands))

        bench.time(section, name, make)


def _configs(bench: Bench) -> dict[str, Any]:
    import programs

    named = {"width 64, 2 layers": programs.SMALL, "width 128, 4 layers": programs.LARGE}
    return named if bench.full else dict(list(named.items())[:1])


def step(bench: Bench) -> None:
    """A training step of the tiny transformer, with Adam."""
    for name, config in _configs(bench).items():
        bench.time("training step", name, functools.partial(_step, config))


def _step(config: Any, fw: Any) -> Callable[[], None] | None:
    import programs

    if fw.value_and_grad is None:
        return None
    f = fw.jit(programs.transformer_step(fw, config), donate_argnums=(0, 1, 2))
    *state, x, y = programs.step_arguments(fw, config)

    def run() -> None:
        *state[:], loss = f(*state, x, y)
        programs.wait(loss)

    return run


def compile(bench: Bench) -> None:
    """The first call of the training step in a fresh process: nothing on disk, then everything."""
    for name in _configs(bench):
        values: dict[str, dict[str, list[float]]] = {"cold": {}, "warm": {}}
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(3 if bench.full else 1):
                for fw in (fw for fw in bench.frameworks.values() if fw.value_and_grad is not None):
                    for state in values:
                        values[state].setdefault(fw.name, []).append(_first_step(fw.name, name, f"{folder}/{turn}"))
        for state, times in values.items():
            summary = {
                fw: {"median": statistics.median(taken), "min": min(taken), "samples": len(taken)}
                for fw, taken in times.items()
            }
            bench.add(f"first step, {state}", name, "s", summary)


def _first_step(framework: str, config: str, cache: str) -> float:
    environment = {
        **os.environ,
        "VOLTA_CACHE_DIR": f"{cache}/volta",
        "JAX_COMPILATION_CACHE_DIR": f"{cache}/jax",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, __file__, "--first-step", framework, config]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{answer.stderr}")
    return float(json.loads(answer.stdout.splitlines()[-1])["first_step"])


def first_step_child(framework: str, config: str) -> None:
    """Runs in the fresh process. The clock starts when the framework has started: imported, one small call made."""
    import numpy as np
    import programs

    chosen = {"width 64, 2 layers": programs.SMALL, "width 128, 4 layers": programs.LARGE}[config]
    fw = programs.ALL[framework]()
    programs.wait(fw.jit(lambda x: x + 1)(fw.array(np.zeros(3, "f4"))))
    arguments = programs.step_arguments(fw, chosen)
    start = time.perf_counter()
    programs.wait(fw.jit(programs.transformer_step(fw, chosen), donate_argnums=(0, 1, 2))(*arguments))
    print(json.dumps({"first_step": time.perf_counter() - start}))


def memory(bench: Bench) -> None:
    """Peak bytes of the training step: arguments, results and temporaries, donated arguments counted once."""
    import programs

    for name, config in _configs(bench).items():
        values: dict[str, float] = {}
        facts: dict[str, Any] = {}
        for fw in bench.frameworks.values():
            if fw.value_and_grad is None:
                continue
            f = fw.jit(programs.transformer_step(fw, config), donate_argnums=(0, 1, 2))
            compiled = f.lower(*programs.step_arguments(fw, config)).compile()
            if fw.name == "jax":
                m = compiled.memory_analysis()
                parts = {part: getattr(m, f"{part}_size_in_bytes") for part in ("argument", "output", "temp", "alias")}
                values["jax"] = parts["argument"] + parts["output"] + parts["temp"] - parts["alias"]
                facts["jax_parts"] = parts
            else:
                values["volta"] = compiled.peak_live_bytes
                facts["volta_report"] = str(compiled.memory_report())
        bench.add("peak bytes of the step", name, "bytes", values, **facts)


THREADS = (1, 2, 4, 8, 16, 32)


def threads(bench: Bench) -> None:
    """The same programs on more and more threads, as many as there are processors.

    XLA's are fixed when it is imported, so each number has a process of its own."""
    for count in THREADS:
        if count <= (os.cpu_count() or 1):
            without = [x for name in set(PEERS) - set(bench.frameworks) for x in ("--without", name)]
            command = [sys.executable, __file__, "--threads", str(count), "--shared-work", *without]
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, check=True)
            bench.rows += json.loads(answer.stdout.splitlines()[-1])


def shared_work(bench: Bench, count: int) -> None:
    """What `threads` runs in each of its processes."""
    import numpy as np
    import programs

    r = np.random.RandomState(0)
    rows, long = r.randn(4096, 1024).astype("f4"), r.randn(1 << 22).astype("f4")
    heads = [r.randn(4, 512, 8, 64).astype("f4") for _ in range(3)]
    functions: list[tuple[str, Callable[..., Any], list[Any]]] = [
        *((f"matmul {n}", lambda fw, a, b: fw.xp.matmul(a, b), [rows[:n, :n], rows[-n:, :n]]) for n in (512, 1024)),
        ("matmul 2048", lambda fw, a, b: fw.xp.matmul(a, b), [long.reshape(2048, 2048), rows.reshape(2048, 2048)]),
        ("tanh of 4M", lambda fw, x: fw.xp.tanh(x), [rows]),
        ("softmax, rows of 1024", lambda fw, x: fw.softmax(x), [rows]),
        ("sum of columns", lambda fw, x: fw.xp.sum(x, axis=0), [rows]),
        ("sort 4M", lambda fw, x: fw.xp.sort(x), [long]),
    ]
    for name, function, data in functions:

        def make(fw: Any, function: Callable[..., Any] = function, data: Any = data) -> Any:
            f, operands = (fw.jit or (lambda f: f))(functools.partial(function, fw)), fw.arrays(data)
            return lambda: programs.wait(f(*operands))

        bench.time(f"{count} threads", name, make)

    def attention(fw: Any) -> Any:
        def loss(q: Any, k: Any, v: Any) -> Any:
            return fw.xp.sum(fw.attention(q, k, v, is_causal=True) * q)

        if fw.attention is None:
            return None
        f, operands = fw.jit(fw.value_and_grad(loss, argnums=(0, 1, 2))), fw.arrays(heads)
        return lambda: programs.wait(f(*operands))

    bench.time(f"{count} threads", "attention 4 x 512 causal, with gradient", attention)
    bench.time(f"{count} threads", "training step, width 128, 4 layers", functools.partial(_step, programs.LARGE))


SECTIONS = {f.__name__: f for f in (call, array, matmul, attention, control, loops, step, compile, memory, threads)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--without", action="append", default=[], metavar="FRAMEWORK")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--first-step", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--shared-work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shared_work and hasattr(os, "sched_setaffinity"):  # not only those that the parent keeps to
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    harness.use_threads(options.threads)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # also where there is a GPU
    if options.first_step:
        first_step_child(*options.first_step)
        return

    import programs

    names = [name for name in PEERS if name not in options.without]
    if options.shared_work:
        bench = Bench(programs.available(*names), seconds=0.6, full=True)
        shared_work(bench, options.threads)
        print(json.dumps(bench.rows))
        return
    bench = Bench(programs.available(*names), seconds=0.6 if options.quick else 4.0, full=not options.quick)
    for name in options.only or SECTIONS:
        SECTIONS[name](bench)
    described = harness.machine(options.threads)
    print(f"\n{described['cpu']}, {options.threads} threads; medians; {described['versions']}\n")
    print(show(bench.rows))
    if options.json:
        harness.save(options.json, {"machine": described, "quick": options.quick, "rows": bench.rows})


if __name__ == "__main__":
    main()
