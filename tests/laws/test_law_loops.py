"""Loops and choices have the bits of the same written out: forwards, in derivatives, batched, on CUDA's kernels."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.core import pytrees
from volta.numba_cpu import threads
from volta.testing.host_grid import HostKernels, check_on_host
from volta.testing.loops import loop_programs, total
from volta.xla_like.compile import CompileOptions

pytestmark = pytest.mark.turns(6)

PROGRAMS = {p.name: p for p in loop_programs()}
DIFFERENTIABLE = [name for name, p in PROGRAMS.items() if p.differentiable]
QUICK = ("recurrent", "swapped", "nested", "newton", "table", "choosing", "sorting", "switch 1")
QUICK_DIFFERENTIABLE = tuple(name for name in QUICK if name in DIFFERENTIABLE)
KERNELS = HostKernels()


def same(*results):
    flat = [[np.asarray(x) for x in pytrees.leaves(r)] for r in results]
    for columns in zip(*flat, strict=True):
        first = columns[0]
        for x in columns[1:]:
            assert (x.shape, x.dtype) == (first.shape, first.dtype)
            assert x.tobytes() == first.tobytes()


def arrays(args):
    return [vnp.asarray(x) for x in args]


def example(x, k):
    """Another argument for each k: the first is the argument itself."""
    x = vnp.asarray(x)
    return x * k if x.dtype == np.float32 else x + k - 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_is_what_it_is_written_out(name):
    p = PROGRAMS[name]
    args = arrays(p.args)
    same(p.written_out(*args), p.f(*args), volta.jit(p.f)(*args))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_the_loop_written_out(name):
    p = PROGRAMS[name]
    args, numbers = arrays(p.args), p.floats
    got = volta.grad(total(p.f), argnums=numbers)
    same(volta.grad(total(p.written_out), argnums=numbers)(*args), got(*args), volta.jit(got)(*args))


@sampled("name", list(PROGRAMS), quick=QUICK)
def test_forward_derivatives_are_those_of_the_loop_written_out(name):
    p = PROGRAMS[name]
    args, numbers = arrays(p.args), p.floats

    def derivative(f):
        def of(*xs):
            whole = list(args)

            def some(*ys):
                for i, y in zip(numbers, ys, strict=True):
                    whole[i] = y
                return f(*whole)

            return volta.jvp(some, xs, tuple(vnp.cos(x) for x in xs))

        return of

    xs = tuple(args[i] for i in numbers)
    same(derivative(p.written_out)(*xs), derivative(p.f)(*xs), volta.jit(derivative(p.f))(*xs))


@sampled("name", list(PROGRAMS), quick=QUICK)
def test_a_batch_of_loops_is_each_of_them(name):
    p = PROGRAMS[name]
    batch = [vnp.stack([example(x, k) for k in (1, 2, 3)]) for x in p.args]
    each = [p.f(*[x[i] for x in batch]) for i in range(3)]
    same(pytrees.map(lambda *xs: vnp.stack(xs), *each), volta.vmap(p.f)(*batch), volta.jit(volta.vmap(p.f))(*batch))


@sampled("name", DIFFERENTIABLE, quick=QUICK_DIFFERENTIABLE)
def test_a_batch_of_gradients_is_each_of_them(name):
    p = PROGRAMS[name]
    numbers = p.floats
    gradient = volta.grad(total(p.f), argnums=numbers)
    axes = tuple(0 if i in numbers else None for i in range(len(p.args)))
    batch = [
        vnp.stack([vnp.asarray(x) * k for k in (1, 2)]) if i in numbers else vnp.asarray(x)
        for i, x in enumerate(p.args)
    ]
    each = [gradient(*[x[i] if a == 0 else x for x, a in zip(batch, axes, strict=True)]) for i in range(2)]
    same(pytrees.map(lambda *xs: vnp.stack(xs), *each), volta.vmap(gradient, in_axes=axes)(*batch))


@sampled("name", list(PROGRAMS), quick=QUICK)
def test_kernels_for_gpus_have_the_bits_of_the_cpu(name):
    p = PROGRAMS[name]
    check_on_host(p.f, *p.args, kernels=KERNELS)


@sampled("name", DIFFERENTIABLE, quick=QUICK_DIFFERENTIABLE)
def test_kernels_of_gradients_have_the_bits_of_the_cpu(name):
    p = PROGRAMS[name]
    check_on_host(volta.grad(total(p.f), argnums=p.floats), *p.args, kernels=KERNELS)


@sampled("name", list(PROGRAMS), quick=QUICK)
def test_options_of_the_compiler_change_no_bit(name):
    p = PROGRAMS[name]
    args = arrays(p.args)
    want = p.f(*args)
    for change in ({"fusion": False}, {"passes": False}, {"reuse_memory": False}, {"recompute": False}):
        with volta.execution_context(options=CompileOptions(**change)):
            same(want, volta.jit(p.f)(*args))


@sampled("count", [1, 2, 5], quick=[2])
def test_threads_that_run_a_loop_together(count):
    rng = np.random.default_rng(0)
    w, h, xs = (rng.standard_normal(s).astype(np.float32) for s in ((96, 96), (64, 96), (9, 64, 96)))

    def f(w, h, xs):
        step = lambda h, x: (vnp.tanh(h @ w * 0.1 + x), lax.cond(h.sum() > 0, vnp.sin, vnp.cos, h).sum())  # noqa: E731
        h, ys = lax.scan(step, h, xs)
        return lax.while_loop(lambda s: s[1] < 7, lambda s: (s[0] @ w, s[1] + 1), (h, 0))[0], ys

    before = threads.get_num_threads()
    try:
        threads.set_num_threads(1)
        want = volta.jit(f)(w, h, xs)
        threads.set_num_threads(count)
        runs = threads.parallel_runs()
        for _ in range(10):
            same(want, volta.jit(f)(w, h, xs))
        assert count == 1 or threads.parallel_runs() > runs
    finally:
        threads.set_num_threads(before)
