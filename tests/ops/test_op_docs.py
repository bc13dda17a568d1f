"""Every public function has an example, and the examples say what happens."""

import doctest
import operator

import numpy as np
import pytest

import volta  # noqa: F401  (installs the runtime)
from volta import lax

NAMES = [name for name in lax.__all__ if name != "linalg"] + [f"linalg.{name}" for name in lax.linalg.__all__]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.turns(6)
def test_example(name):
    function = operator.attrgetter(name)(lax)
    parsed = doctest.DocTestParser().get_doctest(function.__doc__, {"lax": lax, "np": np}, name, None, None)
    assert parsed.examples, f"lax.{name} has no example"
    assert function.__name__ == name.rpartition(".")[2]
    output = []
    doctest.DocTestRunner(verbose=False).run(parsed, out=output.append)
    assert not output, "".join(output)
