"""Packages that some tests of a file need, and others do not."""

from __future__ import annotations

from typing import Any

import pytest


class Optional:
    """A module that is imported where it is first used: the test that does is skipped where it is not installed.

    ``pytest.importorskip`` at the top of a file skips what needs no such package too.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # what pytest asks of every name of a file
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name), attribute)
