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
from volta.core.errors import ShapeError, TracerError

pytestmark = pytest.mark.turns(3)

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
        wide = [x.aval for x in results if isinstance(x, volta.Array) and x.dtype.itemsize == 8]
        assert not wide, (args, wide)
