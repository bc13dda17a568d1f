"""Names and keywords that people look for and that are not there: what to write instead, said where they look.

A public namespace has ``__getattr__, __dir__ = namespace(__name__)``; transforms are under :func:`explains_keywords`.
:mod:`volta.core.hints` holds what both say.

``from volta import custom_vjp`` and ``import volta.scipy.linalg`` would lose what ``__getattr__`` says: Python then
looks for a module of that name. So the last of the finders that it asks says it again. It is asked for modules that
nobody else has found, and answers for names in public namespaces only: those that it knows a way for, and those that
nearly are public.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from volta.core.boundary import bind, bound_namespace, boundary
from volta.core.hints import HINTS, KEYWORDS
from volta.core.later import import_later
from volta.core.source import at_user_line

P = ParamSpec("P")
R = TypeVar("R")

_PLACES = (
    "numpy lax nn random scipy.special numpy.linalg numpy.fft scipy.linalg scipy.fft lax.linalg nn.initializers optim "
    "io tree flatten_util sharding"
)
"""Where a name is looked for that is not where it was asked for, the most usual place first."""


def way(module: str, name: str) -> str | None:
    """What to write instead of a name that a public namespace does not have; None where that is not known."""
    ways = HINTS.get(module, {})
    if name in ways:
        return ways[name]
    for place in ("volta", *(f"volta.{place}" for place in _PLACES.split())):
        if name in import_later(place).__all__:
            return f"it is {place}.{name}"
    return next((text for pattern, text in ways.items() if fnmatch.fnmatchcase(name, pattern)), None)


def _nearly(module: str, name: str) -> str | None:
    """Which public name was meant; None where that is not clear. (Of attributes Python itself says it.)"""
    near = () if name.startswith("_") else difflib.get_close_matches(name, dir(sys.modules[module]), n=1, cutoff=0.75)
    return next((f"did you mean {module}.{meant}?" for meant in near), None)


_namespaces: set[str] = set()


def namespace(module: str, **later: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A public module's ``__getattr__``, whose AttributeError says what to do instead, and its ``__dir__``: what is
    public, so that completion shows nothing else.

    Names that are there ``later`` are imported from their modules by who first asks for them: those that need what
    takes long to import, and that most programs do without. A name may be that of a module within.
    Its functions are put under boundaries, so that errors show the user's frames alone.
    A module that is no package becomes one without submodules: only of packages Python asks the finders for a name.
    """
    _namespaces.add(module)
    vars(sys.modules[module]).setdefault("__path__", [])
    bound_namespace(sys.modules[module])

    def get(name: str) -> Any:
        if name in later:
            found = import_later(later[name])
            if later[name] == f"{module}.{name}":
                return found  # Python has bound a module's own
            bind(sys.modules[module], name, getattr(found, name))
            return vars(sys.modules[module])[name]
        instead = None if name.startswith("__") else way(module, name)
        raise AttributeError(
            f"module {module!r} has no attribute {name!r}" + (f": {instead}" if instead else ""),
            name=name,
            obj=sys.modules[module],
        )

    def names() -> list[str]:
        own = vars(sys.modules[module])
        return sorted({*own.get("__all__", ()), *(name for name in own if name.startswith("__"))})

    return get, names


class _Finder:
    """The last finder of modules: it finds none, and says of names in public namespaces what to do instead."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        module, _, last = name.rpartition(".")
        if module in _namespaces:
            instead = way(module, last) or _nearly(module, last)
            if instead is not None:
                # without its name: Python passes over an error that names the module which `from ... import` tried
                raise ModuleNotFoundError(f"{module!r} has no {last!r}: {instead}")


sys.meta_path.append(_Finder)


def explains_keywords(transform: Callable[P, R]) -> Callable[P, R]:
    """``transform``, which says of a keyword that it does not have what to do instead."""
    code, name = transform.__code__, transform.__name__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @boundary
    @functools.wraps(transform)
    def explaining(*args: P.args, **kwargs: P.kwargs) -> R:
        for word in kwargs:
            if word not in known:
                instead = KEYWORDS.get(name, {}).get(word, f"it has {', '.join(known[1:])}")
                raise TypeError(at_user_line(f"{name}: there is no keyword {word!r}: {instead}"))
        return transform(*args, **kwargs)

    return explaining
