"""No public function lets out an error of its inside, whatever it is given: each is Volta's, with the user's line."""

from __future__ import annotations

import inspect
import pickle
import signal
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta import lax, nn, optim, random
from volta.core.internal_errors import is_internal
from volta.errors import ArgumentError, DTypeError, MemoryBudgetError, ShapeError, VoltaError

X = vnp.asarray(np.arange(1.0, 7.0, dtype="f4").reshape(2, 3))
V = vnp.asarray(np.float32([1, 2, 3]))
N = vnp.asarray(np.int32([0, 1]))
S = vnp.asarray(np.eye(3, dtype="f4"))
K = random.key(0)
GOOD: list[tuple[Any, ...]] = [
    (), (X,), (V,), (S,), (N,), (3,), ((2, 3),), (X, X), (V, V), (N, N), (X, 1), (V, 2), (N, 2), (X, (3, 2)), (X, N),
    (V, N), (X, 0, 1), (V, V, V), (X > 1, X, X), (K,), (K, (3,)), (K, 2), (K, V), (0.0, 1.0, 5), ((2, 3), 1.0),
    (V, 0, 5), (X, (1, 0)), (V, -1, 0), ("ij,jk->ik", X, X.T), (0, 3), (lambda x: x, V), ([X, X],), (V, 0.5), (1, 2, 3),
    (X, X, 0), (V, V, 1), ("float32",), (X, "float32"), (X, [N]), (X, (2, 0), (0, 1)), (X, (0, 0), (2, 2)),
    (K, V, (3,)), (V, [1, 2]), (1e-3,),
]  # fmt: skip
"""Arguments that some function takes; the first that one takes are then made bad, one after the other."""

BAD: list[Any] = [
    -1, 2**50, 2**62, 2**63, 2**70, -(2**70), 1.5, float("nan"), "abc", None, (-1,), (2**62, 2**62), (2**70,), ((1,),),
    [1, [2]], object(), np.array(["a"]), np.zeros((7, 5)), (0,) * 70, 100, (5, 5, 5), 1j, {},
]  # fmt: skip
"""2^50 bytes are more than a process's addresses: no system says that it has them, however much it promises."""

SPACES = {
    "numpy": vnp, "lax": lax, "nn": nn, "random": random, "optim": optim,
    "linalg": vnp.linalg, "special": volta.scipy.special,
}  # fmt: skip

DECLARED = {
    "can_cast", "issubdtype", "isdtype", "array_repr", "array_str", "printoptions", "set_printoptions", "finfo",
    "iinfo", "save", "savez", "load", "fromfile",
}  # fmt: skip
"""NumPy's own functions under its names, and those of files."""


def functions() -> list[tuple[str, Callable[..., Any]]]:
    found: dict[int, tuple[str, Callable[..., Any]]] = {}
    for space, module in SPACES.items():
        for name in module.__all__:
            f = getattr(module, name)
            if isinstance(f, types.FunctionType) and name not in DECLARED:
                found.setdefault(id(inspect.unwrap(f)), (f"{space}.{name}", f))
    return list(found.values())


class TooLong(BaseException):
    """What was asked for (2^50 pieces of an array) is being done."""


def outcome(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    signal.setitimer(signal.ITIMER_REAL, 10, 10)
    try:
        f(*args, **kwargs)
    except Exception as error:
        return error
    except TooLong:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


@pytest.fixture
def patience():
    """A call that takes longer than some seconds ends with `TooLong`."""

    def over(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, over)
    yield
    signal.signal(signal.SIGALRM, before)


def calls(f: Callable[..., Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls with one bad argument each."""
    good = next((g for g in GOOD if outcome(f, g, {}) is None), None)
    if good is None:
        return
    parameters = inspect.signature(f).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for bad in BAD:
        yield from ((good[:i] + (bad,) + good[i + 1 :], {}) for i in range(len(good)))
        yield from ((good, {name: bad}) for name in names[len(good) :])


FUNCTIONS = dict(functions())
QUICK = [name for k, name in enumerate(FUNCTIONS) if k % 60 == 0]


@sampled("name", FUNCTIONS, QUICK, ids=str)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of `TooLong` in a callback
@pytest.mark.turns(6)
def test_errors_are_voltas_with_the_users_line(name, patience):
    f = FUNCTIONS[name]
    for args, kwargs in calls(f):
        error = outcome(f, args, kwargs)
        if error is None:
            continue
        shown = f"{name}{args, kwargs}: {type(error).__name__}: {error}"[:400]
        assert not is_internal(error), shown
        if isinstance(error, VoltaError):
            assert __file__ in str(error), shown


def test_the_arguments_are_named():
    with pytest.raises(ArgumentError, match=r"diag\(f32\[3\], k='first'\)") as caught:
        vnp.diag(V, k="first")
    assert isinstance(caught.value.__cause__, TypeError)
    assert isinstance(caught.value, ValueError)


def test_errors_of_the_users_own_functions_pass():
    def mine(x):
        return {}["mine"]

    with pytest.raises(KeyError, match="mine"):
        vnp.vectorize(mine)(V)
    with pytest.raises(KeyError, match="mine"):
        lax.scan(lambda c, x: (mine(c), x), 0.0, V)


def test_calls_that_do_not_fit_the_signature_are_pythons():
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'a'"):
        vnp.sum()


def test_functions_can_be_pickled():
    for name in ("sum", "add", "stack"):
        f = getattr(vnp, name)
        assert pickle.loads(pickle.dumps(f)) is f and f.__name__ == name
    assert inspect.signature(vnp.sum).parameters["axis"]
    assert vnp.add.reduce(V) == 6


@pytest.mark.parametrize("make", [
    lambda: volta.ShapeDtypeStruct((-1,), "float32"),
    lambda: volta.ShapeDtypeStruct((2, -3), "float32"),
    lambda: volta.ShapeDtypeStruct((2**62, 2), "float32"),
    lambda: volta.ShapeDtypeStruct((0,) * 65, "float32"),
    lambda: volta.ShapeDtypeStruct("ab", "float32"),
    lambda: vnp.ones(-1),
    lambda: vnp.ones(2**70),
    lambda: vnp.zeros((2**31, 2**31, 2**31)),
    lambda: vnp.zeros((2**62, 0, 4)),
    lambda: vnp.repeat(V, -1),
    lambda: vnp.repeat(V, [1, -2, 3]),
    lambda: vnp.tile(V, -1),
    lambda: vnp.eye(-1),
    lambda: nn.one_hot(N, -1),
    lambda: lax.iota("int32", -1),
    lambda: vnp.bincount(N, length=-3),
    lambda: volta.jit(lambda x: vnp.broadcast_to(x, (2**62, 2**62)))(1.0),
    lambda: volta.eval_shape(lambda x: vnp.outer(x, x), volta.ShapeDtypeStruct((2**40,), "float32")),
])  # fmt: skip
def test_sizes_that_no_array_has_are_refused(make):
    with pytest.raises(ShapeError):
        make()


def test_dtypes_that_are_none():
    with pytest.raises(DTypeError, match="is not a dtype"):
        vnp.ones(3, [1, [2]])


def test_too_much_memory_is_said():
    with pytest.raises(MemoryBudgetError):
        vnp.ones(2**50)
