"""Loops that run tile by tile: which are joined, what a tile is, bits on the host, and barriers that must be there."""

import itertools

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.xla_like.drawn_passes import passes
from volta import lax
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import every
from volta.numba_cuda.loops import nests_tiled, tile_layout, tiles
from volta.numba_cuda.schedule import Schedule
from volta.testing.host_grid import check_on_host, run_on_host
from volta.xla_like.compile import CompileOptions, build_plan
from volta.xla_like.kernels import Access, KernelCall, LoopKernel
from volta.xla_like.tiles import CommonDigit, Digit, Tile, weight_of


def values(*shape, dtype=np.complex64):
    random = np.random.default_rng(sum(shape))
    x = random.standard_normal(shape)
    return (x + 1j * random.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def launches(f, *args, capability="9.0"):
    plan, _ = build_plan(volta.make_jaxpr(f)(*args), scheduler=Schedule())
    return list(every(launches_of(plan, capability)))


def empty(*shape, dtype=np.complex64):
    return np.zeros(shape, dtype)


COUNTS = [
    (vnp.fft.fft, empty(1 << 20), 2),
    (vnp.fft.fft2, empty(1000, 1000), 2),
    (vnp.fft.fft2, empty(1024, 1024), 2),
    (vnp.fft.fft, empty(1000, 1024), 1),
    (vnp.fft.ifft, empty(10_000, 64), 1),
    (vnp.fft.fft, empty(4096), 1),
    (vnp.fft.fft, empty(100, 1009), 2),
    (lambda x: vnp.fft.fft(x, axis=0), empty(512, 3000), 1),
    (vnp.fft.rfft2, empty(1000, 1000, dtype=np.float32), 3),
]


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("f", "x", "count"), COUNTS, ids=lambda x: "x".join(map(str, x.shape)) if hasattr(x, "shape") else None
)
def test_the_passes_of_a_transform_are_few_kernels(f, x, count):
    assert len(launches(f, x)) == count


def test_without_epilogues_each_pass_is_a_kernel():
    program = volta.make_jaxpr(vnp.fft.fft)(empty(4096))
    plan, _ = build_plan(program, scheduler=Schedule(), options=CompileOptions(epilogues=False))
    assert len(launches_of(plan)) == 4


CASES = {
    "one tile": (vnp.fft.fft, values(4096)),
    "columns": (vnp.fft.fft, values(1 << 14)),
    "uneven rows": (vnp.fft.fft, values(101, 64)),
    "uneven columns": (lambda x: vnp.fft.fft(x, axis=0), values(512, 37)),
    "axis in the middle": (lambda x: vnp.fft.fft(x, axis=1), values(7, 360, 3)),
    "both axes": (vnp.fft.fft2, values(30, 50)),
    "three axes": (vnp.fft.fftn, values(3, 5, 7, 48)),
    "chirp": (vnp.fft.fft, values(5, 101)),
    "double": (vnp.fft.ifft, values(3, 1000, dtype=np.complex128)),
    "real": (vnp.fft.rfft, values(4, 2048, dtype=np.float32)),
    "real, both axes": (vnp.fft.rfft2, values(20, 60, dtype=np.float32)),
    "mirrored": (lambda x: vnp.fft.fft(vnp.flip(vnp.fft.fft(x), 1)), values(6, 128)),
    "back to real": (vnp.fft.irfft, values(3, 513)),
    "in a loop": (lambda x: lax.fori_loop(0, 3, lambda i, x: vnp.fft.fft(x) / 32, x), values(4, 1000)),
    "donated": (lambda x: vnp.fft.ifft(vnp.fft.fft(x) * 2), values(8, 128)),
    "gradient": (
        lambda x: volta.grad(lambda x: vnp.sum(vnp.abs(vnp.fft.fft(x)) ** 2))(x),
        values(1 << 13, dtype=np.float32),
    ),
}


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", CASES)
def test_tiles_have_the_bits_of_the_cpu(name):
    f, x = CASES[name]
    assert any("tiled" in launch.source.name for launch in launches(f, x))
    donated = (0,) if name == "donated" else ()
    check_on_host(f, x, orders=("shuffled",), donated=donated)


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ["uneven rows", "both axes"])
@pytest.mark.parametrize("processors", [1, 1000])
def test_tiles_of_any_size_have_the_same_bits(name, processors, monkeypatch):
    f, x = CASES[name]
    monkeypatch.setattr(tiles, "_BLOCKS", processors)
    check_on_host(f, x, orders=("ascending",))


def test_where_shared_memory_is_small_loops_run_one_by_one(monkeypatch):
    x = values(4, 2048)
    monkeypatch.setitem(ptx._SHARED, "7.5", 16)
    assert len(launches(vnp.fft.fft, x, capability="7.5")) == 4
    check_on_host(vnp.fft.fft, x, capability="7.5", orders=("ascending",))


