"""Locks and forks: another thread of the parent may hold a lock, and the child does not have that thread."""

from __future__ import annotations

import os
import threading
from typing import Any


def free_in_children(names: dict[str, Any], *locks: str) -> None:
    """Give a module's locks (by their names in its ``globals()``) to a forked child anew, free."""

    def renew() -> None:
        for lock in locks:
            names[lock] = threading.RLock()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
