"""What Volta is known not to pass of exams that other people wrote, each with its reason. A name may be a pattern."""

from __future__ import annotations

import fnmatch

_IMMUTABLE = "arrays are immutable: x[i] = v is x = x.at[i].set(v), as in JAX"
_NAN = "there is one NaN, which is positive: results have the same bits on every machine"
_FLOORED = "of an infinite operand the result is NumPy's and Python's, NaN or -1, which the standard allows"

ARRAY_API: dict[str, str] = {
    "test_array_object.py::test_setitem*": _IMMUTABLE,
    "test_special_cases.py::test_unary?signbit(x_i is -NaN) -> True?": _NAN,
    **{
        f"test_special_cases.py::test_{kind}?{name}({case}*": _FLOORED
        for kind, name in (("binary", "floor_divide"), ("binary", "__floordiv__"), ("iop", "__ifloordiv__"))
        for case in ("x1_i is ?infinity and isfinite(x2_i)", "isfinite(x1_i) and x1_i ? 0 and x2_i is ?infinity")
    },
}
"""Tests of data-apis/array-api-tests."""

JAX_EXAMPLES: dict[str, str] = {}
"""Functions of JAX whose docstrings' examples do not all pass."""


def reason(table: dict[str, str], name: str) -> str | None:
    """Why a test is known to fail; None where it is not."""
    return next((text for pattern, text in table.items() if fnmatch.fnmatchcase(name, pattern)), None)
