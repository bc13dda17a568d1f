"""Every public function with Python numbers as arguments: traced, they give the bits that they give when known."""

from __future__ import annotations

import inspect
import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta.core import dtypes
from volta.core.errors import ShapeError, TracerError

pytestmark = pytest.mark.turns(6)

X64 = np.float64([0.1, -1.7, 2.6, 0.0])
X32 = np.float32([0.3, 1.2, -0.4, 3.0])
I32 = np.int32([3, 0, -2, 5])
NUMBERS: tuple[Any, ...] = (0.1, 2.0, 3, -1, 0.5, True)
ARRAYS = (X64, X32, I32)

# Functions of files, devices, strings, of other functions, and of shapes alone.
LEFT_OUT = {
    "save", "savez", "load", "frombuffer", "fromfile", "fromfunction", "fromiter", "fromstring", "from_dlpack",
    "printoptions", "set_printoptions", "get_printoptions", "array_repr", "array_str", "array2string",
    "apply_along_axis", "apply_over_axes", "vectorize", "frompyfunc", "piecewise", "custom_jvp", "scan", "while_loop",
    "fori_loop", "map", "cond", "switch", "associative_scan", "finfo", "iinfo", "empty", "empty_like",
}  # fmt: skip
NAMESPACES = {"numpy": vnp, "nn": volta.nn, "special": volta.scipy.special, "lax": volta.lax}


def _functions() -> list[tuple[str, Any]]:
    found = []
    for space, module in NAMESPACES.items():
        for name in sorted(n for n in dir(module) if not n.startswith("_") and n not in LEFT_OUT):
            f = getattr(module, name)
            if inspect.isfunction(f):
                found.append((f"{space}.{name}", f))
    return found


def _calls(f: Any) -> list[tuple[Any, ...]]:
    """Arguments of one to three positions, at least one of them a number."""
    try:
        parameters = [p for p in inspect.signature(f).parameters.values() if p.kind in (0, 1)]
    except (TypeError, ValueError):
        return []
    least = max(1, sum(p.default is p.empty for p in parameters))
    calls: list[tuple[Any, ...]] = []
    for n in range(least, min(3, len(parameters)) + 1):
        for kinds in itertools.product("an", repeat=n):
            if "n" in kinds:
                for i, array in enumerate(ARRAYS):
                    calls.append(tuple(array if k == "a" else NUMBERS[(2 * i + j) % 6] for j, k in enumerate(kinds)))
    return calls


def _bits(x: Any) -> Any:
    return [np.asarray(leaf) for leaf in volta.tree.leaves(x)]


