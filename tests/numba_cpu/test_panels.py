"""The CPU's kernels for panels have the bits of the programs that panels mean."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

import volta
from tests.numba_cpu.panels import FUNCTIONS, ROTATED, matrices, real_schur
from tests.sampling import sampled
from volta import lax
from volta.numba_cpu.schedule import Schedule
from volta.numba_cpu.sweeps import LONGEST
from volta.testing import assert_bits_equal
from volta.trace.schur import _follow, _turn
from volta.trace.spectra import _swept
from volta.xla_like.compile import CompileOptions, build_plan
from volta.xla_like.panels import ROWS, Panel

PROGRAMS = [{"options": CompileOptions(fusion=False)}, pytest.param({"kernels": "njit"}, marks=pytest.mark.slow)]


@pytest.mark.parametrize("settings", PROGRAMS)
@sampled(
    "name,n,dtype",
    [(name, n, dtype) for name in FUNCTIONS for n in (1, 5, 16, 33, 70) for dtype in ("f4", "f8")],
    [("cholesky", 5, "f4"), ("lu", 33, "f4"), ("lower", 16, "f8")],
)
@pytest.mark.turns(3)
def test_a_panel_has_the_bits_of_its_program(name, n, dtype, settings):
    check(FUNCTIONS[name], matrices(n, dtype), settings)


@pytest.mark.parametrize("settings", PROGRAMS)
@sampled(
    "name,n,dtype",
    [(name, n, dtype) for name in ROTATED for n in (1, 2, 4, 17, 33, 49) for dtype in ("f4", "f8")],
    [("eigh", 4, "f4")],
)
@pytest.mark.turns(2)
def test_rotations_have_the_bits_of_their_program(name, n, dtype, settings):
    """Five matrices, which are not as many as a vector has lanes, and each of which ends in a sweep of its own."""
    check(ROTATED[name], matrices(n, dtype), settings)


@pytest.mark.parametrize("settings", PROGRAMS)
@pytest.mark.parametrize("threads", [1, 3])
@sampled("n,dtype", [(n, dtype) for n in (3, 4, 17, 33, 70, 130) for dtype in ("f4", "f8")], [(4, "f8"), (33, "f4")])
def test_chased_bulges_have_the_bits_of_their_program(n, dtype, threads, settings):
    """Matrices of which some are done before others, and whose rows and columns are no whole number of tasks."""
    general = np.random.default_rng(n).standard_normal((2, n, n)).astype(dtype)
    turned = np.stack([np.roll(np.eye(n, dtype=dtype), 1, 0), np.tril(general[0], 1)])
    with threads_set(threads):
        check(real_schur, np.concatenate([general, turned, matrices(n, dtype)]), settings)


def test_more_matrices_than_lanes_have_the_bits_that_each_has_alone():
    a = np.concatenate([matrices(6, "f4") * np.float32(k + 1) for k in range(7)])
    whole = volta.jit(ROTATED["eigh"])(a)
    for i in (0, 15, 16, 34):
        for x, y in zip(volta.jit(ROTATED["eigh"])(a[i]), whole, strict=True):
            assert_bits_equal(x, y[i])


@sampled(
    "n,dtype,threads,name",
    [
        (n, dtype, threads, name)
        for n in (1, 2, 3, 7, 8, 13, 32)
        for dtype in ("f4", "f8")
        for threads in (1, 3)
        for name in ("cholesky", "cholesky of lower triangles")
    ],
    [(3, "f4", 3, "cholesky"), (13, "f8", 1, "cholesky of lower triangles")],
)
def test_matrices_of_a_vector_have_the_factors_that_each_has_alone(n, dtype, threads, name):
    """Squares that are transposed in registers end anywhere in a row; of the last vector some lanes have no matrix."""
    f = FUNCTIONS[name]
    a = np.concatenate([matrices(n, dtype) * k for k in (1, -1, 2, 0.5)]).astype(dtype)
    a[6] = np.finfo(dtype).max * np.eye(n)
    with threads_set(threads):
        whole = volta.jit(f)(a)[0]
    for i in range(len(a)):
        with volta.execution_context(options=CompileOptions(fusion=False)):
            assert_bits_equal(volta.jit(f)(a[i : i + 1])[0], whole[i : i + 1])
    if n > 1:
        assert np.isnan(whole[3][np.tril_indices(n)]).all() and not np.asarray(whole)[:, 0, -1].any()


@sampled("name", [*FUNCTIONS, *ROTATED], ["cholesky"])
def test_panels_in_a_loop_have_the_bits_that_they_have_outside(name):
    """A loop of a small body is one native function, which calls their kernels."""
    f = {**FUNCTIONS, **ROTATED}[name]
    a = np.stack([matrices(4, "f4")] * 3)
    for x, y in zip(volta.jit(lambda a: lax.map(f, a))(a), f(a), strict=True):
        assert_bits_equal(x, y)


@contextmanager
def threads_set(count):
    before = volta.get_num_threads()
    volta.set_num_threads(count)
    try:
        yield
    finally:
        volta.set_num_threads(before)


def check(f, a, settings):
    f, args = volta.jit(f), a if isinstance(a, tuple) else (a,)
    found = f(*args)
    with volta.execution_context(**settings):
        wanted = f(*args)
    for x, y in zip(found, wanted, strict=True):
        assert_bits_equal(x, y)


def calls(f, *args):
    plan, _ = build_plan(volta.make_jaxpr(f)(*args), scheduler=Schedule(512))
    return [call.details() for top in plan.calls for call in top.nested() if isinstance(call.kernel, Panel)]


def test_columns_of_a_panel_are_one_kernel():
    a = matrices(64, "f4")
    square, below = "cholesky f32 batch=5 width=32 length=32", "substitute f32 batch=5 width=32 length=32"
    assert calls(lax.linalg.cholesky, a) == [square, below, square]
    columns = [f"lu f32 batch=5 width=32 length={n}" for n in (64, 32)]
    assert calls(lambda a: lax.linalg.lu(a)[0], a) == [columns[0], f"{below} unit", columns[1]]


def test_small_matrices_are_factored_by_one_kernel():
    plan, _ = build_plan(volta.make_jaxpr(lax.linalg.cholesky)(matrices(32, "f4")), scheduler=Schedule(512))
    assert [call.details() for call in plan.calls] == ["mean f32 batch=5 width=32 length=32"]
    lower = FUNCTIONS["cholesky of lower triangles"]
    assert calls(lower, matrices(1, "f8")) == ["lower f64 batch=5 width=1 length=1"]
    assert calls(lower, matrices(33, "f4"))[0] == "cholesky f32 batch=5 width=32 length=32"


def test_small_matrices_are_rotated_by_one_kernel():
    assert calls(ROTATED["eigh"], matrices(7, "f4")) == ["symmetric f32 batch=5 width=8 length=8"]
    assert "rows f32 batch=5 width=8 length=7" in calls(ROTATED["svd"], matrices(7, "f4"))
    parts, *products = calls(ROTATED["eigh"], matrices(ROWS + 1, "f4"))
    assert parts == "symmetric f32 batch=20 width=14 length=14"  # of the tridiagonal form
    assert all(x.startswith("substitute") for x in products)


@pytest.mark.parametrize("settings", PROGRAMS)
@sampled(
    "n,length,dtype",
    [(n, m, d) for n in (2, 4, 6, 50) for m in (1, 7, 64, 130) for d in ("f4", "f8")],
    [(6, 130, "f8")],
)
def test_a_sweep_has_the_bits_of_its_program(n, length, dtype, settings):
    """Of some matrices: rows that are orthogonal, are the same, vanish, or are no numbers."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((6, n, length)).astype(dtype)
    x[1, n // 2 :] = x[1, : n // 2]
    x[2, :, 1:] = -0.0
    x[3] = np.eye(n, length)
    x[4, 0, 0], x[4, 1, -1] = np.nan, np.inf
    x[5] *= np.finfo(dtype).tiny
    v, least = rng.standard_normal((6, n, n)).astype(dtype), np.full(6, 1e-3, dtype)
    least[0] = 0.5
    for only in (np.ones(6, bool), np.arange(6) % 2 == 1):
        check(lambda *args: _swept(*args), (x, v, least, only), settings)


def test_large_matrices_are_swept_by_all_threads():
    def kinds(n):
        arrays = np.zeros((1, n, n)), np.zeros((1, n, n)), np.zeros(1), np.ones(1, bool)
        plan, _ = build_plan(volta.make_jaxpr(_swept)(*arrays), scheduler=Schedule(512))
        return [call.details() for call in plan.calls if isinstance(call.kernel, Panel)]

    assert kinds(LONGEST) == [f"sweep f64 batch=1 width={LONGEST} length={LONGEST}"]
    assert not kinds(LONGEST + 2)
    assert "sweep f64 batch=5 width=50 length=49" in calls(ROTATED["svd"], matrices(49, "f8"))


def test_a_step_of_schurs_form_is_one_equation_that_is_computed_in_place():
    """Of five matrices; H and Zᵀ stay where the loop has them, so that an iteration copies neither."""
    assert calls(real_schur, matrices(9, "f4")) == ["chase f32 batch=5 width=10 length=10"]
    plan, _ = build_plan(volta.make_jaxpr(real_schur)(matrices(40, "f4")), scheduler=Schedule(512))
    (loop,) = (p for call in plan.calls for p in call.plans if any(isinstance(c.kernel, Panel) for c in p.calls))
    whole = {b.id for b in loop.buffers if b.nbytes >= 5 * 40 * 40 * 4}
    (chase,) = (c for c in loop.calls if isinstance(c.kernel, Panel))
    assert {loop.buffers[b].alias for b in whole.intersection(chase.writes)} == whole.intersection(chase.reads)
    assert not [c for c in loop.calls if c is not chase and not c.elided and whole.intersection(c.writes)]


@pytest.mark.parametrize("settings", PROGRAMS)
@sampled(
    "n,dtype,threads",
    [(n, dtype, threads) for n in (2, 3, 8, 17, 33) for dtype in ("f4", "f8") for threads in (1, 3)],
    [(17, "f4", 3)],
)
def test_turned_rows_and_columns_have_the_bits_of_their_programs(n, dtype, threads, settings):
    """Of three matrices: pairs that are turned and that are not, that vanish, that are no numbers; rows and columns are
    no whole number of vectors."""
    rng = np.random.default_rng(n)
    re, im, zr, zi = rng.standard_normal((4, n, 3, n)).astype(dtype)
    re[:, 1, 0], im[:, 1, 0] = 0.0, -0.0
    re[-1, 2, -1] = np.nan
    on = rng.random((n - 1, 3)) < 0.7
    on[0] = True

    def turned(re, im, zr, zi, on):
        re, im, *rotations = _turn(re, im, on)
        return [re, im, *rotations, *_follow(re, im, zr, zi, *rotations)]

    with threads_set(threads):
        check(turned, (re, im, zr, zi, on), settings)


@sampled("n,dtype", [(n, d) for n in (1, 2, 3, 17, 40) for d in ("c8", "c16")], [(17, "c8")])
def test_a_complex_step_of_schurs_form_is_two_equations(n, dtype):
    """And eigenvalues of matrices that are done before others have the bits of the programs."""
    a = np.concatenate([matrices(n, "f8"), np.roll(np.eye(n), 1, 0)[None]]).astype(dtype)
    a[:-1].imag = a[:-1, ::-1].real
    schur = lambda a: list(volta.scipy.linalg.schur(a, "complex"))  # noqa: E731
    real = "f32" if dtype == "c8" else "f64"
    both = [f"{kind} {real} batch={n} width=6 length={n}" for kind in ("turn", "follow")]
    assert [x for x in calls(schur, a) if "qr" not in x] == (both if n > 1 else [])
    check(schur, a, {"options": CompileOptions(fusion=False)})


def test_panels_of_real_matrices_stay_where_others_are_complex():
    """Beside complex numbers, in a loop that carries some, and in a choice."""
    a, z = matrices(40, "f4")[:1], np.ones((40, 40), np.complex64)

    def looped(a, z):
        return lax.fori_loop(0, 2, lambda i, c: (lax.linalg.cholesky(c[0] @ c[0] + a), c[1] * 1j), (a, z))

    def chosen(a, z):
        return lax.cond(a[0, 0, 0] > 0, lambda a, z: (lax.linalg.cholesky(a), z), lambda a, z: (a, z * 1j), a, z)

    alone = calls(lax.linalg.cholesky, a)
    for f in (lambda a, z: (lax.linalg.cholesky(a), z @ z), looped, chosen):
        assert calls(f, a, z) == alone
        check(f, (a, z), {"options": CompileOptions(fusion=False)})


def test_complex_panels_are_their_programs():
    a = matrices(5, "f8")[:1] * (1 + 0j)
    assert not calls(lax.linalg.cholesky, a)
    np.testing.assert_allclose(lax.linalg.cholesky(a)[0], np.linalg.cholesky(a[0].real), rtol=1e-12, atol=1e-12)
