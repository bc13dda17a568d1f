"""The elementwise family: one short definition gives a primitive its shape rule, derivatives, batching and function.

``elementwise`` enters the record and gives back the function that users call. An elementwise primitive's operands have
one dtype and one shape; a rank-0 operand is used for every element. Its meaning for one element is the function of the
same name in ``volta.ops.scalar``, which both backends compile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from volta.core import dtypes, extended
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.extended import is_key
from volta.core.interp import bind
from volta.ops import base, scalar
from volta.ops.base import dtype_error, shape_error
from volta.ops.primitive import REGISTRY, Domain, Family, Linear, NoDerivative, Primitive, Rule, Zero, register

FLOAT = ("float",)
NUMBER = ("float", "int")
BITS = ("int", "bool")
COMPLEX = ("complex",)
ANY = ("float", "int", "bool")

Function = Callable[..., Array]

OutDtype = np.dtype | Callable[[np.dtype], np.dtype] | None

# One an operand: (tangent, answer, *operands, **params) -> its share of the output's tangent. None: it has no share.
Partial = Callable[..., Any] | None


def kind_of(dtype: np.dtype) -> str:
    if dtype in dtypes.FLOATS:  # asked of each equation that is traced
        return "float"
    if is_key(dtype):
        return "key"
    return "complex" if dtype in dtypes.COMPLEX else "bool" if dtype == dtypes.bool_ else "int"


def takes(name: str, dtype: np.dtype, kinds: Sequence[str]) -> bool:
    """Whether a primitive of ``kinds`` takes a dtype: a complex one where its record says what it means for pairs, keys
    where it says so."""
    kind = kind_of(dtype)
    return (
        kind in kinds
        or (kind == "complex" and REGISTRY[name].pairs is not None)
        or (kind == "key" and REGISTRY[name].of_keys)
    )


def common_shape(name: str, avals: Sequence[ShapedArray]) -> tuple[int, ...]:
    """The one shape of the operands that are not rank 0."""
    shape: tuple[int, ...] = ()
    for aval in avals:
        if aval.shape != () and aval.shape != shape:
            if shape != ():
                raise shape_error(
                    name,
                    avals,
                    "operands must have one shape, or be rank 0 (of one rank, sizes of 1 are repeated). volta.numpy "
                    "broadcasts; volta.lax does not: use broadcast_in_dim or reshape.",
                )
            shape = aval.shape
    return shape


def check_dtypes(name: str, avals: Sequence[ShapedArray], kinds: Sequence[str]) -> np.dtype:
    """The one dtype of the operands, which must be of one of ``kinds``, or complex where the record has that."""
    dtype = avals[0].dtype
    for aval in avals:
        if aval.dtype != dtype:
            raise dtype_error(
                name,
                avals,
                "operands must have one dtype. volta.numpy promotes; volta.lax does not: "
                "use convert_element_type on one of them.",
            )
    if not takes(name, dtype, kinds):
        raise dtype_error(name, avals, refusal(dtype, kinds))
    return dtype


def refusal(dtype: np.dtype, kinds: Sequence[str]) -> str:
    """Why operands of ``dtype`` are not taken, and what to do."""
    if is_key(dtype):
        return extended.refusal(dtype)
    if dtypes.is_complex(dtype):
        return f"takes {' or '.join(kinds)} operands, and has no meaning for complex numbers; use real, imag or abs."
    return f"takes {' or '.join(kinds)} operands; use convert_element_type first."


def _shape_rule(name: str, arity: int, kinds: Sequence[str], out_dtype: OutDtype) -> Rule:
    def abstract(*avals: ShapedArray, **params: Any) -> ShapedArray:
        if len(avals) != arity:
            raise shape_error(name, avals, f"takes {arity} operands, got {len(avals)}")
        dtype = check_dtypes(name, avals, kinds)
        shape = avals[0].shape if arity == 1 else common_shape(name, avals)
        out = out_dtype if isinstance(out_dtype, np.dtype) else out_dtype(dtype) if out_dtype else dtype
        return ShapedArray(shape, out, all(a.weak_type for a in avals))

    return abstract


def _jvp_rule(name: str, partials: Sequence[Partial]) -> Rule:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        ans = base.bind_named(name, *primals, **params)
        return ans, tangent_by(partials, tangents, ans, primals, **params)

    return jvp


def tangent_by(
    partials: Sequence[Partial], tangents: Sequence[Any], ans: Any, primals: Sequence[Any], **params: Any
) -> Any:
    """The sum of the operands' shares of the tangent of ``ans``."""
    total = None
    for partial, tangent in zip(partials, tangents, strict=True):
        if partial is None or isinstance(tangent, Zero):
            continue
        share = partial(tangent, ans, *primals, **params)
        if not isinstance(share, Zero):
            total = share if total is None else base.bind_named("add", total, share)
    return base.zero_like(ans) if total is None else base.spread(total, base.shape_of(ans))


