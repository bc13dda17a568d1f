"""Attention's CUDA kernels, run on the host: the CPU's bits, in any order of threads, no access out of bounds."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cpu.test_attention import operands
from volta import lax
from volta.numba_cuda import kernels
from volta.numba_cuda.attention import attention_choice
from volta.numba_cuda.codegen import ptx
from volta.offline import plan_on_cuda
from volta.testing.host_grid import ORDERS, HostKernels, check_on_host
from volta.xla_like.attention import AttentionSpec

pytestmark = pytest.mark.turns(6)

KERNELS = HostKernels()


@np.errstate(all="ignore")
def check(q, k, v, do, orders=("ascending",), **params):
    """All three kernels against the CPU's."""
    params.setdefault("scale", 0.3)
    out, m, l = (np.asarray(x) for x in lax.attention(q, k, v, **params))  # noqa: E741
    delta = (do.astype(m.dtype) * out.astype(m.dtype)).sum(-1)
    given = (q, k, v, do, m, l, delta)
    for f, args in ((lax.attention, given[:3]), (lax.attention_dq, given), (lax.attention_dkv, given)):
        check_on_host(lambda *a, f=f: f(*a, **params), *args, orders=orders, kernels=KERNELS)


def test_causal_tiles():
    q, k, v, _ = operands(2, 4, 2, 40, 70, 8, 8)
    check_on_host(lambda *a: lax.attention(*a, scale=0.3, causal=True), q, k, v, orders=("shuffled",), kernels=KERNELS)


@pytest.mark.slow
def test_causal_tiles_in_any_order_of_threads():
    check(*operands(2, 4, 2, 40, 70, 16, 8), causal=True, orders=ORDERS)


def test_one_query_of_many_keys():
    q, k, v, _ = operands(1, 2, 1, 1, 700, 16, 40)
    check_on_host(lambda *a: lax.attention(*a, scale=0.3), q, k, v, orders=("shuffled",), kernels=KERNELS)


