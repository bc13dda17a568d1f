"""What goes wrong with users' kernels: exceptions in them, functions that do not compile, declarations and rules that
do not fit."""

import random

import numba
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.user_kernels import move, smooth
from volta.errors import KernelError, NotDifferentiableError, UnsupportedOperationError
from volta.numba_cuda import device_plan
from volta.numba_cuda.codegen import numba_tools
from volta.numba_cuda.schedule import Schedule
from volta.testing import assert_bits_equal
from volta.xla_like.compile import build_plan

X = np.random.default_rng(0).standard_normal(100).astype(np.float32)
XS = np.random.default_rng(1).standard_normal((3, 5, 100)).astype(np.float32)


def test_an_exception_is_named_with_its_message_and_the_line() -> None:
    said = r"kernel `move` raised ValueError: \('too large', 3\)\.\nIt is called at test_kernel_errors\.py"
    with pytest.raises(KernelError, match=said) as e:
        volta.jit(lambda x: move(x, 1, 0)["moved"] * 2)(np.where(np.arange(100) == 3, 1000, X))
    assert type(e.value.__cause__) is ValueError and e.value.__cause__.args == ("too large", 3)


def test_of_several_elements_the_first_is_named() -> None:
    xs = np.zeros((64, 4096), np.float32)
    xs[[17, 40, 63], [5, 1, 0]] = 1000
    f, before = volta.jit(volta.vmap(lambda x: move(x, 1, 0)["moved"])), volta.get_num_threads()
    try:
        for threads in (1, 2, 4):
            volta.set_num_threads(threads)
            with pytest.raises(KernelError, match=r"\('too large', 5\), for element \(17,\) of its batch \(64,\)"):
                f(xs)
    finally:
        volta.set_num_threads(before)
    assert float(f(np.ones_like(xs)).sum()) == xs.size  # and the next call is as if nothing had been


def test_a_loop_ends_where_a_kernel_raises() -> None:
    @volta.jit
    def forever(x):
        return volta.lax.while_loop(lambda x: x[0] < 1e9, lambda x: move(x, 0, 101)["moved"], x)

    with pytest.raises(KernelError, match="too large"):
        forever(vnp.zeros(3))


def test_a_donated_array_is_kept_where_a_kernel_raises() -> None:
    f = volta.jit(lambda x: (x * 2, move(x, 1, 0)["moved"]), donate_argnums=0)
    x, y = vnp.full(5000, 1000.0), vnp.ones(5000)
    with pytest.raises(KernelError):
        f(x)
    assert not x.is_deleted() and x.tolist() == [1000.0] * 5000
    assert float(f(y)[0][7]) == 2.0 and y.is_deleted()


def test_writing_to_an_operand_does_not_compile() -> None:
    @volta.kernel(out=lambda x: x)
    @numba.njit
    def writes(x, out):
        x[0] = 1

    with pytest.raises(KernelError, match="writes to an operand. Operands are read-only"):
        writes(X)


def test_a_function_that_returns_something() -> None:
    @volta.kernel(out=lambda x: x)
    @numba.njit
    def returns(x, out):
        return x[0]

    with pytest.raises(KernelError, match="returns float32; a kernel fills its results"):
        returns(X)


def kernel_of(function):
    return volta.kernel(out=lambda x: x)(numba.njit(function))


def test_an_exception_without_a_message_and_one_that_ends_with_a_dot() -> None:
    def bare(x, out):
        raise KeyError

    def dotted(x, out):
        raise ValueError("too large.")

    with pytest.raises(KernelError, match=r"kernel `bare` raised KeyError\.\n"):
        kernel_of(bare)(X)
    with pytest.raises(KernelError, match=r"kernel `dotted` raised ValueError: too large\.\n"):
        kernel_of(dotted)(X)


def test_what_numba_fails_at_in_its_own_way_is_named_too() -> None:
    def python(x, out):
        with numba.objmode():
            print(x)

    with pytest.raises(
        KernelError,
        match=r"does not compile for operands float32 of rank 1; results float32 of rank 1: .*numba.objmode",
    ) as e:
        kernel_of(python)(X)
    assert e.value.__cause__ is not None


@pytest.mark.turns(2)
def test_random_numbers_of_numbas_own_are_refused() -> None:
    """The same program would give other bits."""

    @numba.njit
    def draw():
        return random.random()

    def directly(x, out):
        out[0] = np.random.normal()

    def called(x, out):
        out[0] = draw()

    def shuffled(x, out):
        np.random.shuffle(out)

    for function in (directly, called, shuffled):
        with pytest.raises(KernelError, match=f"`{function.__name__}`.* draws random numbers .*volta.random"):
            kernel_of(function)(X)