def _differs(f: Any, args: tuple[Any, ...]) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = f(*args)
        except Exception:  # not a call of this function
            return None
        if not all(isinstance(leaf, (volta.Array, np.generic, bool, int, float)) for leaf in volta.tree.leaves(want)):
            return None
        try:
            found = volta.jit(f)(*args)
        except (TracerError, ShapeError, TypeError):
            return None  # refused: the argument must be known
        except Exception as error:
            if any(type(x) is bool for x in args) and f.__module__.startswith("volta.ops"):
                return None  # volta.lax does not promote, and a bool is no number
            return f"{args}: {type(error).__name__} under jit: {str(error):.200}"
    for a, b in zip(volta.tree.leaves(want), volta.tree.leaves(found), strict=True):
        if isinstance(a, volta.Array) and a.weak_type != b.weak_type:
            return f"{args}: {a.aval} is {b.aval} under jit"
    for a, b in zip(_bits(want), _bits(found), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{args}: {a.dtype}{a.shape} is {b.dtype}{b.shape} under jit"
        same = a.tobytes() == b.tobytes() or (np.array_equal(a, b, equal_nan=True) if a.dtype.kind == "f" else False)
        if not same or (a.dtype.kind == "f" and (np.signbit(a) != np.signbit(b))[~np.isnan(a)].any()):
            return f"{args}: {a} is {b} under jit"
    return None


QUICK = {"numpy.clip", "numpy.power", "numpy.where", "numpy.maximum", "nn.leaky_relu", "special.xlogy", "lax.clamp"}


@sampled("name,f", _functions(), lambda pair: pair[0] in QUICK, ids=lambda pair: pair[0])
def test_traced_numbers_give_what_known_ones_give(name: str, f: Any) -> None:
    wrong = [text for args in _calls(f) if (text := _differs(f, args))]
    assert not wrong, "\n".join(wrong[:5])


@sampled(
    "name,f",
    [pair for pair in _functions() if not pair[0].startswith("lax.")],
    lambda pair: pair[0] in {*QUICK, "numpy.ravel", "nn.relu"},
    ids=lambda pair: pair[0],
)
def test_numbers_by_themselves_count_as_arrays_of_the_default_dtypes(name: str, f: Any) -> None:
    for args in itertools.chain.from_iterable(itertools.product((0.3, 2), repeat=n) for n in (1, 2, 3)):
        try:
            results = volta.tree.leaves(f(*args))
        except Exception:  # not a call of this function
            continue
        wide = [x.aval for x in results if isinstance(x, volta.Array) and dtypes.part_dtype(x.dtype).itemsize == 8]
        assert not wide, (args, wide)


APART = {"numpy.broadcast_arrays", "numpy.meshgrid", "numpy.ix_"}  # each array keeps a dtype of its own


def _rounded(f: Any, args: tuple[Any, ...], **keywords: Any) -> str | None:
    """Whether numbers count for less than their 64 bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = f(*(np.float64(x) if type(x) is float else x for x in args), **keywords)
            found = f(*args, **keywords)
        except Exception:  # not a call of this function
            return None
    for a, b in zip(volta.tree.leaves(want), volta.tree.leaves(found), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype == b.dtype == np.float64 and not np.array_equal(a, b, equal_nan=True):
            return f"{args}, {keywords}: {a} is {b}"
    return None


@sampled(
    "name,f",
    [pair for pair in _functions() if pair[0] not in APART],
    lambda pair: pair[0] in {*QUICK, "numpy.linspace", "numpy.insert", "numpy.hstack"},
    ids=lambda pair: pair[0],
)
def test_a_number_is_rounded_once_to_the_64_bits_that_it_meets(name: str, f: Any) -> None:
    """Beside an array of float64, and where ``dtype`` says so."""
    choices = (X64, X64[:1], np.float64(0.7), np.int32([1]), np.int32(1), 0.1, 0.7, 3)
    calls = itertools.chain.from_iterable(itertools.product(choices, repeat=n) for n in (1, 2, 3))
    wrong = []
    for args in calls:
        if float not in map(type, args) or (name.startswith("nn.") and type(args[0]) is float):
            continue  # functions of nn are of one array, by itself
        beside = any(isinstance(x, (np.ndarray, np.generic)) and x.dtype == np.float64 for x in args)
        wrong += [_rounded(f, args)] if beside else []
        wrong += [_rounded(f, args, dtype="float64")] if "dtype" in inspect.signature(f).parameters else []
    assert not any(wrong), "\n".join([text for text in wrong if text][:5])


def test_joined_numbers_are_rounded_once() -> None:
    for f in (vnp.stack, vnp.hstack, vnp.vstack, vnp.dstack, vnp.block, vnp.column_stack):
        for numbers in ([np.float64(1), 0.1], [0.1, vnp.ones((), "float64")]):
            assert 0.1 in np.asarray(f(numbers)).ravel().tolist(), f
    for f in (vnp.stack, vnp.hstack, vnp.vstack, vnp.dstack):
        assert np.asarray(f([0.1, 0.7], dtype="float64")).ravel().tolist() == [0.1, 0.7]
        assert np.asarray(volta.jit(lambda x, f=f: f([x, 0.7], dtype="float64"))(0.1)).ravel().tolist() == [0.1, 0.7]
    for f in (vnp.linspace, vnp.geomspace):
        assert f(0.1, 0.7, 3, dtype="float64").tolist()[::2] == [0.1, 0.7]
    assert vnp.add.outer(0.1, X64).tolist() == vnp.add.outer(X64, 0.1).tolist() == (0.1 + X64).tolist()
    edges = vnp.histogram(X64, bins=2, range=(0.1, 0.7))[1]
    assert edges.tolist()[0] == 0.1
