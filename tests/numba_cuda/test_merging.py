"""Merged launches: what conflicts keeps its order, every block finds its call, and optimizers become few launches."""

import itertools

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import nn
from volta.core.errors import VerificationError
from volta.numba_cuda import kernels, merging
from volta.numba_cuda.codegen.threads import TABLE_WORDS
from volta.numba_cuda.launches import SCRATCH, Range, Regions, touched
from volta.numba_cuda.merging import Memory, predecessors, schedule, verify_order
from volta.numba_cuda.schedule import Schedule
from volta.xla_like.compile import build_plan
from volta.xla_like.kernels import LoopKernel


def zeros(*shape):
    return np.zeros(shape, np.float32)


def adam(params, means, variances, gradients):
    out = []
    for p, m, v, g in zip(params, means, variances, gradients, strict=True):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        out.append((p - 1e-3 * m / (vnp.sqrt(v) + 1e-8), m, v))
    return out


def training_step(params, x):
    def loss(params):
        for w, scale in params:
            x_ = nn.layer_norm(x) * scale
            y = nn.gelu(x_ @ w)
        return vnp.mean(vnp.sum(y, 0)) + vnp.sum(vnp.sum(y * y, 0))

    value, grads = volta.value_and_grad(loss)(params)
    return value, [(w - 0.1 * dw, s - 0.1 * ds) for (w, s), (dw, ds) in zip(params, grads, strict=True)]


SHAPES = [(7,), (300, 5), (64, 64), (1,), (5000,), (3, 4, 5)]
TREES = [[zeros(*s) for s in SHAPES]] * 4
STEP = ([(zeros(40, 40), zeros(40)) for _ in range(3)], zeros(20, 40))
LONG = (zeros(100, 20_000), zeros(200, 40_000))


def plan_of(f, *args, donated=()):
    return build_plan(volta.make_jaxpr(f)(*args), donated=donated, scheduler=Schedule())[0]


PLANS = {
    "adam": lambda: plan_of(adam, *TREES, donated=tuple(range(18))),
    "training": lambda: plan_of(training_step, *STEP),
    "long rows": lambda: plan_of(lambda x, y: (x.sum(1), vnp.argmax(y, 1), vnp.exp(x).sum(1)), *LONG),
    "parts": lambda: plan_of(lambda x: vnp.concatenate([x, x + 1, vnp.pad(x, 2)[2:-2]], 1)[::-1], zeros(6, 7)),
    "between": lambda: plan_of(
        lambda x, y: vnp.stack([x, y, x * y, x[::-1]], 1) @ x[:5, :4] + y[:1, :4], zeros(9, 5), zeros(9, 5)
    ),
    "scatter": lambda: plan_of(lambda x: x.at[vnp.arange(100) % 7].add(x[:100]).at[2:4].set(1.0), zeros(120, 5)),
}


def raw(plan):
    """A plan's launches before they are merged, in the order of its calls."""
    regions = Regions()
    return kernels.unmerged(plan, regions), regions


@pytest.fixture(params=PLANS)
def plan(request):
    return PLANS[request.param]()


def test_adam_is_few_launches():
    found = kernels.launches_of(PLANS["adam"]())
    assert len(found) <= 3 and sum(x.calls for x in found) == len(SHAPES)
    assert len(raw(PLANS["adam"]())[0]) == len(SHAPES)


def test_every_launch_runs_once_and_in_order(plan):
    launches, regions = raw(plan)
    memory = Memory(plan, regions)
    groups = schedule(launches, predecessors(launches, memory), regions)
    assert sorted(itertools.chain(*groups)) == list(range(len(launches)))
    verify_order(launches, groups, memory)


def test_products_in_parts_share_their_scratch_memory():
    """Each frees its own before the next takes it: nothing that waits for a part of one comes between its parts."""

    def step(params, x):
        loss = lambda params: sum(vnp.sum((x @ w) ** 2) for w in params)  # noqa: E731
        return [w - 0.1 * dw for w, dw in zip(params, volta.grad(loss)(params), strict=True)]

    plan = plan_of(step, [zeros(64, 256)] * 6, zeros(1024, 64), donated=tuple(range(6)))
    _, regions = raw(plan)
    parts = [x for x in kernels.launches_of(plan) if x.scratch]
    assert len(parts) > 6 and max(x.scratch for x in parts) <= 2 * max(regions.sizes) < sum(regions.sizes)


def numbers(span):
    low, high, period, width = span
    return {n for start in range(low, high, period) for n in range(start, min(start + width, high))}


def conflict(x, y, memory):
    def meet(first, second):
        """By their numbers where both have pieces that lie apart, by their ends otherwise."""
        return any(
            bool(numbers(r) & numbers(q)) if r[2] and q[2] else r[0] < q[1] and q[0] < r[1]
            for r in memory.spans(first).tolist()
            for q in memory.spans(second).tolist()
        )

    return meet(x.writes, y.writes) or meet(x.writes, y.reads) or meet(x.reads, y.writes)


