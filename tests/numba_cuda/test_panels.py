"""CUDA's kernels for panels, run on the host: the CPU's bits, whatever the order of threads."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.numba_cpu.panels import FUNCTIONS, ROTATED, matrices
from tests.sampling import sampled
from volta import lax
from volta.numba_cuda import kernels
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.codegen.threads import WARP
from volta.numba_cuda.launches import every
from volta.numba_cuda.panels.panels import REFLECTED
from volta.numba_cuda.panels.sides import SIDES
from volta.offline import plan_on_cuda
from volta.testing.host_grid import ORDERS, HostKernels, check_on_host
from volta.trace import orthogonal, spectra
from volta.xla_like.panels import ROTATIONS, ROWS

KERNELS = HostKernels()
pytestmark = pytest.mark.turns(6)


@sampled(
    "name,n,dtype",
    [(name, n, dtype) for name in FUNCTIONS for n in (5, 40, 70) for dtype in ("f4", "f8")],
    [("cholesky", 5, "f4"), ("lu", 5, "f8"), ("lower", 5, "f4"), ("qr", 5, "f4")],
)
def test_cuda_panels_have_the_bits_of_the_cpu(name, n, dtype):
    check_on_host(FUNCTIONS[name], matrices(n, dtype), kernels=KERNELS)


@sampled(
    "name,n,dtype",
    [(name, n, dtype) for name in ROTATED for n in (2, 8, 17, 32, 34) for dtype in ("f4", "f8")],
    [("eigh", 2, "f4"), ("svd", 8, "f4")],
)
def test_cuda_rotations_have_the_bits_of_the_cpu(name, n, dtype):
    """34 rows are more than a warp has lanes; of 2 to 16 a warp has more matrices than there are."""
    check_on_host(ROTATED[name], matrices(n, dtype), kernels=KERNELS)


@sampled(
    "kind,n,dtype",
    [(k, n, t) for k in ROTATIONS for n in (2, 4, 6, 12, 18, 32, 34) for t in ("f4", "f8")],
    [("rows", 6, "f4"), ("symmetric", 4, "f4"), ("symmetric", 6, "f8")],
)
def test_all_that_rotations_leave_has_the_bits_of_the_cpu(kind, n, dtype):
    """Beside the diagonal too, with what rotates; and matrices that end in sweeps of their own, some in the first."""
    tiny = np.finfo(dtype).tiny
    a = np.concatenate([matrices(n, dtype), np.zeros((4, n, n), dtype)])
    a[5] = -0.0
    a[6] = np.diag(np.where(np.arange(n) % 2, -0.0, 1.0))
    a[7] = 1.0  # all elements are equal
    a[8] = np.diag(np.arange(n)) + np.where(np.eye(n, k=1) + np.eye(n, k=-1), 8 * tiny, 0)  # a steep angle
    least = np.full(len(a), tiny, dtype)
    least[0], least[1] = np.finfo(dtype).eps, 0.25
    check_on_host(getattr(spectra, f"_{kind}"), a + a.swapaxes(1, 2), least, orders=("shuffled",), kernels=KERNELS)


@sampled(
    "rows,columns,dtype",
    [(m, n, t) for m, n in ((1, 1), (5, 3), (8, 8), (9, 4), (31, 2), (32, 32), (17, 16)) for t in ("f4", "f8")],
    [(5, 3, "f4"), (9, 4, "f8"), (8, 8, "f4")],
)
def test_reflections_in_the_lanes_of_a_warp_have_the_bits_of_the_cpu(rows, columns, dtype):
    """From the first row on, and from a later one: what is above it is kept. A batch that fills no whole warp."""
    square = max(rows, columns)
    a = np.concatenate([matrices(square, dtype)] * 2)[:, :columns, :rows]
    a[6, :, -1:] = 0  # nothing is left below the last row but one
    for start in {0, min(2, rows - columns)}:
        check_on_host(orthogonal._panel, a, np.int32(start), orders=("shuffled",), kernels=KERNELS)


def test_small_panels_take_one_warp_for_several_matrices():
    a = np.zeros((9, 8, 8), np.float32)
    for f, name, blocks in ((FUNCTIONS["qr"], "volta_panel_qr", 3), (ROTATED["eigh"], "volta_rotations", 3)):
        plan, _ = plan_on_cuda(volta.make_jaxpr(f)(a))
        (x,) = (x for x in every(kernels.launches_of(plan, "9.0")) if x.source.name.startswith(name))
        assert (x.grid, x.threads, x.shared) == (blocks, WARP, 0)


@sampled(
    "name,shape,dtype,capability",
    [
        ("lu", (1100, 5), "f4", "9.0"), ("lu", (600, 3), "f8", "9.0"), ("lu", (2100, 3), "f8", "9.0"),
        ("lu", (2100, 40), "f4", "7.5"), ("qr", (1100, 5), "f4", "9.0"), ("qr", (600, 3), "f8", "9.0"),
        ("qr", (1500, 20), "f4", "9.0"), ("qr", (1500, 20), "f4", "7.5"), ("qr", (900, 20), "f8", "9.0"),
    ],
    [("lu", (1100, 5), "f4", "9.0")],
)  # fmt: skip
def test_columns_that_no_registers_hold_have_the_bits_of_the_cpu(name, shape, dtype, capability):
    """They lie in shared memory in part; where they do not fit in there either, in memory."""
    a = np.random.default_rng(0).standard_normal((2, *shape)).astype(dtype)
    a[1] = np.round(a[1])
    check_on_host(FUNCTIONS[name], a, orders=("shuffled",), capability=capability)


@sampled(
    "n,dtype,capability",
    [(n, dtype, capability) for n in (33, 96, 192, 300) for dtype in ("f4", "f8") for capability in ("9.0", "7.5")],
    [(96, "f4", "9.0")],
)
def test_groups_of_cholesky_have_the_bits_of_the_cpu(n, dtype, capability):
    """Blocks of threads hand rows on, in whatever order they begin."""
    for order in ORDERS:
        check_on_host(FUNCTIONS["cholesky"], matrices(n, dtype)[:4:3], orders=(order,), capability=capability)


@sampled(
    "n,sides,dtype,unit",
    [(n, m, t, unit) for n in (33, 70, 290) for m in (1, 2, 9, SIDES) for t in ("f4", "f8") for unit in (True, False)],
    [(70, 1, "f4", True)],
)
def test_few_right_sides_have_the_bits_of_the_cpu(n, sides, dtype, unit):
    """More rows than a chunk of DOT has, too, and right sides that are no multiple of a block's."""

    def f(a):
        solve = partial(lax.linalg.triangular_solve, left_side=True, unit_diagonal=unit)
        return [solve(a, a[..., :sides], lower=lower) for lower in (True, False)]

    for order in ORDERS:
        check_on_host(f, matrices(n, dtype)[:4:3], orders=(order,), kernels=KERNELS)


