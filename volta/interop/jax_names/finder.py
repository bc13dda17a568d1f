"""The finder that answers ``import jax`` and ``import jax.numpy`` with modules of Volta's names."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from volta.core.source import at_user_line
from volta.interop.jax_names.internals import absent
from volta.interop.jax_names.modules import ANSWERS, Answer, missing
from volta.interop.jax_names.primitives import Primitive


class Answered(ModuleType):
    """A module of JAX's that Volta answers for."""

    def __init__(self, name: str, answer: Answer):
        super().__init__(name, f"Volta, under the name of {name}.")
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        answer, inside = self._answer, f"{self.__name__}.{name}"
        if inside in ANSWERS:
            return importlib.import_module(inside)
        if name in answer.names:
            value = answer.names[name]
        elif name in answer.public():
            value = getattr(answer.namespace, name)
        elif name.endswith("_p"):
            value = Primitive(name.removesuffix("_p"))
        elif answer.internal and not name.startswith("__"):
            value = absent(self.__name__, name)
        else:
            raise AttributeError(missing(self.__name__, name), name=name, obj=self)
        vars(self)[name] = value
        return value

    def __dir__(self) -> list[str]:
        inside = [m.rpartition(".")[2] for m in ANSWERS if m.rpartition(".")[0] == self.__name__]
        return sorted({*self._answer.public(), *inside})


class Finder:
    """The first of the finders: of JAX's modules it finds those in the table, and says so of others."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        top, _, _ = name.partition(".")
        if top not in ("jax", "jaxlib"):
            return None
        if name in ANSWERS:
            return ModuleSpec(name, Finder, is_package=True)  # type: ignore[arg-type]
        module, _, last = name.rpartition(".")
        text = missing(module, last) if module in ANSWERS else f"{name!r} is not there under volta.as_jax"
        # without its name: Python passes over an error that names the module which `from ... import` tried
        raise ModuleNotFoundError(at_user_line(text))

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return Answered(spec.name, ANSWERS[spec.name])

    @staticmethod
    def exec_module(module: Any) -> None:
        module.__all__ = [name for name in dir(module) if not name.startswith("_")]


def installed() -> bool:
    """Whether ``import jax`` means Volta in this process."""
    return Finder in sys.meta_path


def install() -> None:
    """Let ``import jax`` mean Volta from now on.

    Raises:
        ImportError: JAX itself is imported already.
    """
    if installed():
        return
    if "jax" in sys.modules:
        raise ImportError(
            at_user_line("volta.as_jax: JAX itself is imported in this process; import volta.as_jax before all else")
        )
    sys.meta_path.insert(0, Finder)
