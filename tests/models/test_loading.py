"""Models in files as llama.cpp and transformers write them compute what plain NumPy computes from the same weights."""

import json

import numpy as np
import pytest

from tests.models.model_files import SIZES, TYPES, logits, weights, write_folder, write_gguf
from volta import models, nn
from volta.core.errors import FormatError

TOKENS = np.random.default_rng(5).integers(0, SIZES["vocabulary"], 11)


def computed(model, tokens=TOKENS):
    found, _ = model(tokens[None], model.caches(1, 16), np.array([0]))
    return np.asarray(found)[0]


def check(path, kind, w, **settings):
    np.testing.assert_allclose(computed(models.load(path)), logits(kind, w, TOKENS, **settings), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_gguf(kind, tmp_path):
    w = weights(kind)
    write_gguf(tmp_path / "m.gguf", kind, dict(w))
    check(tmp_path / "m.gguf", kind, w)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.turns(2)
def test_gguf_of_blocks(kind, tmp_path):
    kept = write_gguf(tmp_path / "m.gguf", kind, weights(kind), quantize=TYPES.Q8_0)
    check(tmp_path / "m.gguf", kind, kept)
    up = models.load(tmp_path / "m.gguf").params["layers"][0]["up"]["weight"]
    assert isinstance(up, nn.QuantizedArray) and up.format == "Q8_0"


@pytest.mark.parametrize("tied", [False, True])
def test_interleaved_weights(tied, tmp_path, monkeypatch):
    """Products' weights are, where their sizes allow it, and not what rows are taken of; the tokens are the same."""
    for name, size in {"vocabulary": 64, "width": 256, "hidden": 512, "head_size": 48, "key_heads": 1}.items():
        monkeypatch.setitem(SIZES, name, size)
    w = weights("llama")
    if tied:
        del w["output"]
    write_gguf(tmp_path / "m.gguf", "llama", w, quantize=TYPES.Q8_0, key_length=48)
    plain, other = (models.load(tmp_path / "m.gguf", interleave=on) for on in (False, True))
    formats = {n: p["weight"].format for n, p in other.params["layers"][1].items() if "weight" in p}
    assert formats == dict.fromkeys(("q", "gate", "up", "down"), "Q8_0_R64") | dict.fromkeys(("k", "v", "out"), "Q8_0")
    assert (other.params["embedding"].format, other.params["output"].format) == ("Q8_0", "Q8_0_R64")
    assert list(models.generate(other, [1, 2, 3], max_tokens=5)) == list(
        models.generate(plain, [1, 2, 3], max_tokens=5)
    )


def test_gguf_of_qwen2(tmp_path):
    """Biases, and pairs that are halves."""
    w = weights("llama", biases=("q", "k", "v"))
    write_gguf(tmp_path / "m.gguf", "llama", w, "qwen2", rope_freq_base=1e6)
    check(tmp_path / "m.gguf", "llama", w, base=1e6)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("files", [1, 3])
def test_folders(kind, files, tmp_path):
    w = weights(kind)
    if kind == "gpt2":
        del w["output"]  # it is the embedding
    write_folder(tmp_path / "m", kind, w, files)
    check(tmp_path / "m", kind, w)


def test_tied_weights_and_windows(tmp_path):
    w = weights("llama")
    del w["output"]
    write_folder(tmp_path / "m", "llama", w, model_type="mistral", sliding_window=4)
    check(tmp_path / "m", "llama", w, window=4)


def test_a_window_that_is_not_used(tmp_path):
    w = weights("llama", biases=("q", "k", "v"))
    write_folder(tmp_path / "m", "llama", w, model_type="qwen2", sliding_window=4, use_sliding_window=False)
    check(tmp_path / "m", "llama", w)


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"model_type": "mamba"}, "the architecture is 'mamba'; Volta has llama"),
        ({"hidden_size": None}, "has no number 'hidden_size'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "of the type 'yarn' are not there yet"),
        ({"num_hidden_layers": 3}, "there is no array 'layers.2."),
    ],
)
def test_models_that_are_not_there(changed, why, tmp_path):
    write_folder(tmp_path / "m", "llama", weights("llama"), **changed)
    with pytest.raises(FormatError, match=f"m: .*{why}"):
        models.load(tmp_path / "m")


@pytest.mark.parametrize(
    "name, text, why",
    [
        ("config.json", "{", "config.json is no JSON"),
        ("config.json", "[]", "config.json is no object"),
        ("config.json", None, "there is no config.json"),
        ("model.safetensors", None, "there is no model.safetensors"),
        ("model.safetensors.index.json", json.dumps({"weight_map": {"x": "../x"}}), "there is no ../x"),
    ],
)
def test_folders_that_are_damaged(name, text, why, tmp_path):
    write_folder(tmp_path / "m", "llama", weights("llama"))
    (tmp_path / "m" / name).unlink(missing_ok=True)
    if text is not None:
        (tmp_path / "m" / name).write_text(text)
    with pytest.raises(FormatError, match=f"m: {why}"):
        models.load(tmp_path / "m")


def test_gguf_without_what_a_model_needs(tmp_path):
    write_gguf(tmp_path / "a", "llama", weights("llama"), "bert")
    with pytest.raises(FormatError, match="a: the architecture is 'bert'"):
        models.load(tmp_path / "a")
    write_gguf(tmp_path / "b", "gpt2", weights("gpt2"), "llama")
    with pytest.raises(FormatError, match="b: its metadata has no number llama.attention.layer_norm_rms_epsilon"):
        models.load(tmp_path / "b")
