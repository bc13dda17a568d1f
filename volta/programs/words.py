"""Programs for those who know no keys: arguments and results that are random keys are their words there."""

from __future__ import annotations

from typing import Any

from volta.api.tracing import make_jaxpr
from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.extended import FRY, is_key
from volta.core.ir import ClosedJaxpr
from volta.ops.keys import unwrap, wrap
from volta.trace.jaxpr_trace import eval_jaxpr
from volta.xla_like.keys import has_keys, without_keys


def in_words(program: ClosedJaxpr) -> ClosedJaxpr:
    """The program with words, uint32 along a last axis, in the place of keys, and no keys inside of it.

    >>> import volta
    >>> [str(a) for a in in_words(volta.make_jaxpr(volta.random.split)(volta.random.key(0))).in_avals]
    ['u32[2]']
    """
    if not has_keys(program):
        return program
    of_keys = [is_key(a.dtype) for a in program.in_avals]

    def run(*leaves: Any) -> list[Any]:
        given = [wrap(x, FRY.impl) if k else x for x, k in zip(leaves, of_keys, strict=True)]
        outs = eval_jaxpr(program.jaxpr, program.consts, *given)
        return [unwrap(x) if is_key(a.dtype) else x for x, a in zip(outs, program.out_avals, strict=True)]

    return without_keys(make_jaxpr(run)(*map(_in_words, program.in_avals)))


def _in_words(aval: ShapedArray) -> ShapedArray:
    return ShapedArray((*aval.shape, FRY.words), dtypes.uint32) if is_key(aval.dtype) else aval
