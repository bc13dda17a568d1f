"""Checks as values: a program with checks in it becomes one that also says which failed first.

Whatever may fail is a :class:`Site`, with a number from 1 on. Beside its own results a program gives the number of the
first site that failed, 0 if none did, and of each site the values that its message shows. Programs inside of programs
have numbers of their own, which go up by what the program around them has before them.

A check is a call of Python's (``volta.ops.callbacks``) until then: where nobody turns it into a value, it raises.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from volta.core import dtypes
from volta.core.avals import ShapedArray
from volta.core.interp import bind, get_aval
from volta.core.ir import ClosedJaxpr, Eqn, Var
from volta.core.source import Source
from volta.ops import base, lax
from volta.ops.base import bind_named, shape_of
from volta.ops.callbacks import HostCall, callback_p, has_effects
from volta.ops.primitive import Family
from volta.trace import masks
from volta.trace.calls import call
from volta.trace.cond import choose
from volta.trace.custom import custom_p
from volta.trace.jaxpr_trace import attributed_to, eval_closed, literal_value, trace_to_jaxpr
from volta.trace.scan import run_scan
from volta.trace.while_loop import run_while

CACHED = 1024


class ErrorCategory(enum.Enum):
    """What ``checkify`` looks for."""

    USER = "user"
    NAN = "nan"
    DIV = "div"
    INDEX = "index"


Wanted = frozenset[ErrorCategory]


@attrs.frozen(eq=False, repr=False)
class Site:
    """What may fail: the text of it, from the values that go with it, of the types ``avals``."""

    text: Callable[[Sequence[np.ndarray]], str]
    avals: tuple[ShapedArray, ...] = ()
    source: Source | None = None

    def says(self, values: Sequence[np.ndarray]) -> str:
        text = self.text(values)
        return text if self.source is None else f"{text}\n{self.source.pointer()}"


@attrs.frozen(eq=False, repr=False)
class CheckCall(HostCall):
    """The call of Python's that a check is: of the condition, then of the values of its site."""

    site: Site = attrs.field(kw_only=True)


@attrs.define(eq=False)
class Found:
    """What a program has found so far: the first site's number, and the values of each site."""

    code: Any = attrs.field(factory=lambda: np.int32(0))
    sites: list[Site] = attrs.field(factory=list)
    values: list[tuple[Any, ...]] = attrs.field(factory=list)

    def note(self, site: Site, failed: Any, values: Sequence[Any] = ()) -> None:
        """One more site, which has failed where the rank-0 boolean ``failed`` is true."""
        self.join(_either(failed, np.int32(1), np.int32(0)), [site], [tuple(values)])

    def join(self, code: Any, sites: Sequence[Site], values: Sequence[tuple[Any, ...]]) -> None:
        """What a program inside has found, whose sites come after those that are there."""
        numbered = lax.add(code, np.int32(len(self.sites)))
        new = lax.bitwise_and(lax.eq(self.code, np.int32(0)), lax.ne(code, np.int32(0)))
        self.code = _either(new, numbered, self.code)
        self.sites += sites
        self.values += values

    def flat(self) -> list[Any]:
        return [self.code, *(x for values in self.values for x in values)]


def _either(on: Any, x: Any, y: Any) -> Any:
    return bind_named("select_n", base.broadcast_to(on, shape_of(x), ()), y, x)


def _any(x: Any) -> Any:
    return lax.reduce_or(x, tuple(range(len(shape_of(x)))))


def _unflat(sites: Sequence[Site], flat: Sequence[Any]) -> tuple[Any, list[tuple[Any, ...]]]:
    rest = iter(flat[1:])
    return flat[0], [tuple(next(rest) for _ in site.avals) for site in sites]


def _nothing(sites: Sequence[Site]) -> list[Any]:
    """What a program with such sites begins with."""
    return [base.fill(a.shape, 0, a.dtype) for a in _types(sites)]


def _types(sites: Sequence[Site]) -> list[ShapedArray]:
    return [ShapedArray((), dtypes.int32), *(a for site in sites for a in site.avals)]


# -- a program ---------------------------------------------------------------------------------------------------------


