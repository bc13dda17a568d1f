"""Suites of single programs: the same bits as the CPU's and as the record's."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import lax, nn
from volta.api.autodiff import grad
from volta.api.devices import device_put
from volta.api.jit import jit
from volta.api.vmap import vmap
from volta.core import dtypes
from volta.ops import REGISTRY
from volta.testing.cases import Case, cases, dtypes_of, vocabulary
from volta.testing.data import FILLS, fill
from volta.verify.checks import Check, Named, Setting, compare

_FUNCTION_DIGESTS = Path(__file__).parent / "digests" / "float32.json"
_CHUNK = 1 << 26
_QUICK_STRIDE = 65537


def functions(setting: Setting) -> Iterator[Check]:
    """Every float32 function of one argument: SHA-256 over every 65537th input, or (exhaustive) over all 2^32."""
    record = json.loads(_FUNCTION_DIGESTS.read_text(encoding="utf-8"))["functions"]
    if setting.effort == "exhaustive":
        found = _exhaustive(sorted(record), setting.device)
        key, count = "sha256", 1 << 32
    else:
        x = np.arange(0, 1 << 32, _QUICK_STRIDE, dtype=np.uint64).astype(np.uint32).view(np.float32)
        x = device_put(x, setting.device)
        found = {name: hashlib.sha256(_results(name, x).data).hexdigest() for name in sorted(record)}
        key, count = "sha256_every_65537", x.size
    for name, result in found.items():
        wanted = record[name][key]
        problem = "" if result == wanted else f"SHA-256 {result[:16]}…, the record has {wanted[:16]}…"
        yield Check(name, count, problem=problem)


@functools.cache
def _bits_of(name: str) -> Callable[..., Any]:
    """A function's results as integers, since then all NaNs are one."""
    primitive = REGISTRY[name]
    return jit(lambda x: lax.bitcast_convert_type(primitive.bind(x), np.uint32))


def _results(name: str, x: Any) -> np.ndarray:
    return np.asarray(_bits_of(name)(x))


def _exhaustive(names: list[str], device: str) -> dict[str, str]:
    """Digests over all inputs: the device computes, host threads hash, one a function."""
    hashes = {name: hashlib.sha256() for name in names}
    with ThreadPoolExecutor() as hashers:
        pending: dict[str, Any] = {}
        for start in range(0, 1 << 32, _CHUNK):
            x = device_put(np.arange(start, start + _CHUNK, dtype=np.uint64).astype(np.uint32).view(np.float32), device)
            for name in names:
                if name in pending:
                    pending[name].result()  # a function's chunks in order, and a bound on memory
                pending[name] = hashers.submit(hashes[name].update, _results(name, x).data)
        for job in pending.values():
            job.result()
    return {name: h.hexdigest() for name, h in hashes.items()}


def primitives(setting: Setting) -> Iterator[Check]:
    """Every primitive on examples of its domain and on adversarial data."""
    for primitive in vocabulary():
        yield from compare(
            setting, _named(f for d in dtypes_of(primitive) for c in cases(primitive, d) for f in _fills(c))
        )


def _named(found: Iterator[tuple[str, Case]]) -> Iterator[Named]:
    for name, case in found:
        yield name, lambda *args, c=case: c.primitive.bind(*args, **c.params), case.args


def _fills(case: Case) -> Iterator[tuple[str, Case]]:
    """A case as it is, and with its floats replaced by each kind of adversarial data."""
    yield str(case), case
    floats = [i for i, x in enumerate(case.args) if dtypes.is_float(x.dtype)]
    for kind in sorted(FILLS) if floats else ():
        args = tuple(fill(kind, x.shape, x.dtype, i) if i in floats else x for i, x in enumerate(case.args))
        yield f"{case} {kind}", attrs.evolve(case, args=args)


_LENGTHS = (0, 1, 31, 63, 64, 65, 4095, 4096, 4097, 12289, 100003, (1 << 20) + 1)


def _reduced(x: Any) -> Any:
    every = [f(x, 1) for f in (vnp.sum, vnp.prod, vnp.max, vnp.argmin)] if x.shape[1] else [vnp.sum(x, 1)]
    return every, vnp.sum(x.T, 0), vnp.sum(x), vnp.cumsum(x, 1)


