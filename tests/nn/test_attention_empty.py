"""Attention where an operand has no elements, on the CPU and by the CUDA kernels on the host."""

import itertools

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax, nn
from volta.errors import ShapeError
from volta.numba_cuda.host import host
from volta.testing import assert_bits_equal
from volta.testing.host_grid import HostKernels, check_on_host

pytestmark = pytest.mark.turns(6)

NONE, FOUR = np.ones((2, 0, 2, 4), np.float32), np.ones((2, 4, 2, 4), np.float32)
KERNELS = HostKernels()

CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "started": {"is_causal": True, "query_start": np.array([2, 0], np.int32)},
    "key lengths": {"key_value_seq_lengths": np.array([0, 3], np.int32)},
    "query lengths": {"query_seq_lengths": np.array([0, 3], np.int32)},
    "bias": {"bias": np.float32(1)},
    "bias and lengths": {"bias": np.float32(1), "key_value_seq_lengths": np.array([0, 3], np.int32)},
}


def check(f, *args):
    """A function's results under jit, which are zeros of positive sign, also one by one and on CUDA."""
    got = volta.jit(f)(*args)
    for x, y in zip(got, f(*args), strict=True):
        assert_bits_equal(x, y)
        assert_bits_equal(x, np.zeros_like(x))
    if not host.why_not():
        check_on_host(f, *args, orders=["shuffled"], kernels=KERNELS)
    return got


SHAPES = {
    "no query": (NONE, FOUR),
    "no key": (FOUR, NONE),
    "neither": (NONE, NONE),
    "one query": (FOUR[:, :1], NONE),
    "one query, shared heads": (FOUR[:, :1], NONE[:, :, :1]),
}


@sampled(
    "shapes, case",
    itertools.product(SHAPES, CASES),
    quick=lambda x: list(CASES).index(x[1]) % len(SHAPES) == list(SHAPES).index(x[0]),
)
def test_operands_computed_inside_jit(shapes, case):
    q, kv = SHAPES[shapes]

    def attend(q, k, v):
        return nn.dot_product_attention(q * 2, k * 2, v * 3, **CASES[case])

    (out,) = check(lambda *x: (attend(*x),), q, kv, kv)
    assert out.shape == q.shape
    grads = check(volta.grad(lambda *x: vnp.sum(attend(*x)), argnums=(0, 1, 2)), q, kv, kv)
    assert [g.shape for g in grads] == [q.shape, kv.shape, kv.shape]


def test_operands_that_are_arguments_beside_computed_ones():
    (out,) = check(lambda q, k: (nn.dot_product_attention(q, k * 2, k),), FOUR, NONE)
    assert out.shape == FOUR.shape
    check(lambda q, k: (nn.dot_product_attention(q * 2, k, k),), NONE, FOUR)


def test_rows_that_see_no_key_have_no_maximum():
    q, kv = (np.moveaxis(x, 1, 2) for x in (FOUR, NONE))
    out, m, l = volta.jit(lambda q, k: lax.attention(q * 2, k * 2, k * 3, scale=0.5))(q, kv)  # noqa: E741
    assert_bits_equal(out, np.zeros_like(q))
    assert_bits_equal(m, np.full((2, 2, 4), -np.inf, np.float32))
    assert_bits_equal(l, np.zeros((2, 2, 4), np.float32))


def test_batches_and_wide_heads():
    def attend(q, k):
        return (nn.dot_product_attention(q * 2, k * 2, k * 3),)

    check(volta.vmap(attend, in_axes=(0, None)), np.ones((3, *FOUR.shape), np.float32), NONE)
    check(volta.vmap(attend, in_axes=(0, None)), np.ones((0, *FOUR.shape), np.float32), FOUR)
    check(attend, np.ones((2, 4, 2, 300), np.float32), np.ones((2, 0, 2, 300), np.float32))


def test_a_bias_that_does_not_fit_is_refused_without_keys_too():
    with pytest.raises(ShapeError, match="bias of shape"):
        nn.dot_product_attention(FOUR, NONE, NONE, bias=np.ones((3, 4, 5), np.float32))
