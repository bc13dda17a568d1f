"""The laws for attention: compiling, batching, recomputing, threads and pieces change no bit; memory grows linearly."""

import functools

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn
from volta.numba_cpu import backend
from volta.numba_cpu import threads as pool
from volta.numba_cpu.schedule import Schedule
from volta.runtime import gateway
from volta.runtime.plan_cache import PlanCache
from volta.testing import assert_bits_equal, fill
from volta.xla_like.compile import CompileOptions, build_plan

pytestmark = pytest.mark.turns(6)

SWITCHES = [f.name for f in attrs.fields(CompileOptions) if isinstance(f.default, bool)]
OPTIONS = {
    "plain": attrs.evolve(CompileOptions(), **dict.fromkeys(SWITCHES, False)),
}


def operands(*batch, t=70, s=70, heads=4, key_heads=2, h=8, seed=0):
    shapes = ((t, heads, h), (s, key_heads, h), (s, key_heads, h))
    return [fill("normal", (*batch, *shape), np.float32, seed + i) for i, shape in enumerate(shapes)]


MASK = np.asarray(fill("normal", (2, 1, 70, 70), np.float32, seed=9)) > -1
KINDS = {
    "full": lambda q, k, v: nn.dot_product_attention(q, k, v),
    "causal": lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True),
    "masked": lambda q, k, v: nn.dot_product_attention(q, k, v, mask=MASK, scale=-0.4),
    "window": lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(9, 0)),
    "projected": lambda q, k, v: nn.dot_product_attention(
        vnp.tanh(q), vnp.swapaxes(vnp.swapaxes(k, 1, 2) * 2, 1, 2), v[:, ::-1], is_causal=True
    ),
}


def gradient_of(f):
    return volta.value_and_grad(lambda q, k, v: vnp.sum(vnp.sin(f(q, k, v))), (0, 1, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_compiling_and_recomputing_change_no_bit(kind):
    f, xs = KINDS[kind], operands(2)
    gradient = gradient_of(f)
    want = (f(*xs), gradient(*xs))
    assert_bits_equal(volta.jit(lambda *a: (f(*a), gradient(*a)))(*xs), want, "jit")
    assert_bits_equal(gradient_of(volta.jit(f))(*xs), want[1], "gradient of jit")
    assert_bits_equal(volta.jit(gradient_of(volta.jit(f)))(*xs), want[1], "jit of gradient of jit")
    assert_bits_equal(gradient_of(volta.checkpoint(f))(*xs), want[1], "checkpoint")
    assert_bits_equal(volta.jit(gradient_of(volta.checkpoint(f)))(*xs), want[1], "jit of checkpoint")
    for name, options in OPTIONS.items():
        with volta.execution_context(options=options):
            assert_bits_equal(volta.jit(lambda *a: (f(*a), gradient(*a)))(*xs), want, name)


@pytest.mark.parametrize("bits", [256, 128])
def test_narrower_registers_change_no_bit(monkeypatch, bits):
    f, xs = KINDS["masked"], operands(2)
    both = lambda *a: (f(*a), gradient_of(f)(*a))  # noqa: E731
    want = volta.jit(both)(*xs)
    monkeypatch.setattr(backend, "scheduler", lambda general=False: Schedule(bits, general))
    monkeypatch.setattr(gateway, "PLAN_CACHE", PlanCache())
    found = volta.jit(lambda *a: both(*a))
    assert_bits_equal(found(*xs), want)
    kernels = " ".join(found.lower(*xs).compile().as_text().split("\n"))
    assert f"vector_bits={bits}" in kernels and "vector_bits=512" not in kernels


@pytest.mark.parametrize("kind", ["full", "causal", "masked"])
def test_batching_changes_no_bit(kind):
    f, xs = KINDS[kind], operands(3, 2)
    both = lambda *a: (f(*a), gradient_of(f)(*a))  # noqa: E731
    alone = [both(*(x[i] for x in xs)) for i in range(3)]
    want = volta.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *alone)
    assert_bits_equal(volta.vmap(both)(*xs), want, "vmap")
    assert_bits_equal(volta.jit(volta.vmap(both))(*xs), want, "jit of vmap")
    last = [np.ascontiguousarray(np.moveaxis(x, 0, -1)) for x in xs]
    assert_bits_equal(volta.vmap(both, in_axes=-1)(*last), want, "along the last axis")
    summed = volta.grad(lambda *a: vnp.sum(vnp.sin(volta.vmap(f)(*a))), (0, 1, 2))(*xs)
    assert_bits_equal(summed, want[1][1], "gradient of vmap")
    one = volta.vmap(both, in_axes=(0, None, None))(xs[0], xs[1][0], xs[2][0])
    alone = [both(xs[0][i], xs[1][0], xs[2][0]) for i in range(3)]
    want = volta.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *alone)
    assert_bits_equal(one, want, "queries mapped alone")


