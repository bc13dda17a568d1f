"""Interleaved arrays are read and written as whole vectors: the values are the same, and no memory beside is touched.

Every array here lies between pages without access (`tests.guarded_memory`): a lane too far ends the process.
"""

import itertools

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.guarded_memory import SIDES, GuardedPool
from tests.sampling import sampled
from volta.numba_cpu import loop_schedule, weaving
from volta.runtime import memory
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing import assert_bits_equal

COUNTS, LENGTHS = (2, 3, 4, 6, 16), (1, 7, 16, 17, 33, 100)
DTYPES = ("float32", "float64", "bfloat16", "float16", "int8", "int64", "bool")


@pytest.fixture(params=SIDES)
def guarded(request, monkeypatch):
    monkeypatch.setattr(memory, "_default_pool", GuardedPool(request.param))
    PLAN_CACHE.clear()  # constants lie where they were compiled


@sampled(
    "count, length, dtype",
    list(itertools.product(COUNTS, LENGTHS, DTYPES)),
    lambda case: case[1:] == (17, "float32") or case in ((3, 33, "bool"), (2, 7, "float64"), (2, 100, "int8")),
)
@pytest.mark.turns(6)
def test_parts_that_lie_side_by_side(guarded, count, length, dtype) -> None:
    x = np.random.default_rng(length).integers(-3, 4, (2, length, count))

    def rotated(m, x):
        parts = [x[..., k] for k in range(count)]
        return m.stack([m.where(p > q, p, q) for p, q in zip(parts, parts[1:] + parts[:1], strict=True)], -1)

    given = vnp.asarray(x).astype(dtype)
    got = volta.jit(lambda x: rotated(vnp, x))(given)
    np.testing.assert_array_equal(np.asarray(got).astype("float64"), rotated(np, np.asarray(given).astype("float64")))


PROGRAMS = {
    "a product": lambda z: z * z,
    "conjugates": lambda z: vnp.conj(z) + 1,
    "parts": lambda z: vnp.imag(z) - vnp.real(z),
    "a transform": lambda z: vnp.fft.fft(z),
    "a transform of rows": lambda z: vnp.fft.fft(z.reshape(8, -1), axis=0),
    "a real transform": lambda z: vnp.fft.rfft(vnp.real(z)),
    "a sum": lambda z: vnp.sum(z * z),
}


@sampled(
    "name, dtype", list(itertools.product(PROGRAMS, ("complex64", "complex128"))),
    lambda case: case[0] in ("a product", "a transform") and case[1] == "complex64",
)  # fmt: skip
@pytest.mark.turns(2)
def test_no_bit_depends_on_it(monkeypatch, name, dtype) -> None:
    rng = np.random.default_rng(0)
    z = (rng.standard_normal(1000) + 1j * rng.standard_normal(1000)).astype(dtype)
    found, weaves = [], []
    for how in (weaving.weave_of, lambda call: weaving.PLAIN):
        monkeypatch.setattr(loop_schedule, "weave_of", lambda call, how=how: weaves.append(how(call)) or weaves[-1])
        PLAN_CACHE.clear()
        found.append(volta.jit(lambda z: PROGRAMS[name](z))(z))
        if how is weaving.weave_of:
            assert any(w != weaving.PLAIN for w in weaves) or name == "a sum"  # one that reduces does no such thing
    assert_bits_equal(*found)


def test_groups_are_what_covers_memory_without_gaps() -> None:
    class At:
        def __init__(self, offset: int, stride: int, buffer: int = 0) -> None:
            self.buffer, self.strides, self.offset = buffer, (100, stride), offset

    def groups(*accesses: At) -> object:
        return weaving._groups([(i, a, 4) for i, a in enumerate(accesses)])

    assert groups(At(0, 8), At(4, 8)) == ((0, 1),)
    assert groups(At(4, 8), At(0, 8)) == ((1, 0),)
    assert groups(At(0, 12), At(4, 12)) == ()  # one of three is missing
    assert groups(At(0, 8), At(4, 8, buffer=1)) == ()
    assert groups(At(0, 8), At(4, 8), At(40, 8), At(44, 8)) == ((0, 1), (2, 3))
    assert groups(At(0, -8), At(4, -8)) == () and groups(At(0, 0), At(4, 0)) == ()
    assert groups(At(0, 6), At(4, 6)) == ()
