"""Writes tests/golden/public_api.txt: every public name with its signature. docs/stability.md says what may change."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import volta

RECORD = Path(__file__).resolve().parent.parent / "tests" / "golden" / "public_api.txt"
INTERNAL = {
    "volta." + name
    for name in (
        "api core emit interop numba_cpu numba_cuda numba_source ops programs runtime trace verify xla_like commands "
        "testing as_jax version __main__"
    ).split()
}


def modules() -> list[str]:
    """The public modules: those with an ``__all__`` outside of the folders that serve Volta itself."""
    found = ["volta"]
    for info in pkgutil.walk_packages(volta.__path__, "volta.", onerror=lambda name: None):
        if any(info.name == name or info.name.startswith(name + ".") for name in INTERNAL):
            continue
        module = importlib.import_module(info.name)
        if info.ispkg or "." not in info.name.removeprefix("volta."):
            found += [info.name] if hasattr(module, "__all__") else []
        elif info.name in ("volta.numpy.linalg", "volta.numpy.fft", "volta.nn.initializers", "volta.lax.linalg"):
            found.append(info.name)
        elif info.name.startswith(("volta.scipy.", "volta.experimental.")) and hasattr(module, "__all__"):
            found.append(info.name)
    return sorted(set(found))


def signature(value: Any) -> str:
    """How something is called, without the annotations, which say the same to type checkers."""
    if inspect.isclass(value) and issubclass(value, Enum):
        return "(value)"  # releases of Python differ in what else there is
    if inspect.isclass(value) and issubclass(value, functools.partial):
        return "(func, /, *args, **keywords)"  # which releases of Python before 3.13 do not say
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    bare = [
        p.replace(annotation=p.empty, default=p.default if plain(p.default) else ...) for p in found.parameters.values()
    ]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


def plain(value: Any) -> bool:
    """Whether a default is written the same in every process."""
    return value is inspect.Parameter.empty or isinstance(value, (bool, int, float, str, type(None), tuple))


def lines() -> Iterator[str]:
    """The record, line by line."""
    for name in modules():
        module = importlib.import_module(name)
        for item in sorted(set(module.__all__)):
            value = getattr(module, item)
            if isinstance(value, ModuleType):
                yield f"{name}.{item}: module"
            elif (callable(value) or hasattr(value, "__value__")) and not str(
                getattr(value, "__module__", "")
            ).startswith("volta"):
                yield f"{name}.{item}"  # another library's, whose releases differ
            elif inspect.isclass(value):
                yield f"{name}.{item}: class{signature(value)}"
                for member in sorted(k for k in vars(value) if not k.startswith("_")):
                    inner = inspect.getattr_static(value, member)
                    inner = inner.__func__ if isinstance(inner, (classmethod, staticmethod)) else inner
                    yield f"{name}.{item}.{member}{signature(inner) if callable(inner) else ''}"
            elif callable(value):
                yield f"{name}.{item}{signature(value)}"
            else:
                yield f"{name}.{item}: {type(value).__name__}"


def text() -> str:
    """The whole record."""
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    RECORD.write_text(text(), encoding="utf-8")
    print(f"{RECORD}: {len(text().splitlines()):,} names")
