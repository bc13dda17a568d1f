"""Attention on tensor cores: right within what bfloat16 rounds off, the same bits in any batch. No GPU is needed."""

import functools
import re

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import errors, lax, nn
from volta.core.policy import DeterminismLevel
from volta.numba_cuda.attention import attention_tensor_choice as choice
from volta.numba_cuda.attention.attention_tensor_pipeline import Pipeline
from volta.numba_cuda.codegen import ptx, ptx_mbarrier
from volta.numba_cuda.host import host
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.schedule import Schedule
from volta.testing.bits import assert_bits_equal
from volta.testing.host_grid import HostKernels
from volta.xla_like.compile import CompileOptions, build_plan

pytestmark = pytest.mark.turns(6)

OPTIONS = CompileOptions(epilogues=False)
KERNELS = HostKernels()
planned = functools.partial(build_plan, level=DeterminismLevel.DEVICE, scheduler=Schedule())
SCALE = 0.3
ULP = 2.0**-7
"""Two roundings to bfloat16, half a unit in the last place each, relative to what is summed."""
SLACK = 1.05
"""Room for sums in float32, and for the powers."""


@pytest.fixture(params=[pytest.param("8.0", marks=pytest.mark.slow), "9.0a"], autouse=True)
def capability(request, monkeypatch):
    """GPUs whose warps multiply alone, and by four."""
    monkeypatch.setitem(CHOSEN, "capability", request.param)
    return request.param


CHOSEN = {"capability": "8.0"}


def plan_of(f, *args, options=OPTIONS):
    return planned(volta.make_jaxpr(f)(*args), options=options)


def names(f, *args, capability="9.0"):
    found = [x.source.name for x in launches_of(plan_of(f, *args)[0], capability)]
    return [m[1] for x in found if (m := re.match(r"volta_(attention\w*?)_[0-9a-f]{16}", x))]


def run(f, *args, capability=None, order="shuffled", on_tensor_cores=True, options=OPTIONS):
    capability = capability or CHOSEN["capability"]
    args = [np.asarray(x) for x in args]
    assert all(x.endswith("_tc") == on_tensor_cores for x in names(f, *args, capability=capability))
    plan, program = plan_of(f, *args, options=options)
    launches = launches_of(plan, capability)
    races = not any(x.mapped for x in launches)  # those that barriers of copies order seem some
    found = host.run_plan(plan, args, program.consts, kernels=KERNELS, launches=launches, order=order, races=races)
    assert found.violations == []
    return [np.asarray(x) for x in found.outputs]


def operands(b, n, heads, t, s, h, hv, seed=0):
    """Queries, keys, values and a cotangent, drawn."""
    rng = np.random.default_rng(seed)
    shapes = (b, n, t, h), (b, heads, s, h), (b, heads, s, hv), (b, n, t, hv)
    return [np.asarray(vnp.asarray(rng.standard_normal(shape).astype(np.float32), "bfloat16")) for shape in shapes]


def attention(**params):
    return lambda q, k, v: lax.attention(q, k, v, scale=SCALE, precision="bf16", **params)