def run_checked(program: ClosedJaxpr, wanted: Wanted, args: Sequence[Any]) -> tuple[Found, list[Any]]:
    """What is found while the program runs under the current trace, and its results."""
    found = Found()
    jaxpr = program.jaxpr
    env: dict[Var, Any] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return env[atom] if type(atom) is Var else literal_value(atom)

    for eqn in jaxpr.eqns:
        with attributed_to(eqn.source):
            outs = _equation(eqn, wanted, found, [read(a) for a in eqn.inputs])
        env.update(zip(eqn.outputs, outs, strict=True))
    return found, [read(a) for a in jaxpr.outvars]


@lru_cache(maxsize=CACHED)
def checked(program: ClosedJaxpr, wanted: Wanted) -> tuple[ClosedJaxpr, tuple[Site, ...]]:
    """The program that gives what it finds before its own results, and the sites in it."""

    def run(*args: Any) -> tuple[list[Any], tuple[Site, ...]]:
        found, outs = run_checked(program, wanted, args)
        return [*found.flat(), *outs], tuple(found.sites)

    return trace_to_jaxpr(run, program.in_avals, "checkify", "checkify traces")


def _equation(eqn: Eqn, wanted: Wanted, found: Found, args: list[Any]) -> list[Any]:
    name, params = eqn.primitive.name, eqn.params
    if eqn.primitive is callback_p and isinstance(params["call"], CheckCall):
        if ErrorCategory.USER in wanted:
            _user_check(params["call"].site, found, args)
        return []
    if name in _CARRYING:
        return _CARRYING[name](eqn, wanted, found, args)
    if eqn.primitive is custom_p and wanted <= {ErrorCategory.USER}:
        inner, sites = checked(params["jaxpr"], wanted)
        if not _untouched(sites, params["jaxpr"]):  # with a check in it, it is its program
            return _joined(found, sites, eval_closed(inner, *args))
    for category, look in ((ErrorCategory.DIV, _divisors), (ErrorCategory.INDEX, _indices)):
        if category in wanted:
            look(eqn, found, args)
    out = bind(eqn.primitive, *args, **params)
    outs = out if eqn.primitive.multiple_results else [out]
    if ErrorCategory.NAN in wanted and _computes(eqn):
        _nans(eqn, found, outs)
    return list(outs)


def _joined(found: Found, sites: Sequence[Site], results: Sequence[Any]) -> list[Any]:
    """The results of a checked program, whose findings are noted."""
    state, outs = masks.parts(results, len(_types(sites)))
    found.join(*_state(sites, state))
    return list(outs)


def _state(sites: Sequence[Site], state: Sequence[Any]) -> tuple[Any, Sequence[Site], list[tuple[Any, ...]]]:
    code, values = _unflat(sites, state)
    return code, sites, values


# -- what may fail -----------------------------------------------------------------------------------------------------


def _user_check(site: Site, found: Found, args: list[Any]) -> None:
    """Of a batch of conditions it is the first that fails."""
    condition, *values = args
    batch = shape_of(condition)
    bad = lax.bitwise_not(condition)
    if batch:
        size = int(np.prod(batch))
        flat = base.reshape_to(bad, (size,))
        first = lax.argmax(flat, 0, np.int32)
        rows = [base.reshape_to(x, (size, *shape_of(x)[len(batch) :])) for x in values]
        values = [base.reshape_to(lax.gather(x, [first], (0,), mode="clip"), shape_of(x)[1:]) for x in rows]
        bad = _any(flat)
    found.note(site, bad, values)


def _divisors(eqn: Eqn, found: Found, args: list[Any]) -> None:
    if eqn.primitive.name in ("div", "rem"):
        zero = lax.eq(args[1], 0)
        found.note(Site(lambda values: "division by zero", (), eqn.source), _any(zero))


def _nans(eqn: Eqn, found: Found, outs: Sequence[Any]) -> None:
    name = eqn.params["rule"].name if eqn.primitive is custom_p and hasattr(eqn.params["rule"], "name") else None
    text = f"nan generated by primitive: {name or eqn.primitive.name}."
    bad = [_any(lax.ne(x, x)) for x in outs if dtypes.is_inexact(get_aval(x).dtype)]
    if bad:
        failed = bad[0]
        for other in bad[1:]:
            failed = lax.bitwise_or(failed, other)
        found.note(Site(lambda values: text, (), eqn.source), failed)


_MOVING = Family.MOVEMENT, Family.INDEXING, Family.SORTING, Family.CALLBACK, Family.COLLECTIVE