def test_predecessors_imply_every_conflict(plan):
    launches, regions = raw(plan)
    memory = Memory(plan, regions)
    reached = []
    for earlier in predecessors(launches, memory):
        reached.append(set(earlier).union(*(reached[p] for p in earlier)))
    for j, x in enumerate(launches):
        for i in range(j):
            assert not conflict(launches[i], x, memory) or i in reached[j]


def test_the_verifier_sees_each_broken_order():
    plan = PLANS["training"]()
    launches, regions = raw(plan)
    memory = Memory(plan, regions)
    groups = [[i] for i in range(len(launches))]
    verify_order(launches, groups, memory)
    broken = 0
    for j, earlier in enumerate(predecessors(launches, memory)):
        for i in earlier:
            order = [g for g in groups if g != [j]]
            together = [[i, j] if g == [i] else g for g in order]
            before = [*order[:i], [j], *order[i:]]
            for wrong in (together, before):
                with pytest.raises(VerificationError, match="breaks the order"):
                    verify_order(launches, wrong, memory)
                broken += 1
    assert broken > 10
    for lost in (groups[1:], [*groups, [0]]):
        with pytest.raises(VerificationError, match="lost a launch"):
            verify_order(launches, lost, memory)


def test_regions_of_scratch_memory_in_use_at_one_time_lie_apart():
    launches, regions = raw(PLANS["long rows"]())
    placed = merging.place_scratch(launches, regions)
    assert len(regions.sizes) == 4
    place, used = {}, {}
    for i, (x, y) in enumerate(zip(launches, placed, strict=True)):
        for (word, region, _), (word_, buffer, at) in zip(x.addresses, y.addresses, strict=True):
            assert word == word_ and (buffer == SCRATCH if region < 0 else (region == buffer))
            if region < 0:
                assert place.setdefault(region, at) == at
                assert at + regions.size(region) <= y.scratch
                used.setdefault(region, []).append(i)
    for r, s in itertools.combinations(place, 2):
        apart = place[r] + regions.size(r) <= place[s] or place[s] + regions.size(s) <= place[r]
        assert apart or max(used[r]) < min(used[s]) or max(used[s]) < min(used[r])


