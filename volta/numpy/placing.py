"""Where the arrays that functions make lie."""

from __future__ import annotations

from typing import Any

from volta.api.devices import device_put
from volta.core.array import Array


def lying(x: Array, device: Any) -> Array:
    """``x`` on a device: its name, or a sharding; where it is if ``device`` is None. Traced values stay where they are.

    Raises:
        DeviceError: the device is not there.
        ShardingError: the array cannot be cut so.
    """
    out: Array = x if device is None else device_put(x, device)
    return out