def reductions(setting: Setting) -> Iterator[Check]:
    """Sums and their like, whose order is fixed by length alone, and what is made of them."""

    def found() -> Iterator[Named]:
        lengths = (*_LENGTHS, (1 << 24) + 1) if setting.full else _LENGTHS[:-1]
        for n in lengths:
            for kind in sorted(FILLS) if n < 1 << 17 else ("ladder",):
                yield f"{n} {kind}", _reduced, (fill(kind, (3 if n < 1 << 20 else 1, n)),)
        for shape in ((7, 4097, 33), (300, 2000), (2000, 300)):
            x = fill("normal", shape)
            yield f"axes {shape}", lambda x: [vnp.sum(x, a) for a in range(x.ndim)], (x,)
            yield (
                f"norms {shape}",
                lambda x: (nn.softmax(x, -1), nn.softmax(x, 0), nn.layer_norm(x), grad(_norms)(x)),
                (x,),
            )

    yield from compare(setting, found())


def _norms(x: Any) -> Any:
    return vnp.sum(nn.softmax(x, -1) ** 2) + vnp.sum(nn.layer_norm(x) ** 3)


def products(setting: Setting) -> Iterator[Check]:
    """Matrix products: chains of 256 over the contracted dimension, 16 of them a block, blocks joined in pairs;
    whatever the shape, layout or batch."""

    def found() -> Iterator[Named]:
        for k in (0, 1, 255, 256, 257, 513):
            for kind in ("normal", "ladder", "subnormal", "specials"):
                a, b = fill(kind, (33, k)), fill(kind, (k, 65), seed=1)
                yield f"33x{k}x65 {kind}", lambda a, b: (a @ b, b.T @ a.T, a[0] @ b, a @ b[:, 0]), (a, b)
        for k in (4097, 8192, 8193, 12289, 69633):
            a, b = fill("ladder", (9, k)), fill("normal", (k, 40), seed=1)
            args = (a, b, np.ascontiguousarray(b.T))
            yield f"9x{k}x40", lambda a, b, bt: (a @ b, a @ bt.T, a[0] @ b, a[0] @ bt.T, a @ b[:, 0]), args
            if k == 12289:
                yield f"9x{k}x40 highest", lambda a, b, bt: vnp.matmul(a, bt.T, precision="highest"), args
                yield f"9x{k}x40 float64", lambda a, b: a @ b, (a.astype("float64"), b.astype("float64"))
        a, b = fill("ladder", (200, 20481)), fill("normal", (20481, 130), seed=1)
        yield "200x20481x130", lambda a, b: (a @ b, b.T @ a.T), (a, b)
        shapes = [(64, 256, 128), (300, 1000, 500), (128, 4096, 128)]
        for m, k, n in [*shapes, (2048, 1000, 1536)] if setting.full else shapes:
            a, b = fill("normal", (m, k)), fill("normal", (k, n), seed=1)
            layouts = (a, np.ascontiguousarray(a.T), b, np.ascontiguousarray(b.T))
            yield f"{m}x{k}x{n}", lambda a, at, b, bt: (a @ b, at.T @ b, a @ bt.T, at.T @ bt.T), layouts
        a, b = fill("normal", (2, 5, 70, 90)), fill("normal", (5, 90, 33), seed=1)
        yield "batch", vnp.matmul, (a, b)
        a, b = fill("ladder", (130, 600)), fill("ladder", (600, 130), seed=1)
        yield "highest", lambda a, b: vnp.matmul(a, b, precision="highest"), (a, b)
        for kind in ("normal", "ladder", "subnormal", "specials"):
            for m, k, n in ((33, 257, 65), (130, 600, 130), (9, 69633, 40)):
                for dtype in ("float32", "float64"):
                    a, b = fill(kind, (m, k), dtype), fill(kind, (k, n), dtype, 1)
                    yield f"{m}x{k}x{n} {kind} {dtype} exact", lambda a, b: vnp.matmul(a, b, precision="exact"), (a, b)
        for dtype in ("float64", "float16", "bfloat16", "int32", "int8"):
            pair = fill("normal", (3, 70, 300), dtype), fill("normal", (3, 65, 300), dtype, 1)
            yield dtype, lambda a, b: vnp.einsum("bij,bkj->bik", a, b), pair
        x, w, c = (fill("normal", s, seed=i) for i, s in enumerate([(100, 300), (300, 200), (200,)]))
        yield "epilogue", lambda x, w, c: nn.gelu(x @ w + c), (x, w, c)
        gradient = grad(lambda x, w, c: vnp.sum(nn.gelu(x @ w + c) ** 2), (0, 1, 2))
        yield "gradient", gradient, (x, w, c)

    yield from compare(setting, found())


