"""CPU beside CUDA: bits that differ (none may), and times. Run on a machine with an NVIDIA GPU.

    python benchmarks/cuda_bits.py [--out results.json] [group ...]

Each group runs in a process of its own, so that a fault in one kernel does not spoil the rest.
"""

import argparse
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import volta  # noqa: E402
import volta.numpy as vnp  # noqa: E402
from volta import nn  # noqa: E402
from volta.core import pytrees  # noqa: E402
from volta.runtime import devices  # noqa: E402
from volta.testing.bits import _plain  # noqa: E402

SEED = 7


def to_gpu(tree):
    return pytrees.map(lambda x: devices.place(volta.runtime.array.as_array(x)), tree)


def compare(f, *args):
    """Elements, and how many of them differ in bits, of f on the CPU and on the GPU."""
    f = volta.jit(f)
    want = f(*args)
    with volta.default_device("cuda"):  # for programs without arguments
        got = f(*to_gpu(args))
    total = wrong = 0
    where = None
    for x, y in zip(pytrees.leaves(want), pytrees.leaves(got), strict=True):
        assert y.device == "cuda:0", y.device
        a, b = np.asarray(x), np.asarray(y)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (a.shape, a.dtype, b.shape, b.dtype)
        differ = _plain(a) != _plain(b)
        total += a.size
        count = int(differ.sum())
        if count and where is None:
            at = np.unravel_index(int(np.flatnonzero(differ.ravel())[0]), a.shape)
            where = f"{tuple(map(int, at))}: {a[at]!r} {b[at]!r}"
        wrong += count
    return {"elements": total, "differ": wrong, **({"first": where} if where else {})}


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def group_smoke(rng):
    x = draw(rng, 100, 200)
    i = rng.integers(0, 100, 300).astype(np.int32)
    few = rng.integers(0, 100, 20).astype(np.int32)
    yield "add", compare(lambda x: x + 1, x)
    yield "map 2d", compare(lambda x: x[::2, ::-1] * 2 + x[0], x)
    yield "gelu", compare(lambda x: nn.gelu(x), x)
    yield "sum rows", compare(lambda x: x.sum(1), x)
    yield "sum columns", compare(lambda x: x.sum(0), x)
    yield "sum all", compare(lambda x: x.sum(), x)
    yield "softmax", compare(lambda x: nn.softmax(x, -1), x)
    yield "softmax columns", compare(lambda x: nn.softmax(x, 0), x)
    yield "dot", compare(lambda x: x @ x.T, x)
    yield "dot vector", compare(lambda x: x @ x[0], x)
    yield "cumsum", compare(lambda x: vnp.cumsum(x, 1), x)
    yield "sort", compare(lambda x: vnp.sort(x, 1), x)
    yield "scatter", compare(lambda x, i: x.at[i].add(1.5), x, i)
    yield "scatter few", compare(lambda x, i: x.at[i].add(1.5), x, few)


def group_primitives(rng):
    from volta.testing.cases import cases, dtypes_of, vocabulary

    for primitive in vocabulary():
        found = {"elements": 0, "differ": 0}
        for dtype in dtypes_of(primitive):
            for case in cases(primitive, dtype):
                one = compare(lambda *a, c=case: c.primitive.bind(*a, **c.params), *case.args)
                found["elements"] += one["elements"]
                found["differ"] += one["differ"]
                if one["differ"]:
                    found.setdefault("first", f"{case}: {one['first']}")
        yield primitive.name, found


def group_functions(rng):
    """Every unary function on each 257th float32."""
    from volta.ops import REGISTRY
    from volta.ops.primitive import Family

    x = np.arange(11, 1 << 32, 257, dtype=np.uint64).astype(np.uint32).view(np.float32)
    for name, p in REGISTRY.items():
        if p.family is Family.ELEMENTWISE and p.domain is not None and "float" in p.domain.kinds:
            try:
                yield name, compare(lambda x, p=p: p.bind(x), x)
            except TypeError:  # not a function of one operand
                continue