# One a position, for primitives that occur in linear programs: (cotangent, *operands, **params) -> that operand's
# cotangent (before it is summed for a rank-0 operand). The operand itself is a Linear marker.
Transposed = Callable[..., Any] | None


def _transpose_rule(transposed: Sequence[Transposed]) -> Rule:
    def transpose(ct: Any, *operands: Any, **params: Any) -> list[Any]:
        if isinstance(ct, Zero):
            return [None] * len(operands)
        result: list[Any] = []
        for rule, operand in zip(transposed, operands, strict=True):
            if rule is None or not isinstance(operand, Linear):
                result.append(None)
            else:
                result.append(base.unbroadcast(rule(ct, *operands, **params), operand.aval))
        return result

    return transpose


def batch_elementwise(name: str) -> Rule:
    """The batch rule: the same operation on operands whose mapped axes are aligned."""

    def batch(args: Sequence[Any], dims: Sequence[int | None], size: int, **params: Any) -> tuple[Any, int]:
        operands, dim = aligned(args, dims, size)
        return base.bind_named(name, *operands, **params), dim

    return batch


def aligned(args: Sequence[Any], dims: Sequence[int | None], size: int) -> tuple[Sequence[Any], int]:
    """The operands with their mapped axes in one place; a rank-0 operand that is mapped is spread over the others'."""
    shapes = [base.shape_of(x) for x in args]
    ranks = [len(s) - (d is not None) for s, d in zip(shapes, dims, strict=True)]
    rank = max(ranks)
    mapped = {(s, d) for s, d in zip(shapes, dims, strict=True) if d is not None}
    others = [s for s, d in zip(shapes, dims, strict=True) if d is None and s != ()]
    if len(mapped) == 1 and not others:  # nothing to align
        return args, next(iter(mapped))[1]
    full = next(
        s[:d] + s[d + 1 :] if d is not None else s for s, d, r in zip(shapes, dims, ranks, strict=True) if r == rank
    )
    result = []
    for x, d, r in zip(args, dims, ranks, strict=True):
        if d is None and r == 0:
            result.append(x)
        elif r == 0 and rank:
            result.append(base.broadcast_to(x, (size, *full), (0,)))
        else:
            result.append(base.to_front(x, d, size))
    return result, 0


def _docstring(name: str, doc: str, kinds: Sequence[str], arity: int) -> str:
    operands = "The operand may be of any shape" if arity == 1 else "Operands have one shape, or rank 0, and one dtype"
    dtype = "np.float32" if "float" in kinds else "np.int32" if "int" in kinds else "np.complex64"
    example = f">>> lax.{name}({', '.join([f'np.ones((2, 3), {dtype})'] * arity)}).shape\n(2, 3)"
    taken = f"{operands}; dtypes: {', '.join(kinds)}."
    return "\n\n".join((doc, taken, "Raises:\n    ShapeError, DTypeError: for others.", example))


def elementwise(
    name: str,
    doc: str,
    *partials: Partial,
    arity: int = 1,
    kinds: Sequence[str] = FLOAT,
    low: float = -10.0,
    high: float = 10.0,
    zero: str | None = None,
    transposed: Sequence[Transposed] | None = None,
    out_dtype: OutDtype = None,
    emit: Rule | None = None,
    cost: int = 1,
    of_keys: bool = False,
) -> Function:
    """Define an elementwise primitive and give its function.

    ``partials``, one an operand, make the derivative; or ``zero`` says why it is zero everywhere. ``low`` and ``high``
    bound the operands in tests. ``cost`` is counted in plain operations. ``out_dtype`` is the result's, where it is not
    the operands': a dtype, or a function of theirs. ``of_keys``: it takes random keys as well.
    """
    if len(partials) != (0 if zero else arity):
        raise ValueError(f"{name}: give one partial an operand, or say why the derivative is zero")
    primitive = register(
        Primitive(
            name,
            Family.ELEMENTWISE,
            abstract=_shape_rule(name, arity, kinds, out_dtype),
            jvp=NoDerivative(zero, zero=True) if zero else _jvp_rule(name, partials),
            batch=batch_elementwise(name),
            transpose=_transpose_rule(transposed) if transposed else None,
            emit=emit or getattr(scalar, name),
            domain=Domain(low, high, tuple(kinds)),
            cost=cost,
            of_keys=of_keys,
            doc=doc,
        )
    )
    return _function(primitive, arity)


def _function(primitive: Primitive, arity: int) -> Function:
    name = primitive.name

    def unary(x: Any) -> Any:
        return bind(primitive, x)

    def binary(x: Any, y: Any) -> Any:
        return bind(primitive, *base.aligned(base.operands(name, x, y)))

    def ternary(x: Any, y: Any, z: Any) -> Any:
        return bind(primitive, *base.aligned(base.operands(name, x, y, z)))

    function: Function = (unary, binary, ternary)[arity - 1]
    function.__name__ = function.__qualname__ = primitive.public
    assert primitive.domain is not None
    function.__doc__ = _docstring(primitive.public, primitive.doc, primitive.domain.kinds, arity)
    return function