def _computes(eqn: Eqn) -> bool:
    """Whether an equation makes numbers, rather than move those that are there."""
    moves = ("select_n", "convert_element_type", "copy", "bitcast_convert_type", "optimization_barrier", "neg")
    return eqn.primitive.family not in _MOVING and eqn.primitive.name not in moves


def _indices(eqn: Eqn, found: Found, args: list[Any]) -> None:
    name, params = eqn.primitive.name, eqn.params
    if name not in ("gather", "scatter", "dynamic_slice", "dynamic_update_slice"):
        return
    shape = shape_of(args[0])
    if name in ("gather", "scatter"):
        given = args[1:] if name == "gather" else args[2:]
        for axis, index in zip(params["axes"], given, strict=True):
            _bounds(eqn, found, shape, axis, index, shape[axis] - 1)
        return
    sizes = params["slice_sizes"] if name == "dynamic_slice" else shape_of(args[1])
    for axis, start in enumerate(args[1:] if name == "dynamic_slice" else args[2:]):
        _bounds(eqn, found, shape, axis, start, shape[axis] - sizes[axis])


def _bounds(eqn: Eqn, found: Found, shape: tuple[int, ...], axis: int, index: Any, last: int) -> None:
    """An index of an axis that must not be below 0 or above ``last``."""
    size = int(np.prod(shape_of(index)))
    if not size:
        return
    wide = lax.convert_element_type(base.reshape_to(index, (size,)), np.int64)
    bad = lax.bitwise_or(lax.lt(wide, np.int64(0)), lax.gt(wide, np.int64(last)))
    first = lax.argmax(bad, 0, np.int32)
    value = base.reshape_to(lax.gather(wide, [first], (0,), mode="clip"), ())

    def text(values: Sequence[np.ndarray]) -> str:
        return (
            f"out-of-bounds indexing for array of shape {shape}: index {int(values[0])} is out of bounds for axis "
            f"{axis} with size {shape[axis]}."
        )

    found.note(Site(text, (ShapedArray((), dtypes.int64),), eqn.source), _any(bad), [value])


# -- programs inside of programs ---------------------------------------------------------------------------------------


def _untouched(sites: Sequence[Site], *programs: ClosedJaxpr) -> bool:
    """Whether programs may stay as they are: nothing in them is looked at, and there is no check to leave out."""
    return not sites and not any(map(has_effects, programs))


def _called(eqn: Eqn, wanted: Wanted, found: Found, args: list[Any]) -> list[Any]:
    params = dict(eqn.params)
    program, name = params.pop("jaxpr"), params.pop("name")
    inner, sites = checked(program, wanted)
    if _untouched(sites, program):
        return list(call(eqn.primitive, program, args, name, **params))
    return _joined(found, sites, call(eqn.primitive, inner, args, name, **params))


def _cond(eqn: Eqn, wanted: Wanted, found: Found, args: list[Any]) -> list[Any]:
    """The sites of all branches, in their order; what the chosen one finds."""
    index, *operands = args
    branches = eqn.params["branches"]
    sites = [checked(b, wanted)[1] for b in branches]
    together = tuple(s for own in sites for s in own)
    if _untouched(together, *branches):
        return list(choose(index, branches, operands))
    programs = tuple(_among(b, wanted, number, tuple(sites)) for number, b in enumerate(branches))
    return _joined(found, together, choose(index, programs, operands))


@lru_cache(maxsize=CACHED)
def _among(branch: ClosedJaxpr, wanted: Wanted, number: int, sites: tuple[tuple[Site, ...], ...]) -> ClosedJaxpr:
    """A branch that gives the values of all branches' sites: zeros for those of others."""

    def run(*args: Any) -> tuple[list[Any], None]:
        whole = Found()
        outs: list[Any] = []
        for i, own in enumerate(sites):
            if i == number:
                outs = _joined(whole, own, eval_closed(checked(branch, wanted)[0], *args))
            else:
                whole.join(*_state(own, _nothing(own)))
        return [*whole.flat(), *outs], None

    return trace_to_jaxpr(run, branch.in_avals, "cond", "checkify traces")[0]


