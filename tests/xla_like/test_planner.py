"""The planner's quick ways against the plain ones: offsets, overlaps, the schedule, and what waits for what."""

import itertools
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.xla_like.xla_support import program_of, struct
from volta.core.avals import ShapedArray
from volta.core.errors import VerificationError
from volta.xla_like.fusion import Fuser, fuse
from volta.xla_like.lowering import lower_to_nodes
from volta.xla_like.memory import assign_memory, verify_allocation
from volta.xla_like.nodes import Ref
from volta.xla_like.passes import optimize
from volta.xla_like.plan import Buffer, aligned, lifetimes
from volta.xla_like.schedule import schedule

SPANS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 11), st.integers(0, 11)), max_size=24)


def temps(spans):
    """Temps of some bytes, each written by one call and read by a later one (or the same)."""
    buffers = tuple(Buffer(i, ShapedArray((n,), np.dtype(np.int8)), "temp", "") for i, (n, _, _) in enumerate(spans))
    reads, writes = [[] for _ in range(12)], [[] for _ in range(12)]
    for i, (_, a, b) in enumerate(spans):
        writes[min(a, b)].append(i)
        reads[max(a, b)].append(i)
    return buffers, tuple(SimpleNamespace(reads=r, writes=w, inplace=()) for r, w in zip(reads, writes, strict=True))


def placed_one_by_one(buffers, calls):
    """Largest first, each at the lowest offset that nothing alive with it covers."""
    first, last = lifetimes(buffers, calls)
    offsets = {}
    for b in sorted(buffers, key=lambda b: (-aligned(b.nbytes), first[b.id], b.id)):
        alive = [o for o in offsets if first[o] <= last[b.id] and first[b.id] <= last[o]]
        taken = sorted((offsets[o], offsets[o] + aligned(buffers[o].nbytes)) for o in alive)
        at = 0
        for low, high in taken:
            if at + aligned(b.nbytes) <= low:
                break
            at = max(at, high)
        offsets[b.id] = at
    return [offsets[b.id] for b in buffers]


@given(SPANS)
def test_every_temp_lies_at_the_lowest_free_offset(spans):
    buffers, calls = temps(spans)
    out, arena = assign_memory(buffers, calls, ())
    assert [b.offset for b in out] == placed_one_by_one(buffers, calls)
    assert arena == max((b.offset + aligned(b.nbytes) for b in out), default=0)
    verify_allocation(out, calls, arena)


@given(SPANS, st.lists(st.integers(0, 12), min_size=12, max_size=12).map(sorted))
def test_calls_of_one_moment_may_run_at_one_time(spans, moments):
    """Memory that one of them touches is no other temp's that another one touches, even if it comes before or after."""
    buffers, calls = temps(spans)
    out, arena = assign_memory(buffers, calls, (), moments)
    verify_allocation(out, calls, arena)
    for moment in set(moments):
        touched = {
            i for n, call in zip(moments, calls, strict=True) if n == moment for i in (*call.reads, *call.writes)
        }
        ends = sorted((out[i].offset, out[i].offset + out[i].nbytes) for i in touched)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))


def test_a_temp_that_no_call_touches_has_a_place():
    buffers, calls = temps([(100, 0, 1), (50, 1, 2)])
    unused = Buffer(2, buffers[0].aval, "temp", "")
    for moments in (None, [0] * len(calls)):
        out, arena = assign_memory((*buffers, unused), calls, (), moments)
        verify_allocation(out, calls, arena)
    assert assign_memory((Buffer(0, unused.aval, "temp", ""),), (), ())[0][0].offset == 0


@given(SPANS, st.data())
def test_overlaps_are_found(spans, data):
    buffers, calls = temps(spans)
    moved = tuple(attrs.evolve(b, offset=64 * data.draw(st.integers(0, 12))) for b in buffers)
    first, last = lifetimes(moved, calls)
    wrong = any(
        a.offset < b.offset + b.nbytes
        and b.offset < a.offset + a.nbytes
        and first[a.id] <= last[b.id]
        and first[b.id] <= last[a.id]
        for a in moved
        for b in moved[a.id + 1 :]
    )
    if wrong:
        with pytest.raises(VerificationError, match="are live together and overlap"):
            verify_allocation(moved, calls, 10_000)
    else:
        verify_allocation(moved, calls, 10_000)


def rollout(w, x):
    step = volta.checkpoint(lambda x: x + vnp.tanh(w @ x) / (1 + vnp.sum(x * x)))
    states = [x]
    for _ in range(6):
        states.append(step(states[-1]))
    return vnp.stack(states)


def attention(x):
    q, k, v = vnp.split(x, 3, axis=1)
    return vnp.sum(volta.nn.softmax(q @ k.T) @ v) + vnp.max(vnp.cumsum(q, 0)) * vnp.mean(volta.nn.layer_norm(k))