def indexing(setting: Setting) -> Iterator[Check]:
    """Gathers, scatters (also of many updates to one place), sorts and scans."""

    def found() -> Iterator[Named]:
        for slots, count, width in ((7, 5000, 3), (5000, 8192, 5), (1, 4097, 2), (300, 33, 1)):
            table, updates = fill("ladder", (slots, width)), fill("ladder", (count, width), seed=1)
            index = np.random.default_rng(slots).integers(-2, slots + 2, count).astype(np.int32)
            for op in ("set", "add", "multiply", "min", "max"):
                yield f"{op} {slots} {count} {width}", _update(op), (table, updates, index)
        rows = np.random.default_rng(0).integers(0, 50, (6, 100)).astype(np.int32)
        x = fill("ladder", (6, 50, 4))
        batched = vmap(lambda x, i: (x.at[i].add(2.0), x[i]))
        yield "batched", batched, (x, rows)
        for kind in ("normal", "zeros", "specials"):
            for n in (1, 100, 5000):
                yield f"sort {n} {kind}", lambda x: (vnp.sort(x, 1), vnp.argsort(x, 1)), (fill(kind, (5, n)),)
        for n in (1, 255, 256, 257, 3000):
            x = fill("ladder", (4, n))
            yield f"scan {n}", lambda x: (vnp.cumsum(x, 1), vnp.cumprod(x, 1), vnp.cumsum(x.T, 0)), (x,)

    yield from compare(setting, found())


def _update(op: str) -> Any:
    return lambda table, updates, index: getattr(table.at[index], op)(updates)


def attention(setting: Setting) -> Iterator[Check]:
    """Attention and its gradients: plain, causal, masked, with shared key heads, in every float dtype."""

    def found() -> Iterator[Named]:
        shapes = [(2, 65, 65, 4, 2, 32), (1, 3, 200, 2, 2, 64), (1, 130, 130, 2, 1, 16)]
        for batch, length, keys, heads, key_heads, depth in (
            [*shapes, (1, 1024, 1024, 2, 2, 64)] if setting.full else shapes
        ):
            for causal in (False, True):
                q = fill("normal", (batch, length, heads, depth))
                k, v = (fill("normal", (batch, keys, key_heads, depth), seed=i) for i in (1, 2))
                for dtype in ("float32",) if length > 100 else ("float32", "float64", "bfloat16", "float16"):
                    args = tuple(x.astype(dtypes.canonicalize(dtype)) for x in (q, k, v))
                    name = f"{batch}x{length}x{keys} {heads}/{key_heads} heads of {depth} {dtype}"
                    yield f"{name}{' causal' * causal}", _attend(is_causal=causal), args
        many = fill("normal", (1, 4200, 2, 16)), *(fill("normal", (1, 70, 1, 16), seed=i) for i in (1, 2))
        yield "4200 queries", _attend(is_causal=True), many
        q = fill("normal", (2, 70, 4, 32))
        k, v = (fill("normal", (2, 150, 2, 32), seed=i) for i in (1, 2))
        mask = fill("normal", (2, 1, 70, 150), seed=3) > -0.5
        mask[:, :, 5] = False  # a row that sees no key
        k[:, 77], v[:, 77], mask[..., 77] = np.nan, np.inf, False
        yield "masked", _attend(mask=mask), (q, k, v)
        starts = np.array([3, 79], np.int32)
        yield "masked and causal from a position", _attend(mask=mask, is_causal=True, query_start=starts), (q, k, v)
        yield "one token", _attend(is_causal=True, query_start=starts - 3), (q[:, :1], k, v)

    yield from compare(setting, found())


def _attend(**options: Any) -> Any:
    def value(q: Any, k: Any, v: Any) -> Any:
        return vnp.sum(nn.dot_product_attention(q, k, v, **options).astype(np.float32) ** 2)

    return lambda q, k, v: (nn.dot_product_attention(q, k, v, **options), grad(value, (0, 1, 2))(q, k, v))
