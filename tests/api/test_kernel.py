"""`volta.kernel`: functions of Numba's inside of programs, and the laws that hold for them as for any operation."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.user_kernels import move, smooth, smooth_back, smooth_by_hand
from tests.workers import simulated
from volta.errors import KernelError
from volta.testing import assert_bits_equal

ROOT = Path(__file__).resolve().parents[2]
X = np.random.default_rng(0).standard_normal(100).astype(np.float32)
XS = np.random.default_rng(1).standard_normal((3, 5, 100)).astype(np.float32)


def loss(x):
    return vnp.sum(smooth(vnp.sin(x) * 2.0) ** 2)


# -- the laws ----------------------------------------------------------------------------------------------------------


def test_it_computes_what_its_function_says_eagerly_and_jitted() -> None:
    assert_bits_equal(smooth(X), smooth_by_hand(X))
    assert_bits_equal(volta.jit(smooth)(X), smooth_by_hand(X))
    assert_bits_equal(volta.jit(loss)(X), loss(X))


def test_a_batch_has_the_bits_of_a_loop_at_any_depth() -> None:
    assert_bits_equal(volta.vmap(volta.vmap(smooth))(XS), np.stack([[smooth_by_hand(x) for x in xs] for xs in XS]))
    assert_bits_equal(volta.jit(volta.vmap(smooth, in_axes=1))(X.reshape(20, 5)), np.stack(
        [smooth_by_hand(np.ascontiguousarray(x)) for x in X.reshape(20, 5).T]))  # fmt: skip
    assert volta.vmap(smooth)(vnp.zeros((0, 7))).shape == (0, 7)  # no tasks


def test_operands_that_are_not_mapped_are_shared_by_the_batch() -> None:
    out = volta.jit(volta.vmap(move, in_axes=(None, 0, None)))(X, vnp.arange(4.0), 1)
    for i in range(4):
        assert_bits_equal(out["moved"][i], X * np.float32(i) + np.float32(1))
    assert out["count"].tolist() == [100] * 4


def test_one_thread_and_many_give_the_same_bits() -> None:
    xs = np.random.default_rng(2).standard_normal((64, 4096)).astype(np.float32)
    f, before = volta.jit(volta.vmap(smooth)), volta.get_num_threads()
    try:
        volta.set_num_threads(1)
        alone = np.asarray(f(xs))
        volta.set_num_threads(4)
        assert_bits_equal(f(xs), alone)
    finally:
        volta.set_num_threads(before)
    assert_bits_equal(alone[5], smooth_by_hand(xs[5]))


def test_views_are_made_contiguous_before_it_runs() -> None:
    x = X.reshape(10, 10)
    assert_bits_equal(volta.jit(lambda x: smooth(x.T[3, ::-2]))(x), smooth_by_hand(np.ascontiguousarray(x[::-2, 3])))


def test_an_operand_of_another_shape_than_its_memory() -> None:
    """A reshape moves nothing, so the kernel reads memory of another shape; a loop's iteration reads a slice of it."""
    same = smooth_by_hand(X)
    assert_bits_equal(volta.jit(lambda x: smooth(x.reshape(100)))(X.reshape(4, 25)), same)
    halves = volta.jit(lambda x: volta.vmap(smooth)(x.reshape(2, 50)))
    assert_bits_equal(halves(X), volta.vmap(smooth)(X.reshape(2, 50)))
    looped = volta.jit(lambda xs: volta.lax.scan(lambda c, x: (c, volta.vmap(smooth)(x)), 0, xs)[1])
    assert_bits_equal(looped(XS), np.stack([volta.vmap(smooth)(xs) for xs in XS]))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_its_derivatives_are_its_rules(dtype: str) -> None:
    x, t = X.astype(dtype), np.cos(X.astype(dtype))
    out, pull = volta.vjp(smooth, x)
    (ct,) = pull(t)
    assert_bits_equal(ct, smooth_back(t))
    assert_bits_equal(volta.jvp(smooth, (x,), (t,))[1], smooth(t))
    assert_bits_equal(volta.jit(volta.grad(loss))(x), volta.grad(loss)(x))
    forward, backward = (np.asarray(f, "float64") for f in (smooth(t), smooth_back(x)))
    assert np.vdot(forward, x) == pytest.approx(np.vdot(t, backward))  # <J t, x> = <t, J' x>


def test_derivatives_of_batches_and_batches_of_derivatives_agree() -> None:
    xs = XS[0]
    each = np.stack([volta.grad(loss)(x) for x in xs])
    assert_bits_equal(volta.jit(volta.vmap(volta.grad(loss)))(xs), each)
    assert_bits_equal(volta.grad(lambda xs: vnp.sum(volta.vmap(loss)(xs)))(xs), each)
    tangents = volta.jvp(volta.vmap(smooth), (xs,), (xs,))[1]
    assert_bits_equal(tangents, volta.vmap(smooth)(xs))


def test_what_a_batch_shares_gets_the_sum_of_its_cotangents() -> None:
    def total(scale):
        return vnp.sum(volta.vmap(lambda x: move(x, scale, 0.5)["moved"])(XS[0]))

    assert_bits_equal(volta.grad(total)(np.float32(2)), vnp.sum(vnp.sum(vnp.asarray(XS[0]), axis=1)))


def test_second_derivatives_go_through_the_rules_of_the_rules() -> None:
    x = X[:6]
    assert_bits_equal(volta.hessian(loss)(x).round(4), volta.jacrev(volta.grad(loss))(x).round(4))


