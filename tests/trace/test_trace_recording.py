"""Programs as they are recorded: text, constants, forwarding, dead code, leaks, cost."""

import sys

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.core.ir import Literal
from volta.trace.jaxpr_trace import dce_jaxpr, eval_closed

X = volta.ShapeDtypeStruct((3,), "float32")


def test_text_of_a_program() -> None:
    program = volta.make_jaxpr(lambda x, y: vnp.sin(x) * y + 1.0)(X, X)
    assert str(program) == (
        "{ lambda ; a:f32[3] b:f32[3] . let\n"
        "    c:f32[3] = sin a\n"
        "    d:f32[3] = mul c b\n"
        "    e:f32[3] = add d 1.0:f32[]\n"
        "  in (e,) }"
    )


def test_python_scalars_are_weak_and_take_their_partners_dtype() -> None:
    program = volta.make_jaxpr(lambda x: x * 2)(volta.ShapeDtypeStruct((), "float64"))
    assert program.out_avals[0].short() == "f64[]"
    assert volta.make_jaxpr(lambda x: x * 2)(3).out_avals[0].short() == "i64*[]"  # a number stays one, as Python has it
    assert volta.make_jaxpr(lambda x: x * 2.5)(3).out_avals[0].short() == "f64*[]"
    assert volta.make_jaxpr(lambda x: vnp.sin(x))(3).out_avals[0].short() == "f32*[]"


def test_inputs_are_forwarded_and_dead_equations_dropped() -> None:
    def f(x, y):
        vnp.sin(x)
        return y, x, 3.0

    program = volta.make_jaxpr(f)(X, X)
    a, b = program.jaxpr.invars
    assert program.jaxpr.outvars[:2] == (b, a)
    assert isinstance(program.jaxpr.outvars[2], Literal)
    assert not program.eqns


def test_array_constants_are_kept_as_they_were() -> None:
    table = np.arange(3, dtype=np.float32)
    program = volta.make_jaxpr(lambda x: x + table + table)(X)
    table[:] = 7
    for const in program.consts:
        assert np.asarray(const).tolist() == [0.0, 1.0, 2.0]
    array = vnp.asarray(np.ones(3, np.float32))
    assert len(volta.make_jaxpr(lambda x: x + array * array)(X).consts) == 1


def test_unused_constants_are_dropped() -> None:
    def f(x):
        np_const = vnp.asarray(np.ones(3, np.float32))
        _ = x + np_const
        return x

    assert volta.make_jaxpr(f)(X).consts == ()


def test_programs_evaluate_and_retrace_to_themselves() -> None:
    def f(x, y):
        return vnp.tanh(x * y + 0.5), vnp.sum(x) * 2

    program = volta.make_jaxpr(f)(X, X)
    again = volta.make_jaxpr(lambda *xs: eval_closed(program, *xs))(X, X)
    assert str(again) == str(program)
    x = np.array([1, 2, 3], np.float32)
    for got, want in zip(eval_closed(program, x, x), f(vnp.asarray(x), vnp.asarray(x)), strict=True):
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


def test_dce_for_some_outputs() -> None:
    program = volta.make_jaxpr(lambda x, y: (vnp.sin(x), vnp.cos(y)))(X, X)
    jaxpr, used = dce_jaxpr(program.jaxpr, [False, True])
    assert used == [False, True]
    assert [e.primitive.name for e in jaxpr.eqns] == ["cos"]


def test_equations_know_the_users_line() -> None:
    def f(x):
        y = vnp.sin(x)  # this line
        return vnp.sum(y * y)

    forward = volta.make_jaxpr(f)(X).eqns[0]
    assert forward.source.text().endswith("# this line")
    backward = volta.make_jaxpr(volta.grad(f))(X)
    cos = next(e for e in backward.eqns if e.primitive.name == "cos")
    assert cos.source.text().endswith("# this line")
    # The transposed operation belongs to the line whose derivative it is.
    assert backward.eqns[-1].source.text().endswith("# this line")


@pytest.mark.parametrize("transform", [volta.jit, volta.vmap, lambda f: volta.grad(lambda x: vnp.sum(f(x)))])
def test_a_leaked_tracer_is_named_with_the_line_that_made_it(transform) -> None:
    kept = []

    def f(x):
        kept.append(x * 2)  # made here
        return x

    transform(f)(np.ones(3, np.float32))
    with pytest.raises(volta.errors.UnexpectedTracerError) as caught:
        kept[0] + 1
    message = str(caught.value)
    assert "`f`" in message or "`<lambda>`" in message
    assert "kept.append(x * 2)  # made here" in message
    assert "kept[0] + 1" in message
    assert "Return it" in message


def test_a_leak_into_another_trace_and_into_a_jitted_call() -> None:
    kept = []

    @volta.jit
    def f(x):
        kept.append(x * 2)
        return x

    f(1.0)
    with pytest.raises(volta.errors.UnexpectedTracerError, match="has ended"):
        volta.jit(lambda y: y + kept[0])(1.0)
    with pytest.raises(volta.errors.UnexpectedTracerError, match="has ended"):
        f(kept[0])
    with pytest.raises(volta.errors.UnexpectedTracerError, match="has ended"):
        volta.jit(lambda y: y + 1)(kept[0])


def test_tracing_costs_a_bounded_number_of_calls_an_equation() -> None:
    """A training step has thousands of equations: the work for one does not grow with their number."""
    few, many = _calls_an_equation(50), _calls_an_equation(500)
    assert many < 80
    assert many < 1.02 * few


def _calls_an_equation(steps: int) -> float:
    """Python functions that are entered while a gradient is traced, for each of its equations."""

    def f(x):
        for _ in range(steps):
            x = vnp.tanh(x * 2.0 + x)
        return vnp.sum(x)

    volta.make_jaxpr(volta.grad(f))(X)
    calls = 0

    def count(frame, event, arg) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        program = volta.make_jaxpr(volta.grad(f))(X)
    finally:
        sys.setprofile(before)
    return calls / len(program.eqns)
