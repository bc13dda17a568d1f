"""Weights in blocks: their numbers are the public package's, and products with them those of the numbers."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.block_reference import numbers_of
from tests.block_weights import interleaved, random_blocks
from volta import nn, tree
from volta.core.block_formats import FORMATS
from volta.core.errors import ArgumentError, DTypeError, ShapeError
from volta.nn import quantized
from volta.testing import assert_bits_equal
from volta.testing.host_grid import check_on_host
from volta.xla_like.compile import CompileOptions

pytestmark = pytest.mark.turns(6)

NAMES = tuple(FORMATS)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_the_public_package(name):
    """Of any bytes, so with infinite, huge and NaN scales too; eager and compiled."""
    packed = np.random.default_rng(1).integers(0, 256, (7, 3 * FORMATS[name].nbytes), dtype=np.uint8)
    for blocks in (packed, random_blocks(name, 7, 3)):
        w = nn.QuantizedArray(blocks, name)
        assert_bits_equal(w.dequantize(), numbers_of(blocks, name))
        assert_bits_equal(volta.jit(nn.QuantizedArray.dequantize)(w), numbers_of(blocks, name))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
def test_every_bit_counts(name):
    """A definition that ignores a bit, or takes it for another, gives other numbers for one of these blocks."""
    fmt = FORMATS[name]
    blocks = np.tile(random_blocks(name, 1, 1), (8 * fmt.nbytes, 1))
    for bit in range(8 * fmt.nbytes):
        blocks[bit, bit // 8] ^= np.uint8(1 << bit % 8)
    assert_bits_equal(nn.QuantizedArray(blocks, name).dequantize(), numbers_of(blocks, name))


@pytest.mark.parametrize("name", NAMES)
def test_formats_are_numbered_as_in_files(name):
    code = getattr(gguf.GGMLQuantizationType, name)
    assert FORMATS[name].code == code
    assert (FORMATS[name].elements, FORMATS[name].nbytes) == gguf.GGML_QUANT_SIZES[code]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
def test_product_has_the_bits_of_the_product_with_numbers(name, monkeypatch):
    packed = random_blocks(name, 11, 2)
    x = np.random.default_rng(2).standard_normal((3, 2 * FORMATS[name].elements)).astype(np.float32)
    wanted = vnp.matmul(x, numbers_of(packed, name).T)
    for at_once in (1 << 18, 4 * x.shape[1]):  # all rows together; four at a time, and three that are left
        monkeypatch.setattr(quantized, "_AT_ONCE", at_once)
        w = nn.QuantizedArray(packed, name)
        assert_bits_equal(nn.linear(x, w), wanted)
        assert_bits_equal(volta.jit(nn.linear)(x, w), wanted)
        assert_bits_equal(volta.vmap(nn.linear, in_axes=(0, None))(x, w), wanted)
        assert_bits_equal(nn.linear(x[0], w), wanted[0])


@pytest.mark.parametrize(
    "other",
    [{"options": CompileOptions(fusion=False)}, pytest.param({"kernels": "njit"}, marks=pytest.mark.slow)],
    ids=str,
)
def test_both_ways_to_compute_a_product_agree(other, monkeypatch):
    """The program that it means, and the kernel that a backend may have for it."""
    monkeypatch.setattr(quantized, "_AT_ONCE", 1 << 18)
    x, w = np.random.default_rng(5).standard_normal((3, 512)).astype(np.float32), random_blocks("Q5_K", 700, 2)
    f = volta.jit(lambda x, w: nn.linear(x, nn.QuantizedArray(w, "Q5_K")))
    wanted, plan = f(x, w), f.lower(x, w).compile().plan
    with volta.execution_context(**other):
        assert_bits_equal(f(x, w), wanted)
        assert "while(" in str(f.lower(x, w).compile().plan) and "while(" not in str(plan)


def test_precisions_count():
    """Whatever was asked for before: they are no part of what a program is kept by."""
    x, packed = np.random.default_rng(8).standard_normal((3, 512)).astype(np.float32), random_blocks("Q4_K", 7, 2)
    w, numbers = nn.QuantizedArray(packed, "Q4_K"), numbers_of(packed, "Q4_K")
    for precision in ("default", "highest", "default"):
        with volta.default_matmul_precision(precision):
            for f in (nn.linear, volta.vmap(nn.linear, in_axes=(0, None)), volta.jit(nn.linear)):
                assert_bits_equal(f(x, w), vnp.matmul(x, numbers.T))
            back = volta.grad(lambda x: nn.linear(x, w).sum())(x)
            assert_bits_equal(back, volta.grad(lambda x: vnp.matmul(x, numbers.T).sum())(x))
    with volta.execution_context(level="device"), volta.default_matmul_precision("bf16"):
        assert "bf16" in str(volta.make_jaxpr(nn.linear)(x, w))
    assert "bf16" not in str(volta.make_jaxpr(nn.linear)(x, w))


def test_a_batch_of_weights():
    x, w = np.random.default_rng(6).standard_normal((3, 2, 256)).astype(np.float32), random_blocks("Q4_K", 3, 5, 1)
    found = volta.jit(volta.vmap(nn.linear))(x, nn.QuantizedArray(w, "Q4_K"))
    for i in range(3):
        assert_bits_equal(found[i], nn.linear(x[i], nn.QuantizedArray(w[i], "Q4_K")))
    same = volta.vmap(nn.linear, in_axes=(None, 0))(x[0], nn.QuantizedArray(w, "Q4_K"))
    assert_bits_equal(same[2], nn.linear(x[0], nn.QuantizedArray(w[2], "Q4_K")))


def test_derivatives_forwards():
    w = nn.QuantizedArray(random_blocks("Q4_0", 5, 1), "Q4_0")
    x, t = np.random.default_rng(7).standard_normal((2, 3, 32)).astype(np.float32)
    y, dy = volta.jvp(lambda x: nn.linear(x, w), (x,), (t,))
    assert_bits_equal((y, dy), (nn.linear(x, w), nn.linear(t, w)))
    hessian = volta.hessian(lambda x: vnp.sum(nn.linear(x, w) ** 2))(x[0])
    assert hessian.shape == (32, 32)


@given(st.integers(1, 9), st.integers(0, 5), st.integers(1, 3), st.integers(1, 12), st.sampled_from(NAMES))
@settings(max_examples=4)
def test_product_of_any_sizes(outputs, rows, blocks, at_once, name):
    packed = random_blocks(name, outputs, blocks, seed=outputs)
    k = blocks * FORMATS[name].elements
    x = np.random.default_rng(rows).standard_normal((rows, k)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized, "_AT_ONCE", at_once * k)
        assert_bits_equal(nn.linear(x, nn.QuantizedArray(packed, name)), vnp.matmul(x, numbers_of(packed, name).T))


def test_gradient_is_that_of_the_numbers():
    packed = random_blocks("Q8_0", 8, 2)
    w, numbers = nn.QuantizedArray(packed, "Q8_0"), numbers_of(packed, "Q8_0")
    x, ct = np.random.default_rng(3).standard_normal((2, 3, 64)).astype(np.float32), np.float32(2.0)
    functions = (lambda x: nn.linear(x, w)), (lambda x: vnp.matmul(x, numbers.T))
    gradient, plain = (volta.grad(lambda x, f=f: vnp.sum(f(x) * ct))(x) for f in functions)
    assert_bits_equal(gradient, plain)


def test_products_of_many_rows_never_hold_all_numbers():
    w = nn.QuantizedArray(random_blocks("Q4_K", 4096, 2), "Q4_K")
    compiled = volta.jit(nn.linear).lower(np.zeros((1, 512), np.float32), w).compile()
    assert compiled.peak_live_bytes < 4096 * 512 * 4 / 2


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_for_gpus_have_the_bits(name, monkeypatch):
    x = np.random.default_rng(4).standard_normal((2, FORMATS[name].elements)).astype(np.float32)
    monkeypatch.setattr(quantized, "_AT_ONCE", 3 * x.shape[1])
    check_on_host(nn.linear, x, nn.QuantizedArray(random_blocks(name, 7, 1), name), orders=("shuffled",))


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (0, 0)])
def test_no_rows_or_columns(shape):
    w = nn.QuantizedArray(np.zeros((shape[0], shape[1] // 32 * 18), np.uint8), "Q4_0")
    assert w.dequantize().shape == w.shape == shape
    assert_bits_equal(nn.linear(np.ones((2, shape[1]), np.float32), w), np.zeros((2, shape[0]), np.float32))


def test_eager_products_are_compiled_once(caplog):
    w = nn.QuantizedArray(random_blocks("Q4_K", 3, 1), "Q4_K")
    x = np.ones((2, 256), np.float32)
    nn.linear(x, w), w.dequantize()
    with volta.log_compiles():
        nn.linear(x, w), w.dequantize()
    assert not caplog.messages


def test_bias_and_dtypes():
    w, b = nn.QuantizedArray(random_blocks("Q4_0", 5, 1), "Q4_0"), np.arange(5, dtype=np.float32)
    x = np.ones((2, 32), np.float32)
    assert_bits_equal(nn.linear(x, w, b), vnp.matmul(x, w.dequantize().T) + b)
    half = nn.linear(x.astype(np.float16), w)
    assert half.dtype == np.float16
    assert_bits_equal(half, nn.linear(x, w).astype(np.float16))
    assert_bits_equal(nn.linear(x, np.ones((5, 32), np.float32)), np.full((2, 5), 32, np.float32))


def test_a_quantized_array_is_a_tree():
    w = nn.QuantizedArray(vnp.asarray(random_blocks("Q6_K", 4, 3)), "Q6_K")
    assert (w.shape, w.ndim, w.dtype, w.nbytes) == ((4, 768), 2, np.float32, 4 * 630)
    assert repr(w) == "QuantizedArray(shape=(4, 768), format=Q6_K)"
    again = tree.map(lambda x: x, {"w": w})["w"]
    assert again.format == "Q6_K" and again.packed is w.packed
    assert_bits_equal(w[vnp.array([2, 0])].dequantize(), w.dequantize()[np.array([2, 0])])
    assert_bits_equal(volta.vmap(lambda row: row.dequantize())(w), w.dequantize())


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
def test_interleaved_rows(name):
    """They are where the plain reference puts them, and whatever is computed with them has the bits of the others."""
    packed = random_blocks(name, 128, 512 // FORMATS[name].elements)
    w = nn.QuantizedArray(packed, name)
    v = volta.jit(nn.QuantizedArray.interleaved)(w)
    assert (v.format, v.shape, v.interleaved()) == (f"{name}_R64", (128, 512), v)
    np.testing.assert_array_equal(np.asarray(v.packed), interleaved(name, packed))
    np.testing.assert_array_equal(np.asarray(v.by_rows().packed), packed)
    assert_bits_equal(v.dequantize(), w.dequantize())
    x = np.random.default_rng(2).standard_normal((3, 512)).astype(np.float32)
    for rows in (x, x[:1], x[0]):
        assert_bits_equal(nn.linear(rows, v), nn.linear(rows, w))
        assert_bits_equal(volta.jit(nn.linear)(rows, v), nn.linear(rows, w))
    back = [volta.grad(lambda x, w=w: (nn.linear(x, w) ** 2).sum())(x) for w in (v, w)]
    assert_bits_equal(*back)


@pytest.mark.parametrize(
    "index", [3, -1, np.array([63, 64, 0, -128]), np.zeros((2, 0), np.int32), slice(5, 70, 3)], ids=str
)
def test_parts_of_interleaved_rows(index):
    w = nn.QuantizedArray(random_blocks("Q6_K", 128, 1), "Q6_K")
    for f in (lambda w: w[index].dequantize(), volta.jit(lambda w: w[index].dequantize())):
        assert_bits_equal(f(w.interleaved()), w.dequantize()[index])


def test_embeddings_of_interleaved_rows():
    """Ids out of range too; few of its rows are read."""
    w = nn.QuantizedArray(random_blocks("Q4_K", 128, 2), "Q4_K")
    ids = np.array([[3, 127], [128, -1]])
    assert_bits_equal(nn.embedding(w.interleaved(), ids), nn.embedding(w, ids))
    compiled = volta.jit(nn.embedding).lower(w.interleaved(), ids).compile()
    assert compiled.peak_live_bytes - w.interleaved().nbytes < 128 * 512 * 4 / 2


@pytest.mark.parametrize(
    "other", [{"options": CompileOptions(fusion=False)}, pytest.param({"kernels": "njit"})], ids=str
)
def test_all_ways_to_compute_interleaved_products_agree(other, monkeypatch):
    monkeypatch.setattr(quantized, "_AT_ONCE", 64 * 512)  # of 192 rows 64 at a time
    x, w = np.random.default_rng(5).standard_normal((1, 512)).astype(np.float32), random_blocks("Q6_K", 192, 2)
    v = nn.QuantizedArray(w, "Q6_K").interleaved()
    plan = volta.jit(nn.linear).lower(x, v).compile().plan
    assert "while(" not in str(plan) and "copy" not in str(plan), plan
    with volta.execution_context(**other):
        assert_bits_equal(volta.jit(nn.linear)(x, v), nn.linear(x, nn.QuantizedArray(w, "Q6_K")))


def test_interleaved_products_on_gpus():
    """No kernel has them: rows are put back, and have the bits."""
    x = np.random.default_rng(4).standard_normal((2, 256)).astype(np.float32)
    check_on_host(
        nn.linear, x, nn.QuantizedArray(random_blocks("Q6_K", 64, 1), "Q6_K").interleaved(), orders=("shuffled",)
    )


def test_a_batch_of_interleaved_weights():
    x, w = np.random.default_rng(6).standard_normal((3, 2, 256)).astype(np.float32), random_blocks("Q4_K", 3, 64, 1)
    v = nn.QuantizedArray(w, "Q4_K").interleaved()
    assert v.shape == (3, 64, 256)
    found = volta.jit(volta.vmap(nn.linear))(x, v)
    for i in range(3):
        assert_bits_equal(found[i], nn.linear(x[i], nn.QuantizedArray(w[i], "Q4_K")))
        assert_bits_equal(v[i].dequantize(), nn.QuantizedArray(w[i], "Q4_K").dequantize())


def test_what_does_not_interleave():
    for name, shape in (("Q4_K", (63, 144)), ("Q4_0", (64, 7 * 18)), ("Q4_K", (144,))):
        w = nn.QuantizedArray(np.zeros(shape, np.uint8), name)
        assert not w.interleaves
        with pytest.raises(ShapeError, match="rows that interleave are 64 of whole 256 numbers"):
            w.interleaved()
    with pytest.raises(ShapeError, match="64 rows of Q4_K_R64 are blocks of 9216 bytes"):
        nn.QuantizedArray(np.zeros((1, 144), np.uint8), "Q4_K_R64")
    w = nn.QuantizedArray(np.zeros((64, 144), np.uint8), "Q4_K").interleaved()
    with pytest.raises(ShapeError, match="not taken one by one"):
        volta.vmap(lambda row: row.dequantize())(w)


def test_what_is_refused():
    with pytest.raises(ArgumentError, match=r"no format 'Q9'; there are Q4_0"):
        nn.QuantizedArray(np.zeros((1, 34), np.uint8), "Q9")
    with pytest.raises(DTypeError, match=r"uint8, not int8"):
        nn.QuantizedArray(np.zeros((1, 34), np.int8), "Q8_0")
    with pytest.raises(ShapeError, match=r"blocks of 34 bytes; got uint8 of shape \(1, 33\)"):
        nn.QuantizedArray(np.zeros((1, 33), np.uint8), "Q8_0")
    w = nn.QuantizedArray(np.zeros((2, 34), np.uint8), "Q8_0")
    with pytest.raises(ShapeError, match="only the axes before the last"):
        w[0, 1]
    with pytest.raises(ShapeError, match=r"x \(3, 31\) and weight \(2, 32\) do not fit"):
        nn.linear(np.zeros((3, 31), np.float32), w)
