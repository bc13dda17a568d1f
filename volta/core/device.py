"""Devices as users see them: names that know what they name."""

from __future__ import annotations

import attrs


@attrs.frozen
class Workers:
    """The workers that run programs together: the kind of their devices, how many they are, and which are here."""

    kind: str = "cpu"
    size: int = 1
    here: tuple[int, ...] = (0,)


_workers = Workers()


def tell(workers: Workers) -> None:
    """Say whose devices there are from now on; the runtime does where an engine starts and stops."""
    global _workers
    _workers = workers


class Device(str):
    """A device: its name, such as ``'cuda:0'``, with what JAX's devices say of themselves.

    >>> device = volta.devices("cpu")[0]
    >>> device, device.platform, device.id, device == "cpu:0"
    ('cpu:0', 'cpu', 0, True)
    """

    __slots__ = ()

    @property
    def id(self) -> int:
        """Its number among the devices of its kind."""
        return int(self.partition(":")[2])

    @property
    def platform(self) -> str:
        """``'cpu'`` or, of NVIDIA's, ``'gpu'``."""
        return "gpu" if self.startswith("cuda") else "cpu"

    @property
    def device_kind(self) -> str:
        """What it is, in one word: that of its platform."""
        return self.platform

    @property
    def process_index(self) -> int:
        """The number of the process that computes on it."""
        workers = _workers
        return (self.id if self._is_a_worker else workers.here[0]) // len(workers.here)

    @property
    def is_local(self) -> bool:
        """Whether this process computes on it."""
        return not self._is_a_worker or self.id in _workers.here

    @property
    def _is_a_worker(self) -> bool:
        return self.startswith(f"{_workers.kind}:")
