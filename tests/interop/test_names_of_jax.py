"""Every public name of the installed JAX's, and every parameter of its functions, is there or has a reason."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="compares with JAX, which is not installed")

FOLDER = Path(__file__).resolve().parent.parent.parent / "scripts" / "conformance"


@pytest.fixture(scope="module")
def namespaces():
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("namespaces", FOLDER / "namespaces.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))


def test_each_name_and_each_parameter_is_there_or_has_a_reason(namespaces) -> None:
    unsaid, count = [], 0
    for name in namespaces.NAMESPACES.split():
        lost = {n: text for n, text in namespaces.missing(name)[1].items() if not n.endswith("_p")}
        lost |= namespaces.parameters(name)
        count += len(lost)
        unsaid += [f"{name}.{n}" for n, text in lost.items() if not text]
    assert not unsaid
    assert count > 100, "the list would be short, were names not looked for"


def test_a_parameter_that_nobody_has_declared_is_found(namespaces, monkeypatch) -> None:
    monkeypatch.setattr(namespaces, "JAX_PARAMETERS", {})
    assert namespaces.parameters("numpy")["sum(out=)"] is None