def exact(q, k, v, causal=False, start=None, mask=None):
    """Weights, values for each query head, and the three results in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = SCALE * np.einsum("bnth,bnsh->bnts", q, k)
    seen = np.ones(scores.shape, bool)
    if causal:
        first = np.zeros(len(q)) if start is None else start
        seen &= np.arange(k.shape[2]) <= first[:, None, None, None] + np.arange(q.shape[2])[:, None]
    if mask is not None:
        seen &= mask
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1)
    weights = np.where(seen, np.exp(scores - np.where(np.isfinite(top), top, 0)[..., None]), 0)
    total = weights.sum(-1)
    return weights / np.where(total, total, 1)[..., None], q, k, v, top, total


FORWARD = {
    "heads of 64": ((1, 2, 1, 130, 140, 64, 64), {}),
    "causal": ((1, 2, 2, 140, 140, 64, 64), {"causal": True}),
    "heads of 128": ((1, 1, 1, 70, 150, 128, 128), {"causal": True}),
    "values of another size": ((1, 1, 1, 40, 70, 128, 64), {}),
    "keys of another size": ((1, 1, 1, 40, 70, 64, 128), {"causal": True}),
    "one key": ((1, 1, 1, 17, 1, 64, 64), {}),
    "starts": ((4, 1, 1, 70, 140, 64, 64), {"causal": True, "start": np.array([0, 60, -20, -(1 << 31)], np.int32)}),
    "far starts": ((2, 1, 1, 70, 140, 64, 64), {"causal": True, "start": np.array([64, 1 << 30], np.int32)}),
    "mask": ((2, 2, 1, 70, 130, 64, 64), {"mask": np.random.default_rng(1).random((2, 1, 70, 130)) < 0.02}),
}


QUICK = ("causal", "heads of 128")
CASES = [pytest.param(x, marks=[] if x in QUICK else [pytest.mark.slow]) for x in FORWARD]


@pytest.mark.parametrize("case", CASES)
def test_the_result_is_exact_but_for_bfloat16(case):
    sizes, params = FORWARD[case]
    q, k, v, _ = operands(*sizes)
    weights, _, _, values, top, total = exact(q, k, v, **params)
    out, m, l = run(attention(**params), q, k, v)  # noqa: E741
    want, scale = (np.einsum("bnts,bnsh->bnth", weights, x) for x in (values, np.abs(values)))
    assert (np.abs(out.astype(np.float64) - want) <= SLACK * ULP * scale).all()
    assert (out[~(total > 0)] == 0).all()
    np.testing.assert_allclose(m, top, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(l, total, rtol=1e-4)


def gradients(**params):
    given = {"scale": SCALE, "precision": "bf16", **params}
    return lambda *a: (lax.attention_dq(*a, **given), *lax.attention_dkv(*a, **given))


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_exact_but_for_bfloat16(case):
    sizes, params = FORWARD[case]
    q, k, v, do = operands(*sizes)
    weights, q64, k64, v64, top, total = exact(q, k, v, **params)
    do64 = do.astype(np.float64)
    slopes = np.einsum("bnth,bnsh->bnts", do64, v64)
    delta = (weights * slopes).sum(-1)
    ds = weights * (slopes - delta[..., None])
    stats = [x.astype(np.float32) for x in (top, total, delta)]
    found = run(gradients(**params), q, k, v, do, *stats)
    wants = (
        ("bnts,bnsh->bnth", SCALE, ds, k64), ("bnts,bnth->bnsh", SCALE, ds, q64), ("bnts,bnth->bnsh", 1, weights, do64),
    )  # fmt: skip
    # slopes - delta cancels: its error is that of both
    loose = weights * (np.einsum("bnth,bnsh->bnts", abs(do64), abs(v64)) + abs(delta)[..., None]) * 2.0**-16
    for got, (sums, scale, left, right) in zip(found, wants, strict=True):
        want = scale * np.einsum(sums, left, right)
        bound = SLACK * ULP * np.einsum(sums, abs(left), abs(right)) + np.einsum(sums, loose, abs(right))
        assert (np.abs(got.astype(np.float64) - want) <= scale * bound).all()


def both(**params):
    """Results and gradients of two heads of different sizes, with statistics that some attention might give."""

    def f(q, k, v, do):
        given = {"scale": SCALE, "precision": "bf16", **params}
        out, m, l = lax.attention(q, k, v, **given)  # noqa: E741
        delta = vnp.sum(do.astype("float32") * out.astype("float32"), -1)
        args = (q, k, v, do, m, l, delta)
        return (out, m, l, lax.attention_dq(*args, **given), *lax.attention_dkv(*args, **given))

    return f


@pytest.mark.parametrize(
    "params", [{"causal": True}, pytest.param({}, marks=pytest.mark.slow)], ids=["causal", "all keys"]
)
def test_a_head_has_the_bits_that_it_has_in_a_batch(params):
    given = operands(2, 2, 2, 140, 140, 64, 64)
    batched = run(both(**params), *given)
    alone = run(both(**params), *(x[1:, :1] for x in given), order="descending")
    for got, want in zip(alone, batched, strict=True):
        assert_bits_equal(got, want[1:, :1])


@pytest.mark.slow
def test_how_operands_lie_changes_no_bit():
    """Elements behind each other in other steps cannot be copied 16 bytes at a time."""
    given = operands(1, 1, 1, 70, 70, 64, 64)
    wide = [np.pad(x, [(0, 0), (0, 0), (0, 0), (1, 0)]) for x in given]
    shifted = run(lambda *a: both(causal=True)(*(x[..., 1:] for x in a)), *wide)
    turned = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in given]
    moved = run(lambda *a: both(causal=True)(*(vnp.swapaxes(x, 1, 2) for x in a)), *turned)
    for want, *found in zip(run(both(causal=True), *given), shifted, moved, strict=True):
        for got in found:
            assert_bits_equal(got, want)


@pytest.mark.slow
def test_the_warps_of_a_block_change_no_bit(monkeypatch):
    given = operands(1, 2, 2, 140, 140, 64, 64)
    want = run(both(causal=True), *given)
    for kernel in choice._KERNELS.values():
        for instruction, other in (("mma", 2), ("wgmma", 12 - kernel.tiles["wgmma", 64].warps)):
            key = instruction, 64
            monkeypatch.setitem(kernel.tiles, key, attrs.evolve(kernel.tiles[key], warps=other, kept=False))
    for got, x in zip(run(both(causal=True), *given), want, strict=True):
        assert_bits_equal(got, x)


@pytest.mark.slow
def test_rows_alone_have_the_bits_of_all_rows():
    """Causal attention that begins later: keys that a row does not see change no bit of it."""
    q, k, v, _ = operands(1, 1, 1, 200, 200, 64, 64)
    whole = run(attention(causal=True), q, k, v)
    late = run(attention(causal=True, start=np.array([150], np.int32)), q[:, :, 150:], k, v)
    short = run(attention(causal=True), *(x[:, :, :100] for x in (q, k, v)))
    for want, later, first in zip(whole, late, short, strict=True):
        assert_bits_equal(later, want[:, :, 150:])
        assert_bits_equal(first, want[:, :, :100])


@pytest.mark.slow
def test_a_score_that_is_no_number_reaches_its_row_alone():
    q, k, v, do = (x.copy() for x in operands(1, 1, 1, 40, 70, 64, 64))
    q[0, 0, 3, 5], q[0, 0, 7] = np.nan, np.inf
    found = run(both(), q, k, v, do)
    for rows in found[:4]:
        bad = np.isnan(rows.astype(np.float32)).reshape(40, -1).any(1)
        assert set(np.flatnonzero(bad)) - {7} == {3}
    assert all(np.isnan(x.astype(np.float32)).any() for x in found[4:])


@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "9.0a"], indirect=True)
@sampled("head", [64, 128], quick=[128])
@pytest.mark.few(2)
def test_kernels_compile_to_the_gpus_own_instruction(capability, head):
    given = operands(1, 1, 1, 70, 70, head, head)
    found = [x for x in launches_of(plan_of(both(causal=True), *given)[0], capability) if "_tc_" in x.source.name]
    assert [x.source.name.split("_tc_")[0] for x in found] == [
        "volta_attention",
        "volta_attention_dq",
        "volta_attention_dkv",
    ]
    assert all(x.alone and x.shared <= ptx.shared_of(capability) for x in found)
    text = ptx.compile_ptx([x.source for x in found], capability)
    own = {"9.0a": r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.bf16\.bf16"}
    assert re.search(own.get(capability, r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32"), text)
    own_unit = re.compile(r"(ex2|lg2)\.approx\.ftz\.f32")
    assert [x for x in ptx.violations(text) if not own_unit.search(x)] == []


ELSEWHERE = {
    "an older GPU": (operands(1, 1, 1, 20, 40, 64, 64), {}, "7.5"),
    "another head": (operands(1, 1, 1, 40, 40, 32, 32), {}, "9.0"),
    "few rows": (operands(1, 1, 1, 16, 40, 64, 64), {}, "9.0"),
    "a scale that turns scores round": (operands(1, 1, 1, 40, 40, 64, 64), {"scale": -1.0}, "9.0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ELSEWHERE)
def test_what_has_no_kernel_on_tensor_cores_has_the_bits_of_strict(case):
    given, params, capability = ELSEWHERE[case]
    found = run(both(**params), *given, capability=capability, on_tensor_cores=False)
    with volta.execution_context(level="device"):
        want = both(**params)(*given)
    for got, x in zip(found, want, strict=True):
        assert_bits_equal(got, x)


def test_a_precision_asks_for_tensor_cores_and_travels_to_the_gradient():
    q, k, v, _ = (np.swapaxes(x, 1, 2) for x in operands(2, 1, 1, 40, 40, 64, 64))
    loss = lambda *a: vnp.sum(nn.dot_product_attention(*a, is_causal=True).astype("float32"))  # noqa: E731
    gradient = volta.grad(loss, (0, 1, 2))
    plain, tensor = (
        ["attention", "attention_dq", "attention_dkv"],
        ["attention_tc", "attention_dq_tc", "attention_dkv_tc"],
    )
    assert sorted(names(gradient, q, k, v)) == sorted(plain)
    with volta.default_matmul_precision("bfloat16"):
        assert sorted(names(gradient, q, k, v)) == sorted(tensor)
        assert names(volta.vmap(loss), q[:, None], k[:, None], v[:, None]) == tensor[:1]
        assert names(loss, *(x.astype(np.float32) for x in (q, k, v))) == tensor[:1]
        with pytest.raises(errors.UnsupportedOperationError, match=r"'attention' at precision 'bf16'.*'strict'"):
            loss(q, k, v)


@pytest.mark.slow
def test_float32_operands_are_rounded_and_results_are_not():
    given = operands(1, 2, 1, 70, 100, 64, 64)
    weights, _, _, values, _, _ = exact(*given[:3])
    for causal in (False, True):
        wide = run(both(causal=causal), *(x.astype(np.float32) for x in given))
        narrow = run(both(causal=causal), *given)
        for got, want in zip(wide[:3], narrow[:3], strict=True):
            assert got.dtype == np.float32
            assert_bits_equal(np.asarray(vnp.asarray(got, want.dtype)), want)
        for got, want in zip(wide[3:], narrow[3:], strict=True):  # with another delta: that of the result in float32
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, want.astype(np.float32), rtol=2.0**-6, atol=2.0**-6 * np.abs(got).max())
    with pytest.raises(errors.UnsupportedOperationError, match=r"float32.*needs a GPU of compute capability 8\.0"):
        run(both(), *(x.astype(np.float32) for x in given), capability="7.5", on_tensor_cores=False)


@pytest.mark.parametrize("forgotten", ["_consume_all", "_announce"])
def test_a_consumer_that_does_not_wait_for_producers_is_caught(monkeypatch, forgotten):
    """A stage that is read before it is full, or filled before it is empty, shows in the result."""
    given = operands(1, 1, 1, 64, 700, 128, 128)[:3]
    right = run(attention(), *given, capability="9.0a")
    method = getattr(Pipeline, forgotten)

    def hasty(self, *args):
        with monkeypatch.context() as m:
            m.setattr(ptx_mbarrier, "wait", lambda *_: None)
            method(self, *args)

    monkeypatch.setattr(Pipeline, forgotten, hasty)
    monkeypatch.setitem(globals(), "KERNELS", HostKernels())
    try:
        wrong = run(attention(), *given, capability="9.0a")
    except AssertionError as found:
        assert "Violation" in str(found)
    else:
        assert any(x.tobytes() != y.tobytes() for x, y in zip(wrong, right, strict=True))


TILES = {
    "causal": ((1, 2, 1, 300, 300, 64, 64), {"causal": True}),
    "all keys": ((2, 1, 1, 150, 200, 64, 64), {}),
    "heads of 128": ((1, 2, 2, 200, 210, 128, 128), {"causal": True}),
    "many keys": ((1, 2, 1, 200, 460, 64, 128), {"causal": True, "start": np.array([260])}),
    "values of another size": ((1, 2, 1, 140, 70, 128, 64), {"causal": True}),
    "tiles that see nothing": ((3, 1, 1, 200, 210, 64, 64), {"causal": True, "start": np.array([0, -200, 60])}),
    "mask": ((2, 1, 1, 150, 130, 64, 128), {"mask": np.random.default_rng(1).random((2, 1, 150, 130)) < 0.3}),
}


@pytest.mark.parametrize("capability", ["9.0a"], indirect=True)
@pytest.mark.parametrize(
    ("tile", "blocks"),
    [({"stages": 2}, 1), ({"warps": 12}, 7), ({"warps": 8, "kept": True}, 3)],
    ids=["stages", "warps", "kept"],
)
@sampled("case", list(TILES), quick=["tiles that see nothing"])
@pytest.mark.few(2)
def test_one_block_for_all_tiles_changes_no_bit(monkeypatch, case, tile, blocks):
    """The copy engine, stages, groups and blocks that have one tile after another, or a part of one: none is seen."""
    sizes, params = TILES[case]
    q, k, v, do = operands(*sizes)
    if "start" in params:
        params = params | {"start": params["start"].astype(np.int32)}
    few = attrs.evolve(OPTIONS, processors=blocks)
    mapped = {}
    for name, kernel in choice._MAPPED.items():
        tiles = {key: attrs.evolve(x, **tile) for key, x in kernel.tiles.items()}
        mapped[name] = attrs.evolve(kernel, tiles=tiles)

    def all_results(options):
        out = run(attention(**params), q, k, v, capability="9.0a", options=options)
        delta = np.sum(out[0].astype(np.float32) * do.astype(np.float32), -1)
        given = q, k, v, do, *out[1:], delta
        return [*out, *run(gradients(**params), *given, capability="9.0a", options=options)]

    with monkeypatch.context() as m:
        m.setattr(choice, "_MAPPED", {})
        want = all_results(OPTIONS)
    monkeypatch.setattr(choice, "_MAPPED", mapped)
    monkeypatch.setattr(choice, "_few_rows", lambda op: False)
    for got, x in zip(all_results(few), want, strict=True):
        assert_bits_equal(got, x)
