"""What Volta is known not to pass of exams that other people wrote, each with its reason. A name may be a pattern."""

from __future__ import annotations

import fnmatch

_IMMUTABLE = "arrays are immutable: x[i] = v is x = x.at[i].set(v), as in JAX"
_NAN = "there is one NaN, which is positive: results have the same bits on every machine"
_FLOORED = "of an infinite operand the result is NumPy's and Python's, NaN or -1, which the standard allows"
_WRITABLE = (
    "before DLPack 1.0 nothing tells a library not to write to an immutable array, so without a version that says so "
    "it gets a copy, and is refused one without a copy"
)

ARRAY_API: dict[str, str] = {
    "test_array_object.py::test_setitem*": _IMMUTABLE,
    "test_special_cases.py::test_unary?signbit(x_i is -NaN) -> True?": _NAN,
    **{
        f"test_special_cases.py::test_{kind}?{name}({case}*": _FLOORED
        for kind, name in (("binary", "floor_divide"), ("binary", "__floordiv__"), ("iop", "__ifloordiv__"))
        for case in ("x1_i is ?infinity and isfinite(x2_i)", "isfinite(x1_i) and x1_i ? 0 and x2_i is ?infinity")
    },
    "test_dlpack.py::test_dunder_dlpack": _WRITABLE,
    "test_creation_functions.py::test_asarray_arrays": _IMMUTABLE,
}
"""Tests of data-apis/array-api-tests."""

_NUMBERS = "Python numbers among themselves are held in 64 bits, as Python holds them, and print so"
_KEPT = "a NumPy array keeps float64; JAX makes it float32"
_DEVICES = "pmap is not offered: vmap with an axis name maps, jit with shardings and shard_map run on several devices"
_NAMES = "the example uses a name that it does not import, or a private module of JAX's"
_TEXTS = "the example shows JAX's text of a program, a tracer or a path"
_SIGNS = "eigenvectors are known up to their sign (a complex number of modulus 1)"


def _each(why: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), why)


JAX_EXAMPLES: dict[str, str] = {
    **_each(_NUMBERS, "jax.checkpoint jax.custom_gradient lax.nextafter lax.optimization_barrier"),
    **_each(_NUMBERS, "tree_util.register_static jax.vmap"),
    **_each(_KEPT, "numpy.array numpy.asarray numpy.polymul"),
    **_each(_DEVICES, "lax.all_gather lax.pmean lax.psum lax.psum_scatter"),
    **_each(_NAMES, "lax.axis_size lax.composite tree_util.flatten_one_level"),
    **_each(_TEXTS, "jax.disable_jit jax.make_jaxpr numpy.einsum_path tree_util.Partial"),
    **_each(_SIGNS, "scipy.linalg.eigh numpy.linalg.eigh numpy.linalg.eig"),
    **_each(_NUMBERS, "errors.TracerIntegerConversionError errors.UnexpectedTracerError"),
    "errors.NonConcreteBooleanIndexError": "x.at[mask].set(number) works under jit, where the example shows an error",
    "errors.TracerArrayConversionError": "NumPy's functions take traced arrays, where the example shows an error",
    "scipy.linalg.rsf2csf": "Schur's forms are known up to the signs (phases) of Z's columns",
    "lax.stop_gradient": "numpy.float32(3.0) is NumPy's number, and so is its square",
    "numpy.broadcast_arrays": "a tuple, as the array API and NumPy have it; JAX's is a list",
    "numpy.copy": "a donated array prints as <donated>, so that printing it raises nothing; reading it does",
    "numpy.save": "the example prints what is in a comment; JAX fails it too",
    "numpy.signbit": _NAN,
}
"""Functions of JAX whose docstrings' examples do not all pass."""


def reason(table: dict[str, str], name: str) -> str | None:
    """Why a test is known to fail; None where it is not."""
    return next((text for pattern, text in table.items() if fnmatch.fnmatchcase(name, pattern)), None)
