"""The campaign of random expressions: a sample of it, and that it finds what it is there for."""

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.expressions import __main__ as campaign
from tests.expressions import references
from tests.expressions.comparing import run, same
from tests.expressions.differences import declared
from tests.expressions.drawing import Expression, Step, draw
from tests.expressions.families import FAMILIES
from tests.expressions.functions import FUNCTIONS
from volta import lax

F32 = np.dtype("float32")


def undeclared(expression, with_jax):
    return [str(f) for f in run(expression, with_jax) if declared(f) is None]


@pytest.mark.parametrize("first, count", [(0, 30), (30, 30), pytest.param(60, 1000, marks=pytest.mark.slow)])
@pytest.mark.turns(6)
def test_a_sample_beside_numpy(first, count):
    with np.errstate(all="ignore"):
        for number in range(first, first + count):
            assert not undeclared(draw(0, number), False), draw(0, number)


@pytest.mark.parametrize("first, count", [(0, 6), pytest.param(6, 300, marks=pytest.mark.slow)])
@pytest.mark.turns(2)
def test_a_sample_beside_jax(first, count):
    pytest.importorskip("jax")
    with np.errstate(all="ignore"):
        for number in range(first, first + count):
            assert not undeclared(draw(0, number), True), draw(0, number)


def test_a_seed_and_a_number_are_one_expression():
    texts = [str(draw(7, n)) for n in range(40)]
    assert texts == [str(draw(7, n)) for n in range(40)] and len(set(texts)) == 40
    assert texts != [str(draw(8, n)) for n in range(40)]


def test_every_function_is_drawn():
    drawn = {step.function.name for n in range(1200) for step in draw(0, n).steps}
    assert drawn == set(FUNCTIONS)


@pytest.mark.parametrize("family, count", [("complex", 12), ("matrices", 6), ("signals", 12), ("rules", 12)])
@pytest.mark.turns(6)
def test_a_sample_of_each_family(family, count):
    with np.errstate(all="ignore"):
        for number in range(count):
            expression = draw(0, number, family)
            assert not undeclared(expression, False), expression


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_more_of_each_family_beside_jax(family):
    pytest.importorskip("jax")
    with np.errstate(all="ignore"):
        for number in range(60):
            expression = draw(1, number, family)
            assert not undeclared(expression, True), expression


def test_conditions_of_a_family_are_kept():
    """Matrices are square and of usual size, a number of a rule is small: what else comes out of a step is left out."""
    large = np.full((3, 3), 1e6, np.float32)
    assert not run(expression_of("linalg.inv", large), False) and not run(expression_of("linalg.inv", X), False)


def expression_of(name, *leaves, regular=False, number=0, **params):
    return Expression(number, leaves, (Step(FUNCTIONS[name], tuple(range(len(leaves))), params),), regular)


def findings(monkeypatch, name, fault, *leaves, with_jax=False, **more):
    """What is found where a function of volta.numpy is replaced by a wrong one."""
    right = getattr(vnp, name)
    monkeypatch.setattr(vnp, name, lambda *xs, **params: fault(right, *xs, **params))
    found = run(expression_of(f"numpy.{name}", *leaves, **more), with_jax)
    assert all(declared(f) is None for f in found)
    return [(f.what, f.reference) for f in found]


X = np.float32([0.0, 1.5, np.inf])


@pytest.mark.parametrize(
    "name, leaves, fault",
    [
        ("exp", (X,), lambda f, x: f(x) * np.float32(1.00001)),  # some ULP
        ("abs", (-X[:1],), lambda f, x: -f(x)),  # the sign of a zero
        ("maximum", (X, X[::-1].copy()), lambda f, x, y: x),
        ("sqrt", (-X,), lambda f, x: vnp.where(f(x) == f(x), f(x), 0)),  # a number for NaN
        ("power", (X, 2.0), lambda f, x, y: x * x * x),
        ("sum", (X[:2],), lambda f, x: f(x) + 1),
    ],
)
def test_wrong_results_are_found(monkeypatch, name, leaves, fault):
    assert ("value", "numpy") in findings(monkeypatch, name, fault, *leaves)


def test_results_of_a_wrong_kind_or_shape_are_found(monkeypatch):
    assert ("dtype", "numpy") in findings(monkeypatch, "equal", lambda f, x, y: f(x, y) * 1.0, X, X)
    assert ("shape", "numpy") in findings(monkeypatch, "sum", lambda f, x: f(x)[None], X)


def test_programs_that_differ_from_their_steps_are_found(monkeypatch):
    calls = []

    def second_call_differs(right, x):
        calls.append(x)
        return right(x) if len(calls) == 1 else right(x) + 1

    assert ("bits", "eager") in findings(monkeypatch, "tanh", second_call_differs, X)


def test_what_jax_has_otherwise_is_found(monkeypatch):
    pytest.importorskip("jax")
    with np.errstate(all="ignore"):
        wide = lambda f, x, y: f(x, y).astype("float64")  # noqa: E731
        assert ("dtype", "jax") in findings(monkeypatch, "add", wide, X, 1.0, with_jax=True)
        strong = lambda f, x, y: f(x, y).astype("float32")  # noqa: E731
        assert ("weak type", "jax") in findings(monkeypatch, "multiply", strong, 2.0, np.int32([3]), with_jax=True)
        refused = lambda f, x: vnp.zeros(2) + vnp.zeros(3)  # noqa: E731
        assert findings(monkeypatch, "cos", refused, X, with_jax=True) == [("error", "jax")]


