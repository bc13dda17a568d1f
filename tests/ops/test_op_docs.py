"""Every public function has an example, and the examples say what happens."""

import doctest

import numpy as np
import pytest

import volta  # noqa: F401  (installs the runtime)
from volta import lax


@pytest.mark.parametrize("name", lax.__all__)
def test_example(name):
    function = getattr(lax, name)
    parsed = doctest.DocTestParser().get_doctest(function.__doc__, {"lax": lax, "np": np}, name, None, None)
    assert parsed.examples, f"lax.{name} has no example"
    assert function.__name__ == name
    output = []
    doctest.DocTestRunner(verbose=False).run(parsed, out=output.append)
    assert not output, "".join(output)
