"""The batch rule of every primitive equals a loop, bit for bit, whichever operands are mapped along whichever axis."""

import itertools

import numpy as np
import pytest

import volta  # noqa: F401  (installs the runtime)
from volta.core import dtypes
from volta.core.interp import get_aval
from volta.testing.cases import cases, dtypes_of, rng_of, vocabulary

SIZE = 3
CASES = [c for p in vocabulary() for c in cases(p, dtypes_of(p)[0]) if c.args]


def variants(case, i):
    """The operand, SIZE times with other values (indices move, so that the mapped ones differ)."""
    a = case.args[i]
    rng = rng_of(f"{case}{i}")
    if np.issubdtype(a.dtype, np.integer) and dtypes.is_float(case.args[0].dtype):
        return [a, a[::-1].copy() if a.ndim else a + 1, np.zeros_like(a)]
    return [a] + [rng.permutation(a.ravel()).reshape(a.shape) for _ in range(SIZE - 1)]


def mappings(case):
    n = len(case.args)
    for mapped in itertools.product((False, True), repeat=n):
        if any(mapped):
            yield [0 if m else None for m in mapped]
    yield [a.ndim for a in case.args]
    yield [a.ndim if i % 2 else 0 for i, a in enumerate(case.args)]


def bits(x):
    x = np.asarray(x)
    if dtypes.is_float(x.dtype):
        x = np.where(np.isnan(x), np.array(np.nan, x.dtype), x)
    return x.shape, x.dtype, np.ascontiguousarray(x).tobytes()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.turns(4, each=True)
def test_batch_rule_equals_a_loop(case):
    primitive = case.primitive
    many = [variants(case, i) for i in range(len(case.args))]
    expected = {}
    for dims in mappings(case):
        args = [a if d is None else np.stack(v, d) for a, v, d in zip(case.args, many, dims, strict=True)]
        outs, out_dims = primitive.batch(args, dims, SIZE, **case.params)
        if not primitive.multiple_results:
            outs, out_dims = [outs], [out_dims]
        for b in range(SIZE):
            key = tuple(b if d is not None else -1 for d in dims)
            if key not in expected:
                one = [a if d is None else v[b] for a, v, d in zip(case.args, many, dims, strict=True)]
                expected[key] = primitive.bind(*one, **case.params)
            singles = expected[key] if primitive.multiple_results else [expected[key]]
            for out, dim, single in zip(outs, out_dims, singles, strict=True):
                assert get_aval(out).shape[dim] == SIZE
                assert bits(np.take(np.asarray(out), b, dim)) == bits(single), (dims, b)
