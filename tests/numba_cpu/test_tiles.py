"""Loops that run tile by tile on the CPU: which are joined, how their lanes lie, and bits of loops by themselves."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cpu.test_bands import both
from tests.xla_like.drawn_passes import passes
from tests.xla_like.xla_support import plan_of, struct
from volta import lax
from volta.numba_cpu import tiles
from volta.numba_cpu.host_plan import host_plan
from volta.numba_cpu.schedule import Schedule
from volta.numba_cpu.tile_layout import Tiled
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing import assert_bits_equal
from volta.testing.kernel_kinds import assert_kernels_agree
from volta.xla_like.compile import CompileOptions, build_plan
from volta.xla_like.kernels import LibraryKernel


def values(*shape, dtype=np.complex64):
    random = np.random.default_rng(sum(shape))
    x = random.standard_normal(shape)
    return (x + 1j * random.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def launches(f, *args, **params):
    schedule = Schedule(512, **params)
    plan, _ = build_plan(volta.make_jaxpr(f)(*args), scheduler=schedule)
    return host_plan(plan, schedule).all_launches()


def kernels(f, *args) -> list[Tiled]:
    found = [x.kernel for launch in launches(f, *args) for x in launch.each()]
    return [k.spec for k in found if isinstance(k, LibraryKernel) and isinstance(k.spec, Tiled)]


COMPLEX = np.complex64

COUNTS = {
    "one array": (vnp.fft.fft, struct(1 << 20, dtype=COMPLEX), 2),
    "both axes": (vnp.fft.fft2, struct(1000, 1000, dtype=COMPLEX), 2),
    "rows": (vnp.fft.fft, struct(10_000, 64, dtype=COMPLEX), 1),
    "long rows": (vnp.fft.fft, struct(200, 2048, dtype=COMPLEX), 1),
    "columns": (lambda x: vnp.fft.fft(x, axis=0), struct(512, 603, dtype=COMPLEX), 1),
    "chirp": (vnp.fft.fft, struct(100, 1009, dtype=COMPLEX), 1),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_passes_of_a_transform_are_few_launches_and_pass_nothing_on_in_memory(name) -> None:
    f, x, count = COUNTS[name]
    assert len(launches(f, x)) == count
    apart, _ = build_plan(volta.make_jaxpr(f)(x), scheduler=Schedule(512), options=CompileOptions(epilogues=False))
    assert len(apart.calls) > count
    together = plan_of(f, x)
    assert together.arena_bytes == (0 if count == 1 else 8 * np.prod(x.shape))


CASES = {
    "rows": (vnp.fft.fft, values(41, 64)),
    "uneven rows": (vnp.fft.fft, values(33, 100)),
    "columns": (lambda x: vnp.fft.fft(x, axis=0), values(64, 37)),
    "axis in the middle": (lambda x: vnp.fft.fft(x, axis=1), values(3, 60, 19)),
    "both axes": (vnp.fft.fft2, values(30, 50)),
    "one array": (vnp.fft.fft, values(1 << 14)),
    "chirp": (vnp.fft.fft, values(17, 101)),
    "double": (vnp.fft.ifft, values(20, 100, dtype=np.complex128)),
    "real": (vnp.fft.rfft, values(40, 128, dtype=np.float32)),
    "real, both axes": (vnp.fft.rfft2, values(40, 60, dtype=np.float32)),
    "back to real": (vnp.fft.irfft, values(20, 65)),
    "mirrored": (lambda x: vnp.fft.fft(x[::-1, ::-1]), values(20, 64)),
    "transposed": (lambda x: vnp.fft.fft(x.T), values(64, 20)),
    "with what others add": (lambda x: vnp.fft.fft(x + vnp.arange(20)[:, None]) * vnp.arange(64), values(20, 64)),
    "in a loop": (lambda x: lax.fori_loop(0, 3, lambda i, x: vnp.fft.fft(x) / 32, x), values(20, 100)),
    "gradient": (
        lambda x: volta.grad(lambda x: vnp.sum(vnp.abs(vnp.fft.fft(x)) ** 2))(x),
        values(40, 64, dtype=np.float32),
    ),
}
QUICK = ("uneven rows", "columns", "real, both axes", "mirrored")


@pytest.fixture
def little(monkeypatch):
    """Little is passed on tile by tile too."""
    monkeypatch.setattr(tiles, "LEAST", 1)
    PLAN_CACHE.clear()
    yield
    PLAN_CACHE.clear()


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_tiles_have_the_bits_of_loops_by_themselves(name, little) -> None:
    f, x = CASES[name]
    assert kernels(f, x)
    assert_bits_equal(*both(f, x))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uneven rows", "columns", "real, both axes", "chirp", "double"])
@pytest.mark.parametrize("bits", [128, 256])
def test_lanes_of_other_processors_have_the_same_bits(name, bits, little) -> None:
    f, x = CASES[name]
    with mock.patch("volta.numba_cpu.target.vector_bits", lambda: bits):
        together, apart = both(f, x)
    assert_bits_equal(together, apart)


def test_long_rows_go_through_steps_one_row_at_a_time(little, monkeypatch) -> None:
    monkeypatch.setattr(tiles, "NEAREST", 1 << 15)
    f, x = vnp.fft.fft, values(18, 1024)
    steps = kernels(f, x)
    assert len(steps) == 2 and all(k.near for k in steps)
    assert any(spot.near for k in steps for part in k.parts for spot in part.spots)
    assert_bits_equal(*both(f, x))


def test_an_array_in_three_launches(little, monkeypatch) -> None:
    """The one in the middle reads and writes arrays of one size, in which its tasks have other places."""
    monkeypatch.setattr(tiles, "SCRATCH", 1 << 14)
    f, x = vnp.fft.fft, values(1 << 16)
    assert len(kernels(f, x)) == 3
    assert_bits_equal(*both(f, x))


def test_lanes_from_the_last_to_the_first(little, monkeypatch) -> None:
    monkeypatch.setattr(tiles, "FEW", 1)
    for f in (lambda x: vnp.fft.fft(x[:, ::-1], axis=0), lambda x: vnp.fft.fft(x[::-1])):
        assert kernels(f, values(64, 64))
        assert_bits_equal(*both(f, values(64, 64)))


def test_what_is_read_by_an_index_stays_as_it_is(little) -> None:
    at = np.random.default_rng(0).permutation(64).astype(np.int32)

    def f(x, w):
        return vnp.fft.ifft(vnp.fft.fft(x) * w[:, at])

    x, w = values(20, 64), values(20, 64, dtype=np.float32)
    assert kernels(f, x, w)
    assert_bits_equal(*both(f, x, w))


def test_threads_share_tiles_out(little) -> None:
    f, x = CASES["uneven rows"]
    before, found = volta.get_num_threads(), []
    try:
        for threads in (1, 3):
            volta.set_num_threads(threads)
            found.append(volta.jit(f)(np.tile(x, (20, 1))))
    finally:
        volta.set_num_threads(before)
    assert_bits_equal(*found)


def test_lanes_lie_in_every_way(little, monkeypatch) -> None:
    """The cases above try each: a way that none of them takes would be compared with nothing."""
    kinds: Counter[str] = Counter()
    for f, x in CASES.values():
        for kernel in kernels(f, x):
            for part in kernel.parts:
                kinds.update(spot.kind for spot in part.spots)
                kinds.update(f"{group.kind} back" for group in part.groups if group.back)
                kinds.update(["last block"] if part.block and part.sizes[-1] % part.block else [])
    wanted = {"tile", "same", "beside", "woven", "rows", "number", "apart", "rows back", "last block"}
    assert wanted <= set(kinds), kinds


@pytest.mark.turns(4)
@pytest.mark.parametrize("seed", range(12))
def test_drawn_passes_have_the_bits_of_loops_by_themselves(seed, little, monkeypatch) -> None:
    random = np.random.default_rng(seed)
    monkeypatch.setattr(tiles, "NEAREST", int(random.choice([1, 1 << 18])))
    monkeypatch.setattr(tiles, "FEW", int(random.choice([1, 128])))
    f, args = passes(random, least=17)
    assert_bits_equal(*both(f, *args))


NOT_TILED = {
    "few rows": (vnp.fft.fft, values(4, 30)),
    "elements that lie apart": (lambda x: vnp.fft.fft(x[:, ::2]), values(20, 128)),
}


@pytest.mark.parametrize("name", NOT_TILED)
def test_what_would_leave_lanes_empty_or_apart_is_left_to_others(name, little) -> None:
    f, x = NOT_TILED[name]
    assert not kernels(f, x)


def test_little_is_left_to_others_as_it_is_in_the_cache_anyway() -> None:
    assert not kernels(vnp.fft.fft, values(64, 64))


def test_loops_that_are_no_passes_are_left_apart(little) -> None:
    def f(x):
        y = vnp.concatenate([x + 1, vnp.flip(x)])
        return vnp.cumsum(y.T.reshape(-1)), y

    assert not kernels(f, values(40, 30, dtype=np.float32))


def test_texts_have_loops_of_their_own(little) -> None:
    """Kernels that are Python for a person to read are those of single loops."""
    f, x = CASES["uneven rows"]
    assert all(not isinstance(launch.kernel, LibraryKernel) or launch.kernel.name == "epilogue"
               for launch in launches(f, x, general=True))  # fmt: skip
    assert_kernels_agree(f, x, kinds=["python"])


def test_most_drawn_passes_are_tiled(little) -> None:
    """Else the family above would compare loops with themselves."""
    drawn = [passes(np.random.default_rng(seed), least=17) for seed in range(6)]
    assert sum(bool(kernels(f, *args)) for f, args in drawn) >= 4


DONATED = {
    "whole tiles": (vnp.fft.fft, values(48, 64), True),
    "columns": (lambda x: vnp.fft.fft(x, axis=0), values(64, 32), True),
    "steps of a row": (vnp.fft.fft, values(18, 1 << 14), True),
    "tiles that begin in others": (vnp.fft.fft, values(41, 64), False),
    "rows that become columns": (lambda x: vnp.fft.fft(x).T, values(64, 64), False),
    "what is read at the end too": (lambda x: vnp.fft.fft(x) + x, values(48, 64), False),
}


@pytest.mark.parametrize("name", DONATED)
def test_what_is_given_away_is_overwritten_where_no_other_task_wants_it(name, little) -> None:
    f, x, overwritten = DONATED[name]
    (call,) = [c for c in plan_of(f, x, donated=(0,)).calls if c.parts]
    assert bool(call.inplace) == overwritten
    given = volta.device_put(x.copy())
    assert_bits_equal(volta.jit(f, donate_argnums=0)(given), volta.jit(f)(x))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_drawn_passes_over_what_is_given_away(seed, little, monkeypatch) -> None:
    monkeypatch.setattr(tiles, "NEAREST", 1 if seed % 2 else 1 << 18)
    f, args = passes(np.random.default_rng(seed), least=16)
    given = [volta.device_put(x.copy()) for x in args]
    assert_bits_equal(volta.jit(f, donate_argnums=(0, 1, 2))(*given), both(f, *args)[1])


def test_more_rows_and_more_columns_are_no_other_kernels(little) -> None:
    for f, few, more in (
        (vnp.fft.fft, (17, 64), (40, 64)),
        (vnp.fft.fft, (17, 1 << 14), (40, 1 << 14)),
        (lambda x: vnp.fft.fft(x, axis=0), (64, 19), (64, 50)),
    ):
        assert kernels(f, values(*few)) == kernels(f, values(*more))
