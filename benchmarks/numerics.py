"""Linear algebra, Fourier transforms, segments and convolutions beside JAX (on the CPU SciPy too), in one run.

    python benchmarks/numerics.py                            every group on the CPU
    python benchmarks/numerics.py --device cuda              on the first GPU, beside JAX there
    python benchmarks/numerics.py decompositions --sizes 256 512
    python benchmarks/numerics.py --json results.json        also keep the record; groups in it that
                                                             are not measured now stay
    python benchmarks/numerics.py --show results.json        print a record again

Contenders take turns; the table compares minima, which a busy machine disturbs least. float32 and complex64. Arguments
lie where they are used; results stay there. Each row has a budget of seconds, so that the slowest have few samples.
JAX multiplies at precision "highest", which is float32.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import harness  # noqa: E402  (the path above comes first)

Contenders = dict[str, Callable[[], object]]
SIZES = (256, 512, 1024, 2048)
SPECTRA = (256, 512)
BATCHES = ((1000, 8), (1000, 32))


class Setting:
    """Where rows are measured, and how long each may take."""

    def __init__(self, device: str, sizes: list[int], spectra: list[int], seconds: float) -> None:
        import numpy as np

        self.device, self.sizes, self.spectra, self.seconds = device, sizes, spectra, seconds
        self.random = np.random.default_rng(0)

    def normal(self, *shape: int, complex_numbers: bool = False) -> Any:
        x = self.random.standard_normal(shape, dtype="f4")
        return x + 1j * self.random.standard_normal(shape, dtype="f4") if complex_numbers else x

    def contenders(self, function: Callable[[Any], Any], *data: Any, numpy: Callable[[], Any] | None = None) -> Any:
        """``function(framework)`` is the program; NumPy's and SciPy's own is a call, where there is one."""
        from benchmarks import programs

        found: Contenders = {}
        for name in ("volta", "jax"):
            framework = programs.ALL[name]()
            found[name] = self._call(framework, function(framework), data)
        if numpy is not None and self.device == "cpu":
            found["scipy"] = numpy
        return found

    def _call(self, framework: Any, function: Callable[..., Any], data: Any) -> Callable[[], object]:
        from benchmarks import programs

        run, operands = framework.jit(function), [self._placed(framework.name, x) for x in data]
        return lambda: programs.wait(run(*operands))

    def _placed(self, framework: str, x: Any) -> Any:
        if framework == "volta":
            import volta

            return volta.device_put(x, self.device)
        import jax

        return jax.device_put(x)


Row = tuple[str, Contenders]


def _segment_sum(framework: Any) -> Any:
    if framework.name == "volta":
        import volta

        return volta.nn.segment_sum
    import jax

    return jax.ops.segment_sum


def _problems(s: Setting, shape: tuple[int, ...]) -> Iterator[tuple[str, Any, Any, Any]]:
    """Name, operands, what frameworks run and what SciPy does, for matrices of one shape."""
    import numpy as np
    import scipy.linalg

    n = shape[-1]
    a = s.normal(*shape)
    symmetric = a + a.swapaxes(-1, -2)
    definite = a @ a.swapaxes(-1, -2) + n * np.eye(n, dtype="f4")
    b = s.normal(*shape[:-1], 1)
    one = len(shape) == 2

    def lapack(name: str, *args: Any) -> Any:
        return (lambda: getattr(scipy.linalg, name)(*args)) if one else (lambda: getattr(np.linalg, name)(*args))

    yield "cholesky", (definite,), lambda fw: fw.xp.linalg.cholesky, lapack("cholesky", definite)
    yield "solve", (a, b), lambda fw: fw.xp.linalg.solve, lapack("solve", a, b)
    economic = (lambda: scipy.linalg.qr(a, mode="economic")) if one else (lambda: np.linalg.qr(a))
    yield "qr", (a,), lambda fw: fw.xp.linalg.qr, economic
    yield "eigh", (symmetric,), lambda fw: fw.xp.linalg.eigh, lapack("eigh", symmetric)
    yield "svd", (a,), lambda fw: lambda a: fw.xp.linalg.svd(a, full_matrices=False), lapack("svd", a, False)
    if n <= 256 and s.device == "cpu":
        yield "eig", (a,), lambda fw: fw.xp.linalg.eig, lapack("eig", a)


def group_decompositions(s: Setting) -> Iterator[Row]:
    """One large matrix; those whose time is cubic with a large factor (``--spectra``) of other sizes."""
    for n in sorted({*s.sizes, *s.spectra}):
        for name, data, function, numpy in _problems(s, (n, n)):
            if n not in (s.spectra if name in ("eigh", "svd", "eig") else s.sizes):
                continue
            yield f"{name} {n}", s.contenders(function, *data, numpy=numpy)


def group_batches(s: Setting) -> Iterator[Row]:
    """Many small matrices."""
    for count, n in BATCHES:
        for name, data, function, numpy in _problems(s, (count, n, n)):
            if name != "eig":
                yield f"{name} {count} x {n} x {n}", s.contenders(function, *data, numpy=numpy)


def group_transforms(s: Setting) -> Iterator[Row]:
    """Fourier transforms."""
    import scipy.fft

    cases: list[tuple[str, tuple[int, ...], bool]] = [
        ("fft", (1 << 20,), True), ("rfft", (1 << 20,), False), ("fft2", (1000, 1000), True),
        ("fft2", (1024, 1024), True), ("rfft2", (1000, 1000), False), ("fft", (1000, 1024), True),
        ("fft", (10000, 64), True), ("fft", (100, 1009), True),
    ]  # fmt: skip
    for name, shape, complex_numbers in cases:
        x = s.normal(*shape, complex_numbers=complex_numbers)

        def numpy(name: str = name, x: Any = x) -> Any:
            return getattr(scipy.fft, name)(x)

        made = s.contenders(lambda fw, name=name: getattr(fw.xp.fft, name), x, numpy=numpy)
        yield f"{name} {' x '.join(map(str, shape))}", made


def group_products(s: Setting) -> Iterator[Row]:
    """Products of complex matrices."""
    for n in (256, 512, 1024):
        a, b = (s.normal(n, n, complex_numbers=True) for _ in range(2))
        yield f"complex matmul {n}", s.contenders(lambda fw: fw.xp.matmul, a, b, numpy=lambda a=a, b=b: a @ b)


def group_segments(s: Setting) -> Iterator[Row]:
    """Sums of segments of a million elements."""
    import numpy as np

    count = 1 << 20
    x = s.normal(count)
    for segments in (1000, 100_000):
        at = s.random.integers(0, segments, count).astype("i4")
        for name, places in (("", at), (", sorted", np.sort(at))):

            def function(fw: Any, segments: int = segments) -> Any:
                return partial(_segment_sum(fw), num_segments=segments)

            yield f"segment_sum 1M in {segments}{name}", s.contenders(function, x, places)


def group_convolutions(s: Setting) -> Iterator[Row]:
    """Training steps of convolutions: a small net on digits, and blocks of ResNet-18's shapes."""
    import numpy as np

    def convolved(fw: Any, x: Any, w: Any, stride: int = 1) -> Any:
        return fw.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def digits(fw: Any) -> Any:
        def loss(weights: Any, x: Any, labels: Any) -> Any:
            h = fw.xp.maximum(convolved(fw, x, weights[0]), 0)
            h = fw.xp.maximum(convolved(fw, h, weights[1], 2), 0)
            out = h.reshape(h.shape[0], -1) @ weights[2]
            return -fw.xp.mean(fw.xp.sum(fw.log_softmax(out) * labels, -1))

        def step(x: Any, labels: Any, *weights: Any) -> Any:
            value, slopes = fw.value_and_grad(loss)(list(weights), x, labels)
            return value, [w - 0.1 * g for w, g in zip(weights, slopes, strict=True)]

        return step

    x, labels = s.normal(128, 8, 8, 1), np.eye(10, dtype="f4")[s.random.integers(0, 10, 128)]
    weights = [s.normal(3, 3, 1, 16), s.normal(3, 3, 16, 32), s.normal(4 * 4 * 32, 10) / 16]
    yield "digits' net, batch 128, a step", s.contenders(digits, x, labels, *weights)

    def block(fw: Any) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            h = fw.xp.maximum(convolved(fw, x, weights[0]), 0)
            return fw.xp.mean(fw.xp.maximum(convolved(fw, h, weights[1]) + x, 0) ** 2)

        return lambda x, *weights: fw.value_and_grad(loss)(list(weights), x)

    for side, channels in ((56, 64), (28, 128), (14, 256), (7, 512)):
        x = s.normal(8, side, side, channels)
        weights = [s.normal(3, 3, channels, channels) / (3 * channels**0.5) for _ in range(2)]
        yield f"ResNet-18 block {side} x {side} x {channels}, batch 8, a step", s.contenders(block, x, *weights)


