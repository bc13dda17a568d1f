"""NumPy's functions on Volta's arrays, under NumPy's names and with JAX's semantics.

Functions trace, differentiate and compile; arrays are immutable. Python numbers are weakly typed: they take the dtype
of the array they meet. float32 and float64 live side by side; the default float is float32, the default int int32.

>>> import volta.numpy as vnp
>>> vnp.sum(vnp.arange(4) * 0.5)
Array(3., dtype=float32)
"""

# ruff: noqa: I001 - packed, so that the names can be read at a glance
# fmt: off
from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.core.array import Array as ndarray
from volta.numpy import fft, linalg, methods, ufunc_methods  # noqa: F401  (these two put operators on arrays, and methods on functions)
from volta.numpy.along import put_along_axis, take_along_axis
from volta.numpy.binary import (
    add, allclose, arctan2, array_equal, array_equiv, atan2, bitwise_and, bitwise_left_shift, bitwise_or,
    bitwise_right_shift, bitwise_xor, clip, copysign, divide, equal, fmax, fmin, greater, greater_equal, heaviside,
    isclose, ldexp, left_shift, less, less_equal, logical_and, logical_or, logical_xor, maximum, minimum, multiply,
    nextafter, not_equal, piecewise, right_shift, select, subtract, true_divide,
)
from volta.numpy.calculus import diff, ediff1d, gradient, interp, trapezoid, unwrap
from volta.numpy.complexes import (
    angle, conj, conjugate, imag, iscomplex, iscomplexobj, isreal, isrealobj, real, sort_complex,
)
from volta.numpy.contractions import (
    convolve, correlate, cross, dot, inner, kron, matmul, matvec, outer, tensordot, vdot, vecdot, vecmat,
)
from volta.numpy.creation import (
    arange, array, asarray, copy, empty, empty_like, full, full_like, geomspace, linspace, logspace, ones, ones_like,
    zeros, zeros_like,
)
from volta.numpy.division import divmod, floor_divide, fmod, mod, remainder
from volta.numpy.editing import block, choose, fill_diagonal, insert, packbits, place, put, resize, unpackbits
from volta.numpy.einsum import einsum, einsum_path
from volta.numpy.elementwise import frompyfunc, ufunc
from volta.numpy.fitting import polyfit
from volta.numpy.grids import (
    c_, diag_indices, diag_indices_from, index_exp, indices, ix_, mask_indices, meshgrid, mgrid, ogrid, r_,
    ravel_multi_index, s_, tril_indices, tril_indices_from, triu_indices, triu_indices_from, unravel_index,
)
from volta.numpy.histograms import histogram, histogram2d, histogram_bin_edges, histogramdd
from volta.numpy.ignoring_nan import (
    nanargmax, nanargmin, nancumprod, nancumsum, nanmax, nanmean, nanmin, nanprod, nanstd, nansum, nanvar,
)
from volta.numpy.inspection import __array_namespace_info__ as __array_namespace_info__
from volta.numpy.inspection import finfo, iinfo
from volta.numpy.matrices import diag, diagflat, diagonal, eye, identity, trace, tri, tril, triu, vander
from volta.numpy.numbers import bartlett, blackman, frexp, gcd, hamming, hanning, kaiser, lcm, spacing
from volta.numpy.outside import (
    array_repr, array_str, can_cast, from_dlpack, frombuffer, fromfile, fromfunction, fromiter, fromstring,
    get_printoptions, iterable, load, printoptions, save, savez, set_printoptions,
)
from volta.numpy.padding import pad
from volta.numpy.polynomials import (
    poly, polyadd, polyder, polydiv, polyint, polymul, polysub, polyval, roots, trim_zeros,
)  # fmt: skip
from volta.numpy.powers import float_power, pow, power
from volta.numpy.reductions import (
    all, amax, amin, any, argmax, argmin, average, count_nonzero, max, mean, min, prod, ptp, std, sum, var,
)  # fmt: skip
from volta.numpy.scans import cumprod, cumsum, cumulative_prod, cumulative_sum
from volta.numpy.sets import (
    intersect1d, isin, setdiff1d, setxor1d, union1d, unique, unique_all, unique_counts, unique_inverse,
    unique_values,
)
from volta.numpy.shaping import (
    append, array_split, atleast_1d, atleast_2d, atleast_3d, broadcast_arrays, broadcast_shapes, broadcast_to,
    column_stack, concat, concatenate, dsplit, dstack, expand_dims, flip, fliplr, flipud, hsplit, hstack,
    matrix_transpose, moveaxis, ndim, permute_dims, ravel, reshape, rollaxis, rot90, shape, size, split,
    squeeze, stack, swapaxes, tile, transpose, unstack, vsplit, vstack,
)
from volta.numpy.smooth import hypot, i0, logaddexp, logaddexp2, sinc
from volta.numpy.sorting import argpartition, argsort, bincount, digitize, lexsort, partition, searchsorted, sort
from volta.numpy.statistics import corrcoef, cov, median, nanmedian, nanpercentile, nanquantile, percentile, quantile
from volta.numpy.taking import (
    argwhere, compress, delete, extract, flatnonzero, nonzero, repeat, roll, take, where,
)
from volta.numpy.types import (
    bfloat16, bool, bool_, cdouble, character, complex128, complex64, complex_, complexfloating, csingle, double,
    dtype, e, euler_gamma, flexible, float16, float32, float64, float_, floating, generic, inexact, inf, int16, int32,
    int64, int8, int_, integer, isdtype, isscalar, issubdtype, nan, newaxis, number, object_, pi, promote_types,
    result_type, signedinteger, single, uint, uint16, uint32, uint64, uint8, unsignedinteger,
)
from volta.numpy.ufuncs import (
    ComplexWarning, abs, absolute, acos, acosh, arccos, arccosh, arcsin, arcsinh, arctan, arctanh, around, asin, asinh,
    astype, atan, atanh, bitwise_count, bitwise_invert, bitwise_not, cbrt, ceil, cos, cosh, deg2rad, degrees, exp, exp2,
    expm1, fabs, fix, floor, invert, isfinite, isinf, isnan, isneginf, isposinf, log, log10, log1p, log2,
    logical_not, modf, nan_to_num, negative, positive, rad2deg, radians, reciprocal, rint, round, sign, signbit,
    sin, sinh, sqrt, square, tan, tanh, trunc,
)
from volta.numpy.vectorizing import apply_along_axis, apply_over_axes, vectorize