def _after(sites: Sequence[Site], before: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """What is found after one more iteration: what was found before it, if that was something."""
    went_well = lax.eq(before[0], np.int32(0))
    return [_either(went_well, x, y) for x, y in zip(new, before, strict=True)]


def _scan(eqn: Eqn, wanted: Wanted, found: Found, args: list[Any]) -> list[Any]:
    params = eqn.params
    body, n_consts, n_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    iterations = {key: params[key] for key in ("length", "reverse", "unroll")}
    consts, carry, xs = masks.parts(args, n_consts, n_carry)
    program, sites = _iteration(body, wanted, n_consts)
    if _untouched(sites, body):
        return list(run_scan(body, consts, carry, xs, **iterations))
    return _joined(found, sites, run_scan(program, consts, [*_nothing(sites), *carry], xs, **iterations))


@lru_cache(maxsize=CACHED)
def _iteration(body: ClosedJaxpr, wanted: Wanted, n_consts: int) -> tuple[ClosedJaxpr, tuple[Site, ...]]:
    """A loop's body that carries what is found before its own values."""
    inner, sites = checked(body, wanted)
    types = _types(sites)

    def run(*args: Any) -> tuple[list[Any], None]:
        consts, before, rest = masks.parts(args, n_consts, len(types))
        new, outs = masks.parts(eval_closed(inner, *consts, *rest), len(types))
        return [*_after(sites, before, new), *outs], None

    avals = [*body.in_avals[:n_consts], *types, *body.in_avals[n_consts:]]
    return trace_to_jaxpr(run, avals, "iteration", "checkify traces")[0], sites


def _while(eqn: Eqn, wanted: Wanted, found: Found, args: list[Any]) -> list[Any]:
    params = eqn.params
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    tested, used, init = masks.parts(args, params["cond_nconsts"], params["body_nconsts"])
    programs, sites = _loop(condition, body, wanted, len(tested), len(used))
    if _untouched(sites, condition, body):
        return list(run_while(condition, tested, body, used, init))
    of_condition = checked(condition, wanted)[1]
    state, outs = masks.parts(eval_closed(checked(condition, wanted)[0], *tested, *init), len(_types(of_condition)))
    whole = Found()
    whole.join(*_state(of_condition, state))
    of_body = sites[len(of_condition) :]
    whole.join(*_state(of_body, _nothing(of_body)))
    carry = [outs[0], *whole.flat(), *init]
    return _joined(found, sites, run_while(programs[0], [], programs[1], [*tested, *used], carry)[1:])


@lru_cache(maxsize=CACHED)
def _loop(
    condition: ClosedJaxpr, body: ClosedJaxpr, wanted: Wanted, n_tested: int, n_used: int
) -> tuple[tuple[ClosedJaxpr, ClosedJaxpr], tuple[Site, ...]]:
    """A loop that carries whether it goes on, what is found, then its own values: what its condition finds too."""
    test, of_condition = checked(condition, wanted)
    inner, of_body = checked(body, wanted)
    sites = (*of_condition, *of_body)
    types = _types(sites)

    def going_on(goes_on: Any, *rest: Any) -> tuple[list[Any], None]:
        return [goes_on], None

    def run(*args: Any) -> tuple[list[Any], None]:
        tested, used, _, before, carry = masks.parts(args, n_tested, n_used, 1, len(types))
        new, carry = masks.parts(eval_closed(inner, *used, *carry), len(_types(of_body)))
        state, outs = masks.parts(eval_closed(test, *tested, *carry), len(_types(of_condition)))
        whole = Found()
        whole.join(*_state(of_condition, state))
        whole.join(*_state(of_body, new))
        first = _either(lax.eq(new[0], np.int32(0)), whole.code, lax.add(new[0], np.int32(len(of_condition))))
        return [outs[0], *_after(sites, before, [first, *whole.flat()[1:]]), *carry], None

    carried = [condition.out_avals[0], *types, *body.out_avals]
    avals = [*condition.in_avals[:n_tested], *body.in_avals[:n_used], *carried]
    programs = [trace_to_jaxpr(going_on, carried, "condition", "checkify traces")[0]]
    programs.append(trace_to_jaxpr(run, avals, "iteration", "checkify traces")[0])
    return (programs[0], programs[1]), sites


_CARRYING: dict[str, Callable[[Eqn, Wanted, Found, list[Any]], list[Any]]] = {
    "jit": _called,
    "checkpoint": _called,
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
