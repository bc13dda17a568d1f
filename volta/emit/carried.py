"""Compiled units that came with programs whose files are trusted: backends find kernels here, before they look on disk.

A unit counts as long as somebody, the program, holds it. What comes from here is never written to the disk's cache:
that holds what this user compiled, and a program was trusted for itself alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from volta.emit.cache import StoredUnit

_units: weakref.WeakValueDictionary[tuple[str, str], StoredUnit] = weakref.WeakValueDictionary()


def admit(environment: str, units: Iterable[StoredUnit]) -> None:
    """Let kernels of an environment be found in these units."""
    for unit in units:
        for name in unit.kernels:
            _units[environment, name] = unit


def find(environment: str, name: str, text: str) -> StoredUnit | None:
    """The unit that holds kernel `name`, or None. The whole key is compared: environment, name and text."""
    unit = _units.get((environment, name))
    return unit if unit is not None and unit.kernels.get(name) == text else None