def test_in_loops_choices_and_checkpoints() -> None:
    x = smooth_by_hand(smooth_by_hand(X))
    assert_bits_equal(volta.jit(lambda x: volta.lax.fori_loop(0, 2, lambda i, x: smooth(x), x))(X), x)
    assert_bits_equal(volta.lax.scan(lambda c, _: (smooth(c), None), X, None, length=2)[0], x)
    assert_bits_equal(volta.jit(lambda p, x: volta.lax.cond(p, smooth, lambda x: x, x))(True, X), smooth_by_hand(X))
    assert_bits_equal(volta.grad(volta.checkpoint(loss))(X), volta.grad(loss)(X))
    by_scan = volta.grad(lambda x: vnp.sum(volta.lax.scan(lambda c, _: (smooth(c), None), x, None, length=2)[0]))
    assert_bits_equal(by_scan(X), smooth_back(smooth_back(vnp.ones(100))))


def test_a_call_inside_of_a_call() -> None:
    assert_bits_equal(volta.jit(lambda x: volta.jit(smooth)(x) + 1)(X), smooth_by_hand(X) + np.float32(1))


def test_from_several_threads_at_once() -> None:
    f, found = volta.jit(volta.vmap(smooth)), {}
    threads = [threading.Thread(target=lambda i=i: found.setdefault(i, np.asarray(f(XS[i % 3])))) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, out in found.items():
        assert_bits_equal(out, np.stack([smooth_by_hand(x) for x in XS[i % 3]]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are of POSIX")
@pytest.mark.turns(6)
def test_in_a_forked_child() -> None:
    """In a process of its own: other libraries mind that this one forks."""
    code = """
import os, numpy as np, volta
from tests.user_kernels import smooth, smooth_by_hand
x = np.float32([1, 5, 2]); f = volta.jit(volta.vmap(smooth)); f(x[None])
child = os.fork()
same = (np.asarray(f(x[None]))[0] == smooth_by_hand(x)).all()
if child == 0:
    os._exit(0 if same and (np.asarray(volta.jit(smooth)(np.float64(x))) == smooth_by_hand(np.float64(x))).all() else 1)
print(same, os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "True 0"


def test_workers_share_out_the_elements_of_a_batch() -> None:
    with simulated(4):
        mesh = volta.sharding.make_mesh((4,), ("data",))
        rows = volta.sharding.NamedSharding(mesh, volta.sharding.PartitionSpec("data"))
        xs = volta.device_put(np.tile(X, (8, 1)), rows)
        f = volta.jit(lambda x: volta.vmap(move, in_axes=(0, None, None))(x * 2, 3, 1)["moved"])
        out, alone = f(xs), f(np.asarray(xs))
        assert out.sharding.spec == rows.spec  # nothing was gathered
        assert_bits_equal(np.asarray(out), alone)


# -- what it takes and gives -------------------------------------------------------------------------------------------


def test_several_results_numbers_and_a_tree() -> None:
    out = move(X, 2.0, 1)
    assert_bits_equal(out["moved"], X * np.float32(2) + np.float32(1))
    assert out["count"].dtype == np.int32 and int(out["count"]) == 100


def test_no_operands_at_all() -> None:
    @volta.kernel(out=volta.ShapeDtypeStruct((3,), "float32"))
    @numba.njit
    def count(out):
        for i in range(3):
            out[i] = i

    assert count().tolist() == [0, 1, 2]
    assert volta.jit(volta.vmap(lambda x: count() * x))(vnp.arange(2.0)).tolist() == [[0, 0, 0], [0, 1, 2]]


@pytest.mark.parametrize(
    "dtype",
    ["bool", pytest.param("int8", marks=pytest.mark.slow), *(
        pytest.param(d, marks=pytest.mark.slow) for d in "int16 int32 int64 uint8 uint16 uint32 uint64 float64".split()
    )],
)  # fmt: skip
def test_every_dtype_that_numba_knows(dtype: str) -> None:
    @volta.kernel(out=lambda x, k: (x, k))
    @numba.njit
    def copy(x, k, out, number):
        number[()] = k
        for i in range(x.size):
            out[i] = x[i]

    x = np.array([0, 1, 1, 0]).astype(dtype)
    out, number = copy(x, x[1])
    assert_bits_equal(out, x)
    assert_bits_equal(number, x[1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_not_numbas(dtype: str) -> None:
    with pytest.raises(KernelError, match=rf"`smooth` is called with {dtype}, .*astype\('float32'\)"):
        smooth(vnp.zeros(3, dtype))


def test_empty_arrays() -> None:
    assert smooth(vnp.zeros(0)).shape == (0,)


def test_what_a_function_leaves_out_is_zero() -> None:
    @volta.kernel(out=volta.ShapeDtypeStruct((1000,), "float32"))
    @numba.njit
    def first(x, out):
        out[0] = x

    vnp.full(1000, 7.0).delete()  # memory that held something
    assert np.asarray(first(3.0)).tolist() == [3.0] + [0.0] * 999


def test_bytes_of_operands_and_results_are_planned_and_bounded() -> None:
    compiled = volta.jit(smooth).lower(X).compile()
    assert compiled.peak_live_bytes == 2 * 448  # 400 bytes each, in lines of 64
    assert "smooth(b0)" in compiled.plan.as_text()
    with volta.execution_context(memory_budget=500), pytest.raises(volta.errors.MemoryBudgetError):
        volta.jit(lambda x: smooth(x))(X)


@pytest.mark.slow
def test_an_import_of_volta_loads_neither_cuda_nor_linear_algebra() -> None:
    code = "import sys, volta; print([m for m in sys.modules if m.startswith(('numba.cuda', 'scipy.linalg'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