@pytest.mark.parametrize("barrier", ["meets", "over"])
def test_a_barrier_that_is_missing_is_found(barrier, monkeypatch):
    whole = tile_layout.tiled

    def without(calls, tile, nbytes):
        kernel, arrays = whole(calls, tile, nbytes)
        assert any(getattr(part, barrier) for part in kernel.parts)
        return attrs.evolve(kernel, parts=tuple(attrs.evolve(p, **{barrier: False}) for p in kernel.parts)), arrays

    monkeypatch.setattr(nests_tiled, "tiled", without)
    assert run_on_host(vnp.fft.fft, values(4096), order="shuffled").violations


@pytest.mark.turns(6)
def test_what_others_read_too_is_stored():
    def f(x):
        y = vnp.fft.fft(x)
        return vnp.fft.fft(y), y.real @ y.real.T

    x = values(8, 64)
    assert sum("tiled" in launch.source.name for launch in launches(f, x)) == 2
    check_on_host(f, x, orders=("ascending",))


@pytest.mark.turns(6)
def test_results_on_the_way_are_written_too():
    def f(x):
        y = vnp.fft.fft(x)
        return y, vnp.fft.fft(y)

    x = values(8, 64)
    assert len(launches(f, x)) == 1
    check_on_host(f, x, orders=("ascending",))


def test_loops_that_are_no_passes_are_left_apart():
    def f(x):
        y = vnp.concatenate([x + 1, vnp.flip(x)])
        return vnp.cumsum(y.T.reshape(-1)), y

    assert not any("tiled" in launch.source.name for launch in launches(f, values(40, 30, dtype=np.float32)))


@pytest.mark.turns(6)
def test_loads_at_computed_places_are_aligned_as_they_say():
    """Between passes stands a loop that reads its factors by an index: neighbours of even places need not be."""
    at = np.random.default_rng(0).permutation(64).astype(np.int32)

    def f(x, w):
        y = vnp.fft.fft(x)
        return vnp.fft.ifft(y * w[at].astype(np.complex64))

    x, w = values(8, 64), values(64, dtype=np.float32)
    assert any("tiled" in launch.source.name for launch in launches(f, x, w))
    check_on_host(f, x, w, orders=("ascending",))


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", range(16))
def test_drawn_passes_have_the_bits_of_the_cpu_in_tiles_of_any_size(seed, monkeypatch):
    random = np.random.default_rng(seed)
    sizes = {"TILE": (64, 512, 8192), "WHOLE": (16, 256, 2048), "FEWEST": (1, 4), "_BLOCKS": (1, 264)}
    for name, choices in sizes.items():
        monkeypatch.setattr(tiles, name, int(random.choice(choices)))
    f, args = passes(random)
    check_on_host(f, *args, orders=("shuffled",))


# -- digits ------------------------------------------------------------------------------------------------------------


@given(st.data())
def test_a_weight_says_what_moves_a_digit(data):
    """Of an access, all of its elements have the digit that their index has; where a weight is refused, some have not,
    or a carry from what lies below it is possible."""
    sizes = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    strides = tuple(data.draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24, -1, -4, -12])) for _ in sizes)
    dim = data.draw(st.integers(0, len(sizes) - 1))
    below = data.draw(st.sampled_from([n for n in range(1, sizes[dim] + 1) if sizes[dim] % n == 0]))
    count = data.draw(st.sampled_from([n for n in range(1, sizes[dim] // below + 1) if sizes[dim] // below % n == 0]))
    least = sum(s * (n - 1) for n, s in zip(sizes, strides, strict=True) if s < 0)
    access = Access(0, data.draw(st.integers(0, 30)) - least, strides)
    call = KernelCall(LoopKernel("map", len(sizes), (), ()), sizes, (access,), (), ())
    weight = weight_of(call, access, Digit(dim, below, count))
    if weight is not None:
        for index in itertools.product(*map(range, sizes)):
            byte = access.offset + sum(i * s for i, s in zip(index, strides, strict=True))
            assert byte // weight % count == index[dim] // below % count


@given(st.data())
def test_a_tile_has_a_place_for_each_of_its_bytes(data):
    """With digits at the first of their values the bytes of a buffer go to different places of the tile, in order."""
    low, inner, middle, outer, top = (data.draw(st.integers(1, 4)) for _ in range(5))
    chunks = data.draw(st.integers(1, inner)), data.draw(st.integers(1, outer))
    places = (
        CommonDigit((Digit(0, 1, inner),), {0: low}),
        CommonDigit((Digit(0, 1, outer),), {0: low * inner * middle}),
    )
    tile = Tile(places, chunks, {0: (0, 0)})
    own = [
        at for at in range(low * inner * middle * outer * top)
        if at // low % inner < chunks[0] and at // (low * inner * middle) % outer < chunks[1]
    ]  # fmt: skip
    assert [tile.local(0, at) for at in own] == list(range(low * chunks[0] * middle * chunks[1] * top))
