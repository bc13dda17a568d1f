"""Why a jitted function is compiled again, for ``volta.log_compiles``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from volta.core import pytrees
from volta.core.source import Source

_seen: dict[Any, int] = {}
"""How many jitted functions of one code have been compiled, by that code; counted while compilations are logged."""

Key = tuple[Any, ...]
"""What decides the program of a call: the tree of its arguments, what is static, the context, and the avals."""


def first_time(fun: Callable[..., Any]) -> str:
    """The reason for the first program of a jitted function: another one of the same code may have been there."""
    code = getattr(inspect.unwrap(fun), "__code__", None)
    before = _seen.get(code, 0)
    _seen[code] = before + 1
    if not before or code is None:
        return "first call"
    place = Source(code.co_filename, code.co_firstlineno, code.co_name)
    return (
        f"first call of a new function: the same code ({place}) has been jitted and compiled {before} times before. "
        "Call volta.jit once, outside of the loop or function, and keep what it returns"
    )


def again(key: Key, known: Iterable[Key], paths: Callable[[], Sequence[str]]) -> str:
    """What is new in ``key``, compared with the nearest of the keys that are known."""
    nearest = max(known, key=lambda other: _alike(key, other))
    said = [text for text in (*_settings(key, nearest), *_avals(key, nearest, paths)) if text]
    if not said:
        return "again, because its program was forgotten: so many others have been compiled since"
    return "again, because " + "; ".join(said[:4]) + ("; …" if len(said) > 4 else "")


def _alike(key: Key, other: Key) -> int:
    same = sum(a == b for a, b in zip(key[3:], other[3:], strict=False))
    return same + 100 * sum(a == b for a, b in zip(key[:3], other[:3], strict=True)) - abs(len(key) - len(other))


def _settings(key: Key, other: Key) -> Iterable[str]:
    (tree, extra, context, *_), (old_tree, old_extra, old_context, *_) = key, other
    if tree != old_tree:
        yield f"the arguments are {pytrees.text(tree)}, they were {pytrees.text(old_tree)}"
    now, then = _static(extra), _static(old_extra)
    for label in now:
        if label not in then or now[label] != then[label]:
            what = f"static argument {label!r}" if isinstance(label, str) else f"static argument number {label}"
            old = f", it was {_shown(then[label])}" if label in then else ""
            yield f"{what} is {_shown(now[label])}{old}"
    for field in attrs.fields(type(context)):
        value, old_value = getattr(context, field.name), getattr(old_context, field.name)
        if value != old_value:
            yield f"the context's {field.name} is {value}, it was {old_value}"


def _static(extra: Any) -> dict[Any, Any]:
    words = extra[1] if extra else ()
    return dict(zip(words[::2], words[1::2], strict=True))


def _shown(exact: Any) -> str:
    """A static value, from the key that it is compared by (:func:`volta.core.pytrees.exact`)."""
    return f"{exact[1]!r:.60}" if isinstance(exact, tuple) and len(exact) == 2 else f"{exact!r:.60}"


def _avals(key: Key, other: Key, paths: Callable[[], Sequence[str]]) -> Iterable[str]:
    if key[0] == other[0]:
        for path, aval, old in zip(paths(), key[3:], other[3:], strict=True):
            if aval != old:
                yield f"{path} is {aval.short()}, it was {old.short()}"