def test_batching_masks_and_starts():
    q, k, v = operands(3, 2, t=5)
    masks = np.asarray(fill("normal", (3, 2, 1, 5, 70), np.float32, seed=5)) > 0
    starts = np.int32([[0, 3], [60, 65], [7, 2]])

    def f(q, k, v, mask, start):
        return nn.dot_product_attention(q, k, v, mask=mask, is_causal=True, query_start=start)

    want = np.stack([np.asarray(f(q[i], k[i], v[i], masks[i], starts[i])) for i in range(3)])
    assert_bits_equal(volta.vmap(f)(q, k, v, masks, starts), want)
    want = np.stack([np.asarray(f(q[i], k[i], v[i], masks[0, :1], starts[0])) for i in range(3)])
    assert_bits_equal(volta.vmap(f, in_axes=(0, 0, 0, None, None))(q, k, v, masks[0, :1], starts[0]), want)
    want = np.stack([np.asarray(f(q[0], k[0], v[0], masks[i], starts[i])) for i in range(3)])
    assert_bits_equal(volta.vmap(f, in_axes=(None, None, None, 0, 0))(q[0], k[0], v[0], masks, starts), want)


def test_threads_change_no_bit():
    xs = operands(2, t=300, s=300, h=16)
    f = volta.jit(lambda *a: (KINDS["causal"](*a), gradient_of(KINDS["causal"])(*a)))
    before, many = volta.get_num_threads(), pool.parallel_runs()
    try:
        volta.set_num_threads(1)
        want = f(*xs)
        for n in (2, 3, 7):
            volta.set_num_threads(n)
            assert_bits_equal(f(*xs), want, f"{n} threads")
    finally:
        volta.set_num_threads(before)
    assert pool.parallel_runs() > many


def test_a_prompt_in_pieces_is_the_prompt_at_once():
    """A cache of fixed size: what lies behind the newest key, finite or not, changes no bit."""
    q, k, v = operands(2, t=150, s=150, h=16)
    whole = nn.dot_product_attention(q, k, v, is_causal=True)

    @volta.jit
    def step(cache, q, k, v, start):
        keys, values = (c.at[:, start + vnp.arange(x.shape[1])].set(x) for c, x in zip(cache, (k, v), strict=True))
        return (keys, values), nn.dot_product_attention(q, keys, values, is_causal=True, query_start=start)

    for size in (1, 50, 64, 100):
        cache = tuple(vnp.full((2, 200, 2, 16), vnp.nan, np.float32) for _ in range(2))
        for first in range(0, 150, size):
            at = slice(first, min(first + size, 150))
            cache, out = step(cache, q[:, at], k[:, at], v[:, at], np.int32(first))
            assert_bits_equal(out, whole[:, at], f"pieces of {size}, from {first} on")


def test_the_number_of_keys_behind_changes_no_bit():
    q, k, v = operands(1, t=9, s=200)
    want = nn.dot_product_attention(q, k[:, :70], v[:, :70], is_causal=True, query_start=61)
    for s in (71, 127, 128, 129, 200):
        got = nn.dot_product_attention(q, k[:, :s], v[:, :s], is_causal=True, query_start=61)
        assert_bits_equal(got, want, f"{s} keys")
        got = nn.dot_product_attention(
            q, k[:, :s], v[:, :s], is_causal=True, query_start=61, key_value_seq_lengths=[70]
        )
        assert_bits_equal(got, want, f"{s} keys, 70 of them real")


@pytest.mark.parametrize("checkpointed", [False, True])
def test_memory_grows_linearly(checkpointed):
    """Peak bytes of a training step over a length: no matrix of scores, forward or backward."""

    def peak(length):
        xs = [np.zeros((1, length, 2, 32), np.float32)] * 3
        f = KINDS["causal"]
        program = volta.make_jaxpr(gradient_of(volta.checkpoint(f) if checkpointed else f))(*xs)
        plan = backend.complete(build_plan(program, scheduler=backend.scheduler())[0])
        return plan.peak_live_bytes, plan.scratch_bytes

    (short, scratch), (long, again) = peak(512), peak(2048)
    assert long <= 4 * short + 4096 and scratch == again
    assert long < 2048 * 2048 * 4  # less than one head's scores


@pytest.mark.parametrize("causal", [False, True])
def test_workers_that_hold_blocks_of_queries_have_the_gradients_of_one(causal):
    """Each has all keys, 4096 of the queries and their cotangents; what they have of keys and values is added in pairs,
    query heads that share a key head first."""
    rows, t = 4096, 2 * 4096 + 30
    q, k, v = (x[0] for x in operands(1, t=t, s=70, heads=2, key_heads=1, h=4))
    ct = fill("ladder", q.shape, np.float32, 7)

    def cotangents(q, ct, first):
        start = {"query_start": np.int32(first)} if causal else {}
        f = functools.partial(nn.dot_product_attention, is_causal=causal, **start)
        return volta.jit(lambda q, k, v, ct: volta.vjp(f, q, k, v)[1](ct))(q, k, v, ct)

    parts = [cotangents(q[i : i + rows], ct[i : i + rows], i) for i in range(0, t, rows)]
    dq, dk, dv = cotangents(q, ct, 0)
    assert_bits_equal(dq, np.concatenate([x[0] for x in parts]), "dq")
    for which, found in ((1, dk), (2, dv)):
        first, second, third = (np.asarray(x[which]) for x in parts)
        assert_bits_equal(found, (first + second) + third, "dk" if which == 1 else "dv")