def test_operands_by_name_and_complex_ones() -> None:
    with pytest.raises(KernelError, match="kernel `smooth` takes its operands by position, got x by name"):
        smooth(x=X)
    with pytest.raises(KernelError, match="kernel `smooth` is called with complex64 or gives it.*x.real and x.imag"):
        smooth(X + 1j)
    real = volta.kernel(out=volta.ShapeDtypeStruct((3,), np.complex128))(numba.njit(lambda x, out: None))
    with pytest.raises(KernelError, match="complex128 or gives it"):
        volta.jit(real)(X)


def test_a_python_integer_that_int32_does_not_hold_is_refused() -> None:
    @volta.kernel(out=lambda x: x)
    @numba.njit
    def doubled(x, out):
        out[()] = x * 2

    with pytest.raises(OverflowError, match="1099511627776 does not fit int32"):
        doubled(2**40)
    assert int(doubled(np.int64(2**40))) == 2**41 and int(doubled(2**30 - 1)) == 2**31 - 2


def test_only_functions_of_numbas_are_decorated() -> None:
    with pytest.raises(KernelError, match="write @numba.njit below it"):
        volta.kernel(out=lambda x: x)(lambda x, out: None)


def test_parallel_is_refused_and_fastmath_at_level_strict() -> None:
    with pytest.raises(KernelError, match="parallel=True"):
        volta.kernel(out=lambda x: x)(numba.njit(parallel=True)(lambda x, out: None))

    @numba.njit(fastmath=True)
    def inner(x):
        return x + 1

    @volta.kernel(out=lambda x: x)
    @numba.njit
    def fast(x, out):
        out[0] = inner(x[0])

    with pytest.raises(UnsupportedOperationError, match="`fast`, or a function that it calls, is .*fastmath"):
        fast(X)
    with volta.execution_context(level="device"):
        assert float(fast(X)[0]) == X[0] + 1


def test_the_number_of_arrays_is_checked_before_anything_is_compiled() -> None:
    with pytest.raises(KernelError, match="takes 2 arrays, but is given 2 operands and 1 results"):
        volta.kernel(out=lambda x, y: x)(numba.njit(lambda x, out: None))(X, X)
    with pytest.raises(KernelError, match="out does not take its 2 operands"):
        volta.kernel(out=lambda x: x)(numba.njit(lambda x, y, out: None))(X, X)
    with pytest.raises(KernelError, match="each result has a shape and a dtype"):
        volta.kernel(out="x")(numba.njit(lambda x, out: None))(X)
    with pytest.raises(KernelError, match="declares no results"):
        volta.kernel(out=())(numba.njit(lambda x: None))(X)
    with pytest.raises(volta.errors.DTypeError, match=r"an operand of `smooth`: number 0 is \(1, 2\) of type tuple"):
        smooth((1, 2))
    with pytest.raises(KernelError, match="takes its operands and results one by one"):
        volta.kernel(out=lambda x: x)(numba.njit(lambda *arrays: None))


class Own(Exception):
    pass


def _raises_its_own(x, out):
    raise Own("mine")


def _divides(x, out):
    out[0] = 1 // int(x[0])


def _reads_beyond(x, out):
    out[0] = x[1000]


@pytest.mark.slow
@pytest.mark.parametrize(
    "function, kind, said",
    [(_raises_its_own, Own, "Own: mine"), (_divides, ZeroDivisionError, "ZeroDivisionError"),
     (_reads_beyond, IndexError, "IndexError: index is out of bounds")],
)  # fmt: skip
def test_every_exception_arrives_as_it_is(function, kind, said) -> None:
    with pytest.raises(KernelError, match=f"raised {said}") as e:
        volta.kernel(out=lambda x: x)(numba.njit(boundscheck=True)(function))(X * 0)
    assert type(e.value.__cause__) is kind