def group_sums(rng):
    for n in (1, 31, 63, 64, 65, 127, 1000, 4095, 4096, 4097, 8191, 12289, 100003, (1 << 20) + 1):
        x = draw(rng, 3, n) * np.exp(draw(rng, 3, n) * 8).astype(np.float32)
        for name in ("sum", "max", "prod", "argmin", "mean"):
            yield f"{name} {n}", compare(lambda x, f=name: (getattr(vnp, f)(x, 1), getattr(vnp, f)(x.T, 0)), x)
    for shape in ((7, 4097, 33), (300, 20000), (20000, 300), (2, 3, 4, 5000)):
        x = draw(rng, *shape)
        yield f"axes {shape}", compare(lambda x: [x.sum(a) for a in range(x.ndim)] + [x.sum()], x)
        yield f"norms {shape}", compare(lambda x: (nn.softmax(x, -1), nn.softmax(x, 0), vnp.var(x, -1)), x)


def group_dots(rng):
    for m, k, n in (
        (1, 1, 1),
        (1, 300, 40),
        (40, 300, 1),
        (17, 0, 5),
        (33, 255, 65),
        (64, 256, 128),
        (65, 257, 129),
        (300, 1000, 500),
        (1024, 1024, 1024),
        (2000, 777, 1500),
    ):
        a, b = draw(rng, m, k) * np.float32(1e3), draw(rng, k, n)
        yield f"{m}x{k}x{n}", compare(lambda a, b: (a @ b, (b.T @ a.T)), a, b)
    tiny = (draw(rng, 50, 300) * np.float32(1e-25)).astype(np.float32)
    yield "underflow", compare(lambda a: a @ a.T, tiny)
    for d in ("float64", "float16", "int32", "int8"):
        a, b = ((draw(rng, 3, 70, 90) * 10).astype(d) for _ in range(2))
        yield d, compare(lambda a, b: vnp.einsum("bij,bkj->bik", a, b), a, b)
    a, b = draw(rng, 2, 5, 70, 90), draw(rng, 5, 90, 33)
    yield "batch", compare(lambda a, b: a @ b, a, b)
    yield "highest", compare(lambda a, b: vnp.matmul(a, b, precision="highest"), a, b)


def random_programs(smooth, count):
    """Counts over random programs, or (smooth) over their gradients."""
    from hypothesis import HealthCheck, given, settings

    from volta.testing.data import fill
    from volta.testing.strategies import programs

    totals = {"programs": 0, "elements": 0, "differ": 0}
    checks = list(HealthCheck)

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=checks)
    @given(programs(smooth=smooth))
    def run(program):
        args = [fill("normal", shape, dtype, seed=i) for i, (shape, dtype) in enumerate(program.inputs)]
        found = compare(volta.grad(program.loss) if smooth else program, *args)
        totals["programs"] += 1
        totals["elements"] += found["elements"]
        totals["differ"] += found["differ"]
        if found["differ"]:
            totals.setdefault("first", f"{program} {found['first']}"[:600])

    run()
    return totals


def group_programs(rng):
    yield "programs", random_programs(False, 150)
    yield "gradients", random_programs(True, 60)


def transformer():
    sys.path.insert(0, str(ROOT / "examples"))
    import tiny_transformer as tt

    from volta import optim, random

    corpus = vnp.asarray(tt.read_corpus()[0])
    key = random.key(0)
    return tt, optim, random, corpus, key


def group_transformer(rng):
    tt, optim, random, corpus, key = transformer()
    params = tt.init_params(key)
    optimizer = optim.adam(1e-3)
    states = {}
    for where in ("cpu", "cuda"):
        step = tt.make_step(optimizer)
        p, s, c = params, optimizer.init(params), corpus
        p = pytrees.map(lambda x: x + 0, p)
        if where == "cuda":
            p, s, c = to_gpu(p), to_gpu(s), to_gpu(c)
        begin = time.perf_counter()
        losses, laps = [], []
        for i in range(200):
            lap = time.perf_counter()
            p, s, loss = step(p, s, random.fold_in(key, i), c)
            if i % 50 == 0:
                losses.append(float(loss))
            laps.append(time.perf_counter() - lap)
            if i == 0:
                loss.block_until_ready()
                first = time.perf_counter() - begin
        loss.block_until_ready()
        states[where] = [np.asarray(x) for x in pytrees.leaves((p, s, loss))]
        whole = time.perf_counter() - begin
        yield f"{where} times", {"first_step_s": first, "step_ms": 1e3 * (whole - first) / 199, "losses": losses}
    differ = sum(int((_plain(a) != _plain(b)).sum()) for a, b in zip(states["cpu"], states["cuda"], strict=True))
    yield "200 steps", {"elements": sum(a.size for a in states["cpu"]), "differ": differ}


