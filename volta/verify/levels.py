"""Level device: strict refuses precisions of tensor cores; below it the bits do not depend on runs or batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import nn
from volta.api.autodiff import grad
from volta.api.devices import device_put
from volta.api.jit import jit
from volta.api.vmap import vmap
from volta.core.errors import UnsupportedOperationError
from volta.runtime.context import default_matmul_precision, execution_context
from volta.testing.data import fill
from volta.verify.checks import Check, Setting, same
from volta.verify.variants import shared_out
from volta.xla_like.compile import CompileOptions

_SHAPES = ((64, 64, 64), (37, 259, 51), (200, 520, 304))  # rows, what is summed, columns


def levels(setting: Setting) -> Iterator[Check]:
    """For products of each precision and dtype, strict refuses and exact sums are strict's; for these and attention,
    runs and batches do not matter."""
    for precision in ("bf16", "tf32"):
        for dtype in ("float32", "bfloat16", "float16"):
            for shape in _SHAPES if setting.full else _SHAPES[1:]:
                name = f"{precision} {dtype} {'x'.join(map(str, shape))}"
                try:
                    yield from _checks(name, precision, dtype, shape, setting)
                except Exception as error:  # one failure must not hide the others
                    yield Check(name, problem=f"{type(error).__name__}: {error}")
    for precision, dtype in (("bf16", "bfloat16"), ("tf32", "float32")):
        name = f"{precision} {dtype}: an epilogue"
        try:
            yield from _epilogue(name, precision, dtype, setting)
        except Exception as error:
            yield Check(name, problem=f"{type(error).__name__}: {error}")
    for head, causal, dtype in ((64, True, "bfloat16"), (128, False, "bfloat16"), (64, False, "float32")):
        try:
            yield from _attention(head, causal, dtype, setting)
        except Exception as error:
            yield Check(f"attention {dtype} heads of {head}", problem=f"{type(error).__name__}: {error}")


def _epilogue(name: str, precision: str, dtype: str, setting: Setting) -> Iterator[Check]:
    """What a product's kernel computes where it writes tiles has the bits that it has behind the product."""

    def dense(x: Any, w: Any, c: Any, r: Any) -> Any:
        return nn.gelu(vnp.matmul(x, w, precision=precision) + c) * r

    shapes = (2052, 130), (130, 2056), (2056,), (2052, 2056)
    drawn = [vnp.asarray(fill("normal", s, "float32", seed=i), dtype) for i, s in enumerate(shapes)]
    drawn = device_put(drawn, setting.device)
    with execution_context(level="device"):
        with execution_context(options=CompileOptions(epilogues=False)):
            apart = _host(jit(dense)(*drawn))
        yield _compare(name, jit(dense)(*drawn), apart)


def _attention(head: int, causal: bool, dtype: str, setting: Setting) -> Iterator[Check]:
    """Attention and its gradients: the same promises, for items of a batch and for heads."""
    name = f"attention {dtype} heads of {head}{' causal' * causal}"
    shapes = (2, 150, 3, head), (2, 170, 3, head), (2, 170, 3, head)
    drawn = [vnp.asarray(fill("normal", s, "float32", seed=i), dtype) for i, s in enumerate(shapes)]
    drawn = device_put(drawn, setting.device)

    def both(q: Any, k: Any, v: Any) -> Any:
        def value(q: Any, k: Any, v: Any) -> Any:
            return vnp.sum(nn.dot_product_attention(q, k, v, is_causal=causal).astype("float32") ** 2)

        return nn.dot_product_attention(q, k, v, is_causal=causal), *grad(value, (0, 1, 2))(q, k, v)

    strict = _host(jit(both)(*drawn)[0])
    with execution_context(level="device"), default_matmul_precision("bf16"):
        first = [_host(x) for x in jit(both)(*drawn)]
        changed = float(np.mean(first[0] != strict))
        blind = setting.device != "cpu" and changed < 0.1
        problem = "level device computed what strict does: nothing was tested" if blind else ""
        yield Check(f"{name}: other than strict", first[0].size, 0, problem, figures={"changed": changed})
        alone = jit(both)(*(x[1:, :, 2:] for x in drawn))
        batched = vmap(both)(*(x[:, None] for x in drawn))
        for i, what in enumerate(("result", "dq", "dk", "dv")):
            yield _compare(f"{name}: {what}, twice", jit(both)(*drawn)[i], first[i])
            yield _compare(f"{name}: {what}, alone", alone[i], first[i][1:, :, 2:])
            yield _compare(f"{name}: {what}, batched", batched[i][:, 0], first[i])


def _checks(name: str, precision: str, dtype: str, shape: tuple[int, ...], setting: Setting) -> Iterator[Check]:
    m, k, n = shape

    def product(x: Any, w: Any) -> Any:
        return vnp.matmul(x, w, precision=precision)

    numbers = np.random.default_rng(m)
    exact = [vnp.asarray(numbers.integers(-8, 9, s), dtype) for s in ((3, m, k), (k, n))]
    drawn = [vnp.asarray(fill("normal", s, "float32", seed=7), dtype) for s in ((3, m, k), (k, n))]
    exact, drawn = device_put(exact, setting.device), device_put(drawn, setting.device)
    try:
        product(*exact)
        yield Check(f"{name}: strict", problem="strict ran it")
    except UnsupportedOperationError:
        yield Check(f"{name}: strict", elements=1)
    want = _host(jit(vnp.matmul)(*exact))
    strict = _host(jit(vnp.matmul)(*drawn))
    with execution_context(level="device"):
        yield _compare(f"{name}: exact sums", jit(product)(*exact), want)
        first = _host(jit(product)(*drawn))
        changed = float(np.mean(first != strict))
        blind = setting.device != "cpu" and dtype == "float32" and changed < 0.5
        problem = "level device computed what strict does: nothing was tested" if blind else ""
        yield Check(f"{name}: other than strict", first.size, 0, problem, figures={"changed": changed})
        yield _compare(f"{name}: twice", product(*drawn), first)
        yield _compare(f"{name}: batched", vmap(product, (0, None))(*drawn), first)
        for processors, got, _ in shared_out(product, drawn, setting.device):
            yield _compare(f"{name}: for {processors or 'its'} multiprocessors", got, first)
        x, w = drawn
        for i, part in ((1, slice(None)), (2, slice(3, 9)), (0, slice(m - 1, m))):
            yield _compare(f"{name}: item {i}, {part.start}", product(x[i, part], w), first[i, part])
        yield _compare(f"{name}: columns", product(x, w[:, 5:8]), first[:, :, 5:8])


def _host(x: Any) -> np.ndarray:
    return np.asarray(x)


def _compare(name: str, got: Any, want: Any) -> Check:
    """A check without a digest: the bits below strict are a machine's own."""
    return attrs.evolve(same(name, _host(got), want), inputs="", digest="")