def test_wrong_derivatives_are_found(monkeypatch):
    pytest.importorskip("jax")
    x = np.float32([0.5, 1.0, 2.0])
    cut = lambda f, x: f(lax.stop_gradient(x))  # noqa: E731
    found = findings(monkeypatch, "sin", cut, x, with_jax=True, regular=True)
    assert ("first derivative by 0", "jax") in found and ("second derivative by 0", "jax") in found


def test_rules_that_are_not_followed_are_found(monkeypatch):
    """The derivative of what a rule stands for is another than the rule's."""
    pytest.importorskip("jax")
    monkeypatch.setattr(volta, "custom_jvp", Ruleless)
    monkeypatch.setattr(volta, "custom_vjp", Ruleless)
    for rule in ("rules.custom_jvp", "rules.custom_vjp"):
        found = run(expression_of(rule, np.float32([0.5, 1.0, 2.0]), regular=True, of="tanh"), True)
        assert {f.what for f in found} == {"first derivative by 0", "second derivative by 0"}, rule


class Ruleless:
    """A function whose rules are not heard."""

    def __init__(self, f):
        self.f = f

    def __call__(self, *xs):
        return self.f(*xs)

    def defjvp(self, rule):
        return rule

    def defvjp(self, forward, backward):
        pass


def test_wrong_matrices_and_signals_are_found(monkeypatch):
    x = np.float32([[0.5, 1.0, 2.0], [-1.0, 0.25, 0.5], [0.0, 1.0, -2.0]])
    monkeypatch.setattr(vnp.linalg, "inv", lambda x: x)
    monkeypatch.setattr(vnp.fft, "fft", lambda x: vnp.fft.ifft(x))
    assert [f.what for f in run(expression_of("linalg.inv", x), False)] == ["value"]
    assert [f.what for f in run(expression_of("fft.fft", x), False)] == ["value"]


def test_results_beside_sums_that_leave_the_range():
    far = np.float64([1.9])
    assert same(far, np.array([0.0]), far.dtype, 64.0, np.inf, True).all()
    assert not same(far, np.array([0.0]), far.dtype, 64.0, 1e10, True).any()


def test_complex_numbers_are_compared_by_their_distance():
    one, dtype = np.complex64([1 + 1j]), np.dtype("complex64")
    assert same(one * np.complex64(1 + 2**-22), one.astype(complex), dtype, 4.0, 0.0, True).all()
    assert not same(one.conj(), one.astype(complex), dtype, 4.0, 0.0, True).any()
    assert not same(one + np.complex64(2**-17 * 1j), one.astype(complex), dtype, 4.0, 0.0, True).any()
    assert not same(one, one * np.nan, dtype, 4.0, 0.0, True).any()
    assert not same(one * np.complex64(np.nan), one.astype(complex), dtype, 4.0, 0.0, True).any()
    assert same(one * np.complex64(np.nan), one * np.inf, dtype, 4.0, 0.0, True).all()


def test_numbers_are_compared_in_units_in_the_last_place():
    one = np.float32([1.0])
    assert same(one + np.float32(2**-22), one, F32, 4.0, 0.0, True).all()
    assert not same(one + np.float32(2**-20), one, F32, 4.0, 0.0, True).any()
    assert same(np.float32([np.nan, np.inf]), np.array([np.nan, np.inf]), F32, 1.0, 0.0, True).all()
    assert not same(np.float32([0.0]), np.array([-0.0]), F32, 1.0, 0.0, True).any()
    assert same(np.float32([0.0]), np.array([-0.0]), F32, 1.0, 0.0, False).all()
    assert same(np.float32([np.inf]), np.array([3.40282356e38]), F32, 1.0, 0.0, True).all(), "rounded to infinity"
    assert not same(np.float32([np.inf]), np.array([3.3e38]), F32, 4.0, 0.0, True).any()
    assert not same(np.float32([1.0]), np.array([np.nan]), F32, 4.0, 0.0, True).any()


def test_the_command(monkeypatch, capsys):
    monkeypatch.setattr(references, "jax", None)
    monkeypatch.setattr("sys.argv", ["expressions", "--cases", "5"])
    with np.errstate(all="ignore"):
        assert campaign.main() == 0
    assert "5 expressions beside NumPy (JAX is not installed): 0 undeclared" in capsys.readouterr().out
    wrong = attrs.evolve(FUNCTIONS["numpy.abs"], numpy=np.negative)
    monkeypatch.setattr(
        campaign, "draw", lambda seed, n, family: Expression(n, (X + 1,), (Step(wrong, (0,), {}),), False)
    )
    with np.errstate(all="ignore"):
        assert campaign.main() == 1
    out = capsys.readouterr().out
    assert "undeclared: numpy.abs value numpy" in out and "0: numpy.abs(v0): value" in out


def test_results_that_are_bounded_are_not_measured_by_their_operands():
    step = Step(FUNCTIONS["special.gammainc"], (), {})
    _, size = references.by_numpy(step, [np.float64(1e30), np.float64(1e30)], np.dtype("float64"))
    assert size == 1.0 and not same(np.float64(0.4), np.float64(0.5), np.dtype("float64"), 64.0, size, False)


def test_jax_has_vectors_of_any_length():
    pytest.importorskip("jax")
    step = Step(FUNCTIONS["numpy.sin"], (), {})
    assert references.by_jax(step, [np.zeros((2, 6), "float32")]).shape == (2, 6)
