"""NaN and infinities are found where they arise: the operation, its operands, the user's line."""

from __future__ import annotations

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import errors, lax
from volta.testing import assert_bits_equal

F = np.float32
BAD = F([4.0, -1.0, 9.0])


def rooted(x):
    y = x * 2
    z = vnp.sqrt(y)  # makes it
    return vnp.sum(z * 3) + 1


def scanned(x):
    def body(c, v):
        return c + vnp.log(v), v  # makes it

    return lax.scan(body, F(0), x)[0]


def chosen(x):
    return lax.cond(x[0] > 0, lambda v: vnp.sum(vnp.log(v)), lambda v: vnp.sum(v), x)  # makes it


def waited(x):
    return lax.while_loop(lambda c: c[1] < 3, lambda c: (vnp.sqrt(c[0] - 1), c[1] + 1), (x, np.int32(0)))[0]  # makes it


PROGRAMS = {"sqrt": rooted, "log": scanned, "log ": chosen, "sqrt ": waited}


def message(f, *args) -> str:
    with volta.debug_nans(), pytest.raises(errors.NotFiniteError) as caught:
        f(*args)
    return str(caught.value)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_first_operation_and_its_line_are_named(name: str) -> None:
    f = PROGRAMS[name]
    for wrapped in (f, volta.jit(f), volta.jit(lambda x: volta.jit(f)(x) * 2)):
        text = message(wrapped, BAD)
        assert f"`{name.strip()}` made the first NaN" in text
        assert "# makes it" in text and "test_nans.py" in text
    assert ", of " in text and "-" in text  # the operand that it does not take


def test_in_derivatives_and_batches() -> None:
    f = lambda x: vnp.sum(vnp.sqrt(x) * 0)  # noqa: E731
    text = message(volta.jit(volta.grad(f)), F([0.0, 1.0]))
    assert "made the first NaN" in text and "in the backward pass of this line" in text
    assert "`sqrt` made the first NaN" in message(volta.vmap(lambda x: vnp.sqrt(x)), BAD)
    assert "`sqrt` made the first NaN" in message(lambda x: volta.grad(rooted)(x), BAD)


def test_what_arguments_bring_is_said_to_be_theirs() -> None:
    assert "`add` gave NaN, which an operand had already" in message(volta.jit(lambda x: x + 1), F(np.nan))
    assert "hands on NaN, which an argument has" in message(volta.jit(lambda x: (x, x + 0)[0]), F(np.nan))


def test_finite_programs_and_hidden_nans_pass_with_their_bits() -> None:
    f = volta.jit(lambda x: vnp.sum(vnp.where(x > 0, vnp.log(x), 0)))
    expected = f(BAD)
    with volta.debug_nans():
        assert_bits_equal(f(BAD), expected)  # the NaN reaches no result
        with volta.debug_nans(False):
            assert np.isnan(vnp.log(F(-1)))
        assert int(volta.jit(lambda i: i + 1)(3)) == 4
    assert np.isnan(vnp.log(F(-1)))


def test_infinities() -> None:
    f = volta.jit(lambda x: 1 / x)
    with volta.debug_nans():
        assert np.isinf(f(F(0)))
    with volta.debug_infs(), pytest.raises(FloatingPointError, match="`div` made the first inf in"):
        f(F(0))
    with volta.debug_infs(), volta.debug_nans(), pytest.raises(errors.NotFiniteError, match="first NaN"):
        volta.jit(vnp.log)(F(-1))


def test_donated_arguments_and_narrow_floats() -> None:
    f = volta.jit(lambda x: vnp.log(x), donate_argnums=0)
    assert "`log` made the first NaN" in message(f, vnp.asarray(BAD))
    assert "`log` made the first NaN" in message(volta.jit(vnp.log), vnp.asarray(BAD).astype("bfloat16"))


def test_programs_that_call_python_are_looked_at_part_by_part() -> None:
    calls = []

    def f(x):
        volta.debug.callback(lambda x: calls.append(1), x)
        return vnp.log(x)

    assert "`log` made the first NaN" in message(volta.jit(f), BAD)
    assert calls == [1]
