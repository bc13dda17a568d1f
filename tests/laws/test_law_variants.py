"""Law 5 on a GPU's kernels: work that is shared out in other ways, on other grids, gives the same bits.

The programs are those of `volta verify variants`, which a GPU runs; on the host's runner they are smaller.
"""

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import nn
from volta.core.policy import DeterminismLevel
from volta.numba_cuda import kernels
from volta.numba_cuda.schedule import KERNEL_CLASSES
from volta.offline import plan_on_cuda
from volta.runtime.context import current_context
from volta.testing.data import fill
from volta.testing.host_grid import HostKernels, check_on_host
from volta.verify import checks, variants
from volta.xla_like.control_calls import KINDS
from volta.xla_like.kernels import kernel_class
from volta.xla_like.panels import PANEL
from volta.xla_like.user import NAME

KERNELS = HostKernels()


def shape_of(kind, shape, dtype, seed):
    return volta.ShapeDtypeStruct(shape, dtype)


PROGRAMS = {name: (f, args) for name, f, args in variants.programs(shape_of)}


def shared_out_for(processors):
    return volta.execution_context(options=attrs.evolve(current_context().options, processors=processors))


def plans(f, args):
    for processors in variants.PROCESSORS:
        with shared_out_for(processors):
            yield plan_on_cuda(volta.make_jaxpr(f)(*args))[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_suite_has_several_ways(name):
    """A suite that ran the same launches twice would compare nothing."""
    ways = {variants.launched(kernels.launches_of(plan)) for plan in plans(*PROGRAMS[name])}
    assert len(ways) > 1


def test_the_suite_has_every_class_of_kernels():
    calls = [call for f, args in PROGRAMS.values() for plan in plans(f, args) for call in plan.calls]
    found = {kernel_class(part.kernel) for call in calls for part in (call, *call.each())}
    # a kernel of the user's own as its author says, a panel's by its matrices; what waits on the host is copied
    one_way = {NAME, PANEL, "move", *KINDS}
    strict = {name for name, level in KERNEL_CLASSES.items() if level is DeterminismLevel.STRICT}
    assert strict - one_way <= found


@pytest.mark.gpu
def test_the_suite_passes_on_a_gpu():
    found = list(variants.variants(checks.Setting("cuda")))
    assert len(found) == 4 * len(PROGRAMS) and not [check for check in found if check.problem]


@pytest.mark.turns(6)
def test_the_suite_passes_on_the_cpu():
    found = list(variants.variants(checks.Setting("cpu")))
    assert len(found) == 3 * len(PROGRAMS) and not [check for check in found if check.problem]


def x(*shape, seed=0):
    return fill("ladder", shape, seed=seed)


SMALL = {
    "map": (lambda x: nn.gelu(x) + x, (x(70, 200),)),
    "turned map": (lambda x, y: x.T * 2 + y, (x(130, 140), x(140, 130, seed=1))),
    "rows": (nn.softmax, (x(35, 300),)),
    "long rows": (lambda x: (vnp.sum(x, 1), vnp.argmax(x, 1)), (x(2, 20_000),)),
    "columns": (lambda x: vnp.sum(x, 0), (x(300, 96),)),
    "product": (lambda x, w: x @ w, (x(70, 520), x(520, 66, seed=1))),
    "long product": (lambda x, w: x @ w, (x(40, 8300), x(8300, 66, seed=1))),
    "few rows": (lambda x, w: x @ w, (x(2, 300), x(300, 1024, seed=1))),
    "attention": (
        volta.value_and_grad(lambda q: vnp.sum(nn.dot_product_attention(q, q * 2, q + 1) ** 2)),
        (fill("normal", (1, 20, 8, 8)),),
    ),
    "scatter": (lambda t, u: t.at[np.arange(300) % 7].add(u), (x(9, 4), x(300, 4, seed=1))),
    "sort": (lambda x: vnp.sort(x, 1), (x(40, 100),)),
}


@sampled("name", SMALL, quick=("product", "attention", "columns", "sort", "scatter"))
@pytest.mark.few(2)
def test_other_ways_have_the_cpus_bits_on_the_host(name):
    f, args = SMALL[name]
    for processors in (1, 100_000):
        with shared_out_for(processors):
            check_on_host(f, *args, orders=("shuffled",), kernels=KERNELS)


def test_work_shared_out_for_others_is_another_plan():
    """What tests force is no program that anybody else finds."""
    f = volta.jit(lambda x: vnp.sum(x, 0))
    one = f.lower(x(300, 96)).compile()
    with shared_out_for(7):
        other = f.lower(x(300, 96)).compile()
        assert "processors=7" in other.as_text()
    assert "processors" not in one.as_text() and f.lower(x(300, 96)).compile().plan == one.plan
