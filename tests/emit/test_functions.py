"""Digests of what functions mean: equal for equal code, another one for every change that Numba would compile in."""

import enum
import math
import types

import numba
import numpy as np
import pytest

import volta.numba as vn
from volta.emit.functions import called, digest_of, is_dispatcher

SCALE = 2.0
SETTINGS = types.ModuleType("settings_of_a_test")


class Mode(enum.Enum):
    FAST = 1


def _make(code: str, **names) -> types.FunctionType:
    """The function ``f`` of some text; equal texts give equal functions, wherever they stand."""
    space = dict(names)
    exec(compile(code, "<a test>", "exec"), space)
    return space["f"]


def test_equal_functions_have_equal_digests_and_other_code_another() -> None:
    text = "def f(x, out):\n    out[0] = x[0] * K\n"
    assert digest_of(_make(text, K=2.0)) == digest_of(_make("\n\n" + text, K=2.0))
    assert digest_of(_make(text, K=2.0)) != digest_of(_make(text.replace("*", "+"), K=2.0))
    assert digest_of(_make(text, K=2.0)) == digest_of(_make(text, K=2.0, unused=3))


VALUES = [
    2.0, 2, True, -0.0, 0.0, "2.0", b"2", None, (2.0,), [2.0], {"a": 2.0}, np.float32(2), np.float64(2),
    np.array([2.0]), np.array([2.0], np.float32), np.array([[2.0]]), np.int64(2), 2 + 0j, Mode.FAST, np.float32,
    np.dtype("float32"), math.exp, np.exp, float("nan"), frozenset({2}), 2.0000000000000004,
]  # fmt: skip


def test_every_value_of_a_global_or_a_cell_counts() -> None:
    """All of these are different, by value, by dtype, by shape, by sign."""
    by_global = [digest_of(_make("def f(x):\n    return K\n", K=v)) for v in VALUES]
    assert None not in by_global and len(set(by_global)) == len(VALUES)

    def holding(value):
        return lambda x: value

    by_cell = [digest_of(holding(v)) for v in VALUES]
    assert None not in by_cell and len(set(by_cell)) == len(VALUES)
    by_default = [digest_of(_make("def f(x, k=K):\n    return k\n", K=v)) for v in VALUES]
    assert len(set(by_default)) == len(VALUES)


def test_functions_that_are_called_count_at_any_depth() -> None:
    def built(k):
        inner = numba.njit(_make("def f(x):\n    return x * K\n", K=k))
        middle = _make("def f(x):\n    return inner(x) + 1\n", inner=inner)
        return numba.njit(_make("def f(x):\n    return middle(x)\n", middle=middle))

    assert digest_of(built(1)) == digest_of(built(1)) != digest_of(built(2))
    found = called(built(1))
    assert len(found) == 3 and sum(map(is_dispatcher, found)) == 2


def test_functions_that_call_each_other() -> None:
    space: dict = {}
    exec("def f(n):\n    return g(n - 1) if n else 0\ndef g(n):\n    return f(n - 1) if n else 1\n", space)
    assert digest_of(space["f"]) and digest_of(space["f"]) != digest_of(space["g"])
    assert len(called(space["f"])) == 2


def test_options_of_the_compiler_and_attributes_of_modules_count() -> None:
    plain = _make("def f(x):\n    return x\n")
    assert digest_of(numba.njit(plain)) != digest_of(numba.njit(fastmath=True)(plain))
    assert digest_of(numba.njit(_module_level)) == digest_of(numba.njit(cache=True)(_module_level))
    SETTINGS.ALPHA, f = 1.0, _make("def f(x):\n    return x * S.ALPHA\n", S=SETTINGS)
    before = digest_of(f)
    SETTINGS.ALPHA = 1.5
    assert digest_of(f) != before


def _module_level(x):
    return x * SCALE


@pytest.mark.parametrize("value", [object(), type("Own", (), {})(), np.array([object()])])
def test_what_cannot_be_told_has_no_digest(value) -> None:
    assert digest_of(_make("def f(x):\n    return K\n", K=value)) is None


def test_voltas_own_functions_are_told_by_name() -> None:
    text = "def f(x):\n    return vn.F(x)\n"
    first, second = (digest_of(_make(text.replace("F", name), vn=vn)) for name in ("exp", "sum"))
    assert first and second and first != second
    assert digest_of(_make("def f(x):\n    return exp(x)\n", exp=vn.exp)) != digest_of(
        _make("def f(x):\n    return exp(x)\n", exp=vn.log)
    )
