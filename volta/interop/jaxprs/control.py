"""Calls, loops and choices: what carries programs, under JAX's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr as JaxProgram
from jax.extend.core import primitives

from volta.api.checkpointing import checkpoint_name
from volta.interop.jaxprs.equations import Equation, Rule
from volta.ops import lax
from volta.trace import linear_solve
from volta.trace.calls import call, opened
from volta.trace.checkpoint import Policy, checkpoint_p
from volta.trace.cond import choose
from volta.trace.scan import run_scan
from volta.trace.while_loop import run_while


def _inline(e: Equation, *values: Any) -> Any:
    """A call means its program: jitted functions, and what else is marked as a call."""
    program = e.params["jaxpr"] if "jaxpr" in e.params else e.params["call_jaxpr"]
    return e.run(_closed(program), *values)


def _closed(program: Any) -> JaxProgram:
    return program if isinstance(program, JaxProgram) else JaxProgram(program, ())


def _scan(e: Equation, *values: Any) -> Any:
    p = e.params
    first, then = p["num_consts"], p["num_consts"] + p["num_carry"]
    turns = {"length": int(p["length"]), "reverse": bool(p["reverse"]), "unroll": max(int(p["unroll"]), 1)}
    return run_scan(e.program(p["jaxpr"]), values[:first], values[first:then], values[then:], **turns)


def _while(e: Equation, *values: Any) -> Any:
    p = e.params
    first, then = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    condition, body = e.program(p["cond_jaxpr"]), e.program(p["body_jaxpr"])
    return run_while(condition, values[:first], body, values[first:then], values[then:])


def _cond(e: Equation, index: Any, *operands: Any) -> Any:
    branches = [e.program(branch) for branch in e.params["branches"]]
    index = lax.clamp(0, lax.convert_element_type(index, np.int32), len(branches) - 1)
    return choose(index, tuple(branches), operands)


def _platform_index(e: Equation) -> Any:
    """The branch for any platform; there is one program for all."""
    platforms = list(e.params["platforms"])
    return np.int32(platforms.index(None) if None in platforms else 0)


def _linear_solve(e: Equation, *values: Any) -> Any:
    sizes, programs = e.params["const_lengths"], e.params["jaxprs"]
    groups, rest = [], list(values)
    for size in sizes:
        groups.append(rest[:size])
        rest = rest[size:]
    four = [None if program is None else e.program(program) for program in programs]
    groups = [group if p is None else [*p.consts, *group] for p, group in zip(four, groups, strict=True)]
    matvec, vecmat, solve, transpose_solve = (None if p is None else opened(p) for p in four)
    assert matvec is not None and solve is not None
    return linear_solve.solve(linear_solve.Programs(matvec, vecmat, solve, transpose_solve), groups, rest)


# -- recomputation -----------------------------------------------------------------------------------------------------


def _checkpoint(e: Equation, *values: Any) -> Any:
    program = e.program(_closed(e.params["jaxpr"]))
    asked = e.params.get("policy")
    policy = None if asked is None else _policy(asked)
    return call(checkpoint_p, program, values, "checkpoint", policy=policy)


_PRIMITIVES = {p.name: p for key, p in vars(primitives).items() if key.endswith("_p")}
"""JAX's by their names, most of which are Volta's too."""


def _policy(asked: Callable[..., Any]) -> Policy:
    """A policy of JAX's, which knows operations by JAX's primitives, for Volta's."""

    def keeps(primitive: Any, *avals: Any, **params: Any) -> bool:
        own = _PRIMITIVES.get(primitive.name)
        if own is None:
            return False
        answer = asked(own, *avals, **params)
        return answer if isinstance(answer, bool) else type(answer).__name__ in ("SaveableType", "Offloadable")

    return keeps


RULES: dict[str, Rule] = {
    "checkpoint": _checkpoint,
    "closed_call": _inline,
    "cond": _cond,
    "core_call": _inline,
    "call": _inline,
    "program_order": _inline,
    "custom_linear_solve": _linear_solve,
    "jit": _inline,
    "name": lambda e, x: checkpoint_name(x, e.params["name"]),
    "pjit": _inline,
    "platform_index": _platform_index,
    "remat": _checkpoint,
    "remat2": _checkpoint,
    "scan": _scan,
    "while": _while,
}