def test_few_rows_have_their_keys_in_shared_memory_where_there_is_room():
    q, k, v, _ = operands(1, 2, 1, 2, 150, 128, 128)
    for capability, name in (("8.0", "staged"), ("7.5", "rowsw")):
        assert [n.split("_")[-1] for n in names_of(lax.attention, q, k, v, capability=capability)][0] == name
    params = {"scale": 0.3, "causal": True, "start": np.array([130], np.int32)}
    for capability in ("8.0", "7.5"):
        check_on_host(
            lambda *a: lax.attention(*a, **params), q, k, v, orders=("shuffled",), kernels=KERNELS,
            capability=capability,
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_keys_in_shared_memory_round_by_round(dtype):
    q, k, v, _ = (np.asarray(vnp.asarray(x, dtype)) for x in operands(2, 2, 1, 3, 300, 16, 40))
    mask = np.random.default_rng(0).random((2, 1, 3, 300)) < 0.01
    for params in ({"causal": True, "start": np.array([200, -2], np.int32)}, {"mask": mask}):
        check_on_host(lambda *a, p=params: lax.attention(*a, scale=0.3, **p), q, k, v, orders=ORDERS, kernels=KERNELS)


def test_key_blocks_of_few_rows_are_shared_out():
    """A warp has one, or all threads of a block two that come to shared memory, where there is room."""
    for name, head, value_head in (("shares", 8, 40), ("blocksw", 64, 104)):
        q, k, v, _ = operands(1, 2, 1, 2, 1100, head, value_head)
        names = names_of(lax.attention, q, k, v, capability="7.5")
        assert [n.split("_")[-1] for n in names][:2] == [name, "mergew"]
        check_on_host(
            lambda *a: lax.attention(*a, scale=0.3), q, k, v, orders=("shuffled",), kernels=KERNELS, capability="7.5"
        )  # fmt: skip


def test_a_block_of_threads_may_have_several_rounds_of_a_row(monkeypatch):
    monkeypatch.setattr(attention_choice, "_FEW_BLOCKS", 8)
    q, k, v, _ = operands(2, 2, 1, 1, 1100, 8, 40)
    for start in ([1099, 130], [600, -2], [0, 127]):
        params = {"scale": 0.3, "causal": True, "start": np.array(start, np.int32)}
        check_on_host(lambda *a, p=params: lax.attention(*a, **p), q, k, v, orders=("shuffled",))


def test_more_keys_than_the_cache_holds_are_not_asked_for_early(monkeypatch):
    for heads, keys, name in ((8, 8192, "blockswl"), (8, 4096, "shares")):  # 64 MiB, and half of it
        given = [volta.ShapeDtypeStruct((1, heads, n, 128), "float32") for n in (1, keys, keys)]
        assert names_of(lambda *a: lax.attention(*a, scale=0.3), *given)[0].split("_")[-1] == name
    monkeypatch.setattr(attention_choice, "_CACHE", 0)
    q, k, v, _ = operands(1, 2, 1, 2, 1100, 8, 40)
    assert [n.split("_")[-1] for n in names_of(lax.attention, q, k, v)][:2] == ["blockswl", "mergew"]
    check_on_host(lambda *a: lax.attention(*a, scale=0.3), q, k, v, orders=("shuffled",), kernels=KERNELS)


@pytest.mark.slow
def test_more_key_blocks_than_threads_are_merged_in_order():
    q, k, v, _ = operands(1, 1, 1, 2, 64 * 256 + 700, 4, 8)
    for start in (0, 64 * 256, 64 * 256 + 100):
        params = {"scale": 0.3, "causal": True, "start": np.array([start], np.int32)}
        check_on_host(lambda *a, p=params: lax.attention(*a, **p), q, k, v, orders=ORDERS, kernels=KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_special_values_among_key_blocks_of_few_rows(bad):
    for which, place in ((0, (0, 0, 0, 1)), (1, (0, 0, 70)), (1, (0, 0, slice(64, 128))), (2, (0, 0, 200, 2))):
        given = operands(1, 1, 1, 2, 1100, 8, 8)
        given[which][place] = bad
        check_on_host(lambda *a: lax.attention(*a, scale=0.3), *given[:3], orders=("shuffled",), kernels=KERNELS)


@pytest.mark.slow
def test_key_blocks_of_few_rows_with_starts_and_masks():
    q, k, v, _ = operands(2, 2, 1, 3, 1100, 7, 40)
    mask = np.random.default_rng(0).random((2, 1, 3, 1100)) < 0.01
    for params in ({"causal": True, "start": np.array([700, -2], np.int32)}, {"mask": mask}):
        check_on_host(lambda *a, p=params: lax.attention(*a, **p), q, k, v, orders=ORDERS, kernels=KERNELS)


@pytest.mark.slow
def test_rows_in_any_order_of_threads():
    check(*operands(1, 2, 1, 5, 700, 16, 40), orders=ORDERS)
    check(*operands(2, 2, 1, 5, 10, 16, 40), causal=True, start=np.array([3, -2], np.int32))


@pytest.mark.slow
def test_starts():
    q, k, v, do = operands(4, 1, 1, 70, 140, 8, 8)
    check(q, k, v, do, causal=True, start=np.array([0, 60, -20, -(1 << 31)], np.int32))
    check(q, k, v, do, causal=True, start=np.array([64, 1 << 30, 5, -70], np.int32))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 2, 70, 130), (2, 1, 1, 130)])
def test_masks(shape):
    mask = np.random.default_rng(1).random(shape) < 0.7
    if shape[2] == 70:
        mask[..., 3, :] = mask[..., 68, :] = False  # rows that see no key
        mask[..., 64:] = False
    q, k, v, do = operands(2, 2, 1, 70, 130, 8, 8)
    k[:, :, 129:] = v[:, :, 128:] = np.nan
    mask[..., 128:] = False
    check(q, k, v, do, mask=mask)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38, 0.0, -0.0, 1e-40])
def test_special_values_among_visible_keys(bad):
    for which in range(4):
        given = operands(1, 1, 1, 66, 70, 8, 8)
        given[which][0, 0, [0, 5, 64]] = bad
        check(*given, causal=True)


@pytest.mark.slow
def test_scores_far_apart():
    """Weights that are subnormal or 0, beside rows where every exp is moderate."""
    q, k, v, do = operands(1, 1, 1, 66, 200, 8, 8)
    q[0, 0, ::3] *= 200
    check(q, k, v, do)
    check(q, k, v * np.float32(1e-38), do, scale=0.7)


@pytest.mark.slow
def test_operands_that_are_not_aligned():
    q, k, v, do = operands(1, 2, 1, 40, 90, 7, 5)
    check(q, k, v, do, causal=True)
    moved = [np.ascontiguousarray(np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 2)))) for x in operands(1, 1, 1, 40, 70, 8, 8)]

    def inner(*args):
        return lax.attention(*[x[..., 1:9].transpose((0, 1, 2, 3)) for x in args], scale=0.5, causal=True)

    check_on_host(inner, *moved[:3], orders=("ascending",), kernels=KERNELS)


