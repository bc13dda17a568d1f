"""Loops of small bodies run as one kernel on a GPU: which do, rows shared out to blocks, bits on the host."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.numba_cuda.host import host
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import every
from volta.numba_cuda.loops import small_loops
from volta.offline import plan_on_cuda
from volta.testing import FILLS, fill
from volta.testing.cases import cases, dtypes_of, vocabulary
from volta.testing.host_grid import ORDERS, HostKernels, check_on_host
from volta.testing.strategies import programs

pytestmark = [pytest.mark.skipif(bool(host.why_not()), reason=host.why_not()), pytest.mark.turns(6)]

KERNELS = HostKernels()
ROWS = {f"{p.name} {d.name}": (p, d) for p in vocabulary() for d in dtypes_of(p)}
QUICK = ("add float32", "tanh float32", "sin float16", "dot_general float32", "dot_general int32", "gather float32",
         "select_n float32", "rev bool", "dynamic_slice float32", "dynamic_update_slice float32")  # fmt: skip


def normal(*shape, seed=0):
    return fill("normal", shape, "float32", seed)


def launched(f, *args):
    """A program's launches, each followed by those inside of it."""
    plan, _ = plan_on_cuda(volta.make_jaxpr(f)(*args))
    return list(every(launches_of(plan)))


def small(f, *args):
    """The launches that run small bodies."""
    return [x for x in launched(f, *args) if "small_loop" in x.source.name]


def recurrent(w, u, b, h, xs):
    def step(h, x):
        h = vnp.tanh(0.1 * (h @ w) + x @ u + b)
        return h, h

    return lax.scan(step, h, xs)


def network(batch, width, length=5):
    shapes = [(width, width), (width, width), (width,), (batch, width), (length, batch, width)]
    return [normal(*shape, seed=i) for i, shape in enumerate(shapes)]


def lorenz(s, _):
    rate = vnp.stack([10.0 * (s[1] - s[0]), s[0] * (28.0 - s[2]) - s[1], s[0] * s[1] - 8.0 / 3 * s[2]])
    s = s + 0.01 * rate
    return s, s


def scanned(step, length=5, **more):
    return lambda init, xs=None: lax.scan(step, init, xs, length if xs is None else None, **more)


