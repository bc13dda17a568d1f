"""Axes that have names: which there are where a function is traced, and how long they are.

``vmap(f, axis_name="i")`` gives a name to the axis that it maps, by which collectives inside of ``f`` reach the other
examples. Names are in scope while ``f`` runs.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from volta.core.errors import AxisNameError
from volta.core.source import at_user_line


@attrs.frozen
class Axis:
    """A mapped axis: how long it is, and its name where it has one."""

    size: int
    name: Hashable = None


class _Scope(threading.local):
    axes: tuple[Axis, ...] = ()


_scope = _Scope()


@contextmanager
def named(*axes: Axis) -> Iterator[None]:
    """Have these axes in scope inside the block; those without a name are passed over."""
    before = _scope.axes
    _scope.axes = (*before, *(a for a in axes if a.name is not None))
    try:
        yield
    finally:
        _scope.axes = before


def in_scope() -> tuple[Axis, ...]:
    """The axes that have names here, outermost first: what a traced program may depend on."""
    return _scope.axes


def names_of(axis_name: Any) -> tuple[Hashable, ...]:
    """One name or a tuple of names as a tuple."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def size_of(operation: str, name: Hashable) -> int:
    """How long the axis of that name is.

    Raises:
        AxisNameError: no axis has it here.
    """
    for axis in reversed(_scope.axes):
        if axis.name == name:
            return axis.size
    known = ", ".join(repr(a.name) for a in _scope.axes)
    raise AxisNameError(
        at_user_line(
            f"{operation}: unbound axis name: {name!r}. "
            + (f"The axes that have names here are {known}." if known else "No axis has a name here.")
            + f" Give it to the axis that is mapped: volta.vmap(f, axis_name={name!r})"
        )
    )
