"""Modules that are imported by the first program that needs them, not by ``import volta``.

They compute their constants in the standard floating-point environment, as those that are imported at once do. No fork
comes in between: a child does not have the thread that imports, and would wait for it for ever.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from types import ModuleType

from volta.core.floats import standard

_importing = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )


@standard
def import_later(name: str) -> ModuleType:
    """A module by its full name, imported now if nobody has."""
    with _importing:
        return import_module(name)
