"""Memory with several readers."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core.avals import ShapedArray
from volta.runtime.memory import Buffer


class SharedBuffer(Buffer):
    """Memory that more than one array or a NumPy view reads: a donating call works on a copy of it."""

    __slots__ = ()

    @property
    def device(self) -> str:  # type: ignore[override]
        return str(self.owner.device)  # type: ignore[attr-defined]

    @property
    def stream(self) -> Any:
        return self.owner.stream  # type: ignore[attr-defined]

    @property
    def stretch(self) -> Any:
        return self.owner.stretch  # type: ignore[attr-defined]

    def read(self, aval: ShapedArray) -> np.ndarray:
        """The bytes of memory that is not the host's, copied to the host."""
        out: np.ndarray = self.owner.read(aval)  # type: ignore[attr-defined]
        return out

    def mark(self) -> None:
        """What a device's work is given from now on need not be waited for."""
        self.owner.mark()  # type: ignore[attr-defined]

    def wait(self, aval: ShapedArray) -> None:
        """Until the memory of a device holds what was launched to write it."""
        self.owner.wait(aval)  # type: ignore[attr-defined]