BODIES = {
    # name: (function, arguments, blocks)
    "numbers": (scanned(lorenz, 20), (normal(3),), 1),
    "counted": (
        lambda x: lax.while_loop(lambda s: s[0] < 30, lambda s: (s[0] + 1, s[1] * 1.01), (0, x)), (normal(8),), 1,
    ),
    "recurrent": (recurrent, network(6, 32), 2),
    "a row a block": (recurrent, network(9, 128), 9),
    "an uneven block": (recurrent, network(7, 40), 2),
    "more rows than multiprocessors": (recurrent, network(300, 8, 2), 19),
    "chains of no whole line": (recurrent, network(5, 33), 1),
    "backwards, two at a time": (
        lambda h, xs: lax.scan(lambda h, x: (h * 0.5 + x, (h, x)), h, xs, reverse=True, unroll=2),
        (normal(300, 7), normal(6, 300, 7)), 17,
    ),
    "a sequence": (lambda h, xs: lax.scan(lambda h, x: (h * x, h), h, xs), (normal(500), normal(9)), 4),
    "exchanged": (scanned(lambda c, _: ((c[1], c[0] + c[1]), c[0])), ((normal(40, 9), normal(40, 9, seed=1)),), 3),
    "rows ask for each other": (scanned(lambda h, _: (h[::-1] * 0.5, None)), (normal(64, 8),), 1),
    "rows meet in a product": (scanned(lambda h, _: (h @ h * 0.1, h)), (normal(16, 16),), 1),
    "rows meet in a step's middle": (
        scanned(lambda h, _: (vnp.tanh(vnp.roll(h * 2, 1, axis=0)) + h, None)), (normal(32, 8),), 1,
    ),
    "transposed": (scanned(lambda h, w: (h @ w.T, h)), (normal(8, 24), normal(4, 24, 24)), 2),
    "slices that all rows read": (scanned(lambda h, w: (h @ w, h)), (normal(60, 24), normal(4, 24, 24)), 10),
    "sums": (scanned(lambda h, _: (h / (1 + vnp.abs(h).sum()), h.max())), (normal(50),), 1),
    "rows that are reduced": (
        scanned(lambda h, _: ((h - h.mean(-1, keepdims=True)) / vnp.sqrt(1 + h.var(-1, keepdims=True)), h.argmax(-1))),
        (normal(70, 100),), 18,
    ),
    "columns": (scanned(lambda h, x: (h * 0.5 + x.sum(0), x - h)), (normal(33), normal(4, 65, 33)), 17),
    "long rows": (scanned(lambda h, _: (h / h.sum(-1, keepdims=True), (h * h).sum(-1))), (normal(3, 1000),), 1),
    "several chunks": (
        lambda h, w, u: lax.fori_loop(0, 3, lambda i, h: vnp.tanh(h @ w) @ u, h),
        (normal(2, 8), normal(8, 600), normal(600, 8, seed=1)), 2,
    ),
    "highest": (
        scanned(lambda h, w: (vnp.matmul(h, w, precision="highest"), None)), (normal(4, 8), normal(3, 8, 8)), 1,
    ),
    "halves in a product": (
        scanned(lambda h, w: (h @ w, h)), (normal(4, 40).astype(np.float16), normal(3, 40, 40).astype(np.float16)), 1,
    ),
    "choices": (
        lambda x: lax.fori_loop(
            0, 7, lambda i, x: lax.switch(i % 3, [lambda x: x * 1.1, lambda x: x @ x, lambda x: x - x.sum(0)], x), x
        ),
        (normal(6, 6),), 1,
    ),
    "a choice in a choice": (
        scanned(lambda c, x: (lax.cond(
            x[0] > 0, lambda c: lax.cond(c[0, 0] > 0, lambda c: vnp.tanh(c) + x, lambda c: c * x, c), lambda c: -c, c,
        ), c)),
        (normal(40, 20), normal(9, 20)), 1,
    ),
    "a choice by the number": (
        lambda h, w: lax.fori_loop(0, 6, lambda i, h: lax.cond(i % 2 == 0, lambda h: h @ w, lambda h: h * 0.5, h), h),
        (normal(60, 24), normal(24, 24)), 10,
    ),
    "until they are near": (
        lambda x: lax.while_loop(lambda x: vnp.abs(x * x - 2).max() > 1e-3, lambda x: x - (x * x - 2) / (2 * x), x),
        (np.abs(normal(300)) + 1,), 1,
    ),
    "a batch of products": (
        volta.vmap(lambda h, w: lax.fori_loop(0, 4, lambda i, h: w @ h, h)), (normal(20, 12), normal(20, 12, 12)), 2,
    ),
    "integers": (scanned(lambda c, x: (c @ x + 1, c)), (np.arange(12, dtype=np.int32).reshape(4, 3),
                                                       np.arange(45, dtype=np.int32).reshape(5, 3, 3) % 7), 1),
    "doubles": (
        lambda h, w: lax.fori_loop(0, 4, lambda i, h: h @ w + i, h),
        (normal(5, 6).astype(np.float64), normal(6, 6).astype(np.float64)), 1,
    ),
    "conditions and halves": (
        scanned(lambda c, x: ((~c[0], vnp.where(c[0], c[1] + x, c[1] - x)), c[0])),
        ((np.arange(200) % 3 == 0, normal(200).astype(np.float16)), normal(5, 200).astype(np.float16)), 2,
    ),
    "what is carried is no row": (
        lambda h, a: lax.fori_loop(0, 6, lambda i, c: (c[0] * c[1][0] + i, c[1] + 1), (h, a)),
        (normal(200, 3), normal(2)), 5,
    ),
    "a row that moves": (
        lambda h: lax.fori_loop(0, 6, lambda i, h: lax.dynamic_update_index_in_dim(h, h[0] + i, i, 0), h),
        (normal(8, 30),), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_small_body_is_one_kernel_with_the_cpus_bits(name):
    f, args, blocks = BODIES[name]
    (loop,) = small(f, *args)
    assert loop.grid == blocks
    assert sum("settling" in x.source.name for x in launched(f, *args)) == (blocks > 1)
    check_on_host(f, *args, orders=ORDERS, kernels=KERNELS)


def test_the_gradient_of_a_network():
    f = volta.grad(lambda *args: (recurrent(*args)[1] ** 2).sum(), (0, 1, 2))
    args = network(6, 32)
    assert len(small(f, *args)) == 2
    check_on_host(f, *args, kernels=KERNELS)


OTHERS = {
    "long sums": (scanned(lambda h, _: (h / (1 + vnp.abs(h).sum()), None)), (normal(5000),)),
    "sorted": (scanned(lambda h, _: (vnp.sort(h) * 0.5, None)), (normal(50),)),
    "large products": (recurrent, network(256, 256, 1)),
    "rows that meet, too many": (scanned(lambda h, _: (vnp.sin(h[::-1]), None)), (normal(4096, 64),)),
    "a loop inside": (
        scanned(lambda h, _: (lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2 + 1, h), None)), (normal(9),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_bodies_are_launches_of_their_own(name):
    f, args = OTHERS[name]
    assert len(small(f, *args)) == 5 * (name == "a loop inside")  # one for each of five iterations
    if name != "rows that meet, too many":
        check_on_host(f, *args, kernels=KERNELS)


def test_no_test_stands_around_a_loop_that_one_launch_ends(monkeypatch):
    def conditions(length):
        return sum(bool(x.inside) for x in launched(lambda s: lax.scan(lorenz, s, None, length), normal(3)))

    assert [conditions(n) for n in (1, 2, small_loops.ITERATIONS, small_loops.ITERATIONS + 1)] == [0, 0, 0, 1]
    monkeypatch.setattr(small_loops, "ITERATIONS", 4)
    for length in (3, 4, 5, 8, 9):
        check_on_host(lambda s, n=length: lax.scan(lorenz, s, None, n), normal(3), kernels=KERNELS)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8, 9])
@pytest.mark.parametrize("shape", [(3,), (300, 2)])
def test_any_number_of_iterations(count, shape, monkeypatch):
    """A launch makes some, and the graph launches it again."""
    monkeypatch.setattr(small_loops, "ITERATIONS", 4)

    def f(n, x):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 3 + c[0]), (np.int32(0), x))

    assert small(f, np.int32(count), normal(*shape))
    check_on_host(f, np.int32(count), normal(*shape), kernels=KERNELS)


