"""Second derivatives of every primitive, in all mixtures of forward and reverse mode: rules compose."""

import numpy as np
import pytest

import volta
from volta.core import dtypes
from volta.core.interp import get_aval
from volta.ops.primitive import NoDerivative
from volta.testing.cases import NO_DERIVATIVE_BY, float_cases, rng_of

CASES = [
    c
    for c in float_cases()
    if not isinstance(c.primitive.jvp, NoDerivative) and dtypes.is_float(c.params.get("new_dtype", dtypes.float64))
]
STEP = 1e-5


class Smooth:
    """The case as a function of its differentiable operands, with one output: the sum of its results with weights."""

    def __init__(self, case):
        self.case = case
        frozen = NO_DERIVATIVE_BY.get((case.primitive.name, case.params.get("op")), ())
        self.places = [i for i, a in enumerate(case.args) if dtypes.is_float(a.dtype) and i not in frozen]
        self.point = tuple(case.args[i] for i in self.places)
        rng = rng_of(str(case) + "directions")
        self.u, self.t = (tuple(rng.uniform(-1, 1, a.shape) for a in self.point) for _ in range(2))

    def __call__(self, *live):
        args = list(self.case.args)
        for i, x in zip(self.places, live, strict=True):
            args[i] = x
        out = self.case.primitive.bind(*args, **self.case.params)
        outs = out if self.case.primitive.multiple_results else [out]
        return tuple(o for o in outs if dtypes.is_float(get_aval(o).dtype))

    def cotangents(self):
        rng = rng_of(str(self.case) + "ct")
        return tuple(rng.uniform(-1, 1, o.shape).astype(o.dtype) for o in self(*self.point))


def difference(f, point, direction):
    high = f(*(p + STEP * d for p, d in zip(point, direction, strict=True)))
    low = f(*(p - STEP * d for p, d in zip(point, direction, strict=True)))
    return [
        (np.asarray(h, np.float64) - np.asarray(lo, np.float64)) / (2 * STEP) for h, lo in zip(high, low, strict=True)
    ]


def close(actual, expected, dtype=np.float64):
    loose = dtype != np.float64
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), e, rtol=0.2 if loose else 2e-5, atol=0.2 if loose else 2e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.turns(4, each=True)
def test_second_order(case):
    f = Smooth(case)
    dtype = f(*f.point)[0].dtype

    def forward(*x):
        return tuple(volta.jvp(f, x, f.t)[1])

    def reverse(*x):
        return tuple(volta.vjp(f, *x)[1](cts))

    cts = f.cotangents()
    over_forward = volta.jvp(forward, f.point, f.u)[1]
    close(over_forward, difference(forward, f.point, f.u), dtype)
    over_reverse = volta.jvp(reverse, f.point, f.u)[1]
    close(over_reverse, difference(reverse, f.point, f.u), dtype)
    # <ct, D(forward) u> == <D(forward)' ct, u>, and the same of reverse over reverse, whose matrix is symmetric
    back = volta.vjp(forward, *f.point)[1](cts)
    left = sum(np.vdot(c, np.asarray(o)) for c, o in zip(cts, over_forward, strict=True))
    right = sum(np.vdot(np.asarray(b), u) for b, u in zip(back, f.u, strict=True))
    np.testing.assert_allclose(left, right, rtol=1e-8 if dtype == np.float64 else 1e-3, atol=1e-10)
    twice = volta.vjp(reverse, *f.point)[1](f.u)
    close(twice, [np.asarray(o, np.float64) for o in over_reverse], dtype)
