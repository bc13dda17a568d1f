"""Scans in segments: less is kept of their iterations for the scan that runs back, and no bit moves."""

from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.runtime import gateway
from volta.testing.bits import bits
from volta.xla_like.passes import optimize
from volta.xla_like.segments import cut_scans
from volta.xla_like.verify import verify_graph

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) / 8).astype(np.float32)


def layers(ws: Any, x: Any) -> Any:
    x, _ = lax.scan(lambda x, w: (vnp.tanh(x @ w), None), x, ws)
    return vnp.sum(x * x)


def with_everything(ws: Any, x: Any) -> Any:
    """What all iterations read, two values that are carried, results that are stacked and read again, from the end."""

    def step(carry: Any, w: Any) -> Any:
        y, total = carry
        y = vnp.tanh(y @ w + ws[0, 0])
        return (y, total + vnp.sum(y)), y * total

    (y, total), ys = lax.scan(step, (x, 0.5), ws, reverse=True, unroll=2)
    return vnp.sum(y * total) + vnp.sum(ys * ys)


def within_loops(ws: Any, x: Any) -> Any:
    """A loop of the user's in each iteration."""

    def step(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, 2, lambda i, y: vnp.sin(y @ w), x), vnp.sum(x)

    x, sums = lax.scan(step, x, ws)
    return vnp.sum(x) * vnp.sum(sums)


def program_of(f: Any, args: Any) -> Any:
    return optimize(volta.jit(volta.value_and_grad(f, (0, 1))).trace(*args).jaxpr)


@pytest.mark.parametrize("f", [layers, pytest.param(with_everything, marks=pytest.mark.slow), within_loops])
@pytest.mark.parametrize("length", [12, pytest.param(4, marks=pytest.mark.slow)])
def test_a_scan_in_segments_has_its_bits(f: Any, length: int) -> None:
    args = drawn(length, 16, 16), drawn(32, 16)
    program = program_of(f, args)
    cut = cut_scans(program)
    assert cut is not None
    verify_graph(cut)
    assert sum(e.primitive.name == "scan" for e in cut.eqns) == sum(e.primitive.name == "scan" for e in program.eqns)
    values = [vnp.asarray(x) for x in args]
    assert bits(gateway.compile(cut)(values)) == bits(gateway.compile(program)(values))


def test_a_mapped_scan_in_segments_has_its_bits() -> None:
    def f(ws: Any, x: Any) -> Any:
        return vnp.sum(volta.vmap(layers, (None, 0))(ws, x))

    args = drawn(6, 8, 8), drawn(3, 40, 8)
    cut = cut_scans(program_of(f, args))
    assert cut is not None
    values = [vnp.asarray(x) for x in args]
    assert bits(gateway.compile(cut)(values)) == bits(gateway.compile(program_of(f, args))(values))


def test_what_cannot_be_spared_is_left() -> None:
    """No divisor, nothing that runs back, or residuals that somebody else reads too."""
    assert cut_scans(program_of(layers, (drawn(7, 8, 8), drawn(16, 8)))) is None
    forwards = optimize(volta.jit(layers).trace(drawn(8, 8, 8), drawn(16, 8)).jaxpr)
    assert cut_scans(forwards) is None

    def shown(ws: Any, x: Any) -> Any:
        total, pullback = volta.vjp(lambda x: lax.scan(lambda x, w: (x * w, x * w), x, ws)[1], x)
        return total, pullback(total)

    read_twice = optimize(volta.jit(shown).trace(drawn(8, 16), drawn(16)).jaxpr)
    assert cut_scans(read_twice) is None  # the products of one operand are results


def test_a_budget_cuts_layers_under_scan_into_segments() -> None:
    """Of 36 layers about twice 6 of each kind are kept, for a forward pass more."""
    args = drawn(36, 32, 32), drawn(256, 32)
    f = volta.value_and_grad(layers, (0, 1))
    (free,) = volta.plan_for(f, args)
    budget = free.peak - free.plan.arena_bytes + int(0.45 * free.plan.arena_bytes)
    jitted = volta.jit(lambda *xs: f(*xs), memory_budget=budget)
    plan = jitted.lower(*args).compile().plan
    assert plan.peak_live_bytes <= budget
    again, work = plan.computed_again
    assert again > 0 and work < 0.6  # a forward pass: tanh costs as much as a narrow product
    assert bits(jitted(*args)) == bits(volta.jit(f)(*args))