def test_a_gpu_with_too_little_shared_memory_takes_launches(monkeypatch):
    f, args, _ = BODIES["recurrent"]
    monkeypatch.setattr(small_loops, "shared_of", lambda capability: 64)
    assert not small(f, *args)


def test_a_barrier_that_is_left_out_is_a_race(monkeypatch):
    whole = small_loops._Maker._step
    monkeypatch.setattr(small_loops._Maker, "_step", lambda self, work, rows, meets: whole(self, work, rows, False))
    f, args, _ = BODIES["recurrent"]
    with pytest.raises(AssertionError, match="race|NaN|bits"):
        check_on_host(f, *args, orders=ORDERS)


@sampled("name", ROWS, quick=QUICK)
def test_every_primitive_in_a_body(name):
    """Each iteration computes it of another slice; whether it runs as one kernel or not."""
    primitive, dtype = ROWS[name]
    for case in cases(primitive, dtype)[:3]:
        args = [np.stack([x, np.flip(x), x]) for x in case.args]

        def f(*args, case=case):
            step = lambda c, xs: (c + 1, case.primitive.bind(*xs, **case.params))  # noqa: E731 (one line is all of it)
            return lax.scan(step, 0, args, length=3)  # some have no operands

        check_on_host(f, *args, orders=ORDERS[:1], kernels=KERNELS)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from(sorted(FILLS)))
def test_random_bodies(p, data):
    args = [fill(data if "float" in dtype else "normal", shape, dtype, i) for i, (shape, dtype) in enumerate(p.inputs)]
    stacked = [np.stack([x, np.flip(x)]) for x in args]
    check_on_host(lambda *args: lax.scan(lambda c, xs: (c + 1, p(*xs)), 0, args), *stacked, kernels=KERNELS)


ROWWISE = {
    "tanh": lambda h, v, w, i: (vnp.tanh(h), v),
    "product": lambda h, v, w, i: (h @ w, v),
    "transposed product": lambda h, v, w, i: (h @ w.T, v),
    "Gram": lambda h, v, w, i: (h @ h.T @ h, v),
    "turned": lambda h, v, w, i: ((w @ h.T).T, v),
    "shifted rows": lambda h, v, w, i: (vnp.roll(h, 1, 0), v),
    "shifted columns": lambda h, v, w, i: (h + vnp.roll(h, -1, 1), v),
    "mirrored": lambda h, v, w, i: (h[::-1], v),
    "normed": lambda h, v, w, i: (h - h.mean(-1, keepdims=True), v),
    "sum of columns": lambda h, v, w, i: (h, v + h.sum(0)),
    "added": lambda h, v, w, i: (h * 0.5 + v, v),
    "largest": lambda h, v, w, i: (vnp.where(h == h.max(-1, keepdims=True), 0, h), v * 0.5),
    "row of the number": lambda h, v, w, i: (h, lax.dynamic_index_in_dim(h, i % h.shape[0], 0, False)),
    "row set": lambda h, v, w, i: (lax.dynamic_update_index_in_dim(h, v, i % h.shape[0], 0), v),
    "numbered": lambda h, v, w, i: (h + i, v * 0.9),
}  # fmt: skip


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(sorted(ROWWISE)), min_size=1, max_size=5), st.integers(1, 40), st.integers(1, 20))
def test_random_steps_of_rows(names, rows, columns):
    """Whatever rows ask of each other, and however they are shared out."""

    def step(c, x):
        h, v, i = c
        before = h
        for name in names:
            h, v = ROWWISE[name](h, v, x, i)
        return (vnp.clip(h, -9, 9), vnp.clip(v, -9, 9), i + 1), (before, v)

    def f(h, v, xs):
        return lax.scan(step, (h, v, np.int32(0)), xs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_loops, "_BUSY", 8)
        patch.setattr(small_loops, "_LAUNCH", 1 << 40)
        check_on_host(f, normal(rows, columns), normal(columns), normal(3, columns, columns))


def test_on_a_device(gpu):
    for name in ("recurrent", "counted", "an uneven block", "what is carried is no row", "a batch of products"):
        f, args, _ = BODIES[name]
        want = volta.jit(f)(*args)
        found = volta.jit(f)(*volta.device_put(args, "cuda"))
        volta.testing.assert_bits_equal(found, want)