def lookup(words, block):
    """The block's call, where the call's args begin, and the block's number in it: as `threads.merge_entry` does."""
    shift, at_starts, at_args, size, _ = words[:TABLE_WORDS]
    call = words[TABLE_WORDS + (block >> shift)]
    starts = words[at_starts // 8 :]
    while starts[call + 1] <= block:
        call += 1
    return call, (at_args + call * size) // 8, block - starts[call]


def test_alike_loops_over_small_values_are_one_launch_whatever_stands_between():
    """A decoder's rotations of queries and of keys: between them stands what puts values into the cache."""
    weights = nn.QuantizedArray(np.zeros((64, 144), np.uint8), "Q4_K")

    def attend(x, q, k, v, keys, values, start):
        q, k, v = (nn.linear(x, w).reshape(1, 1, 2, 32) for w in (q, k, v))
        q, k = (nn.rotary_embedding(y, start[:, None], nn.rotary_frequencies(32)) for y in (q, k))
        cache = nn.KeyValueCache(keys, values).update(k, v, start)
        return cache.attend(q, start), cache

    cache = zeros(1, 128, 2, 32)
    plan = plan_of(attend, zeros(1, 256), *[weights] * 3, cache, cache, np.zeros(1, np.int32), donated=(4, 5))
    turns = [x for x in kernels.launches_of(plan, "9.0a") if "sub" in x.label]
    assert [x.calls for x in turns] == [2]
    first, second = (call for call in plan.calls if "sub" in call.describe())
    between = [call for call in plan.calls if call.describe() == "scatter" and not set(second.writes) & set(call.reads)]
    assert between and merging.alike_beside([first, *between, second], plan.buffers) == [first, second, *between]
    reading = [attrs.evolve(call, writes=second.reads[:1]) for call in between]
    assert merging.alike_beside([first, *reading, second], plan.buffers) == [first, *reading, second]


@pytest.mark.parametrize("grids", [(1, 1), (5, 1, 7), (1, 3000, 1, 2, 90_000), (1,) * 700, (100_000, 2)])
def test_every_block_finds_its_call(grids):
    launches, _ = raw(PLANS["adam"]())
    one = launches[0]
    calls = [attrs.evolve(one, grid=n, words=(i,) * len(one.words)) for i, n in enumerate(grids)]
    many = merging.merged(calls)
    assert (many.grid, many.calls, many.source.name) == (sum(grids), len(grids), one.source.name + "_many")
    assert many.words[0] == 0 or len(many.words) < 2000
    wanted = [(i, block) for i, n in enumerate(grids) for block in range(n)]
    for block in range(0, many.grid, max(1, many.grid // 5000)):
        call, args, own = lookup(many.words, block)
        assert (call, own) == wanted[block]
        assert many.words[args : args + len(one.words)] == (call,) * len(one.words)


def test_addresses_move_with_their_words():
    launches, _ = raw(PLANS["adam"]())
    key = launches[0].source.name
    same = [x for x in launches if x.source.name == key]
    many = merging.merged(same)
    at_args, size = many.words[2] // 8, many.words[3] // 8
    want = [(at_args + i * size + w, b, n) for i, x in enumerate(same) for w, b, n in x.addresses]
    assert list(many.addresses) == want


def elements(call, access, x):
    """Every byte range that an access without index terms touches."""
    sizes = call.sizes[: len(access.strides)]
    for index in itertools.product(*map(range, sizes)):
        at = access.offset + sum(i * s for i, s in zip(index, access.strides, strict=True))
        yield at, at + x.dtype.itemsize


def test_ranges_are_those_of_the_elements(plan, request):
    sizes = {b.id: b.nbytes for b in plan.buffers}
    checked = 0
    for call in plan.calls:
        for part in call.each():
            reads, writes = touched(part, sizes.__getitem__)
            for buffer, low, high, period, width in (*reads, *writes):
                assert 0 <= low <= high <= sizes[buffer] and (not period or 0 < width < period)
            kernel = part.kernel
            if not isinstance(kernel, LoopKernel) or kernel.by_blocks:
                continue
            if np.prod(part.sizes) > 20_000:
                continue
            for x, access in zip(kernel.stores, part.accesses[-len(kernel.stores) :], strict=True):
                if not access.terms:
                    found = list(elements(part, access, x))
                    low, high = min(a for a, _ in found), max(b for _, b in found)
                    (written,) = (r for r in writes if r[:3] == (access.buffer, low, high))
                    if written.period:
                        every = numbers(written[1:])
                        assert all(every.issuperset(range(*ends)) for ends in found) and written.nbytes == len(every)
                    checked += 1
    assert checked or request.node.callspec.params["plan"] == "long rows"  # which has too many elements to visit


@pytest.mark.parametrize("seed", range(20))
def test_pieces_between_each_other_conflict_where_they_share_a_byte(seed):
    """Ranges of a few periods, drawn: launches wait for all that they share a written byte with; those of one period
    alone wait for nothing else."""
    rng = np.random.default_rng(seed)
    launches, _ = raw(PLANS["adam"]())
    memory = Memory(PLANS["adam"](), Regions())
    buffer = PLANS["adam"]().outputs[0]

    def drawn(periods):
        period, low = int(rng.choice(periods)), int(rng.integers(0, 30))
        width = int(rng.integers(1, period)) if period else 0
        return Range(buffer, low, low + int(rng.integers(0, 40)), period, width)

    def every(r):
        return numbers(r[1:]) if r.period else set(range(r.low, r.high))

    def share(x, y):
        return any(
            every(r) & every(q)
            for a, b in ((x.writes, y.writes), (x.writes, y.reads), (x.reads, y.writes))
            for r in a
            for q in b
        )

    for periods in ([0, 6, 7, 12], [7]):
        some = [attrs.evolve(launches[0], reads=(drawn(periods),), writes=(drawn(periods),)) for _ in range(30)]
        reached = []
        for i, earlier in enumerate(predecessors(some, memory)):
            reached.append(set(earlier).union(*(reached[p] for p in earlier)))
            assert all(j in reached[i] for j in range(i) if share(some[i], some[j]))
        groups = [[i] for i in range(len(some))]
        verify_order(some, groups, memory)
        i, j = next((i, j) for i in range(30) for j in range(i) if some[i].writes and share(some[i], some[j]))
        with pytest.raises(VerificationError, match="breaks the order"):
            verify_order(some, [[i], *(g for g in groups if g != [i])], memory)
        assert j in reached[i]


def test_what_is_written_between_each_other_is_one_launch():
    """The copies of a convolution's windows, into parts of one array; its reader waits for all of them."""

    def windows(x):
        parts = [x[:, k : k + 6, :] for k in range(3)]
        return vnp.concatenate(parts, 2) @ vnp.ones((12, 5))

    found = kernels.launches_of(plan_of(windows, zeros(2, 8, 4)))
    (copies,) = (x for x in found if x.calls == 3)
    assert {r.period for r in copies.writes} == {48} and {r.width for r in copies.writes} == {16}
    assert {r.low % 48 for r in copies.writes} == {0, 16, 32}
    reader = next(x for x in found if "dot" in x.source.name)
    assert found.index(copies) in reader.after


def test_launches_wait_for_all_that_they_conflict_with(plan):
    found = kernels.launches_of(plan)
    regions = Regions()
    memory = Memory(plan, regions)
    reached = []
    for i, x in enumerate(found):
        assert all(0 <= p < i for p in x.after)
        reached.append(set(x.after).union(*(reached[p] for p in x.after)))
        for j in range(i):
            assert not conflict(found[j], x, memory) or j in reached[i]


def test_edges_that_others_imply_are_left_out():
    assert merging.needed([[], [0], [0, 1], [0], [1, 2, 3]]) == [(), (0,), (1,), (0,), (2, 3)]


def test_independent_launches_do_not_wait_for_each_other():
    found = kernels.launches_of(plan_of(lambda x, y: (x @ x, y @ y.T, (x @ x) @ x), zeros(32, 32), zeros(16, 8)))
    assert sorted(len(x.after) for x in found) == [0, 0, 1]