def clock(f, *args, repeat=20):
    """Median seconds of a call that is waited for, and mean seconds of calls in a row."""
    for _ in range(3):
        out = f(*args)
    pytrees.leaves(out)[0].block_until_ready()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        pytrees.leaves(f(*args))[0].block_until_ready()
        times.append(time.perf_counter() - start)
    laps = []
    for _ in range(5):  # the median of five: a garbage collection takes as long as thousands of launches
        start = time.perf_counter()
        for _ in range(repeat):
            out = f(*args)
        pytrees.leaves(out)[0].block_until_ready()
        laps.append((time.perf_counter() - start) / repeat)
    return float(np.median(times)), float(np.median(laps))


def group_times(rng):
    small = to_gpu(draw(rng, 1000))
    sync, flow = clock(volta.jit(lambda x: x * 2 + 1), small, repeat=500)
    yield "small call", {"sync_us": 1e6 * sync, "async_us": 1e6 * flow}

    def ten(x):
        for _ in range(10):
            x = x - x.sum()
        return x

    sync, flow = clock(volta.jit(ten), small, repeat=200)
    yield "ten sums in a row", {"sync_us": 1e6 * sync, "async_us": 1e6 * flow}
    big = to_gpu(draw(rng, 1 << 18, 1024))  # 1 GB
    nbytes = 4 * (1 << 28)
    for name, f, passes in (
        ("gelu 1 GB", lambda x: nn.gelu(x), 2),
        ("add 1 GB", lambda x: x + 1, 2),
        ("softmax 1 GB", lambda x: nn.softmax(x, -1), 2),
        ("sum rows 1 GB", lambda x: x.sum(1), 1),
        ("sum columns 1 GB", lambda x: x.sum(0), 1),
        ("sum 1 GB", lambda x: x.sum(), 1),
        ("layer norm 1 GB", lambda x: nn.layer_norm(x), 2),
    ):
        try:
            _, flow = clock(volta.jit(f), big, repeat=10)
            yield name, {"ms": 1e3 * flow, "TB_per_s": passes * nbytes / flow / 1e12}
        except Exception as error:
            yield name, {"error": repr(error)[:300]}
    del big
    for n in (1024, 2048, 4096, 8192):
        a, b = to_gpu(draw(rng, n, n)), to_gpu(draw(rng, n, n))
        _, flow = clock(volta.jit(lambda a, b: a @ b), a, b, repeat=5)
        yield f"dot {n}", {"ms": 1e3 * flow, "TFLOP_per_s": 2 * n**3 / flow / 1e12}


def group_scatters(rng):
    for slots, count, width in ((7, 5000, 3), (50000, 8192, 5), (1, 4097, 2), (300, 33, 1)):
        table, updates = draw(rng, slots, width), draw(rng, count, width)
        index = rng.integers(-2, slots + 2, count).astype(np.int32)
        for op in ("set", "add", "multiply", "min", "max"):
            yield (
                f"{op} {slots} {count} {width}",
                compare(lambda t, u, i, f=op: getattr(t.at[i], f)(u), table, updates, index),
            )
    x = draw(rng, 6, 50, 4)
    index = rng.integers(0, 50, (6, 100)).astype(np.int32)
    yield "batched", compare(volta.vmap(lambda x, i: x.at[i].add(2.0)), x, index)
    yield (
        "sort",
        compare(
            lambda x: (vnp.sort(x, 1), vnp.argsort(x, 1), vnp.cumsum(x, 1), vnp.cumprod(x, 0)), draw(rng, 40, 3000)
        ),
    )