GROUPS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    name.removeprefix("group_"): f for name, f in list(globals().items()) if name.startswith("group_")
}


def measured(groups: list[str], s: Setting, keep: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """A row that fails says so, and the others are measured; ``keep`` takes what is there after each."""
    rows: list[dict[str, Any]] = []
    for group in groups:
        found = GROUPS[group](s)
        while True:
            try:
                name, contenders = next(found)
            except StopIteration:
                break
            row: dict[str, Any] = {"group": group, "name": name, "commit": harness.commit()}
            try:
                values = harness.alternate(contenders, s.seconds, min_rounds=2, sample=0.003)
                row["seconds"] = {who: value["min"] for who, value in values.items()}
                row["medians"] = {who: value["median"] for who, value in values.items()}
            except Exception as problem:
                row["error"] = f"{type(problem).__name__}: {problem}"[:300]
            rows.append(row)
            keep(rows)
            print(show([row]).splitlines()[-1], file=sys.stderr, flush=True)
    return rows


def show(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        if "error" in row:
            lines.append([row["name"], *["-"] * 5, row["error"].splitlines()[0]])
            continue
        times = row["seconds"]
        volta, jax, scipy = (times.get(who) for who in ("volta", "jax", "scipy"))
        cells = [harness.seconds_text(x) for x in (volta, jax, scipy)]
        ratios = [harness.ratio_text(volta, x) for x in (jax, scipy)]
        lines.append([row["name"], *cells, *ratios, ""])
    return harness.table(["minima", "volta", "jax", "scipy", "volta/jax", "volta/scipy", ""], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", help=", ".join(GROUPS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--spectra", type=int, nargs="+", default=SPECTRA, help="sizes for eigh, svd and eig")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", type=Path)
    options = parser.parse_args()
    if options.show:
        print(show(json.loads(options.show.read_text(encoding="utf-8"))["rows"]))
        return
    if options.device == "cpu":
        harness.use_threads(options.threads)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    setting = Setting(options.device, options.sizes, options.spectra, options.seconds)
    about = {"machine": harness.machine(options.threads), "device": options.device}
    if options.device == "cuda":
        about["gpu"] = jax.devices()[0].device_kind
    groups = options.groups or list(GROUPS)
    before = (
        json.loads(options.json.read_text(encoding="utf-8"))["rows"] if options.json and options.json.exists() else []
    )

    def keep(rows: list[dict[str, Any]]) -> None:
        if options.json:
            harness.save(options.json, {**about, "rows": [*(x for x in before if x["group"] not in groups), *rows]})

    print(show(measured(groups, setting, keep)))


if __name__ == "__main__":
    main()