__all__ = [
    "ComplexWarning", "abs", "absolute", "acos", "acosh", "add", "all", "allclose", "amax", "amin", "angle", "any",
    "append", "apply_along_axis", "apply_over_axes", "arange", "arccos", "arccosh", "arcsin", "arcsinh", "arctan",
    "arctan2", "arctanh", "argmax", "argmin", "argpartition", "argsort", "argwhere", "around", "array",
    "array_equal", "array_equiv", "array_repr", "array_split", "array_str", "asarray", "asin", "asinh", "astype",
    "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "average", "bartlett", "bfloat16",
    "bincount", "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "blackman", "block", "bool", "bool_", "broadcast_arrays",
    "broadcast_shapes", "broadcast_to", "c_", "can_cast", "cbrt", "cdouble", "ceil", "character", "choose", "clip",
    "column_stack", "complex128", "complex64", "complex_", "complexfloating", "compress", "concat", "concatenate",
    "conj", "conjugate", "convolve", "copy", "copysign", "corrcoef", "correlate", "cos", "cosh", "count_nonzero",
    "cov", "cross", "csingle", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "deg2rad", "degrees",
    "delete", "diag", "diag_indices", "diag_indices_from", "diagflat", "diagonal", "diff", "digitize", "divide",
    "divmod", "dot", "double", "dsplit", "dstack", "dtype", "e", "ediff1d", "einsum", "einsum_path", "empty",
    "empty_like", "equal", "euler_gamma", "exp", "exp2", "expand_dims", "expm1", "extract", "eye", "fabs", "fft",
    "fill_diagonal", "finfo", "fix", "flatnonzero", "flexible", "flip", "fliplr", "flipud", "float16", "float32",
    "float64", "float_", "float_power", "floating", "floor", "floor_divide", "fmax", "fmin", "fmod", "frexp",
    "from_dlpack", "frombuffer", "fromfile", "fromfunction", "fromiter", "frompyfunc", "fromstring", "full",
    "full_like", "gcd",
    "generic", "geomspace", "get_printoptions", "gradient", "greater", "greater_equal", "hamming", "hanning",
    "heaviside", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd", "hsplit", "hstack", "hypot",
    "i0", "identity", "iinfo", "imag", "index_exp", "indices", "inexact", "inf", "inner", "insert", "int16",
    "int32", "int64", "int8", "int_", "integer", "interp", "intersect1d", "invert", "isclose", "iscomplex",
    "iscomplexobj", "isdtype", "isfinite", "isin", "isinf", "isnan", "isneginf", "isposinf", "isreal", "isrealobj",
    "isscalar", "issubdtype", "iterable", "ix_", "kaiser", "kron", "lcm", "ldexp", "left_shift", "less",
    "less_equal", "lexsort", "linalg", "linspace", "load", "log", "log10", "log1p", "log2", "logaddexp",
    "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "logspace", "mask_indices", "matmul",
    "matrix_transpose", "matvec", "max", "maximum", "mean", "median", "meshgrid", "mgrid", "min", "minimum", "mod",
    "modf", "moveaxis", "multiply", "nan", "nan_to_num", "nanargmax", "nanargmin", "nancumprod", "nancumsum",
    "nanmax", "nanmean", "nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum",
    "nanvar", "ndarray", "ndim", "negative", "newaxis", "nextafter", "nonzero", "not_equal", "number", "object_",
    "ogrid", "ones", "ones_like", "outer", "packbits", "pad", "partition", "percentile", "permute_dims", "pi",
    "piecewise", "place", "poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub",
    "polyval",
    "positive", "pow", "power", "printoptions", "prod", "promote_types", "ptp", "put", "put_along_axis", "quantile",
    "r_", "rad2deg", "radians", "ravel", "ravel_multi_index", "real", "reciprocal", "remainder", "repeat",
    "reshape", "resize", "result_type", "right_shift", "rint", "roll", "rollaxis", "roots", "rot90", "round", "s_",
    "save", "savez", "searchsorted", "select", "set_printoptions", "setdiff1d", "setxor1d", "shape", "sign", "signbit",
    "signedinteger", "sin", "sinc", "single", "sinh", "size", "sort", "sort_complex", "spacing", "split", "sqrt",
    "square", "squeeze", "stack", "std", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tan", "tanh",
    "tensordot", "tile", "trace", "transpose", "trapezoid", "tri", "tril", "tril_indices", "tril_indices_from",
    "trim_zeros", "triu", "triu_indices", "triu_indices_from", "true_divide", "trunc", "ufunc", "uint", "uint16",
    "uint32",
    "uint64", "uint8", "union1d", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "unpackbits", "unravel_index", "unsignedinteger", "unstack", "unwrap", "vander", "var", "vdot", "vecdot",
    "vecmat", "vectorize", "vsplit", "vstack", "where", "zeros", "zeros_like",
]

__array_api_version__ = "2025.12"

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
