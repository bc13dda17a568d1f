"""Keywords that JAX's transforms have: taken where they promise nothing, explained where they would."""

import inspect
import re

import pytest

import volta
import volta.numpy as vnp
from volta.core.absent import KEYWORDS

TRANSFORMS = {
    name: getattr(volta, name)
    for name in "jit vmap grad value_and_grad vjp jvp linearize jacfwd jacrev hessian checkpoint make_jaxpr".split()
}


def test_keywords_without_promise_are_taken():
    x = vnp.arange(3.0)
    f = volta.jit(lambda x, y: x * 2, keep_unused=True, inline=True)
    assert f(x, x).tolist() == [0.0, 2.0, 4.0]
    assert float(volta.grad(volta.checkpoint(lambda x: x * x, prevent_cse=False))(3.0)) == 6.0


def test_checkpoint_takes_static_arguments_by_name():
    f = volta.checkpoint(lambda x, n: x ** (n if type(n) is int else 0), static_argnames="n")
    assert [float(volta.grad(f)(3.0, n=n)) for n in (2, 3)] == [6.0, 27.0]


@pytest.mark.parametrize(("name", "word"), [(name, word) for name, words in KEYWORDS.items() for word in words])
def test_keywords_that_are_not_there_are_explained(name, word):
    with pytest.raises(TypeError) as caught:
        TRANSFORMS[name](lambda x: x, **{word: None})
    assert str(caught.value).startswith(f"{name}: there is no keyword {word!r}: {KEYWORDS[name][word]}")
    assert "test_api_keywords.py" in str(caught.value)  # the user's line


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_misspelt_keyword_is_answered_with_those_there_are(name):
    with pytest.raises(TypeError, match=f"^{name}: there is no keyword 'statc': it has ") as caught:
        TRANSFORMS[name](lambda x: x, statc=None)
    known = re.search("it has (.*)", str(caught.value)).group(1).split(", ")
    parameters = inspect.signature(TRANSFORMS[name]).parameters
    assert known == [p.name for p in list(parameters.values())[1:] if p.kind is not p.VAR_POSITIONAL]


def test_each_keyword_of_jax_is_there_or_explained():
    jax = pytest.importorskip("jax")
    for name, transform in TRANSFORMS.items():
        theirs = {p.name for p in inspect.signature(getattr(jax, name)).parameters.values() if p.kind is p.KEYWORD_ONLY}
        theirs |= {p for p in inspect.signature(getattr(jax, name)).parameters if p not in ("fun", "f")}
        missing = theirs - {"primals"} - inspect.signature(transform).parameters.keys() - KEYWORDS.get(name, {}).keys()
        assert not missing, f"{name}: {sorted(missing)}"