def kernels_of(f, *shapes):
    plan, _ = plan_on_cuda(volta.make_jaxpr(f)(*(np.zeros(shape, np.float32) for shape in shapes)))
    return [x.source.name for x in every(kernels.launches_of(plan, "9.0"))]


def test_a_large_matrix_takes_few_launches():
    """Of Cholesky three a group of columns, and what is before and behind; of a right side one for each triangle."""
    names = kernels_of(FUNCTIONS["cholesky"], (1024, 1024))
    assert len(names) <= 5 + 4 * 4 and sum(name.startswith("volta_panel_factor") for name in names) == 4
    names = kernels_of(lambda a, b: [vnp.linalg.solve(a, b)], (256, 256), (256, 1))
    assert sum(name.startswith("volta_panel_forward") for name in names) == 2
    assert sum(name.startswith("volta_panel_substitute") for name in names) == 256 // 32 - 1  # LU's own
    many = kernels_of(lambda a, b: [vnp.linalg.solve(a, b)], (64, 64), (64, SIDES + 1))
    assert not any(name.startswith("volta_panel_forward") for name in many)


def test_long_columns_of_qr_are_reflected_by_the_whole_gpu():
    for n, wanted in ((REFLECTED, True), (REFLECTED + 1, False)):
        plan, _ = plan_on_cuda(volta.make_jaxpr(FUNCTIONS["qr"])(np.zeros((n, 32), np.float32)))
        calls = [call.details() for top in plan.calls for call in top.nested()]
        assert any(x.startswith("qr ") for x in calls) is wanted


@pytest.mark.parametrize("dtype", ["f4", pytest.param("f8", marks=pytest.mark.slow)])
def test_kernels_of_panels_compile_and_keep_the_rules(dtype):
    """Their static shared memory is what every GPU since 2014 has."""
    for f, n in [*((f, 70) for f in FUNCTIONS.values()), *((f, n) for f in ROTATED.values() for n in (WARP, ROWS))]:
        plan, _ = plan_on_cuda(volta.make_jaxpr(f)(matrices(n, dtype)))
        every_one = every(kernels.launches_of(plan, "9.0"))
        launches = [x for x in every_one if re.match("volta_(panel|rotations)", x.source.name)]
        sources = {x.source.name: x.source for x in launches}
        assert sources and max(x.shared for x in launches) <= 48 << 10
        text = ptx.compile_ptx(list(sources.values()))
        assert not ptx.violations(text)
        for entry in text.split(".visible .entry")[1:]:
            used = {name: int(n) for name, n in re.findall(r"(\w+)\[(\d+)\];", text) if name in entry}
            assert sum(used.values()) <= 48 << 10