PROGRAMS = {
    "rollout": (volta.jacrev(rollout), struct(4, 4), struct(4)),
    "forward over it": (volta.jacfwd(rollout), struct(4, 4), struct(4)),
    "attention": (volta.value_and_grad(attention), struct(9, 12)),
    "second derivatives": (volta.hessian(lambda x: vnp.sum(vnp.sin(x) ** 3 * vnp.cumprod(x))), struct(5)),
}


def ancestors_of(needs, index):
    """All that a group waits for, found by walking."""
    found, ways = set(), [index]
    while ways:
        new = needs[ways.pop()] - found
        found |= new
        ways += new
    return found


@pytest.mark.parametrize("seed", range(40))
def test_ancestors_in_any_order_of_growing_and_merging(seed):
    rng = np.random.default_rng(seed)
    fuser, needs = Fuser(), {i: set() for i in range(12)}
    groups = [fuser.new_group((4,), True) for _ in needs]
    for _ in range(40):
        i, j, k = (int(n) for n in rng.choice(list(needs), 3, replace=False))
        if len(needs) > 4 and rng.random() < 0.2:
            a, b = sorted((i, j))
            between = [
                (first in ancestors_of(needs, g) and g in ancestors_of(needs, last))
                for g in needs
                for first, last in ((a, b), (b, a))
            ]
            assert any(between) == (
                fuser._has_between(groups[a], groups[b]) or fuser._has_between(groups[b], groups[a])
            )
            if not any(between):
                fuser._merge(groups[a], groups[b])
                needs[a] = (needs[a] | needs.pop(b)) - {a, b}
                needs = {g: {a if n == b else n for n in ns} for g, ns in needs.items()}
        elif not any(i == n or i in ancestors_of(needs, n) for n in (j, k)):
            fuser._depend(i, [j, k])
            needs[i] |= {j, k}
        for g in needs:
            assert fuser.ancestors[g] == sum(1 << n for n in ancestors_of(needs, g))


@pytest.mark.parametrize("name", PROGRAMS)
def test_fusion_knows_who_waits_for_whom(name):
    """The ancestors that grouping keeps up to date are those of the finished groups."""
    f, *args = PROGRAMS[name]
    fuser, groups = fuse(lower_to_nodes(optimize(program_of(f, *args)).jaxpr), True)
    known: dict[int, int] = {}
    for g in groups:  # in an order that respects dependencies
        known[g.index] = 0
        for x in (x for n in g.nodes for x in n.operands if isinstance(x, Ref)):
            for val in (x.val, *x.after):
                home = fuser.group_of.get(val)
                if home is not None and home is not g:
                    known[g.index] |= known[home.index] | 1 << home.index
    assert known == fuser.ancestors and len(groups) > 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_schedule_takes_what_changes_memory_least(name):
    f, *args = PROGRAMS[name]
    lowered = lower_to_nodes(optimize(program_of(f, *args)).jaxpr)
    fuser, groups = fuse(lowered, True)
    home = {val: g for g in groups for n in g.nodes for val in n.outputs}
    operands = {
        g.index: {x.val for n in g.nodes for x in n.operands if isinstance(x, Ref) and home.get(x.val, g) is not g}
        for g in groups
    }

    def change(g, waiting):
        def counted(v):
            return v not in lowered.outputs and any(v in vals for vals in operands.values())

        made = sum(v.nbytes for n in g.nodes for v in n.outputs if counted(v))
        last_reads = [v for v in operands[g.index] if sum(v in operands[w.index] for w in waiting) == 1]
        return made - sum(v.nbytes for v in last_reads if v not in lowered.outputs)

    waiting, done = list(groups), 0
    for g in schedule(groups, lowered.outputs):
        ready = [w for w in waiting if not fuser.ancestors[w.index] & ~done]
        best = min(ready, key=lambda w: change(w, waiting))  # of equals the first in the program's order
        assert g.index == best.index
        waiting.remove(g)
        done |= 1 << g.index
    assert not waiting


@pytest.mark.parametrize(
    ("f", "calls"),
    [
        (lambda x: vnp.roll(x, 3, 1), 2),
        (lambda x: vnp.concatenate([x[:, ::2], x.T[:, :3]], 1), 2),
        (lambda x: vnp.pad(x[::-1, 1:].T, 1), 2),  # the zeros, and what they surround
        (lambda x: vnp.stack([x[1:], x[:-1] * 2]), 2),
    ],
)
def test_what_is_put_together_is_copied_from_where_it_lies(f, calls):
    plan = volta.jit(f).lower(np.ones((8, 8), np.float32)).compile().plan
    assert len(plan.calls) == calls
