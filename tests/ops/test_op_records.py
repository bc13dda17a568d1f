"""Records are complete; every primitive has a meaning in the reference, examples, and a function that users call."""

import attrs
import numpy as np
import pytest

import volta.lax as lax
import volta.ops.lax
from tests.reference import REFERENCE
from volta.core.avals import ShapedArray
from volta.ops import REGISTRY
from volta.ops.primitive import Family, NoDerivative, complete, register
from volta.testing.cases import ROWS, vocabulary


@pytest.mark.parametrize("primitive", vocabulary(), ids=str)
def test_record_is_complete(primitive):
    assert primitive.doc.endswith(".")
    assert callable(primitive.abstract) and callable(primitive.batch)
    assert isinstance(primitive.jvp, NoDerivative) or callable(primitive.jvp)
    if primitive.family is Family.ELEMENTWISE:
        assert callable(primitive.emit)
        assert primitive.domain is not None and primitive.domain.low < primitive.domain.high
    else:
        assert ROWS[primitive.name], "a primitive outside the elementwise family needs examples in tests/ops/cases.py"
    assert primitive.name in REFERENCE
    function = getattr(lax, primitive.public)
    assert primitive.public in lax.__all__
    assert function.__doc__


def test_public_names_are_functions_with_docs():
    for name in volta.ops.lax.__all__:
        assert getattr(lax, name).__doc__, name


def test_duplicate_is_refused():
    with pytest.raises(ValueError, match="defined twice"):
        register(REGISTRY["exp"])


def test_a_record_is_completed_once():
    """Attention's rule, which records a program, comes from the layer of tracing; nothing takes its place later."""
    rule = REGISTRY["attention"].linearize
    assert rule is not None
    with pytest.raises(ValueError, match="'attention' has a linearize rule"):
        complete(REGISTRY["attention"], linearize=rule)
    assert REGISTRY["attention"].linearize is rule


@pytest.mark.parametrize("missing", ["emit", "domain"])
def test_incomplete_elementwise_is_refused(missing):
    with pytest.raises(ValueError, match="needs"):
        register(attrs.evolve(REGISTRY["exp"], name="not_a_primitive", **{missing: None}))


@pytest.mark.parametrize(("name", "said"), [("reduce_sum", None), ("exp", REGISTRY["reduce_sum"].reduction)])
def test_a_reduction_says_how_it_combines_and_nothing_else_does(name, said):
    with pytest.raises(ValueError, match="says its `reduction`"):
        register(attrs.evolve(REGISTRY[name], name="not_a_primitive", reduction=said))


def test_undocumented_is_refused():
    with pytest.raises(ValueError, match="doc"):
        register(attrs.evolve(REGISTRY["reduce_sum"], name="not_a_primitive", doc=""))


def test_weak_types_join():
    weak, strong = ShapedArray((), np.dtype(np.float32), True), ShapedArray((3,), np.dtype(np.float32))
    assert REGISTRY["add"].abstract(weak, strong) == strong
    assert REGISTRY["add"].abstract(weak, weak).weak_type
