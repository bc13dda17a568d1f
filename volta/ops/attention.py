"""Attention as primitives: softmax(scale q kᵀ) v for each head without its matrix of scores, and its two cotangents.

Operands are (B, N, T, H) queries, (B, K, S, H) keys and (B, K, S, Hv) values, where K divides N and query head n reads
key head n // (N / K); then, as params say, ``start`` (B,) int32, the position of each batch item's first query among
the keys, and ``mask``, booleans of shape (B, N, T, S) with 1 in place of any of them. docs/determinism.md defines the
bits.

``m`` and ``l``, the largest score of a row and the sum of exp(score - m), are what the cotangents compute the weights
from again. They follow from the other operands, so they have no derivative of their own. Forward derivatives, and
derivatives of the cotangents, are ordinary operations on the whole matrix of scores (`attention_derivatives`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.contract import DEFINITIONS
from volta.core.interp import bind
from volta.core.policy import TENSOR_PRECISIONS, product_precision
from volta.ops import base
from volta.ops.arithmetic import add
from volta.ops.assembly import concatenate
from volta.ops.attention_derivatives import Rest, attention_jvp, dkv_jvp, dq_jvp
from volta.ops.base import dtype_error, shape_error, shape_of
from volta.ops.primitive import Family, Primitive, register
from volta.ops.selection import convert_element_type

__all__ = ["attention", "attention_dkv", "attention_dq"]

MAX_HEAD = 256
"""The largest head of keys or of values: a score is one chain of DOT."""

ROWS = DEFINITIONS.attention_rows
"""Queries over which the cotangents of keys and values are summed at once."""


# -- shape rules -------------------------------------------------------------------------------------------------------


def _check(
    name: str, avals: Sequence[ShapedArray], first: int, *, scale: float, causal: bool, started: bool, masked: bool,
    precision: str | None = None, preferred_element_type: Any = None,
) -> None:  # fmt: skip
    """Raise for operands that do not fit; ``first`` is how many come before start and mask."""
    if len(avals) != first + started + masked:
        raise shape_error(name, avals, f"takes {first + started + masked} operands, got {len(avals)}")
    q, k, v = avals[:3]
    if not (dtypes.is_float(q.dtype) and q.dtype == k.dtype == v.dtype):
        raise dtype_error(name, avals, "queries, keys and values must have one float dtype; use convert_element_type.")
    fits = q.ndim == k.ndim == v.ndim == 4 and q.shape[0] == k.shape[0] == v.shape[0]
    fits = fits and k.shape[1:3] == v.shape[1:3] and q.shape[3] == k.shape[3]
    if not fits or (q.shape[1] % k.shape[1] if k.shape[1] else q.shape[1]):
        raise shape_error(
            name, avals, "wants queries (B, N, T, H), keys (B, K, S, H) and values (B, K, S, Hv), with K dividing N"
        )
    for size in (k.shape[3], v.shape[3]):
        if not 1 <= size <= MAX_HEAD:
            raise shape_error(name, avals, f"heads have 1 to {MAX_HEAD} elements, got {size}")
    rest = Rest.of(avals[first:], started, masked)
    if started and not causal:
        raise shape_error(name, avals, "a start means something only for causal attention")
    if started and (rest.start.shape != q.shape[:1] or rest.start.dtype != dtypes.int32):
        raise shape_error(name, avals, f"start must be i32[{q.shape[0]}], got {rest.start.short()}")
    if masked:
        if rest.mask.dtype != dtypes.bool_:
            raise dtype_error(name, avals, f"the mask must be boolean, got {rest.mask.short()}")
        whole = (*q.shape[:3], k.shape[2])
        if rest.mask.ndim != 4 or any(n not in (1, m) for n, m in zip(rest.mask.shape, whole, strict=True)):
            raise shape_error(name, avals, f"the mask {rest.mask.short()} does not broadcast to {whole}")


def _statistics(q: ShapedArray) -> ShapedArray:
    return ShapedArray(q.shape[:3], dtypes.compute_dtype(q.dtype))


def _result_dtype(q: ShapedArray, params: dict[str, Any]) -> Any:
    """That of the operands, but float32 where those of float32 were rounded for tensor cores."""
    return params.get("preferred_element_type") or q.dtype


def _attention_abstract(*avals: ShapedArray, **params: Any) -> list[ShapedArray]:
    _check("attention", avals, 3, **params)
    q, _, v = avals[:3]
    return [ShapedArray((*q.shape[:3], v.shape[3]), _result_dtype(q, params)), _statistics(q), _statistics(q)]


def _check_cotangents(name: str, avals: Sequence[ShapedArray], **params: Any) -> None:
    _check(name, avals, 7, **params)
    q, _, v, do, *rows = avals[:7]
    wanted = [ShapedArray((*q.shape[:3], v.shape[3]), q.dtype), *[_statistics(q)] * 3]
    for what, aval, want in zip(("cotangent", "m", "l", "delta"), (do, *rows), wanted, strict=True):
        if (aval.shape, aval.dtype) != (want.shape, want.dtype):
            raise shape_error(name, avals, f"{what} must be {want.short()}, got {aval.short()}")


def _dq_abstract(*avals: ShapedArray, **params: Any) -> ShapedArray:
    _check_cotangents("attention_dq", avals, **params)
    return ShapedArray(avals[0].shape, _result_dtype(avals[0], params))


def _dkv_abstract(*avals: ShapedArray, **params: Any) -> list[ShapedArray]:
    _check_cotangents("attention_dkv", avals, **params)
    if avals[0].shape[2] > ROWS:
        raise shape_error(
            "attention_dkv", avals, f"sums over {ROWS} queries at most; lax.attention_dkv joins such sums"
        )
    q, k, v = avals[:3]
    return [ShapedArray((*q.shape[:2], *x.shape[2:]), _result_dtype(q, params)) for x in (k, v)]


# -- batching ----------------------------------------------------------------------------------------------------------


def fold_batch(args: Sequence[Any], dims: Sequence[int | None], size: int, masked: bool) -> list[Any]:
    """The mapped axis becomes part of B: each operand has it, but a mask that has no B and is not mapped."""
    batch = shape_of(args[0])[int(dims[0] == 0)]
    folded = []
    for i, (x, d) in enumerate(zip(args, dims, strict=True)):
        is_mask = masked and i == len(args) - 1
        if is_mask and d is None and shape_of(x)[0] == 1:
            folded.append(x)
            continue
        x = base.to_front(x, d, size)
        shape = shape_of(x)
        if is_mask and shape[1] != batch:
            shape = (size, batch, *shape[2:])
            x = base.broadcast_to(x, shape, range(len(shape)))
        folded.append(base.reshape_to(x, (size * batch, *shape[2:])))
    return folded


def unfold_batch(out: Any, size: int) -> Any:
    """A result with the mapped axis in front again."""
    shape = shape_of(out)
    return base.reshape_to(out, (size, shape[0] // size if size else 0, *shape[1:]))


def _batch(name: str) -> Callable[..., Any]:
    def batch(args: Sequence[Any], dims: Sequence[int | None], size: int, **params: Any) -> Any:
        outs = base.bind_named(name, *fold_batch(args, dims, size, params["masked"]), **params)
        if not isinstance(outs, list):
            return unfold_batch(outs, size), 0
        return [unfold_batch(x, size) for x in outs], [0] * len(outs)

    return batch


# -- the records -------------------------------------------------------------------------------------------------------

_TENSOR_CORES = "precision bf16, of bfloat16 tf32 too"

attention_p = register(
    Primitive(
        "attention",
        Family.ATTENTION,
        _attention_abstract,
        attention_jvp,
        _batch("attention"),
        multiple_results=True,
        on_tensor_cores=("attention_tc", _TENSOR_CORES),
        doc="Softmax of scaled scores times values, with each row's largest score and sum of weights.",
    )
)
attention_dq_p = register(
    Primitive(
        "attention_dq",
        Family.ATTENTION,
        _dq_abstract,
        dq_jvp,
        _batch("attention_dq"),
        on_tensor_cores=("attention_dq_tc", _TENSOR_CORES),
        doc="The cotangent of attention's queries.",
    )
)
attention_dkv_p = register(
    Primitive(
        "attention_dkv",
        Family.ATTENTION,
        _dkv_abstract,
        dkv_jvp,
        _batch("attention_dkv"),
        multiple_results=True,
        on_tensor_cores=("attention_dkv_tc", _TENSOR_CORES),
        doc="The cotangents of attention's keys and values, for each query head.",
    )
)


def _params(
    query: Any, scale: float, causal: bool, start: Any, mask: Any, precision: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Operands behind the others, and params: with a precision only where tensor cores may take the operands."""
    rest = [x for x in (start, mask) if x is not None]
    params: dict[str, Any] = {
        "scale": float(scale), "causal": bool(causal), "started": start is not None, "masked": mask is not None,
    }  # fmt: skip
    found = product_precision("attention", precision)
    allowed = {dtypes.bfloat16: TENSOR_PRECISIONS, dtypes.float32: ("bf16",)}.get(base.dtype_of(query), ())
    if found in allowed:
        params["precision"] = found
    return rest, params


