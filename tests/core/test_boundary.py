"""A traceback shows the user's frames; Volta's own are there when they are asked for."""

import importlib
import pickle
import traceback

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.core.boundary import _BOUNDED, boundary
from volta.core.hints import HINTS
from volta.core.source import is_own
from volta.errors import ShapeError, TracerBoolConversionError, VerificationError

X = np.float32([1, 2, 3])


def fails(x):
    return x + vnp.ones((2, 2)) + vnp.ones(5)


# Each a way in which a user's frame calls Volta, and Volta perhaps the user's `fails`.
CALLS = {
    "operator": lambda: fails(vnp.asarray(X)),
    "reflected": lambda: X + vnp.ones(5),
    "function": lambda: vnp.add(vnp.ones(3), vnp.ones(5)),
    "function of lax": lambda: lax.add(vnp.ones(3), vnp.ones(5)),
    "function of nn": lambda: volta.nn.softmax_cross_entropy(vnp.ones(3), vnp.ones(5)),
    "method": lambda: vnp.ones(3).reshape(5),
    "index": lambda: vnp.ones(3)[1, 2],
    "update": lambda: vnp.ones(3).at[:2].set(vnp.ones(5)),
    "jit": lambda: volta.jit(fails)(X),
    "jit with keywords": lambda: volta.jit(fails)(x=X),
    "nested jit": lambda: volta.jit(lambda x: volta.jit(fails)(x))(X),
    "lower": lambda: volta.jit(fails).lower(X),
    "grad": lambda: volta.grad(lambda x: fails(x).sum())(X),
    "value_and_grad": lambda: volta.value_and_grad(lambda x: fails(x).sum())(X),
    "vjp": lambda: volta.vjp(fails, X),
    "jvp": lambda: volta.jvp(fails, (X,), (X,)),
    "linearize": lambda: volta.linearize(fails, X),
    "jacfwd": lambda: volta.jacfwd(fails)(X),
    "jacrev": lambda: volta.jacrev(fails)(X),
    "hessian": lambda: volta.hessian(fails)(X),
    "vmap": lambda: volta.vmap(fails)(vnp.ones((2, 3))),
    "checkpoint": lambda: volta.checkpoint(fails)(X),
    "make_jaxpr": lambda: volta.make_jaxpr(fails)(X),
    "eval_shape": lambda: volta.eval_shape(fails, X),
    "scan": lambda: lax.scan(lambda c, x: (fails(c), x), vnp.ones(3), X),
    "while_loop": lambda: lax.while_loop(lambda c: True, fails, vnp.ones(3)),
    "fori_loop": lambda: lax.fori_loop(0, 3, lambda i, c: fails(c), vnp.ones(3)),
    "cond": lambda: lax.cond(True, fails, fails, X),
    "map": lambda: lax.map(fails, vnp.ones((2, 3))),
    "tree.map": lambda: volta.tree.map(fails, {"a": vnp.ones(3)}),
    "vectorize": lambda: vnp.vectorize(fails, signature="(n)->(n)")(X),
    "static argument": lambda: volta.jit(fails, static_argnums=7),
    "compiled": lambda: volta.jit(lambda x: x).lower(X).compile()(vnp.ones(5)),
    "unflatten": lambda: volta.tree.unflatten(volta.tree.structure([1, 2]), [1]),
    "random": lambda: volta.random.normal(vnp.ones(5)),
    "optim": lambda: volta.optim.apply_updates({"a": 1.0}, {"b": 1.0}),
}


def files(error):
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("name", CALLS)
def test_own_frames_are_left_out(name, monkeypatch):
    monkeypatch.setenv("VOLTA_TRACEBACKS", "user")
    with pytest.raises((volta.errors.VoltaError, ValueError, IndexError)) as caught:
        CALLS[name]()
    found = files(caught.value)
    if not isinstance(caught.value, volta.errors.VoltaError):
        assert is_own(found.pop())  # of an error that may be a bug, the last frame stays
    assert found and set(found) == {__file__}
    assert ("fails" in [f.name for f in traceback.extract_tb(caught.value.__traceback__)]) == (
        "fails" in CALLS[name].__code__.co_names
        and name not in ("static argument",)
        or name in ("nested jit", "grad", "value_and_grad", "scan", "fori_loop")
    )
    monkeypatch.setenv("VOLTA_TRACEBACKS", "all")
    with pytest.raises(type(caught.value)) as whole:
        CALLS[name]()
    assert any(is_own(file) for file in files(whole.value))


def test_errors_of_the_users_own_pass_with_their_frames(monkeypatch):
    monkeypatch.setenv("VOLTA_TRACEBACKS", "user")

    def mine(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        volta.jit(volta.grad(mine))(1.0)
    assert set(files(caught.value)) == {__file__}
    assert [f.name for f in traceback.extract_tb(caught.value.__traceback__)][-1] == "mine"


def test_what_an_error_came_from_is_cleaned_too(monkeypatch):
    monkeypatch.setenv("VOLTA_TRACEBACKS", "user")

    def branches(x):
        try:
            return x if x > 0 else -x
        except TracerBoolConversionError as reason:
            raise RuntimeError("no branches here") from reason

    with pytest.raises(RuntimeError, match="no branches") as caught:
        volta.jit(branches)(1.0)
    assert set(files(caught.value)) == set(files(caught.value.__cause__)) == {__file__}


def test_bugs_of_volta_keep_their_frames(monkeypatch):
    monkeypatch.setenv("VOLTA_TRACEBACKS", "user")

    def refuse(*args, **kwargs):
        raise VerificationError("a bug")

    monkeypatch.setattr("volta.runtime.gateway.build_plan", refuse)
    with pytest.raises(VerificationError) as caught:
        volta.jit(lambda x: x * 17)(X)
    assert sum(is_own(file) for file in files(caught.value)) > 2


def test_a_boundary_leaves_no_frame_of_its_own(monkeypatch):
    monkeypatch.setenv("VOLTA_TRACEBACKS", "user")

    @boundary
    def function():
        raise ShapeError("here")

    with pytest.raises(ShapeError) as caught:
        function()
    assert [f.name for f in traceback.extract_tb(caught.value.__traceback__)] == [
        "test_a_boundary_leaves_no_frame_of_its_own", "function",
    ]  # fmt: skip


@pytest.mark.parametrize("module", [m for m in HINTS if m != "volta.ops"])
def test_public_functions_stay_what_they_are(module):
    """They pickle by the name that users know, aliases are one function, and signatures are those written down."""
    namespace = importlib.import_module(module)
    for name in namespace.__all__:
        function = getattr(namespace, name)
        if type(function) is type(fails):
            assert pickle.loads(pickle.dumps(function)) is function, name
            assert _BOUNDED.get(function) is function, f"{name} is not under a boundary"
    assert vnp.abs is vnp.absolute and vnp.acos is vnp.arccos and vnp.add.reduce(X) == 6
    assert volta.tree_util.tree_map is volta.tree.map
