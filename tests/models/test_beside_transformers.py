"""Decoders beside transformers, where it and PyTorch are installed: logits of the same folder are near each other."""

import numpy as np
import pytest

from tests.models.model_files import weights, write_folder
from volta import models

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = [[1, 5, 9, 2, 60, 33, 7]]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.few(2)
def test_logits(tmp_path, kind, files):
    folder = tmp_path / "model"
    write_folder(folder, kind, weights(kind), files=files)
    model = models.load(folder)
    own, _ = model(np.array(TOKENS, np.int32), model.caches(1, 64), np.array([0]))
    other = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = other(torch.tensor(TOKENS)).logits.numpy()
    np.testing.assert_allclose(own, logits, rtol=1e-4, atol=1e-5)
