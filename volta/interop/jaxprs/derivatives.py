"""Functions with rules of their own: Volta keeps JAX's rules, which JAX itself writes out as programs.

The equation alone is a function of JAX's. What ``jax.jvp``, ``jax.vjp`` and ``jax.vmap`` make of it is traced, where
Volta wants a derivative or a batch, and translated as any other program: so rules may be of any kind that JAX takes,
today's or tomorrow's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr as JaxProgram

from volta.core import dtypes
from volta.core.interp import current_trace, get_aval
from volta.interop.jaxprs.equations import Equation, Rule
from volta.ops.base import instantiate
from volta.ops.primitive import Zero
from volta.trace.custom import CustomCall, ForwardRule, Pull, ReverseRule
from volta.trace.custom_batch import BatchRule, call


def _alone(eqn: Any) -> Callable[..., list[Any]]:
    """The equation as a function of JAX's from its operands to its outputs."""

    def apply(*operands: Any) -> list[Any]:
        made = eqn.primitive.get_bind_params(eqn.params)
        functions, params = ((), made) if isinstance(made, dict) else made  # the functions came first, before JAX 0.10
        return eqn.primitive.bind(*functions, *operands, **params)

    return apply


def _traced(function: Callable[..., Any], *structs: Any) -> JaxProgram:
    return jax.make_jaxpr(function)(*structs)


def _structs(eqn: Any) -> list[Any]:
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]


def _merged(nonzero: Sequence[bool], operands: Sequence[Any], live: Sequence[Any]) -> list[Any]:
    values = iter(live)
    return [next(values) if nz else x for nz, x in zip(nonzero, operands, strict=True)]


def _zero(x: Any) -> Zero:
    return Zero(get_aval(x).strip_weak())


def _program(e: Equation) -> JaxProgram:
    closed = e.params.get("call_jaxpr") or e.params.get("fun_jaxpr") or e.params.get("call")
    return closed if isinstance(closed, JaxProgram) else JaxProgram(closed, ())


def _custom_jvp(e: Equation, *values: Any) -> Any:
    function, structs = _alone(e.eqn), _structs(e.eqn)

    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        nonzero = [not isinstance(t, Zero) for t in tangents]
        live = [s for s, nz in zip(structs, nonzero, strict=True) if nz]

        def pushed(operands: Any, dots: Any) -> Any:
            of_live = lambda *xs: function(*_merged(nonzero, operands, xs))  # noqa: E731
            given = tuple(x for x, nz in zip(operands, nonzero, strict=True) if nz)
            outs, found = jax.jvp(of_live, given, tuple(dots))
            return outs, [t for x, t in zip(outs, found, strict=True) if _differentiable(x)]

        program = _traced(pushed, structs, live)
        dots = [instantiate(t) for t, nz in zip(tangents, nonzero, strict=True) if nz]
        found = e.run(program, *primals, *dots)
        count = len(e.outs)
        outs, rest = found[:count], iter(found[count:])
        return outs, [next(rest) if dtypes.is_inexact(get_aval(x).dtype) else _zero(x) for x in outs]

    run = CustomCall(lambda *xs: e.run(_program(e), *xs), ForwardRule(_named(e), rule, e.eqn))
    return current_trace().process_custom(run, values)


def _custom_vjp(e: Equation, *values: Any) -> Any:
    function, structs = _alone(e.eqn), _structs(e.eqn)

    def forward(primals: Sequence[Any], nonzero: Sequence[bool]) -> tuple[Sequence[Any], Sequence[Any], Pull]:
        nonzero = list(nonzero)
        pulls: list[Any] = []

        def pushed(*operands: Any) -> Any:
            of_live = lambda *xs: function(*_merged(nonzero, operands, xs))  # noqa: E731
            outs, pull = jax.vjp(of_live, *(x for x, nz in zip(operands, nonzero, strict=True) if nz))
            residuals, tree = jax.tree.flatten(pull)
            pulls.append(tree)
            return outs, residuals

        program = _traced(pushed, *structs)
        found = e.run(program, *primals)
        count = len(e.outs)
        kept = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.out_avals[count:]]
        wanted = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in e.eqn.outvars]

        def pull(residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            def pulled(residuals: Any, cts: Any) -> Any:
                given = iter(cts)
                full = [next(given) if _differentiable(s) else _float0(s) for s in wanted]
                return list(jax.tree.unflatten(pulls[0], residuals)(full))

            live = [s for s in wanted if _differentiable(s)]
            dots = [instantiate(ct) for ct, s in zip(cts, wanted, strict=True) if _differentiable(s)]
            given = iter(e.run(_traced(pulled, kept, live), *residuals, *dots))
            return [next(given) if nz else _zero(x) for nz, x in zip(nonzero, primals, strict=True)]

        return found[:count], found[count:], pull

    run = CustomCall(lambda *xs: e.run(_program(e), *xs), ReverseRule(_named(e), forward))
    return current_trace().process_custom(run, values)


def _custom_vmap(e: Equation, *values: Any) -> Any:
    function, structs, program = _alone(e.eqn), _structs(e.eqn), e.program(e.params["call"])
    count = len(program.consts)

    def rule(size: int, mapped: Sequence[bool], args: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        mapped = list(mapped)[count:]
        of_batch = [
            jax.ShapeDtypeStruct((size, *s.shape), s.dtype) if m else s for s, m in zip(structs, mapped, strict=True)
        ]
        batched = _traced(jax.vmap(function, in_axes=[0 if m else None for m in mapped]), *of_batch)
        return e.run(batched, *list(args)[count:]), [True] * len(e.outs)

    return call(program, values, BatchRule(_named(e), rule))


def _named(e: Equation) -> str:
    return str(e.params.get("name") or getattr(_program(e).jaxpr.debug_info, "func_name", None) or e.name)


def _differentiable(x: Any) -> bool:
    return bool(jax.dtypes.issubdtype(x.dtype, jax.numpy.inexact))


def _float0(struct: Any) -> Any:
    return np.zeros(struct.shape, jax.dtypes.float0)


RULES: dict[str, Rule] = {
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    "custom_vjp_call_jaxpr": _custom_vjp,
    "custom_vmap_call": _custom_vmap,
}
