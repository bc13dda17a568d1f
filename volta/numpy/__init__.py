"""NumPy's functions on Volta's arrays, under NumPy's names and with JAX's semantics.

Functions trace, differentiate and compile; arrays are immutable. Python numbers are weakly typed: they take the dtype
of the array they meet. float32 and float64 live side by side; the default float is float32, the default int int32.

>>> import volta.numpy as vnp
>>> vnp.sum(vnp.arange(4) * 0.5)
Array(3., dtype=float32)
"""

# ruff: noqa: I001 - packed, so that the names can be read at a glance
# fmt: off
from volta.core.dtypes import finfo, iinfo
from volta.core.interp import Value as ndarray
from volta.numpy import linalg, methods  # noqa: F401  (methods puts the operators on arrays and tracers)
from volta.numpy.binary import (
    add, allclose, arctan2, array_equal, array_equiv, atan2, bitwise_and, bitwise_left_shift, bitwise_or,
    bitwise_right_shift, bitwise_xor, clip, copysign, divide, divmod, equal, float_power, floor_divide, fmax, fmin,
    fmod, greater, greater_equal, heaviside, hypot, isclose, ldexp, left_shift, less, less_equal, logaddexp,
    logaddexp2, logical_and, logical_or, logical_xor, maximum, minimum, mod, multiply, nextafter, not_equal,
    piecewise, pow, power, remainder, right_shift, select, subtract, true_divide,
)
from volta.numpy.contractions import (
    convolve, correlate, cross, dot, inner, kron, matmul, outer, tensordot, vdot, vecdot,
)
from volta.numpy.counting import isin, polyval, ravel_multi_index, trapezoid, unravel_index
from volta.numpy.creation import (
    arange, array, asarray, copy, diag, diagflat, diagonal, empty, empty_like, eye, full, full_like, identity,
    indices, linspace, logspace, meshgrid, ones, ones_like, trace, tri, tril, tril_indices, triu, triu_indices,
    vander, zeros, zeros_like,
)
from volta.numpy.einsum import einsum
from volta.numpy.reductions import (
    all, amax, amin, any, argmax, argmin, average, count_nonzero, cumprod, cumsum, max, mean, min, nanargmax,
    nanargmin, nancumprod, nancumsum, nanmax, nanmean, nanmin, nanprod, nanstd, nansum, nanvar, prod, ptp, std, sum,
    var,
)
from volta.numpy.shaping import (
    append, array_split, atleast_1d, atleast_2d, atleast_3d, broadcast_arrays, broadcast_shapes, broadcast_to,
    column_stack, concat, concatenate, dstack, expand_dims, flip, fliplr, flipud, hsplit, hstack, matrix_transpose,
    moveaxis, ndim, permute_dims, ravel, reshape, roll, rollaxis, rot90, shape, size, split, squeeze, stack,
    swapaxes, tile, transpose, vsplit, vstack,
)
from volta.numpy.sorting import (
    argsort, bincount, cov, digitize, interp, lexsort, median, percentile, quantile, searchsorted, sort, unique,
)
from volta.numpy.taking import (
    argwhere, compress, delete, diff, extract, flatnonzero, nonzero, pad, put_along_axis, repeat, take,
    take_along_axis, where,
)
from volta.numpy.types import (
    bfloat16, bool_, dtype, e, euler_gamma, float16, float32, float64, floating, generic, inexact, inf, int8, int16,
    int32, int64, integer, isdtype, isscalar, issubdtype, nan, newaxis, number, pi, promote_types, result_type,
    signedinteger, uint8, uint16, uint32, uint64, unsignedinteger,
)
from volta.numpy.ufuncs import (
    abs, absolute, acos, acosh, arccos, arccosh, arcsin, arcsinh, arctan, arctanh, around, asin, asinh, astype,
    atan, atanh, bitwise_count, bitwise_invert, bitwise_not, cbrt, ceil, cos, cosh, deg2rad, degrees, exp, exp2,
    expm1, fabs, fix, floor, invert, isfinite, isinf, isnan, isneginf, isposinf, log, log1p, log2, log10,
    logical_not, modf, nan_to_num, negative, positive, rad2deg, radians, reciprocal, rint, round, sign, signbit,
    sin, sinc, sinh, sqrt, square, tan, tanh, trunc,
)

__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "all", "allclose", "amax", "amin", "any", "append", "arange",
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argsort",
    "argwhere", "around", "array", "array_equal", "array_equiv", "array_split", "asarray", "asin", "asinh",
    "astype", "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "average", "bfloat16", "bincount",
    "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "bool_", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "cbrt",
    "ceil", "clip", "column_stack", "compress", "concat", "concatenate", "convolve", "copy", "copysign",
    "correlate", "cos", "cosh", "count_nonzero", "cov", "cross", "cumprod", "cumsum", "deg2rad", "degrees",
    "delete", "diag", "diagflat", "diagonal", "diff", "digitize", "divide", "divmod", "dot", "dstack", "dtype", "e",
    "einsum", "empty", "empty_like", "equal", "euler_gamma", "exp", "exp2", "expand_dims", "expm1", "extract",
    "eye", "fabs", "finfo", "fix", "flatnonzero", "flip", "fliplr", "flipud", "float16", "float32", "float64",
    "float_power", "floating", "floor", "floor_divide", "fmax", "fmin", "fmod", "full", "full_like", "generic",
    "greater", "greater_equal", "heaviside", "hsplit", "hstack", "hypot", "identity", "iinfo", "indices", "inexact",
    "inf", "inner", "int16", "int32", "int64", "int8", "integer", "interp", "invert", "isclose", "isdtype",
    "isfinite", "isin", "isinf", "isnan", "isneginf", "isposinf", "isscalar", "issubdtype", "kron", "ldexp",
    "left_shift", "less", "less_equal", "lexsort", "linalg", "linspace", "log", "log10", "log1p", "log2",
    "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "logspace", "matmul",
    "matrix_transpose", "max", "maximum", "mean", "median", "meshgrid", "min", "minimum", "mod", "modf", "moveaxis",
    "multiply", "nan", "nan_to_num", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean",
    "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "ndarray", "ndim", "negative", "newaxis", "nextafter",
    "nonzero", "not_equal", "number", "ones", "ones_like", "outer", "pad", "percentile", "permute_dims", "pi",
    "piecewise", "polyval", "positive", "pow", "power", "prod", "promote_types", "ptp", "put_along_axis",
    "quantile", "rad2deg", "radians", "ravel", "ravel_multi_index", "reciprocal", "remainder", "repeat", "reshape",
    "result_type", "right_shift", "rint", "roll", "rollaxis", "rot90", "round", "searchsorted", "select", "shape",
    "sign", "signbit", "signedinteger", "sin", "sinc", "sinh", "size", "sort", "split", "sqrt", "square", "squeeze",
    "stack", "std", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tan", "tanh", "tensordot", "tile",
    "trace", "transpose", "trapezoid", "tri", "tril", "tril_indices", "triu", "triu_indices", "true_divide",
    "trunc", "uint16", "uint32", "uint64", "uint8", "unique", "unravel_index", "unsignedinteger", "vander", "var",
    "vdot", "vecdot", "vsplit", "vstack", "where", "zeros", "zeros_like",
]
