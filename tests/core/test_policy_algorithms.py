"""JAX's names of algorithms of products: which precision each is, of which operands, and which are refused."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.core.errors import DTypeError, UnsupportedOperationError
from volta.core.policy import product_precision

PRESET = lax.DotAlgorithmPreset
F16, BF16, F32, F64 = (np.dtype(vnp.dtype(n)) for n in ("float16", "bfloat16", "float32", "float64"))
MEANT = [
    ("F32_F32_F32", F32, None), ("F32_F32_F32", F16, None), ("F32_F32_F32", BF16, None), ("F16_F16_F32", F16, None),
    ("BF16_BF16_F32", BF16, None), ("BF16_BF16_F32", F32, "bf16"), ("TF32_TF32_F32", F32, "tf32"),
    ("F64_F64_F64", F64, None), ("DEFAULT", F16, None),
]  # fmt: skip


@pytest.mark.parametrize("name, dtype, meant", MEANT)
def test_an_algorithm_is_a_precision(name, dtype, meant):
    preset = PRESET[name]
    assert product_precision("dot", preset, dtype) == product_precision("dot", name, dtype) == meant
    if preset.algorithm is not None:
        assert product_precision("dot", preset.algorithm, dtype) == meant


@pytest.mark.parametrize("name, dtype", [("F32_F32_F32", F32), ("F16_F16_F32", F16), ("F64_F64_F64", F64)])
def test_products_have_the_bits_of_their_precision(name, dtype):
    rng = np.random.default_rng(0)
    x, y = (vnp.asarray(rng.standard_normal(s)).astype(dtype) for s in ((7, 300), (300, 5)))
    plain = lax.dot(x, y)
    for precision in (PRESET[name], name, PRESET[name].algorithm, (PRESET[name],) * 2):
        assert lax.dot(x, y, precision).tobytes() == plain.tobytes()
        assert vnp.matmul(x, y, precision=precision).tobytes() == plain.tobytes()
    with volta.default_matmul_precision("F32_F32_F32"):
        assert lax.dot(x, y).tobytes() == plain.tobytes()


def test_what_tensor_cores_do_is_refused_at_level_strict():
    x = vnp.ones((4, 4))
    with pytest.raises(UnsupportedOperationError, match="tf32"):
        lax.dot(x, x, PRESET.TF32_TF32_F32)


@pytest.mark.parametrize("precision, dtype", [(PRESET.F16_F16_F32, F32), ("F64_F64_F64", F32), ("F32_F32_F32", F64)])
def test_of_other_operands_an_algorithm_is_refused(precision, dtype):
    x = vnp.ones((4, 4), dtype)
    with pytest.raises(DTypeError, match=f"dot_general: the algorithm .* and the operands are {dtype.name}; convert"):
        lax.dot(x, x, precision)


def test_what_volta_does_not_compute_is_refused_by_name():
    x = vnp.ones((4, 4))
    parts = lax.DotAlgorithm(np.float16, np.float16, np.float16)
    for precision in ("BF16_BF16_F32_X3", PRESET.BF16_BF16_F32_X9, PRESET.F16_F16_F16, parts):
        with pytest.raises(DTypeError, match="no precision.*Of JAX's algorithms there are F16_F16_F32, BF16"):
            lax.dot(x, x, precision)
