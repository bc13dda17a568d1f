"""Decoders beside llama.cpp, where llama-cpp-python is installed: logits of the same GGUF file are near each other.

Near, not equal: llama.cpp adds in another order, and rounds activations to 8 bits where weights are in blocks.
"""

import numpy as np
import pytest

from benchmarks import beside_llama
from tests.models.model_files import SIZES, TYPES, weights, write_gguf
from volta import models

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

TOKENS = [1, 5, 9, 2, 60, 33, 7]
BLOCK_SHAPE = {"layers": 4, "width": 256, "heads": 4, "key_heads": 2, "hidden": 512, "vocabulary": 300}


def both(path, tokens):
    """Logits after each token: Volta's, and llama.cpp's with keys and values in float32."""
    model = models.load(path)
    own, _ = model(np.array([tokens], np.int32), model.caches(1, 64), np.array([0]))
    kept = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    llama = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False, **kept)
    llama.eval(tokens)
    return np.asarray(own)[0], np.array(llama.scores[: len(tokens)])


def distance(own, other):
    """The largest difference, in standard deviations of the logits."""
    return np.abs(own - other).max() / own.std()


@pytest.mark.parametrize("quantize", [None, "Q8_0", "Q4_0"])
@pytest.mark.few(2)
def test_logits_of_a_small_model(tmp_path, quantize):
    path = tmp_path / "model.gguf"
    described = {"tokenizer_model": "none", "vocab_size": SIZES["vocabulary"]}
    write_gguf(path, "llama", weights("llama"), quantize=quantize and TYPES[quantize], **described)
    own, other = both(path, TOKENS)
    assert distance(own, other) < (0.2 if quantize else 1e-5)
    assert distance(own, np.roll(other, 1, axis=0)) > 1  # which the bound tells from another token's


def test_logits_of_k_quants(tmp_path):
    path = tmp_path / "model.gguf"
    beside_llama.write(path, BLOCK_SHAPE)
    own, other = both(path, TOKENS)
    assert distance(own, other) < 0.15
    assert distance(own, np.roll(other, 1, axis=0)) > 1
