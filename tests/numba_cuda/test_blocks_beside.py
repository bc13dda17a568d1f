"""Products of the same few rows with weights in blocks are one launch, and ask for the weights of the next."""

import numpy as np

import volta
from tests.block_weights import random_blocks
from volta import nn
from volta.numba_cuda.device_plan import device_plan
from volta.numba_cuda.products.beside import side_by_side, weights_ahead
from volta.offline import plan_on_cuda
from volta.testing.host_grid import HostKernels, check_on_host
from volta.xla_like.kernels import kernel_class

KERNELS = HostKernels()


def weights(outputs, seed):
    return nn.QuantizedArray(random_blocks("Q8_0", outputs, 8, seed=seed), "Q8_0")


def layer(x, q, k, v, out):
    """As in attention: what is read of k and v before q is computed is best for memory."""
    y = nn.rms_norm(x)
    k, v = nn.linear(y, k) * 2, nn.linear(y, v)
    return nn.linear(nn.linear(y, q) + k.sum() + v.sum(), out)


OPERANDS = (
    np.random.default_rng(0).standard_normal((1, 256)).astype(np.float32),
    *(weights(n, n) for n in (256, 40, 33, 70)),
)


def planned():
    return plan_on_cuda(volta.make_jaxpr(layer)(*OPERANDS))[0]


def test_they_are_one_launch_with_the_cpus_bits():
    launches = [x for x in device_plan(planned()).launches if "unpack" in x.label]
    assert [x.label for x in launches] == ["3 × dot_unpack", "dot_unpack"]
    check_on_host(layer, *OPERANDS, orders=("shuffled",), kernels=KERNELS)


def test_the_first_asks_for_the_weights_of_what_follows():
    plan = planned()
    products = [call for call in plan.calls if kernel_class(call.kernel) == "dot"]
    ahead = [a for a in weights_ahead(plan.calls) if a is not None]
    assert ahead == [products[3].accesses[1]]
    first, last = (x for x in device_plan(plan).launches if "unpack" in x.label)
    asked = [a for a in first.addresses if a[1] == ahead[0].buffer]
    assert len(asked) == 1 and first.words[asked[0][0] + 1] == OPERANDS[4].nbytes
    assert not any(r[0] == ahead[0].buffer for r in (*first.reads, *first.writes))  # nobody has to wait for that
    assert any(r[0] == ahead[0].buffer for r in last.reads)


def test_what_reads_a_product_stays_before_what_writes_its_memory():
    """A product is not moved over what it reads, nor what reads a value before it is there."""
    calls = planned().calls
    again = side_by_side(calls)
    assert [id(x) for x in again] == [id(x) for x in calls]  # they are where they belong already

    def chained(x, a, b):
        y = nn.linear(x, a)
        return nn.linear(nn.linear(y, b), a), nn.linear(x, b)

    square = weights(256, 1), weights(256, 2)
    check_on_host(chained, OPERANDS[0], *square, orders=("shuffled",), kernels=KERNELS)
