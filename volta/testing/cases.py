"""Example operands and params for every primitive. An elementwise primitive needs no row: its domain gives one."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.errors import VoltaError
from volta.ops import REGISTRY, Primitive
from volta.ops.primitive import Family

F64 = dtypes.float64
BOOL = dtypes.bool_
DTYPES = {
    "float": (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16),
    "int": (dtypes.int32, dtypes.uint32, dtypes.int8, dtypes.uint8, dtypes.int64),
    "bool": (dtypes.bool_,),
    "complex": dtypes.COMPLEX,
}


@attrs.frozen(eq=False)
class Case:
    """One call of a primitive. ``args`` are arrays; ``linear`` lists sets of operands that it is linear in."""

    primitive: Primitive
    args: tuple[np.ndarray, ...]
    params: dict[str, Any]
    linear: tuple[tuple[int, ...], ...] = ()
    label: str = ""

    def __str__(self) -> str:
        shapes = "-".join(f"{dtypes.short_name(a.dtype)}{'x'.join(map(str, a.shape))}" for a in self.args)
        return f"{self.primitive.name}-{shapes}{'-' + self.label if self.label else ''}"


def rng_of(text: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(text.encode()))


def draw(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, low: float = -10.0, high: float = 10.0
) -> np.ndarray:
    """Values of the interval; integers of unsigned dtypes from 0; complex numbers with both parts of it."""
    if dtypes.is_complex(dtype):
        return (rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape)).astype(dtype)
    if dtype == BOOL:
        return rng.integers(0, 2, shape).astype(BOOL)
    if dtypes.is_integer(dtype):
        first = 0 if dtypes.is_unsigned(dtype) else int(np.ceil(low))
        return rng.integers(first, max(int(high), first) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


def arity_of(primitive: Primitive) -> int:
    """How many operands an elementwise primitive of uniform dtype takes: the shape rule knows."""
    assert primitive.domain is not None
    aval = ShapedArray((), DTYPES[primitive.domain.kinds[0]][0])
    params = ELEMENTWISE_PARAMS.get(primitive.name, [{}])[0]
    for n in (1, 2, 3):
        try:
            primitive.abstract(*[aval] * n, **params)
            return n
        except (VoltaError, TypeError):
            continue
    raise AssertionError(f"{primitive.name}: no number of operands fits")


ELEMENTWISE_PARAMS: dict[str, list[dict[str, Any]]] = {
    "integer_pow": [{"y": 3}, {"y": 2}, {"y": 0}],
    "convert_element_type": [
        {"new_dtype": d, "weak_type": False} for d in (dtypes.float64, dtypes.float32, dtypes.int32, BOOL)
    ],
}
LINEAR_ELEMENTWISE = {
    "neg": ((0,),), "copy": ((0,),), "add": ((0, 1), (0,)), "sub": ((0, 1), (1,)), "mul": ((0,), (1,)), "div": ((0,),),
    "fma": ((0, 2), (1, 2)), "select_n": ((1, 2), (2,)), "convert_element_type": ((0,),),
}  # fmt: skip


def elementwise_cases(
    primitive: Primitive, dtype: Any, shapes: tuple[tuple[int, ...], ...] | None = None
) -> Iterator[Case]:
    """All operands of one shape; then, for several operands, one of them of rank 0."""
    name, domain = primitive.name, primitive.domain
    assert domain is not None
    linear = LINEAR_ELEMENTWISE.get(name, ())
    if name == "bitcast_convert_type":
        same = [d for kind in ("float", "int") for d in DTYPES[kind] if d.itemsize == dtype.itemsize]
        for new in same:
            x = draw(rng_of(name), (2, 3), dtype)
            yield Case(primitive, (x,), {"new_dtype": new, "old_dtype": dtype}, label=new.name)
        return
    n = {"select_n": 3, "pow_int": 2}.get(name) or arity_of(primitive)
    layouts: list[tuple[tuple[int, ...], ...]] = [((2, 3),) * n]
    if n > 1:
        layouts.append(((2, 3),) + ((),) * (n - 1))
        layouts.append(((),) + ((2, 3),) * (n - 1))
    for params in [{"dtype": dtype}] if name == "nextafter" else ELEMENTWISE_PARAMS.get(name, [{}]):
        for layout in layouts:
            rng = rng_of(name + dtype.name + str(layout))
            args = [draw(rng, shape, dtype, domain.low, domain.high) for shape in layout]
            if name == "select_n":
                args[0] = draw(rng, layout[0], BOOL)
            if name == "pow_int":
                args[1] = draw(rng, layout[1], dtypes.int64, -4, 9)
            label = "" if name == "nextafter" else ",".join(format_param(v) for v in params.values())
            stays_float = dtypes.is_inexact(params.get("new_dtype", F64))
            yield Case(primitive, tuple(args), params, linear if stays_float else (), label)


def format_param(value: Any) -> str:
    return value.name if isinstance(value, np.dtype) else str(value)


# -- the other families: one row a case -------------------------------------------------------------------------------

Maker = Callable[[np.random.Generator, Any], tuple[np.ndarray, ...]]


def real(*shapes: tuple[int, ...], low: float = -3.0, high: float = 3.0) -> Maker:
    return lambda rng, dtype: tuple(draw(rng, s, dtype, low, high) for s in shapes)


def distinct(shape: tuple[int, ...]) -> Maker:
    """Values well apart from each other, so that finite differences see no ties."""

    def make(rng: np.random.Generator, dtype: Any) -> tuple[np.ndarray, ...]:
        n = int(np.prod(shape))
        return ((rng.permutation(n).reshape(shape) - n // 2).astype(dtype),)

    return make


def with_index(maker: Maker, *indices: Any) -> Maker:
    return lambda rng, dtype: maker(rng, dtype) + tuple(np.asarray(i, dtype=np.int32) for i in indices)


def dot(lhs_contract: Any, rhs_contract: Any, lhs_batch: Any = (), rhs_batch: Any = ()) -> dict[str, Any]:
    return {
        "dimension_numbers": ((lhs_contract, rhs_contract), (lhs_batch, rhs_batch)),
        "precision": None,
        "preferred_element_type": None,
    }


def at(axes: Any, batch_dims: int, mode: str, **more: Any) -> dict[str, Any]:
    return {"axes": axes, "batch_dims": batch_dims, "mode": mode, **more}


ONE = ((0,),)
_take = [[0, 2], [4, 1], [2, 2]]


def tied_keys(shape: tuple[int, ...]) -> Maker:
    """Few different (integer) keys, and a second operand that tells them apart."""
    return lambda rng, dtype: (rng.integers(0, 2, shape).astype(np.int32), *distinct(shape)(rng, dtype))


def scatter_rows(op: str) -> list[Any]:
    """Repeated indices, two indexed axes, shared batch axes, and a single index; some are out of range."""
    linear = {"set": ((0, 1), (0,), (1,)), "add": ((0, 1), (0,), (1,)), "mul": ((0,),)}.get(op, ())
    return [
        (with_index(real((5, 4), (3, 2, 4)), _take), at((0,), 0, "drop", op=op), linear),
        (with_index(real((3, 5, 4), (3, 2, 5)), _take, [[0, 3], [1, 1], [2, 9]]), at((0, 2), 0, "clip", op=op), linear),
        (with_index(real((3, 5, 4), (3, 2, 5)), [[0, 2], [4, 1], [2, 2]]), at((2,), 1, "drop", op=op), linear),
        (with_index(real((5, 2), (2,)), 3), at((0,), 0, "drop", op=op), linear),
    ]


def attended(backward: bool, sizes: tuple[int, ...], started: bool = False, masked: bool = False) -> Maker:
    """Operands of attention, or of its cotangents: the statistics of rows are those that queries and keys have.

    ``sizes`` are B, N, K, T, S, H, Hv. The first key is always visible.
    """
    b, n, k, t, s, h, hv = sizes

    def make(rng: np.random.Generator, dtype: Any) -> tuple[np.ndarray, ...]:
        q, keys, values = (draw(rng, x, dtype, -1, 1) for x in ((b, n, t, h), (b, k, s, h), (b, k, s, hv)))
        start = np.arange(b, dtype=np.int32)
        mask = draw(rng, (b, 1, t, s), BOOL)
        mask[..., 0] = True
        rest = ((start,) if started else ()) + ((mask,) if masked else ())
        if not backward:
            return (q, keys, values, *rest)
        work = dtypes.compute_dtype(dtype)
        scores = 0.5 * np.einsum("bnth,bnsh->bnts", *(x.astype(F64) for x in (q, np.repeat(keys, n // k, 1))))
        if started:
            position = start[:, None, None, None] + np.arange(t)[:, None]
            scores = np.where(np.arange(s) <= position, scores, -np.inf)
        scores = np.where(mask, scores, -np.inf) if masked else scores
        m = scores.max(-1)
        rows = m, np.exp(scores - m[..., None]).sum(-1), rng.uniform(-1, 1, (b, n, t))
        return (q, keys, values, draw(rng, (b, n, t, hv), dtype, -1, 1), *(x.astype(work) for x in rows), *rest)

    return make


def attention_rows(backward: bool) -> list[Any]:
    plain = {"scale": 0.5, "causal": False, "started": False, "masked": False}
    return [
        (attended(backward, (1, 2, 1, 3, 5, 4, 3)), plain, ()),
        (attended(backward, (2, 2, 2, 3, 5, 2, 3), True, True), dict.fromkeys(plain, True) | {"scale": 0.5}, ()),
        (attended(backward, (2, 1, 1, 2, 3, 1, 2), False, True), plain | {"masked": True}, ()),
    ]


_axes: list[tuple[int, ...]] = [(1,), (0, 2), (), (0, 1, 2)]
_slices: list[dict[str, Any]] = [
    {"start_indices": (1, 0), "limit_indices": (4, 3), "strides": None},
    {"start_indices": (0, 1), "limit_indices": (5, 4), "strides": (2, 3)},
    {"start_indices": (2, 1), "limit_indices": (2, 4), "strides": None},
]
# name -> rows of (operands, params, sets of operands that it is linear in)
ROWS: dict[str, list[tuple[Maker, dict[str, Any], Any]]] = {
    "reduce_sum": [(real((2, 3, 4)), {"axes": a}, ONE) for a in _axes],
    "reduce_prod": [(real((2, 5, 3), low=0.5), {"axes": a}, ()) for a in ((1,), (0, 2), (0, 1, 2))],
    "reduce_max": [(distinct((2, 3, 4)), {"axes": a}, ()) for a in ((1,), (0, 2))],
    "reduce_min": [(distinct((2, 3, 4)), {"axes": a}, ()) for a in ((1,), (0, 2))],
    "reduce_and": [(real((3, 4)), {"axes": (1,)}, ())],
    "reduce_or": [(real((3, 4)), {"axes": (0,)}, ())],
    "argmax": [(real((3, 4)), {"axis": a, "index_dtype": dtypes.int32}, ()) for a in (0, 1)],
    "argmin": [(real((3, 4)), {"axis": a, "index_dtype": dtypes.int64}, ()) for a in (0, 1)],
    "reshape": [(real((2, 6)), {"new_sizes": (3, 4)}, ONE), (real((1,)), {"new_sizes": ()}, ONE)],
    "transpose": [(real((2, 3, 4)), {"permutation": p}, ONE) for p in ((2, 0, 1), (0, 2, 1))],
    "broadcast_in_dim": [
        (real(()), {"shape": (2, 3), "broadcast_dimensions": ()}, ONE),
        (real((3,)), {"shape": (2, 3), "broadcast_dimensions": (1,)}, ONE),
        (real((2, 1)), {"shape": (2, 4, 3), "broadcast_dimensions": (0, 2)}, ONE),
    ],
    "slice": [(real((5, 4)), p, ONE) for p in _slices],
    "rev": [(real((3, 4)), {"dimensions": d}, ONE) for d in ((0,), (0, 1))],
    "pad": [
        (real((3, 4), ()), {"padding_config": c}, ((0, 1), (0,), (1,)))
        for c in (((1, 2, 0), (0, 1, 2)), ((-1, 3, 1), (2, -2, 0)), ((-1, -1, 2), (0, 0, 1)))
    ],
    "concatenate": [
        (real((2, 3), (2, 1), (2, 2)), {"dimension": 1}, ((0, 1, 2), (1,))),
        (real((2, 3), (1, 3)), {"dimension": 0}, ((0, 1),)),
    ],
    "split": [(real((2, 5)), {"sizes": (2, 0, 3), "axis": 1}, ONE), (real((4,)), {"sizes": (1, 3), "axis": 0}, ONE)],
    "dynamic_slice": [
        (with_index(real((5, 4)), s, t), {"slice_sizes": z}, ONE)
        for s, t, z in ((1, 2, (2, 2)), (4, -3, (3, 2)), (2, 0, (1, 4)), (0, 0, (5, 4)))
    ],
    "dynamic_update_slice": [
        (with_index(real((5, 4), z), s, t), {}, ((0, 1), (0,), (1,)))
        for s, t, z in ((1, 2, (2, 2)), (4, -3, (3, 2)), (2, 0, (1, 4)), (0, 0, (5, 4)))
    ],
    "iota": [(real(), {"dtype": d, "shape": (2, 3), "dimension": a}, ()) for d, a in ((F64, 0), (dtypes.int32, 1))],
    "optimization_barrier": [(real((2,), (2, 3)), {}, ((0, 1), (1,)))],
    "dot_general": [
        (real((2, 3), (3, 4)), dot((1,), (0,)), ((0,), (1,))),
        (real((5, 2, 3), (4, 3, 5)), dot((2,), (1,), (0,), (2,)), ((0,), (1,))),
        (real((3, 2, 4), (4, 5, 3)), dot((0, 2), (2, 0)), ((0,), (1,))),
        (real((2, 3, 4, 2), (4, 2, 2, 3)), dot((2, 0), (0, 2), (1,), (3,)), ((0,), (1,))),
        (real((3,), (3,)), dot((0,), (0,)), ((0,), (1,))),
        (real((2,), (3,)), dot((), ()), ((0,), (1,))),
    ],
    "attention": attention_rows(False),
    "attention_dq": attention_rows(True),
    "attention_dkv": attention_rows(True),
    "gather": [
        (with_index(real((5, 4)), _take), at((0,), 0, "fill"), ONE),
        (with_index(real((3, 5, 4)), _take, [[0, 3], [1, 1], [2, 9]]), at((0, 2), 0, "clip"), ONE),
        (with_index(real((3, 5, 4)), _take), at((2,), 1, "zero"), ONE),
        (with_index(real((3, 2, 5)), [[4, 5], [-1, 2], [0, 0]]), at((2,), 2, "zero"), ONE),
        (with_index(real((5,)), 3), at((0,), 0, "fill"), ONE),
    ],
    "scatter": [row for op in ("set", "add", "mul", "min", "max") for row in scatter_rows(op)],
    "sort": [
        (distinct((3, 4)), {"dimension": 1, "is_stable": True, "num_keys": 1}, ()),
        (distinct((3, 4)), {"dimension": 0, "is_stable": True, "num_keys": 1}, ()),
        (tied_keys((3, 4)), {"dimension": 1, "is_stable": True, "num_keys": 1}, ()),
        (tied_keys((4, 3)), {"dimension": 0, "is_stable": True, "num_keys": 2}, ()),
    ],
    "cumsum": [(real((3, 4)), {"axis": a, "reverse": r}, ONE) for a, r in ((0, False), (1, True))],
    "cumprod": [(real((3, 5), low=0.5), {"axis": a, "reverse": r}, ()) for a, r in ((0, False), (1, True))],
    "cummax": [(distinct((3, 5)), {"axis": a, "reverse": r}, ()) for a, r in ((0, False), (1, True))],
    "cummin": [(distinct((3, 5)), {"axis": a, "reverse": r}, ()) for a, r in ((0, False), (1, True))],
}  # fmt: skip

# Primitives of which some operands have no derivative (and say so).
NO_DERIVATIVE_BY = {("scatter", "mul"): (1,), ("attention_dq", None): (4, 5), ("attention_dkv", None): (4, 5)}

# Results that have no derivative of their own (and say so).
NO_DERIVATIVE_OF = {"attention": (1, 2)}


def cases(primitive: Primitive, dtype: Any) -> list[Case]:
    """All example calls of a primitive with float operands (or what it takes instead) of ``dtype``."""
    if primitive.family is Family.ELEMENTWISE:
        return list(elementwise_cases(primitive, dtype))
    result = []
    for i, (maker, params, linear) in enumerate(ROWS[primitive.name]):
        if dtypes.is_complex(dtype) and params.get("op") in ("mul", "min", "max"):
            continue  # complex numbers are scattered by set and add
        rng = rng_of(f"{primitive.name}{i}{dtype.name}")
        result.append(Case(primitive, maker(rng, dtype), params, linear, str(i)))
    return result


def vocabulary() -> list[Primitive]:
    """Every primitive that means something by itself for numbers (calls mean the program they carry, users' kernels
    their own)."""
    others = (Family.CALL, Family.CONTROL, Family.COLLECTIVE, Family.CALLBACK, Family.KEYS, Family.USER)
    return [p for p in REGISTRY.values() if p.family not in others]


def dtypes_of(primitive: Primitive) -> list[Any]:
    """The first dtype of each kind that the primitive takes."""
    if primitive.family is Family.ATTENTION:
        return [dtypes.float32]
    return [DTYPES[kind][0] for kind in kinds_of(primitive)]


def kinds_of(primitive: Primitive) -> tuple[str, ...]:
    """The kinds of dtypes that a primitive takes: complex ones too, where its record says what it means for pairs."""
    kinds: tuple[str, ...] = ("bool", "int") if primitive.name in ("reduce_and", "reduce_or") else ("float", "int")
    kinds = kinds if primitive.domain is None else primitive.domain.kinds
    more = primitive.pairs is not None and primitive.name != "complex" and "complex" not in kinds
    return (*kinds, "complex") if more else kinds


def float_cases() -> list[Case]:
    """Cases in float64 of all primitives from floats to floats."""
    return [
        case
        for p in vocabulary()
        if (p.domain is None or "float" in p.domain.kinds) and p.name not in ("reduce_and", "reduce_or", "complex")
        for case in cases(p, F64)
    ]