def gpt2(where, length, batch, layers, width, heads, vocabulary, steps):
    """Steps of the transformer of benchmarks/programs.py: what the last returns, and times."""
    from benchmarks import programs

    config = programs.TransformerConfig(vocabulary, width, heads, layers, length, batch)
    framework = programs.volta()
    args = programs.step_arguments(framework, config)
    if where == "cuda":
        args = to_gpu(args)
    step = volta.jit(programs.transformer_step(framework, config), donate_argnums=(0, 1, 2))
    p, m, v, x, y = args
    laps = []
    for _ in range(steps):
        start = time.perf_counter()
        p, m, v, loss = step(p, m, v, x, y)
        float(loss)
        laps.append(time.perf_counter() - start)
    return (p, m, v, loss), {"first_step_s": laps[0], "step_ms": 1e3 * float(np.median(laps[1:])), "loss": float(loss)}


def group_medium(rng):
    """A transformer of width 256: three steps on both."""
    shape = (128, 4, 3, 256, 4, 5000, 3)
    want, cpu = gpt2("cpu", *shape)
    got, cuda = gpt2("cuda", *shape)
    yield "cpu times", cpu
    yield "cuda times", cuda
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(pytrees.leaves(want), pytrees.leaves(got), strict=True)]
    differ = sum(int((_plain(a) != _plain(b)).sum()) for a, b in pairs)
    yield "3 steps", {"elements": sum(a.size for a, _ in pairs), "differ": differ}


def group_gpt2(rng):
    """The GPT-2-small shape, on the GPU alone."""
    yield "GPT-2 small", gpt2("cuda", 1024, 8, 12, 768, 12, 50304, 4)[1]
    yield "pool", {"bytes": devices.memory_stats().peak}


GROUPS = [name.removeprefix("group_") for name in globals() if name.startswith("group_")]


def run_group(name):
    rng = np.random.default_rng(SEED)
    results, start = {}, time.perf_counter()
    steps = globals()[f"group_{name}"](rng)
    while True:
        try:
            key, value = next(steps)
        except StopIteration:
            break
        except Exception as error:
            results["error"] = f"{type(error).__name__}: {error}"[:2000] + traceback.format_exc()[-1200:]
            break
        results[key] = value
        print(json.dumps([name, key, value]), flush=True)
    results["seconds"] = time.perf_counter() - start
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--one", action="store_true", help="run the one group named in this process")
    parser.add_argument("groups", nargs="*", default=GROUPS)
    options = parser.parse_args()
    if options.one:
        options.out.write_text(json.dumps(run_group(options.groups[0]), indent=1))
        return
    info = devices.cuda().driver.info()
    record = {
        "gpu": info.name,
        "capability": list(info.capability),
        "numpy": np.__version__,
        "contract": volta.core.contract.ID,
    }
    for name in options.groups:
        part = Path(f"/tmp/cuda_bits_{name}.json")
        part.unlink(missing_ok=True)
        command = [sys.executable, __file__, "--one", "--out", str(part), name]
        try:
            done = subprocess.run(command, timeout=options.limit, capture_output=True, text=True)
            said = done.stdout.splitlines() if not part.exists() else []
            failed = None if part.exists() else f"exit {done.returncode}: {done.stderr[-1500:]}"
        except subprocess.TimeoutExpired as error:
            said, failed = (error.stdout or b"").decode().splitlines(), "time limit"
        record[name] = json.loads(part.read_text()) if failed is None else dict(json.loads(x)[1:] for x in said)
        if failed:
            record[name]["error"] = failed
        found = record[name]
        counted = [v for v in found.values() if isinstance(v, dict) and "differ" in v]
        print(name, {"cases": len(counted), "elements": sum(v["elements"] for v in counted),
                     "differ": sum(v["differ"] for v in counted), "seconds": round(found.get("seconds", 0), 1)},
              flush=True)  # fmt: skip
        for key, value in found.items():
            if isinstance(value, dict) and (value.get("differ") or "differ" not in value):
                print("   ", key, json.dumps(value)[:400], flush=True)
        if "error" in found:
            print("    error:", found["error"][-1500:], flush=True)
        if options.out:
            options.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