def test_rules_are_asked_for_by_name() -> None:
    @volta.kernel(out=lambda x: x)
    @numba.njit
    def plain(x, out):
        for i in range(x.size):
            out[i] = x[i]

    with pytest.raises(NotDifferentiableError, match="`plain` is differentiated here.*@plain.vjp or @plain.jvp"):
        volta.grad(lambda x: vnp.sum(plain(x)))(X)
    with pytest.raises(NotDifferentiableError, match="@move.jvp"):
        volta.jvp(lambda x: move(x, 1.0, 1.0)["moved"], (X,), (X,))
    with pytest.raises(NotDifferentiableError, match="here they are pushed"):
        volta.linearize(lambda x: move(x, 1.0, 1.0)["moved"], X)[1](X)
    assert float(volta.grad(lambda x: vnp.sum(plain(volta.lax.stop_gradient(x)) * x))(X)[0]) == X[0]

    plain.vjp(lambda operands, result, ct: (ct[:3],))
    with pytest.raises(KernelError, match=r"vjp rule of kernel `plain` gave f32\[3\] for the cotangent of operand 0"):
        volta.grad(lambda x: vnp.sum(plain(x)))(X)
    plain.vjp(lambda operands, result, ct: (ct, ct))
    with pytest.raises(KernelError, match="gave 2 cotangents, but the kernel has 1 operands"):
        volta.grad(lambda x: vnp.sum(plain(x)))(X)
    with pytest.raises(KernelError, match="the vjp rule of kernel `plain` is a function"):
        plain.vjp(3)

    plain.jvp(lambda operands, result, tangents: plain(tangents[0]))
    del plain._record.rules["vjp"]
    with pytest.raises(NotDifferentiableError, match="applies kernel `plain` to tangents"):
        volta.grad(lambda x: vnp.sum(plain(x)))(X)
    plain.jvp(lambda operands, result, tangents: tangents[0] * 3)
    assert float(volta.grad(lambda x: vnp.sum(plain(x)))(X)[0]) == 3.0  # Volta's own operations run backwards


def test_a_batch_rule_takes_the_place_of_the_loop() -> None:
    @volta.kernel(out=lambda x, k: x)
    @numba.njit
    def shift(x, k, out):
        for i in range(x.size):
            out[i] = x[i] + k

    seen = []

    @shift.batch
    def _(size, batched, x, k):
        seen.append((size, batched))
        return (x + k[:, None] if batched[1] else x + k), True

    xs = XS[0]
    assert_bits_equal(volta.vmap(shift, in_axes=(0, None))(xs, 1.0), xs + np.float32(1))
    assert_bits_equal(volta.jit(volta.vmap(shift))(xs, xs[:, 0]), xs + xs[:, :1])
    assert seen == [(5, [True, False]), (5, [True, True])]
    shift.batch(lambda size, batched, x, k: (x[0], True))
    with pytest.raises(KernelError, match=r"the batch rule of kernel `shift` gave f32\[100\] for a result"):
        volta.vmap(shift, in_axes=(0, None))(xs, 1.0)
    shift.batch(lambda size, batched, x, k: x)
    with pytest.raises(KernelError, match="must return"):
        volta.vmap(shift, in_axes=(0, None))(xs, 1.0)


def test_on_gpus_it_needs_a_function_for_them() -> None:
    """Asked without a GPU, and without numba-cuda."""
    plan, _ = build_plan(volta.make_jaxpr(smooth)(X), scheduler=Schedule())
    with pytest.raises(UnsupportedOperationError, match=r"`smooth` has no function for GPUs: .*@smooth.cuda\(grid="):
        device_plan.device_plan(plan)
    with pytest.raises(KernelError, match="decorates an @numba.cuda.jit function"):
        smooth.cuda(grid=1)(numba.njit(lambda x, out: None))
    with pytest.raises(KernelError, match="needs a grid"):
        smooth.cuda(grid=None)
    with pytest.raises(KernelError, match="grid and block are of @numba.cuda.jit functions"):
        volta.kernel(out=lambda x: x, grid=3)(numba.njit(lambda x, out: None))


def test_without_numba_cuda_it_says_what_to_install(monkeypatch) -> None:
    class CUDADispatcher:
        targetoptions: dict = {}
        py_func = staticmethod(lambda x, out: None)

        def __call__(self) -> None: ...

    def missing(name: str) -> None:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(numba_tools.importlib, "import_module", missing)
    numba_tools.tools.cache_clear()
    kernel = volta.kernel(out=lambda x: x, grid=1)(CUDADispatcher())
    plan, _ = build_plan(volta.make_jaxpr(kernel)(X), scheduler=Schedule())
    with pytest.raises(UnsupportedOperationError, match=r"needs numba-cuda, .*pip install 'volta\[numba-cuda\]'"):
        device_plan.device_plan(plan)
    with pytest.raises(UnsupportedOperationError, match="has a function for GPUs only"):
        kernel(X)
