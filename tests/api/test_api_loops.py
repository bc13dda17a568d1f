"""``volta.lax``'s loops and choices: what they take, what they refuse, and how often they trace and compile."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import errors, lax
from volta.core import pytrees
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing.bits import assert_bits_equal, digest
from volta.testing.host_grid import HostKernels, check_on_host


def ones(*shape):
    return np.ones(shape, np.float32)


def test_pytrees_go_through_and_none_is_a_tree():
    init = {"a": 1.0, "b": (ones(2), None)}

    def step(carry, x):
        return {"a": carry["a"] * 2, "b": (carry["b"][0] + x["x"], None)}, {"y": carry["a"], "none": None}

    carry, ys = lax.scan(step, init, {"x": ones(3, 2)})
    assert float(carry["a"]) == 8.0 and carry["b"][0].tolist() == [4.0, 4.0] and carry["b"][1] is None
    assert ys["y"].tolist() == [1.0, 2.0, 4.0] and ys["none"] is None
    assert lax.cond(True, lambda x: {"a": x, "b": None}, lambda x: {"a": -x, "b": None}, 2.0)["b"] is None


def test_a_python_number_takes_the_type_that_the_body_gives_it():
    total, _ = lax.scan(lambda c, x: (c + x, None), 0, ones(3))
    assert (total.dtype, float(total)) == (np.float32, 3.0)
    assert lax.while_loop(lambda x: x < 5, lambda x: x + np.float64(2), 1).dtype == np.float64
    assert lax.cond(False, lambda: 1, lambda: np.float32(2)).dtype == np.float32


def test_values_of_around_a_loop_are_seen_inside():
    w = vnp.asarray(ones(3) * 2)
    f = lambda x: lax.scan(lambda c, _: (c * w, None), x, None, 3)[0]  # noqa: E731
    assert f(ones(3)).tolist() == volta.jit(f)(ones(3)).tolist() == [8.0, 8.0, 8.0]
    g = volta.grad(lambda w: lax.scan(lambda c, _: (c * w, None), 1.0, None, 3)[0])
    assert float(g(2.0)) == 12.0
    choice = lambda p, x: lax.cond(p, lambda: x * 2, lambda: x * 3)  # noqa: E731
    assert float(volta.grad(choice, argnums=1)(True, 1.0)) == 2.0
    assert float(volta.jit(volta.grad(choice, argnums=1))(False, 1.0)) == 3.0


def test_the_length_of_a_scan():
    assert lax.scan(lambda c, _: (c + 1, c), 0, length=3)[1].tolist() == [0, 1, 2]
    empty = lax.scan(lambda c, x: (c + x, c * x), np.float32(1), ones(0))
    assert float(empty[0]) == 1.0 and empty[1].shape == (0,)
    assert lax.scan(lambda c, x: (c + x, c), np.float32(0), ones(1))[1].shape == (1,)


def test_fori_loops_run_as_ranges_do():
    for low, high in ((0, 4), (3, 3), (5, 2), (-2, 2)):
        want = sum(range(low, high))
        assert int(lax.fori_loop(low, high, lambda i, x: x + i, 0)) == want
        assert int(volta.jit(lambda a, b: lax.fori_loop(a, b, lambda i, x: x + i, 0))(low, high)) == want


def test_map_in_batches_is_map():
    x = np.arange(35, dtype=np.float32).reshape(7, 5)
    want = lax.map(lambda r: (r * 2, r.sum()), x)
    for size in (1, 3, 7, 10):
        got = lax.map(lambda r: (r * 2, r.sum()), x, batch_size=size)
        assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


def test_an_index_out_of_range_is_moved_inside():
    branches = [lambda x, k=k: x + k for k in range(3)]
    assert [float(lax.switch(i, branches, 0.0)) for i in (-5, 0, 1, 2, 7)] == [0, 0, 1, 2, 2]
    assert float(lax.switch(np.uint8(200), branches, 0.0)) == 2.0
    batch = volta.vmap(lambda i, x: lax.switch(i, branches, x))(np.int32([5, 0, -1]), ones(3))
    assert batch.tolist() == [3.0, 1.0, 1.0]


def test_one_branch_alone_runs():
    f = volta.jit(lambda p, x: lax.cond(p, lambda x: lax.while_loop(lambda x: x > 0, lambda x: x, x), lambda x: x, x))
    assert float(f(False, 1.0)) == 1.0  # the other would never end


def test_a_loop_is_one_program_whatever_its_length():
    f = volta.jit(lambda n, x: lax.fori_loop(0, n, lambda i, x: x * 1.5, x))
    f(1, 1.0)
    misses = PLAN_CACHE.misses
    assert [float(f(n, 1.0)) for n in (0, 1, 2)] == [1.0, 1.5, 2.25] and PLAN_CACHE.misses == misses
    short = volta.jit(f).lower(1, 1.0).compile().plan
    assert len(short.calls) < 8
    calls = []

    def body(c, x):
        calls.append(1)
        return c + x, None

    volta.jit(lambda xs: lax.scan(body, np.float32(0), xs))(ones(1000))
    assert len(calls) == 1


def test_what_is_carried_keeps_its_place():
    """No iteration copies an array that it changes in part, or that it computes element by element."""

    def f(table, xs):
        return lax.scan(lambda t, x: (t.at[0].add(x), t[0]), table, xs)

    (loop,) = [c for c in volta.jit(f).lower(ones(100, 8), ones(5, 8)).compile().plan.calls if c.plans]
    (iteration,) = loop.plans
    copied = [c for c in iteration.calls if not c.elided and c.describe() == "map(copy)" and len(c.accesses) == 2]
    assert not [c for c in copied if np.prod(c.sizes) > 8]


def test_peaks_are_planned():
    def f(x):
        return lax.scan(lambda c, _: (vnp.sort(vnp.sin(c) @ c), None), x, None, 5)[0]

    plan = volta.jit(f).lower(ones(64, 64)).compile().plan
    assert plan.arena_bytes < 6 * 64 * 64 * 4  # not growing with the iterations
    with volta.execution_context(memory_budget=1000), pytest.raises(errors.MemoryBudgetError, match="needs"):
        volta.jit(lambda x: f(x) + 1)(ones(64, 64))


REFUSED = {
    "another shape": (lambda: lax.scan(lambda c, x: (vnp.concatenate([c, c]), x), ones(2), ones(3)), errors.ShapeError,
                      r"carry itself: goes in as f32\[2\], comes out as f32\[4\]"),
    "another dtype": (lambda: lax.while_loop(lambda x: x < 3, lambda x: x + ones()[()], np.int32(0)), errors.DTypeError,
                      r"goes in as i32\[\], comes out as f32\[\].*Give the first value the type"),
    "another structure": (lambda: lax.scan(lambda c, x: ((c, c), x), ones(2), ones(3)), errors.TreeError,
                          "in the structure that it was given"),
    "no pair": (lambda: lax.scan(lambda c, x: c, ones(2), ones(3)), errors.TreeError, r"return a pair \(carry, y\)"),
    "lengths": (lambda: lax.scan(lambda c, x: (c, None), 0, {"a": ones(2), "b": ones(3)}), errors.ShapeError,
                r"xs\['a'\] has 2, xs\['b'\] has 3"),
    "no length": (lambda: lax.scan(lambda c, x: (c, None), 0), errors.ShapeError, "pass length"),
    "a scalar to run along": (lambda: lax.scan(lambda c, x: (c, None), 0, 3.0), errors.ShapeError, "no axis to run"),
    "a condition of many": (lambda: lax.while_loop(lambda x: x > 0, lambda x: x, ones(2)), errors.ShapeError, "rank 0"),
    "a condition that is no bool": (lambda: lax.while_loop(lambda x: x, lambda x: x, 1.0), errors.DTypeError, "a bool"),
    "branches of other shapes": (lambda: lax.cond(True, lambda x: x, lambda x: x[:1], ones(2)), errors.ShapeError,
                                 r"they gave `<lambda>` f32\[\d\], `<lambda>` f32\[\d\]"),
    "branches of other structures": (lambda: lax.cond(True, lambda x: x, lambda x: (x, x), ones(2)), errors.TreeError,
                                     "one structure"),
    "a pred of many": (lambda: lax.cond(ones(2) > 0, lambda: 1, lambda: 2), errors.ShapeError, "volta.numpy.where"),
    "a float index": (lambda: lax.switch(1.0, [lambda: 1]), errors.DTypeError, "must be an integer"),
    "no branches": (lambda: lax.switch(0, []), errors.ShapeError, "no branches"),
    "a float bound": (lambda: lax.fori_loop(0, 2.5, lambda i, x: x, 0), errors.DTypeError, "upper must be an integer"),
    "no function": (lambda: lax.scan(3, 0, ones(3)), TypeError, "takes a function"),
    "backwards through a while": (lambda: volta.grad(lambda x: lax.while_loop(lambda x: x < 9, abs, x))(9.0),
                                  errors.NotDifferentiableError, "how many iterations .* volta.lax.scan"),
    "a leak": (lambda: lax.scan(lambda c, x: (leaked.append(c) or c, x), ones(2), ones(3)) and leaked[0] + 1,
               errors.UnexpectedTracerError, "outside of its trace"),
}  # fmt: skip
leaked: list = []


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why_and_where(name):
    run, error, words = REFUSED[name]
    with pytest.raises(error, match=f"(?s){words}") as found:
        run()
    assert "test_api_loops.py" in str(found.value)


def test_without_jit_each_turn_runs_by_itself():
    seen = []

    def step(c, x):
        seen.append(float(c))
        return c + x, c * x

    programs = (
        lambda: lax.scan(step, np.float32(1), ones(3)),
        lambda: lax.scan(step, np.float32(1), ones(3), reverse=True),
        lambda: lax.while_loop(lambda x: x < 5, lambda x: seen.append(float(x)) or x * 2, 1.0),
        lambda: lax.fori_loop(0, 3, lambda i, x: seen.append(float(x)) or x + i, 1.0),
        lambda: lax.cond(True, lambda x: seen.append(float(x)) or x + 1, lambda x: x, 1.0),
    )
    for program in programs:
        seen.clear()
        with volta.disable_jit():
            got = program()
        assert seen
        seen.clear()
        with pytest.raises(errors.ConcretizationTypeError):
            program()
        del got
    with volta.disable_jit():
        assert float(volta.grad(lambda x: lax.scan(step, x, ones(3))[0])(1.0)) == 1.0


def pair_of(scan):
    return lambda x: scan(lambda c, y: ((c[0], c[1] + c[0]), c[1]), (x[0], x[1]), x)


EDGES = {
    "numbers counted up": lambda x: x[0] + lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, vnp.arange(5)))[1],
    "a constant to run along": lambda x: lax.scan(lambda c, y: (c + y * x[1], y), np.float32(0), vnp.ones(6)),
    "a view": lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2, x.reshape(2, 3).T[1:]),
    "a bool": lambda x: lax.while_loop(lambda s: s[0], lambda s: (s[1] < 3, s[1] + 1), (True, x[0])),
    "no elements": lambda x: lax.scan(lambda c, y: (c, y * 2), x[:0], vnp.zeros((3, 0))),
    "no elements in a branch": lambda x: lax.cond(x[0] > 0, lambda z: z, lambda z: z * 2, x[:0]),
    "what does not change": pair_of(lax.scan),
    "one value twice": lambda x: lax.scan(lambda c, y: ((c[0] + y, c[0] + y), (c[1], c[1])), (x[0], x[0]), x),
    "turned round": lambda x: lax.fori_loop(0, 4, lambda i, s: (s[2], s[0], s[1] * 1.0), (x, x + 1, x + 2)),
    "operands as results": lambda x: lax.cond(x[0] > 0, lambda a, b: (a, b, a), lambda a, b: (b, a, b + 1), x, x * 2),
    "a branch in a condition": lambda x: lax.while_loop(
        lambda s: lax.cond(s.sum() > 0, lambda s: s.max() < 20, lambda s: s.min() > -20, s), lambda s: s * 1.5, x),
    "a scan in a condition": lambda x: lax.while_loop(
        lambda s: lax.scan(lambda c, y: (c + y, None), np.float32(0), s)[0] < 50, lambda s: s * 1.5, x),
    "all there is": lambda x: lax.scan(lambda c, y: lax.cond(
        y > 1, lambda c: (lax.while_loop(lambda s: s < c + 10, lambda s: s + 3, c), c), lambda c: (c - 1, c * 3), c),
        np.float32(0), x),
    "rows of a Jacobian": volta.jacrev(lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x)[1]),
    "second derivatives": volta.hessian(lambda x: lax.scan(lambda c, y: (vnp.sin(c) * y, c), x.sum(), x)[0]),
    "recomputed": volta.grad(lambda x: lax.scan(volta.checkpoint(lambda c, y: (vnp.sin(c) * y, c)), x.sum(), x)[0]),
    "jitted inside": volta.grad(lambda x: lax.scan(volta.jit(lambda c, y: (vnp.sin(c) * y, c)), x.sum(), x)[0]),
}  # fmt: skip
KERNELS = HostKernels()


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.few(5)
def test_edges_are_the_same_eager_jitted_and_on_kernels_for_gpus(name):
    x = np.arange(1, 7, dtype=np.float32)
    apart = pytrees.leaves(EDGES[name](x))
    for a, b in zip(apart, pytrees.leaves(volta.jit(EDGES[name])(x)), strict=True):
        assert_bits_equal(a, b)
    check_on_host(EDGES[name], x, kernels=KERNELS)


def test_what_does_not_change_is_right():
    (first, total), seen = pair_of(lax.scan)(np.arange(1, 7, dtype=np.float32))
    assert (float(first), float(total), seen.tolist()) == (1.0, 8.0, [2.0, 3.0, 4.0, 5.0, 6.0, 7.0])


def test_a_loop_of_unknown_length_is_linearized_forwards():
    """The linear part is the loop again, so its bits are those of jvp, in jitted functions, scans and choices too."""

    def f(x):
        grown = lambda c: (c[0] * c[0] + 1.5 * x, c[1] + 1)  # noqa: E731
        return lax.while_loop(lambda c: vnp.sum(c[0]) < 100.0, grown, (x, 0))[0]

    x, basis = vnp.asarray([1.0, 2.0], "float32"), vnp.eye(2)
    functions = {
        "plain": f,
        "jit": volta.jit(f),
        "checkpoint": volta.checkpoint(f),
        "scan": lambda x: lax.scan(lambda c, v: (f(c / 10) + v, c), x, vnp.arange(3.0))[0],
        "cond": lambda x: lax.cond(x[0] > 0, f, lambda x: x, x),
    }
    for name, function in functions.items():
        columns = [volta.jvp(function, (x,), (t,))[1] for t in basis]
        want = vnp.stack(columns, 1)
        linear = volta.linearize(function, x)[1]
        assert digest(volta.jacfwd(function)(x)) == digest(want), name
        assert all(digest(linear(t)) == digest(column) for t, column in zip(basis, columns, strict=True)), name
    second = volta.jacfwd(volta.jacfwd(f))(x)
    assert digest(volta.jvp(volta.jacfwd(f), (x,), (basis[0],))[1]) == digest(second[..., 0])
    for backwards in (
        volta.jacrev(f),
        volta.jit(volta.grad(lambda x: f(x)[0])),
        volta.grad(lambda x: volta.jit(f)(x)[0]),
    ):
        with pytest.raises(
            errors.NotDifferentiableError, match="cannot run a `while` backwards.*jacfwd work"
        ) as caught:
            backwards(x)
        assert "lax.while_loop(lambda c: vnp.sum(c[0])" in str(caught.value)
