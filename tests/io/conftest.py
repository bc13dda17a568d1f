"""Where tests of files put them."""

import pytest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"
