"""`volta.njit`: compiled programs called by code that Numba compiles, with their bits."""

import threading

import numba
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.user_kernels import move, smooth
from volta.errors import KernelError
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((16, 64)).astype(np.float32), RNG.standard_normal((64, 10)).astype(np.float32)


def model(x, w):
    return volta.nn.softmax(vnp.tanh(x @ w) * 2)


JITTED = volta.jit(model)
PROGRAM = volta.njit(JITTED.lower(X, W).compile())


def test_it_has_the_programs_bits_in_loops_of_ones_own() -> None:
    @numba.njit
    def each(xs, w):
        return [PROGRAM(xs[i], w) for i in range(xs.shape[0])]

    xs = RNG.standard_normal((5, 16, 64)).astype(np.float32)
    assert_bits_equal(np.stack(each(xs, W)), np.stack([JITTED(x, W) for x in xs]))
    assert_bits_equal(PROGRAM(X, W), np.asarray(JITTED(X, W)))  # Python calls it as well


@pytest.mark.slow
def test_arrays_of_any_layout() -> None:
    assert_bits_equal(PROGRAM(np.asfortranarray(X), W), np.asarray(JITTED(X, W)))
    assert_bits_equal(PROGRAM(np.stack([X, X], 1)[:, 0], W), np.asarray(JITTED(X, W)))
    fixed = X.copy()
    fixed.flags.writeable = False
    assert_bits_equal(PROGRAM(fixed, W), np.asarray(JITTED(X, W)))


@pytest.mark.slow
def test_in_a_parallel_loop_of_numbas() -> None:
    @numba.njit(parallel=True)
    def each(xs, w):
        out = np.empty((xs.shape[0], 16, 10), np.float32)
        for i in numba.prange(xs.shape[0]):
            out[i] = PROGRAM(xs[i], w)
        return out

    xs = RNG.standard_normal((64, 16, 64)).astype(np.float32)
    assert_bits_equal(each(xs, W), np.stack([JITTED(x, W) for x in xs]))


def test_from_threads_at_once() -> None:
    """They run side by side, without the interpreter's lock: each has a launch table of its own."""
    xs, found = RNG.standard_normal((4, 16, 64)).astype(np.float32), {}

    def run(i: int) -> None:
        for _ in range(200):
            found[i] = PROGRAM(xs[i], W)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, out in found.items():
        assert_bits_equal(out, np.asarray(JITTED(xs[i], W)))


def test_numbers_several_results_passed_arguments_and_constants() -> None:
    table = vnp.arange(3.0)

    def f(x, k):
        y = x * k
        return {"a": y, "b": (k + 1, x, table, y)}

    jitted = volta.jit(f)
    program = volta.njit(jitted.lower(X[0], np.float32(1)).compile())
    y, k, x, constant, again = program(X[0], np.float32(3))
    expected = jitted(X[0], np.float32(3))
    assert_bits_equal(y, np.asarray(expected["a"]))
    assert np.float32(k) == 4 and x is not X and constant.tolist() == [0, 1, 2]
    assert_bits_equal(x, X[0])
    y[0], constant[0] = 99, 99  # each is an array of its own
    assert again[0] != 99 and program(X[0], np.float32(3))[3][0] == 0


def test_loops_choices_and_kernels_of_ones_own() -> None:
    @volta.jit
    def f(x):
        return volta.lax.while_loop(lambda x: x[0] < 50, lambda x: smooth(x) * 2, vnp.abs(x) + 1)

    assert_bits_equal(volta.njit(f.lower(X[0]).compile())(X[0]), np.asarray(f(X[0])))


def test_a_kernel_that_raises_in_it() -> None:
    program = volta.njit(volta.jit(lambda x: move(x, 1, 0)["moved"]).lower(X[0]).compile())

    @numba.njit
    def caller(x):
        return program(x)

    for call in (program, caller) * 10:  # what an exception holds is freed once
        with pytest.raises(
            KernelError, match=r"kernel `move` raised ValueError: .*\n.*It is called at.*test_njit"
        ) as seen:
            call(X[0] + 1000)
        assert isinstance(seen.value.__cause__, ValueError)
    assert_bits_equal(program(X[0]), X[0])


def test_another_kind_of_argument_is_an_error_of_types() -> None:
    said = r"`model` was compiled for f32\[16,64\] as argument 0, got array\(float64, 2d, C\)"
    with pytest.raises(numba.TypingError, match=said):
        PROGRAM(X.astype(np.float64), W)
    with pytest.raises(numba.TypingError, match=r"got array\(float32, 1d, C\)"):
        PROGRAM(X[0], W)
    with pytest.raises(ValueError, match=r"compiled for f32\[16,64\] as argument 0, got another shape"):
        PROGRAM(X[:3], W)


def test_what_is_no_program_for_it() -> None:
    with pytest.raises(KernelError, match="takes a compiled program"):
        volta.njit(JITTED)
    with pytest.raises(KernelError, match="`<lambda>` donates arguments"):
        volta.njit(volta.jit(lambda x: x + 1, donate_argnums=0).lower(X).compile())
    with pytest.raises(KernelError, match=r"takes or gives f16\[3\], which Numba does not know"):
        volta.njit(volta.jit(lambda x: x).lower(vnp.ones(3, "float16")).compile())


@pytest.mark.slow
def test_numba_keeps_no_caller_of_it_on_disk(tmp_path, monkeypatch) -> None:
    """Its code has addresses of this process in it."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    caller = numba.njit(cache=True)(_calls_it)
    with pytest.warns(numba.errors.NumbaWarning, match="dynamic globals"):
        caller(X, W)
    assert not list(tmp_path.rglob("*.nbc"))


def _calls_it(x, w):
    return PROGRAM(x, w)
