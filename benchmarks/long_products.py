"""What the tree over blocks of k costs: long products of this checkout beside those of another, in one run.

    python benchmarks/long_products.py --beside e2b7bc0                        a commit, on the CPU
    python benchmarks/long_products.py --beside ../old --device cuda \\
        --verify --json long.json                                              a checkout, on a GPU, bits first

Each checkout runs in a process of its own and they take turns, sample by sample, so that a busy spell meets both; the
ratio is the median of the rounds' ratios. On the CPU, with one thread, the time is what the processor gave to the
process, so that others on the machine matter less. On a GPU PyTorch and JAX take turns too, where they are installed.
``--verify`` first runs the suites whose bits the tree decides against the digests on record. All in well under nine
minutes on an H200; ``--seconds`` bounds the timing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

from benchmarks import checkouts, harness  # noqa: E402  (the path above comes first)
from benchmarks.checkouts import Contender  # noqa: E402

Case = tuple[str, int, int, int, str, str]  # name, m, n, k, layout (T: stored transposed), float32, float64 or highest

_CPU = [(256, 256, "NN"), (64, 1024, "NN"), (64, 512, "TN"), (8, 512, "NT"), (1, 2048, "NN"), (1, 2048, "NT")]
_GPU = [
    (4096, 4096, "NN"), (1024, 1024, "NN"), (768, 2304, "TN"), (768, 3072, "TN"), (256, 256, "NN"), (128, 2048, "NN"),
    (4, 4096, "NN"), (4, 4096, "NT"),
]  # fmt: skip
_LENGTHS = (4096, 8192, 65536)


def cases(device: str) -> list[Case]:
    found = [(m, n, k, layout, "float32") for m, n, layout in (_CPU if device == "cpu" else _GPU) for k in _LENGTHS]
    if device != "cpu":
        found += [(4096, 4096, 65536, "NN", "highest"), (768, 2304, 65536, "TN", "highest")]
        found += [(1024, 1024, 65536, "NN", "float64"), (8192, 8192, 65536, "NN", "float32")]
        found += [(8192, 768, 50304, "NN", "float32"), (768, 50304, 8192, "TN", "float32")]  # GPT-2's vocabulary
    return [(f"{m}x{k}x{n} {layout} {kind}", m, n, k, layout, kind) for m, n, k, layout, kind in found]


# -- a contender, in a process of its own ------------------------------------------------------------------------------


def _operands(m: int, n: int, k: int, layout: str, kind: str) -> list[Any]:
    import numpy as np

    dtype, rng = "float64" if kind == "float64" else "float32", np.random.default_rng(0)
    some = rng.standard_normal((1 << 20) + 1).astype(dtype)  # one more, so that rows differ
    shapes = ((k, m) if layout[0] == "T" else (m, k), (n, k) if layout[1] == "T" else (k, n))
    return [np.resize(some[i:], shape) for i, shape in enumerate(shapes)]


def _contender(framework: str, device: str, case: Case) -> Any:
    """A call that computes the product once, and one that waits for what it gave."""
    _, m, n, k, layout, kind = case
    arrays = _operands(m, n, k, layout, kind)

    def turned(x: Any, letter: str) -> Any:
        return x.T if letter == "T" else x

    if framework == "torch":
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        given = [torch.from_numpy(x).to(device) for x in arrays]
        return lambda: turned(given[0], layout[0]) @ turned(given[1], layout[1]), lambda _: torch.cuda.synchronize()
    if framework == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", "highest")
        jax.config.update("jax_enable_x64", kind == "float64")
        given = [jax.device_put(x) for x in arrays]
        f = jax.jit(lambda a, b: turned(a, layout[0]) @ turned(b, layout[1]))
    else:
        import volta
        import volta.numpy as vnp

        precision = "highest" if kind == "highest" else None
        given = [volta.device_put(x, device) for x in arrays]
        f = volta.jit(lambda a, b: vnp.matmul(turned(a, layout[0]), turned(b, layout[1]), precision=precision))
    return lambda: f(*given), lambda out: out.block_until_ready()


def child(framework: str, checkout: str, device: str, threads: int) -> None:
    checkouts.use(framework, checkout)
    checkouts.serve(lambda case: _contender(framework, device, tuple(case)), checkouts.clock_of(device, threads))


# -- the run -----------------------------------------------------------------------------------------------------------


def measure(contenders: list[Any], case: Case, rounds: int, sample: float) -> dict[str, Any]:
    return {**checkouts.measure(contenders, case, rounds, sample), "flops": 2 * case[1] * case[2] * case[3]}


def show(rows: list[dict[str, Any]], names: list[str]) -> str:
    lines = []
    for row in rows:
        times = [harness.seconds_text(row["seconds"].get(name)) for name in names]
        rate = f"{row['flops'] / row['seconds']['this'] / 1e12:.2f}" if "this" in row["seconds"] else "-"
        lines.append([row["name"], *times, *checkouts.ratio_texts(row), rate])
    return harness.table(["medians", *names, "this/beside", "of the least", "TFLOP/s"], lines)


def verify(device: str) -> dict[str, Any]:
    """`volta verify` of the suites that hold long sums."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "verify.json"
        command = [
            "-m",
            "volta",
            "verify",
            "--device",
            device,
            "--json",
            str(path),
            "products",
            "attention",
            "variants",
        ]
        paths = [str(harness.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        answer = subprocess.run([sys.executable, *command], env=environment)
        return {"status": answer.returncode, **json.loads(path.read_text(encoding="utf-8"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", metavar="COMMIT OR FOLDER", help="the other checkout")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--only", metavar="TEXT", help="cases whose names have it")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sample", type=float, default=0.05, help="seconds of a sample")
    parser.add_argument("--seconds", type=float, default=300, help="no case begins later")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cpu":
        harness.use_threads(options.threads)
    if options.child:
        child(*options.child, options.device, options.threads)
        return
    record: dict[str, Any] = {"machine": harness.machine(options.threads), "device": options.device, "rows": []}
    if options.verify:
        record["verify"] = verify(options.device)
    with tempfile.TemporaryDirectory() as folder:
        common = options.device, options.threads
        contenders = [Contender(__file__, "this", "volta", harness.ROOT, *common)]
        if options.beside:
            other = checkouts.checkout_of(options.beside, Path(folder))
            contenders.append(Contender(__file__, "beside", "volta", other, *common))
        if options.device == "cuda":
            contenders += [Contender(__file__, x, x, harness.ROOT, *common) for x in ("torch", "jax")]
        start = time.perf_counter()
        for case in cases(options.device):
            if options.only and options.only not in case[0] or time.perf_counter() - start > options.seconds:
                continue
            record["rows"].append(measure(contenders, case, options.rounds, options.sample))
            print(f"  {case[0]}", file=sys.stderr, flush=True)
            if options.json:  # after each case, so that a run that is cut short leaves what it did
                harness.save(options.json, record)
        for c in contenders:
            c.end()
    print(show(record["rows"], [c.name for c in contenders]))
    for row in record["rows"]:
        for name, text in row["errors"].items():
            print(f"{row['name']}: {name}: {text}")
    sys.exit(record.get("verify", {}).get("status", 0))


if __name__ == "__main__":
    main()
