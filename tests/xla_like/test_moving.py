"""Movement without copies: what loops read of rolls, paddings, concatenations and replaced slices, they read in place.

A program is held up against itself operation by operation, where everything that moves is copied.
"""

from __future__ import annotations

import itertools

import pytest

import volta
import volta.numpy as vnp
from tests.guarded_memory import SIDES, GuardedPool
from tests.sampling import sampled
from tests.xla_like.xla_support import kernels, plan_of, struct
from volta import lax
from volta.numba_cpu import target
from volta.runtime import memory
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing import assert_bits_equal, fill
from volta.testing.host_grid import check_on_host
from volta.testing.kernel_kinds import assert_kernels_agree
from volta.xla_like.moving import PARTS, RUN

pytestmark = pytest.mark.turns(6)

MOVED = {
    "roll": lambda x, axis: vnp.roll(x, 3, axis),
    "roll back": lambda x, axis: vnp.roll(x, -1, axis),
    "pad": lambda x, axis: vnp.pad(x, [(1, 2)] * x.ndim),
    "pad along an axis": lambda x, axis: vnp.pad(x, [(5, 0) if d == axis else (0, 0) for d in range(x.ndim)]),
    "pad with a number": lambda x, axis: vnp.pad(x, [(1, 2)] * x.ndim, constant_values=7),
    "pad with minus zero": lambda x, axis: lax.pad(x, vnp.asarray(-0.0, x.dtype), [(2, 1, 0)] * x.ndim),
    "reflect": lambda x, axis: vnp.pad(x, [(33, 34) if d == axis else (0, 0) for d in range(x.ndim)], mode="reflect"),
    "join": lambda x, axis: vnp.concatenate([x, vnp.flip(x, axis), x], axis),
    "join with a number": lambda x, axis: vnp.concatenate([vnp.full_like(x, 2), x], axis),
    "halves exchanged": lambda x, axis: vnp.concatenate(vnp.array_split(x, [x.shape[axis] // 2], axis)[::-1], axis),
    "replaced": lambda x, axis: vnp.asarray(x).at[(slice(None),) * axis + (slice(2, 5),)].set(3),
    "replaced by a slice": lambda x, axis: lax.dynamic_update_slice(
        x, lax.slice_in_dim(x, 30, 34, axis=axis), tuple(7 * (d == axis) for d in range(x.ndim))
    ),
    "replaced at the end": lambda x, axis: lax.dynamic_update_slice(
        x, lax.slice_in_dim(x, 0, 4, axis=axis), tuple(999 * (d == axis) for d in range(x.ndim))
    ),
    "turned": lambda x, axis: vnp.roll(x.T, 2, x.ndim - 1 - axis),
    "halves turned": lambda x, axis: vnp.concatenate(
        [vnp.negative(y) for y in vnp.array_split(x, 2, axis)[::-1]], axis
    ),
    "join of computed parts": lambda x, axis: vnp.concatenate(
        [vnp.asarray(x) * 2 + 1, vnp.asarray(x)[::-1] - x, x], axis
    ),
    "pad of a product": lambda x, axis: vnp.pad(vnp.asarray(x) * 3, [(4, 1)] * x.ndim, constant_values=2),
    "replaced by a computed part": lambda x, axis: replaced(vnp.asarray(x), axis),
}


def replaced(x, axis):
    """All but the ends along an axis by a sum of their neighbours."""
    before, inner, after = ((slice(None),) * axis + (s,) for s in (slice(0, -2), slice(1, -1), slice(2, None)))
    return x.at[inner].set(x[before] + x[after] * 3)


READ = {
    "chosen": lambda y, x: vnp.where(y == y, y, 0 * y if y.dtype != bool else y),
    "map": lambda y, x: y * 2 - 1,
    "with itself": lambda y, x: y + x if y.shape == x.shape else -y,
    "sums": lambda y, x: tuple(vnp.sum(y, axis) for axis in range(y.ndim)),
    "largest": lambda y, x: (vnp.argmax(y), vnp.max(y, 0), vnp.max(y, -1)),
}
SHAPES = ((40,), (1000,), (34, 70), (3, 33, 65))
FAMILY = list(itertools.product(MOVED, READ, SHAPES))


def program(moved, read, axis):
    return lambda x: READ[read](MOVED[moved](x, axis), x)


def a_third(case) -> bool:
    return FAMILY.index(case) % 5 == 0


@sampled("moved, read, shape", FAMILY, quick=a_third, ids=str)
def test_what_is_read_in_place_has_the_bits_of_a_copy(moved, read, shape) -> None:
    for axis in range(len(shape)):
        f, x = program(moved, read, axis), fill("specials", shape, seed=axis)
        if read in ("sums", "with itself"):
            x = fill("ladder", shape, seed=axis)
        assert_bits_equal(volta.jit(f)(x), f(x), f"axis {axis}")


@sampled("dtype", ["float16", "bfloat16", "int8", "bool", "float64", "complex64", "uint16"], quick=["float16", "int8"])
def test_elements_of_any_dtype(dtype) -> None:
    x = fill("normal", (3, 90), dtype)
    for moved in ("roll", "reflect", "pad", "join", "turned"):
        f = program(moved, "chosen", 1)
        assert_bits_equal(volta.jit(f)(x), f(x), moved)


@sampled("bits", [128, 256], quick=[128])
@sampled("moved", list(MOVED), quick=["roll", "reflect", "pad with a number"])
def test_registers_of_other_machines(moved, bits, monkeypatch) -> None:
    f, x = program(moved, "map", 1), fill("normal", (3, 75 + bits))
    want = f(x)
    PLAN_CACHE.clear()
    monkeypatch.setattr(target, "vector_bits", lambda: bits)
    assert_bits_equal(volta.jit(f)(x), want)
    PLAN_CACHE.clear()


@pytest.fixture(params=SIDES)
def guarded(request, monkeypatch):
    """Every array between pages without access: a lane too far ends the process."""
    monkeypatch.setattr(memory, "_default_pool", GuardedPool(request.param))
    PLAN_CACHE.clear()  # constants lie where they were compiled


@sampled("moved", list(MOVED), quick=["roll", "reflect", "pad"])
@pytest.mark.parametrize("length", [33, 64, 200])
def test_no_lane_is_out_of_range(guarded, moved, length) -> None:
    f, x = program(moved, "map", 0), fill("normal", (length,))
    assert_bits_equal(volta.jit(f)(vnp.asarray(x)), f(x))


@sampled("moved", list(MOVED), quick=["roll", "reflect", "pad with a number"])
def test_a_gpus_kernels_and_texts_read_in_place_too(moved) -> None:
    f, x = program(moved, "with itself", 1), fill("normal", (2, 70))
    check_on_host(f, x)
    assert_kernels_agree(f, x, kinds=["python"])


STENCILS = {
    "four rolls": lambda x: vnp.roll(x, 1, 0) + vnp.roll(x, -1, 0) + vnp.roll(x, 1, 1) + vnp.roll(x, -1, 1) - 4 * x,
    "far rolls": lambda x: vnp.roll(x, 5, 1) * vnp.roll(x, -7, 1) + vnp.roll(x, 36, 1),
    "of a pad": lambda x: (lambda y: y[1:-1, :-2] + y[1:-1, 2:] - y[:-2, 1:-1])(vnp.pad(x, 1)),
    "of an edge": lambda x: vnp.concatenate([x[:, :1], x[:, :-1]], 1) - x,
    "a roll of a part": lambda x: vnp.asarray(x).at[:, 8:40].set(vnp.roll(x[:, 8:40], 2, 1)) * 3,
}


@sampled("name", list(STENCILS), quick=["four rolls", "of a pad"])
@sampled("dtype", ["float32", "bfloat16", "int8", "float64"], quick=["float32", "int8"])
def test_a_gpus_threads_branch_where_all_their_neighbours_are_in_range(name, dtype) -> None:
    """Of four neighbours none, some or all are in range of each load."""
    check_on_host(STENCILS[name], fill("normal", (3, 72), dtype))


def test_derivatives_are_those_of_copies() -> None:
    x = fill("normal", (5, 40))
    loss = lambda x: vnp.sum(vnp.roll(x, 1, 1) * vnp.pad(x, ((0, 0), (3, 0)))[:, :40] + vnp.roll(x, 2, 0) ** 2)  # noqa: E731
    with volta.disable_jit():
        want = volta.grad(loss)(x)
    assert_bits_equal(volta.jit(volta.grad(loss))(x), want)


# -- kernels and bytes are counted -------------------------------------------------------------------------------------

X = struct(64, 300)


def stencil(x):
    near = vnp.roll(x, 1, 0) + vnp.roll(x, -1, 0) + vnp.roll(x, 1, 1) + vnp.roll(x, -1, 1)
    return x + 0.1 * (near - 4 * x)


def rotated(x):
    a, b = vnp.split(x, 2, -1)
    return x * 0.9 + vnp.concatenate([b, a], -1) * 0.1


ONE_KERNEL = {
    "a roll beside what it is of": lambda x: 8 * (vnp.sin(x) * 1.1 + vnp.roll(x, 3, 1)),
    "a stencil": stencil,
    "halves exchanged": rotated,
    "paddings": lambda x: vnp.pad(x, ((1, 1), (2, 2))) * 2,
    "differences": lambda x: x - vnp.pad(x[:, :-1], ((0, 0), (1, 0)), constant_values=1) * 2,
    "a slice that is replaced": lambda x: vnp.tanh(x.at[2:5].set(x[7:10])) + 1,
    "rows of a roll": lambda x: vnp.sum(vnp.roll(x, 1, 0) * x, 1),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_movement_is_part_of_the_kernel_that_reads_it(name) -> None:
    plan = plan_of(ONE_KERNEL[name], X)
    assert len(plan.calls) == 1
    assert plan.arena_bytes == 0  # nothing is written but the result


def test_steps_of_a_stencil_store_their_fields_alone() -> None:
    """A step reads the one before at other places, so that one is stored, and nothing else."""
    plan = plan_of(lambda x: stencil(stencil(stencil(x))), X)
    assert len(plan.calls) == 3 and plan.arena_bytes == 2 * 64 * 300 * 4


COPIED = {
    "a result": lambda x: vnp.roll(x, 3, 1),
    "an operand of a product": lambda x: vnp.roll(x, 3, 1) @ x.T,
    "many parts": lambda x: -vnp.concatenate([x[:, i : i + 40] for i in range(PARTS + 1)], 1),
    "short runs": lambda x: -vnp.concatenate([x[..., None], x[..., None]], 2),
    "parts that are computed where they belong": lambda x: -vnp.concatenate([vnp.exp(x), vnp.sin(x)], 1),
}


@pytest.mark.parametrize("name", COPIED)
def test_where_copies_are_better_there_are_copies(name) -> None:
    assert len(kernels(COPIED[name], X)) > 1
    assert RUN <= X.shape[1]


def test_of_two_places_one_is_read() -> None:
    """Along an outer axis it is a row's address that is chosen: a roll reads each element once."""
    (call,) = plan_of(lambda x: vnp.roll(x, 1, 0) * 2, X).calls
    assert call.kernel.text().count("load") == 2 and " any" in call.kernel.text() and " else %" in call.kernel.text()
