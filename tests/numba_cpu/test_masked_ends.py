"""Vectors past the end of a row or of the columns touch no memory that is not theirs, and change no result.

Every array here lies between pages without access (`tests.guarded_memory`): a lane too far ends the process.
"""

import itertools

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.guarded_memory import SIDES, GuardedPool
from tests.sampling import sampled
from volta import lax
from volta.numba_cpu import codegen, target
from volta.runtime import memory
from volta.runtime.plan_cache import PLAN_CACHE

pytestmark = pytest.mark.turns(6)

ROWS, LENGTH = 6, 5

# How a table (rows, length, columns) is read by an index (length, columns): the same for all, another one at each step
# of the reduction, in each column, in both, or what another reduction of each column found.
TAKEN = {
    "one": lambda m, x, i: x[i[0, 0]],
    "by step": lambda m, x, i: x[i[:, 0], m.arange(LENGTH)],
    "by column": lambda m, x, i: x[i[:1], m.arange(LENGTH)[:, None], m.arange(x.shape[2])],
    "by both": lambda m, x, i: x[i, m.arange(LENGTH)[:, None], m.arange(x.shape[2])],
    "found": lambda m, x, i: x[m.argmax(i, axis=0)[None], m.arange(LENGTH)[:, None], m.arange(x.shape[2])],
}
REDUCTIONS = ("sum", "max", "argmax", "any")
CASES = list(
    itertools.product(TAKEN, REDUCTIONS, (1, 3, 8, 15, 16, 17, 33), ("float32", "float64", "bfloat16", "int8"))
)


def quick(case) -> bool:
    taken, reduction, columns, dtype = case
    return columns in (3, 17) and (dtype == "float32" or (taken, reduction) == ("one", "sum"))


@pytest.fixture(params=SIDES)
def guarded(request, monkeypatch):
    monkeypatch.setattr(memory, "_default_pool", GuardedPool(request.param))
    PLAN_CACHE.clear()  # constants lie where they were compiled


@sampled("taken, reduction, columns, dtype", CASES, quick)
def test_reductions_across_columns_that_an_index_moves(guarded, taken, reduction, columns, dtype) -> None:
    rng = np.random.default_rng(columns)
    x = rng.integers(-3, 4, (ROWS, LENGTH, columns))  # whole numbers: sums are exact in any order
    i = rng.integers(0, ROWS, (LENGTH, columns))
    reduce = lambda m, x, i: getattr(m, reduction)(TAKEN[taken](m, x, i), axis=0)  # noqa: E731
    got = volta.jit(lambda x, i: reduce(vnp, x, i))(vnp.asarray(x).astype(dtype), vnp.asarray(i, "int32"))
    np.testing.assert_array_equal(np.asarray(got).astype("int64"), reduce(np, x, i))


@pytest.mark.parametrize("row", [-1, 0, ROWS - 1])
@pytest.mark.parametrize("columns", [1, 17])
def test_reductions_along_rows_and_maps_that_an_index_moves(guarded, row, columns) -> None:
    x = np.random.default_rng(columns).integers(-3, 4, (ROWS, LENGTH, columns))
    f = volta.jit(lambda x, i: (vnp.sum(x[i], axis=1), x[i] * 2, x[::-1, ::-1, ::-1][i]))
    for got, want in zip(
        f(vnp.asarray(x, "float32"), vnp.asarray(row)),
        (x[row].sum(1), x[row] * 2, x[::-1, ::-1, ::-1][row]),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.parametrize("columns", [1, 17])
def test_the_gradient_of_a_recurrent_scan(guarded, columns) -> None:
    def loss(w, h, xs):
        def step(h, x):
            h = h * w + x
            return h, vnp.max(h, axis=0)

        return vnp.sum(lax.scan(step, h, xs)[1])

    w, h, xs = vnp.full((columns,), 2.0), vnp.zeros((3, columns)), vnp.ones((LENGTH, 3, columns))
    got = volta.jit(volta.grad(loss, (0, 1, 2)))(w, h, xs)
    with volta.disable_jit():
        want = volta.grad(loss, (0, 1, 2))(w, h, xs)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(target.vector_bits() != 512, reason="masks are for AVX-512")
def test_a_kernel_whose_lanes_are_apart_is_never_masked(monkeypatch) -> None:
    monkeypatch.setattr(codegen.KernelEmitter, "maskable", lambda self, which, stores: True)
    table, index = vnp.ones((6, 3, 29)), vnp.zeros((29,), "int32")
    with pytest.raises(AssertionError, match="lanes past the end would touch memory: Load"):
        volta.jit(lambda x, i: vnp.sum(x[i, :, vnp.arange(29)], axis=1) + 0.125)(table, index)


@pytest.mark.parametrize("turned", [False, True])
@sampled("m, k, n", itertools.product((1, 31, 70), (1, 5, 300), (1, 17, 67)), lambda case: case == (70, 300, 67))
def test_parts_of_complex_matrices_are_packed_from_what_is_there(guarded, turned, m, k, n) -> None:
    """The last vector of a part ends with its last element: what would be next to it lies behind the array."""
    rng = np.random.default_rng(m + k + n)
    a, b = (rng.integers(-3, 4, s) + 1j * rng.integers(-3, 4, s) for s in ((m, k), (k, n)))
    left, right = (vnp.asarray(x.T.copy() if turned else x).astype("complex64") for x in (a, b))
    got = volta.jit(lambda a, b: a.T @ b.T if turned else a @ b)(left, right)
    np.testing.assert_array_equal(np.asarray(got), (a @ b).astype("complex64"))
