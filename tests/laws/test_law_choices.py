"""A choice by a comparison with zero keeps the zero that it chooses, whatever is converted on the way.

Compilers like to take ``y > 0 ? 0 : y`` for a minimum, which may give the other zero. Operation by operation there is
nothing to take for one, so the compiled program shows what was mixed up.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

VALUES = [-0.0, 0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan]
DTYPES = ("float16", "bfloat16", "float32", "float64")
PAIRS = list(itertools.product(DTYPES, repeat=2))
COMPARISONS = {"gt": lax.gt, "ge": lax.ge, "lt": lax.lt, "le": lax.le}
AFTER = {"neg": lax.neg, "mul": lambda y: lax.mul(y, 3.0), "add": lambda y: lax.add(y, -0.0)}


def programs(wide: str) -> Any:
    """A choice between a zero and a number, made by the number or by what it is converted to; then an operation."""
    converted = (lambda x: x, lambda x: x.astype(wide))
    for compare, tested, chosen, zero, first in itertools.product(
        COMPARISONS.values(), converted, converted, (0.0, -0.0), (False, True)
    ):

        def choice(x: Any, compare=compare, tested=tested, chosen=chosen, zero=zero, first=first) -> Any:
            y = chosen(x)
            none = lax.full_like(y, zero)
            return lax.select(compare(tested(x), 0.0), *((none, y) if first else (y, none)))

        yield choice
        for after in AFTER.values():
            yield lambda x, after=after, choice=choice: after(choice(x))
            yield lambda x, after=after, choice=choice: lax.select(lax.gt(x, 0.0), after(choice(x)), choice(x))


@sampled("narrow, wide", PAIRS, quick=[("float16", "float16"), ("float32", "float64")], ids=str)
@pytest.mark.parametrize("kernels", ["llvm", pytest.param("njit", marks=pytest.mark.slow)])
def test_choices_keep_their_zeros(narrow: str, wide: str, kernels: str) -> None:
    x = vnp.asarray(np.array(VALUES, np.float32)).astype(narrow)
    found = list(enumerate(programs(wide)))
    with volta.execution_context(kernels=kernels):
        for number, f in found[PAIRS.index((narrow, wide)) % 13 :: 13]:  # coprime to the kinds: all occur
            assert_bits_equal(volta.jit(f)(x), f(x), f"program {number} of {narrow} and {wide}")
