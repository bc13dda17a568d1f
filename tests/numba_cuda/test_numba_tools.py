"""Loading numba-cuda: where warnings are errors, beside a NumPy that lacks what it asks for, and where that fails."""

import warnings
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from volta.errors import UnsupportedOperationError
from volta.numba_cuda.codegen import numba_tools


@pytest.fixture
def loading(monkeypatch):
    """``loading(load)``: what loading a module does instead."""
    yield lambda load: monkeypatch.setattr(numba_tools, "importlib", SimpleNamespace(import_module=load))
    numba_tools.tools.cache_clear()


@pytest.fixture(autouse=True)
def anew():
    numba_tools.tools.cache_clear()


def test_warnings_while_it_loads_are_no_errors(loading) -> None:
    """As numba-cuda 0.30 does beside NumPy 2.5; who has made warnings errors could load nothing of it."""

    def load(name: str) -> MagicMock:
        warnings.warn("the 'generic' unit is deprecated", DeprecationWarning, stacklevel=1)
        assert np.row_stack is not None
        return MagicMock()

    there = hasattr(np, "row_stack")
    loading(load)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numba_tools.tools().cuda is not None
        with pytest.raises(DeprecationWarning):
            warnings.warn("what comes after is an error as before", DeprecationWarning, stacklevel=1)
    assert hasattr(np, "row_stack") == there


@pytest.mark.parametrize("error", [ImportError("no numba.cuda"), AttributeError("module 'numpy' has no attribute 'x'")])
def test_what_does_not_load_is_named(loading, error) -> None:
    def load(name: str) -> None:
        raise error

    loading(load)
    with pytest.raises(UnsupportedOperationError, match=f"does not load .*{error}.*pip install") as e:
        numba_tools.tools()
    assert e.value.__cause__ is error