def attention(
    query: Any, key: Any, value: Any, *, scale: float = 1.0, causal: bool = False, start: Any = None, mask: Any = None,
    precision: Any = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Attention of each head, without storing its scores: memory grows with T and S, not with their product.

    Args:
        query: (B, N, T, H) of a float dtype.
        key, value: (B, K, S, H) and (B, K, S, Hv) of the same dtype; K divides N. Heads have at most 256 elements.
        scale: of the scores.
        causal: query t sees the keys up to position start + t.
        start: (B,) int32, position 0 where not given.
        mask: booleans that broadcast to (B, N, T, S), with four dimensions; False hides a key.
        precision: of the products, below strict: ``'bf16'`` lets tensor cores have them, with float32 operands rounded
            to bfloat16, where a GPU has kernels for it: 17 queries and more, heads of 64 or 128 elements, a scale above
            0. ``'tf32'`` does that for bfloat16 operands. All else is computed as the definition says.

    Returns:
        The result (B, N, T, Hv), and for each query its largest score and the sum of exp(score - largest), both
        (B, N, T) of float32 (float64 for float64). A query that sees no key has a result of 0.

    Raises:
        ShapeError, DTypeError: for operands that do not fit, and for what is no precision.
        UnsupportedOperationError: where tensor cores are asked for at determinism level strict.

    >>> x = np.ones((1, 2, 5, 4), np.float32)
    >>> lax.attention(x, x, x, causal=True)[0].shape
    (1, 2, 5, 4)
    """
    rest, params = _params(query, scale, causal, start, mask, precision)
    out, m, l = bind(attention_p, query, key, value, *rest, **params)  # noqa: E741 - the name of the definition
    return out, m, l


def attention_dq(
    query: Any, key: Any, value: Any, cotangent: Any, m: Any, l: Any, delta: Any, *, scale: float = 1.0,  # noqa: E741
    causal: bool = False, start: Any = None, mask: Any = None, precision: Any = None,
) -> Array:  # fmt: skip
    """The cotangent of ``attention``'s queries.

    ``cotangent`` is that of its result, ``m`` and ``l`` are its other results, and ``delta`` (B, N, T) is the sum of
    cotangent times result over a head's elements.

    >>> x, r = np.ones((1, 1, 5, 4), np.float32), np.ones((1, 1, 5), np.float32)
    >>> lax.attention_dq(x, x, x, x, r, r, r).shape
    (1, 1, 5, 4)
    """
    rest, params = _params(query, scale, causal, start, mask, precision)
    return bind(attention_dq_p, query, key, value, cotangent, m, l, delta, *rest, **params)


def attention_dkv(
    query: Any, key: Any, value: Any, cotangent: Any, m: Any, l: Any, delta: Any, *, scale: float = 1.0,  # noqa: E741
    causal: bool = False, start: Any = None, mask: Any = None, precision: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """The cotangents of ``attention``'s keys and values, (B, N, S, H) and (B, N, S, Hv): one for each query head.

    Operands as those of ``attention_dq``. Sums over more than 4096 queries are joined in pairs.

    >>> x, r = np.ones((1, 1, 5, 4), np.float32), np.ones((1, 1, 5), np.float32)
    >>> [y.shape for y in lax.attention_dkv(x, x, x, x, r, r, r)]
    [(1, 1, 5, 4), (1, 1, 5, 4)]
    """
    rest, params = _params(query, scale, causal, start, mask, precision)
    args = (query, key, value, cotangent, m, l, delta, *rest)
    _, dk, dv = cotangents(args, params, needs_q=False, heads=shape_of(query)[1] if len(shape_of(query)) == 4 else 0)
    return dk, dv


# -- the cotangents of many queries ------------------------------------------------------------------------------------


def cotangents(args: Sequence[Any], params: dict[str, Any], *, needs_q: bool, heads: int) -> tuple[Any, Any, Any]:
    """The cotangents of queries (where wanted; else None), keys and values, from the operands of ``attention_dkv``.

    Those of keys and values are sums over the queries of so many key ``heads`` each, `ROWS` of them at once; such sums
    are joined in a tree of adjacent pairs. A worker that holds queries may compute a node of it, for all keys.
    """
    blocks = list(_row_blocks(args, params))
    found = []
    for operands, given in blocks:
        dq = base.bind_named("attention_dq", *operands, **given) if needs_q else None
        shares = base.bind_named("attention_dkv", *operands, **given)
        found.append((dq, *(_per_key_head(x, heads) for x in shares)))
    if len(found) == 1:
        return found[0]
    out = params.get("preferred_element_type") or base.dtype_of(args[0])
    work = dtypes.compute_dtype(out)
    dqs, *sums = zip(*found, strict=True)
    # rows before heads, as attention's kernels store them
    dk, dv = (_in_pairs([_turned(convert_element_type(x, work)) for x in xs]) for xs in sums)
    dq = [concatenate([_turned(x) for x in dqs], 1)] if needs_q else []
    *dq, dk, dv = (_turned(convert_element_type(x, out)) for x in (*dq, dk, dv))
    return dq[0] if needs_q else None, dk, dv


def _turned(x: Any) -> Any:
    """(B, N, T, H) to (B, T, N, H), and back."""
    return base.permute(x, (0, 2, 1, 3))


def _row_blocks(args: Sequence[Any], params: dict[str, Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Operands and params of the cotangents for each `ROWS` queries: those of short floats in the dtype they are summed
    in, unless tensor cores take them."""
    q, k, v, do, *rows = args[:7]
    count = shape_of(q)[2] if len(shape_of(q)) == 4 else 0
    if count <= ROWS:
        yield list(args), params
        return
    if "precision" not in params:
        q, k, v, do = (convert_element_type(x, dtypes.compute_dtype(base.dtype_of(x))) for x in (q, k, v, do))
    given = Rest.of(args[7:], params["started"], params["masked"])
    for first in range(0, count, ROWS):
        queries, cotangent, *statistics = (_rows(x, first) for x in (q, do, *rows))
        start, mask = given.start, given.mask
        if params["causal"] and first:
            start = base.fill(shape_of(q)[:1], 0, dtypes.int32) if start is None else start
            start = add(start, dtypes.int32.type(first))
        if mask is not None and shape_of(mask)[2] > 1:
            mask = _rows(mask, first)
        rest = [x for x in (start, mask) if x is not None]
        yield [queries, k, v, cotangent, *statistics, *rest], {**params, "started": start is not None}


def _rows(x: Any, first: int) -> Any:
    """Up to `ROWS` of an operand's rows, which are its third dimension."""
    shape = shape_of(x)
    stop = min(shape[2], first + ROWS)
    return base.bind_named(
        "slice", x, start_indices=(0, 0, first, *[0] * (len(shape) - 3)),
        limit_indices=(*shape[:2], stop, *shape[3:]), strides=None,
    )  # fmt: skip


def _in_pairs(blocks: Sequence[Any]) -> Any:
    """Neighbours added, then neighbours of these; an odd one waits for the next level."""
    while len(blocks) > 1:
        odd = blocks[-1:] if len(blocks) % 2 else []
        blocks = [*(add(x, y) for x, y in zip(blocks[::2], blocks[1::2], strict=False)), *odd]
    return blocks[0]


def _per_key_head(x: Any, heads: int) -> Any:
    """The sum over each group of query heads."""
    b, n, s, h = shape_of(x)
    return x if n == heads else base.sum_axes(base.reshape_to(x, (b, heads, n // heads, s, h)), (2,))
