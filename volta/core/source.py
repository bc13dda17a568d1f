"""Finding the line of the user's program that an equation or an error comes from."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import runpy
import sys
from typing import Any

import attrs
import numpy as np
import optree


def _folder(module: Any) -> str:
    return os.path.dirname(os.path.abspath(module.__file__)) + os.sep


_HOME = os.path.dirname(_folder(sys.modules[__name__]).rstrip(os.sep)) + os.sep

_BETWEEN = (
    contextlib.contextmanager.__code__.co_filename, runpy.run_module.__code__.co_filename, "<frozen ",
    _folder(optree), _folder(np), "<attrs generated",
)  # fmt: skip
"""How the files begin whose frames lie between a user's line and Volta: entering a context, ``python -m``, imports,
functions that are mapped over trees, NumPy's functions that call an array's methods, made initializers."""


class _Own(dict[str, bool]):
    """Whether the frames of a file are Volta's, or lie between it and the user's; found out once a file."""

    def __missing__(self, file: str) -> bool:
        own = self[file] = file.startswith((_HOME, *_BETWEEN))
        return own


_own = _Own()
_basename = functools.lru_cache(256)(os.path.basename)


@attrs.frozen(slots=True)
class Source:
    """A place in the user's code: file, line number and function name.

    ``gradient`` marks work of the backward pass, which belongs to the line that is differentiated.
    """

    file: str
    line: int
    function: str
    gradient: bool = False

    def text(self) -> str:
        """The source line itself, stripped; empty where it cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{cell_of(self.file) or _basename(self.file)}:{self.line} ({self.function})"

    def pointer(self) -> str:
        """The place with its line of code, for the last lines of an error message."""
        text, cell = self.text(), cell_of(self.file)
        place = f"{self.file}:{self.line}" if cell is None else f"cell {cell}, line {self.line},"
        return f"  at {place} in {self.function}" + (f"\n      {text}" if text else "")


def cell_of(file: str) -> str | None:
    """The name of a notebook's cell, ``In[3]``, behind the file that IPython runs it from; None for other files."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler: Any = getattr(get_shell() if get_shell else None, "compile", None)
    named = compiler.format_code_name(file) if hasattr(compiler, "format_code_name") else None
    return named[1] if named else None


def user_source() -> Source | None:
    """The innermost frame outside of Volta and of what Python itself puts between, or None when there is none."""
    frame = sys._getframe(1)
    while frame is not None and _own[frame.f_code.co_filename]:
        frame = frame.f_back  # type: ignore[assignment]  # f_back is None at the bottom
    if frame is None:
        return None
    code = frame.f_code
    return Source(code.co_filename, frame.f_lineno, code.co_name)


def at_user_line(message: str) -> str:
    """``message`` followed by the user's own line."""
    source = user_source()
    return message if source is None else f"{message}\n{source.pointer()}"


def is_own(file: str) -> bool:
    """Whether a file's frames are Volta's, or of what lies between it and the user's."""
    return _own[file]