@pytest.mark.slow
def test_nothing_to_attend_to():
    for t, s in ((40, 0), (0, 40), (3, 0)):
        check(*operands(1, 2, 1, t, s, 4, 4))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f2", "bf16"])
def test_dtypes(dtype):
    check(*operands(1, 2, 1, 36, 67, 16, 24, dtype), causal=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("heads", [(64, 64), (128, 128), (200, 256), (64, 96), (1, 1)], ids=str)
def test_heads(heads, dtype):
    check(*operands(1, 1, 1, 33, 65, *heads, dtype), causal=True)
    check(*operands(1, 1, 1, 3, 65, *heads, dtype), causal=True)


@pytest.mark.parametrize("capability", ["7.5", "8.0", "8.9", "9.0"])
def test_tiles_fit_each_capability(capability):
    for dtype, heads in (("float32", 64), ("float32", 128), ("float32", 256), ("bfloat16", 128), ("float64", 64)):
        for kernel in attention_choice.KERNELS:
            spec = AttentionSpec(dtype, heads, heads, causal=True)
            tile = attention_choice.tile_of(kernel, spec, 4096, 64, True, capability)
            if tile is None:
                assert heads > 64 or dtype == "float64"
            else:
                assert attention_choice.tile_bytes(kernel, spec, tile) <= ptx.shared_of(capability)


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["7.5", "9.0"])
def test_tiles_compile_and_keep_the_rules(capability):
    spec = AttentionSpec("float32", 64, 64, causal=True)
    sources = []
    for kernel in attention_choice.KERNELS:
        tile = attention_choice.tile_of(kernel, spec, 4096, 64, True, capability)
        sources.append(attention_choice.tile_source(kernel, spec, tile))
    text = ptx.compile_ptx(sources, capability)
    assert ptx.violations(text) == []
    assert ("cp.async" in text) == (capability != "7.5")


def gradients(**params):
    """(q, k, v, cotangent) to the cotangents of the first three: one kernel, blocks of keys taking turns."""
    return lambda q, k, v, do: volta.vjp(lambda *a: lax.attention(*a, **params)[0], q, k, v)[1](do)


def names_of(f, *args, capability="9.0"):
    plan, _ = plan_on_cuda(volta.make_jaxpr(f)(*args))
    return [launch.source.name for launch in kernels.launches_of(plan, capability)]


@pytest.fixture
def turns(monkeypatch):
    """Blocks take turns, however little there is to do."""
    monkeypatch.setattr(attention_choice, "AT_ONCE", 0)


def test_both_cotangents_in_one_kernel(turns):
    given = operands(2, 4, 2, 70, 70, 8, 8)
    f = gradients(causal=True, scale=0.3)
    assert sum("attention_backward" in name for name in names_of(f, *given)) == 1
    check_on_host(f, *given, orders=("shuffled",), kernels=KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.3, -0.3])
@pytest.mark.parametrize(
    "sizes",
    [(2, 4, 4, 140, 70, 16, 8), (1, 8, 4, 33, 130, 64, 64), (1, 4, 4, 65, 65, 128, 96), (1, 2, 2, 65, 65, 40, 96)],
)
def test_both_cotangents_for_all_sizes(sizes, scale, turns):
    given = operands(*sizes)
    for params in ({}, {"causal": True}, {"mask": np.random.default_rng(0).random(sizes[3:5])[None, None] < 0.6}):
        check_on_host(gradients(scale=scale, **params), *given, orders=ORDERS, kernels=KERNELS)
    start = np.array([-70, 30][: sizes[0]], np.int32)
    check_on_host(gradients(scale=scale, causal=True, start=start), *given, orders=ORDERS, kernels=KERNELS)


def test_cotangents_that_are_not_in_groups_have_two_kernels(turns):
    given = operands(2, 4, 2, 70, 150, 7, 5)
    names = names_of(gradients(scale=0.3), *given)
    assert any("attention_dq" in name for name in names) and any("attention_dkv" in name for name in names)


def test_few_blocks_do_not_wait_for_their_turns():
    given = operands(2, 4, 2, 70, 70, 8, 8)
    assert not any("attention_backward" in name for name in names_of(gradients(scale=0.3), *given))


def test_rows_that_see_many_keys_wait_for_their_turns():
    """8,192 causal rows are two calls: the second half sees three times as many pairs as the first."""
    given = [volta.ShapeDtypeStruct((1, 16, 8192, 64), "float32")] * 4
    names = names_of(gradients(causal=True, scale=0.3), *given)
    for kernel in ("attention_backward", "attention_dq", "attention_dkv"):
        assert sum(f"{kernel}_" in name for name in names) == 1, names
