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


_IN_PLACE = "arrays are immutable; JAX refuses it too where it is given"
_PLACED = "lax.with_sharding_constraint says how a result is cut; under as_jax samplers and products take it"
_ORDERS = "there is one stable algorithm, and no fields; JAX refuses them too"
_SWITCHED = "the context manager takes one argument, by position"
_PLATFORM = "functions run where their arguments are; volta.execution_context holds what a compilation is for"
_COUNTED = "negative starts count from the end, as JAX's default has it"
_ONE_WAY = "there is one algorithm, whose bits the contract states"

JAX_PARAMETERS: dict[str, str] = {
    "*(out=)": _IN_PLACE,
    "*(out_sharding=)": _PLACED,
    "*.full*(sharding=)": _PLACED,
    "numpy.*(where=)": "JAX refuses it; volta.numpy.where chooses",
    "numpy.*sort(kind=)": _ORDERS,
    "numpy.*sort(order=)": _ORDERS,
    "numpy.argsort(dtype=)": "positions are int32 where these suffice, as JAX's are",
    "jax.*(new_val=)": _SWITCHED,
    "jax.*(backend=)": _PLATFORM,
    "jax.jit(*=)": _PLATFORM,
    "jax.local_devices(*=)": _PLATFORM,
    "jax.device_put(src=)": "arrays are not moved from a place that is named; the first argument says where they are",
    "jax.device_put(*=)": "memory is not shared between devices, and donation is an argument of jit",
    "jax.*(concrete=)": "deprecated in JAX, where it does nothing",
    "jax.*(reduce_axes=)": "a derivative by what is mapped is summed by lax.psum",
    "jax.jac*(allow_int=)": "derivatives by integers are float0, which no Jacobian has rows of",
    "jax.fwd_and_bwd(*=)": "vjp has aux; jit around it compiles",
    "jax.make_*(*=)": "arrays have the dtype of their parts, and axes of meshes are all of one kind",
    "jax.shard_map(axis_names=)": "all axes of the mesh are those of the function",
    "jax.vmap(sum_match=)": "an internal of JAX's",
    "lax.*(allow_negative_indices=)": _COUNTED,
    "lax.*(accuracy=)": "functions have the accuracy that docs/functions.md lists",
    "lax.all_gather(to=)": "how results vary over devices is not a type here",
    "lax.conv_transpose(use_consistent_padding=)": "padding is counted as JAX's default counts it",
    "lax.dot(dimension_numbers=)": "lax.dot_general has them",
    "lax.mul(out_dtype=)": "convert_element_type widens the operands",
    "lax.ragged_dot(group_offset=)": "groups are counted from the first; JAX refuses it too on CPUs",
    "lax.switch(operand=)": "deprecated in JAX: operands are given by position",
    "lax.linalg.*(x=)": "a matrix is given by position",
    "lax.linalg.tridiagonal_solve(perturb_singular=)": "a singular system gives infinities and NaN",
    "nn.dot_product_attention(*=)": _ONE_WAY,
    "nn.standardize(algorithm=)": _ONE_WAY,
    "numpy.convolve(preferred_element_type=)": "results have the operands' dtype; astype widens them",
    "numpy.correlate(preferred_element_type=)": "results have the operands' dtype; astype widens them",
    "numpy.digitize(method=)": _ONE_WAY,
    "numpy.empty_like(prototype=)": "it is zeros_like, whose argument is a",
    "numpy.around(a=)": "it is round",
    "random.key_dtype(impl_spec=)": "its name is impl, as in random.key",
    "scipy.special.log_ndtr(series_order=)": _ONE_WAY,
    "dtypes.issubdtype(*=)": "two types, given by position",
    "dtypes.result_type(return_weak_type_flag=)": "an internal of JAX's; x.weak_type says it",
    "dlpack.from_dlpack(external_array=)": "an array, given by position",
    "tree*path(is_leaf_takes_path=)": "is_leaf is asked of nodes; a path is what map_with_path gives",
    "tree_util.register_dataclass(*=)": "a class, given by position; every field is data or says that it is not",
}
"""Parameters of JAX's functions that Volta's do not have, or not by that name."""


def reason(table: dict[str, str], name: str) -> str | None:
    """Why a test is known to fail; None where it is not."""
    return next((text for pattern, text in table.items() if fnmatch.fnmatchcase(name, pattern)), None)
