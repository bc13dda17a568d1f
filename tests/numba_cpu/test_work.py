"""What is too little to be shared is run by the calling thread alone, and so are loops of nothing else."""

from collections import defaultdict

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.xla_like.xla_support import CPU, plan_of, struct
from volta import lax
from volta.numba_cpu.host_plan import host_plan
from volta.numba_cpu.lower import Rows
from volta.numba_cpu.work import ALONE, is_small


def rows(f, *args):
    """Of each row, whether it has a kernel, its tasks and its pieces."""
    made = Rows(defaultdict(lambda: 1))
    made.add(host_plan(plan_of(f, *args), CPU), lambda buffer, distance: (0, distance))
    return [(bool(kernel), tasks, pieces) for kernel, _, tasks, pieces in made.table.rows]


@pytest.mark.parametrize(
    ("f", "shape", "alone"),
    [
        (lambda x: x + 1, (64, 40), True),
        (lambda x: x + 1, (64, 400), False),
        (vnp.exp, (64, 20), True),
        (vnp.exp, (64, 40), False),
        (lambda x: vnp.sum(x, 1), (64, 40), True),
        (lambda x: vnp.sum(x, 1), (64, 400), False),
        (lambda x: x.T @ x, (20, 20), True),
        (lambda x: x.T @ x, (200, 200), False),
        (lambda x: lax.dynamic_slice_in_dim(x, 3, 9, 0), (4000, 40), True),
        (lambda x: vnp.sort(x, 0), (64, 40), False),
    ],
)
def test_launches_with_little_to_do_are_the_callers(f, shape, alone) -> None:
    plan = plan_of(f, struct(*shape))
    assert all(is_small(call, plan.buffers) for call in plan.calls) == alone
    assert all(not pieces for _, _, pieces in rows(f, struct(*shape))) == alone
    assert ALONE < 1 << 17, "beyond it a plan has threads at all"


def _shifted(k, x):
    """An iteration that reads and writes three rows of what it carries, or all of it."""
    return lax.dynamic_update_slice_in_dim(x, 2 * lax.dynamic_slice_in_dim(x, k, 3, 0), k + 1, 0)


def test_a_loop_over_parts_of_a_large_array_is_walked_by_the_caller() -> None:
    """However often it jumps, threads meet once; a loop whose kernels are shared is walked by all."""
    few = rows(lambda x: volta.lax.fori_loop(0, 60, _shifted, x) + 1, struct(3000, 64))
    (start,) = (i for i, (kernel, tasks, _) in enumerate(few) if not kernel and tasks)
    end = few[start][1]
    assert not any(tasks > 1 and pieces for _, tasks, pieces in few[start:end])
    assert few[-1][2], "the last kernel is shared"
    all_of_it = rows(lambda x: volta.lax.fori_loop(0, 60, lambda k, x: x + k, x), struct(3000, 64))
    assert not any(tasks for kernel, tasks, _ in all_of_it if not kernel)


def test_nested_loops_and_choices_have_the_same_bits_on_any_number_of_threads() -> None:
    x = vnp.asarray(np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32))

    @volta.jit
    def f(x):
        def outer(k, x):
            x = lax.cond(k % 2 == 0, lambda x: x * 0.5, lambda x: x, x)
            return volta.lax.fori_loop(0, 9, lambda i, x: _shifted(i + k, x), x)

        return volta.lax.fori_loop(0, 20, outer, x) + 1

    before = volta.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            volta.set_num_threads(threads)
            found.append(np.asarray(f(x)).tobytes())
    finally:
        volta.set_num_threads(before)
    assert len(set(found)) == 1
