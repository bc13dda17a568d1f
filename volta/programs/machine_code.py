"""Compiled kernels in a program's file: for named processors, with everything that they were made by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from volta.core.array import Array
from volta.core.errors import ArgumentError, DeviceError, FormatError
from volta.core.ir import ClosedJaxpr
from volta.core.source import at_user_line
from volta.emit.cache import StoredUnit
from volta.io.format import compact
from volta.runtime import gateway

_FIELDS = {"target", "made_by", "units"}
_UNIT = {"kernels", "objects"}


@attrs.frozen(eq=False)
class MachineCode:
    """A program's kernels for one target, and what decided them besides their texts: versions, processor, emitters."""

    target: str
    made_by: Mapping[str, str] = attrs.field(repr=False)
    units: tuple[StoredUnit, ...] = attrs.field(repr=False)


def compiled_for(programs: Sequence[ClosedJaxpr], name: str, donated: Sequence[int], target: str) -> MachineCode:
    """The kernels of programs for a target. Raises ArgumentError where that is none."""
    there = gateway.machine_targets()
    if target not in there:
        what = f"compiled_for: there is no target {target!r:.80}; there are {', '.join(there)}"
        raise ArgumentError(at_user_line(what))
    return MachineCode(target, *gateway.machine_code(programs, name, donated, target))


def admit(codes: Sequence[MachineCode], where: str) -> None:
    """Let machine code that the caller trusts be used, as long as it is held.

    Raises:
        DeviceError: none of it fits this process; why each does not.
    """
    refused = {code.target: gateway.admit_machine_code(code.target, code.made_by, code.units) for code in codes}
    if not all(refused.values()):
        return
    reasons = "; ".join(f"{target}: {why}" for target, why in refused.items()) or "the file holds none"
    raise DeviceError(
        f"{where}: none of its machine code can be used here ({reasons}). Load it without machine_code=True: its "
        "kernels are then compiled here"
    )


def to_stored(code: MachineCode) -> dict[str, Any]:
    """As the leaves of a model file."""
    return {
        "target": code.target,
        "made_by": compact(dict(code.made_by)),
        "units": [
            {"kernels": compact(dict(x.kernels)), "objects": [np.frombuffer(data, np.uint8) for data in x.objects]}
            for x in code.units
        ],
    }


def from_stored(stored: Any) -> MachineCode:
    """Raises FormatError for what `to_stored` never gives. Whether it is to be used is asked later."""
    if not isinstance(stored, dict) or {*stored} != _FIELDS or not isinstance(stored["target"], str):
        raise FormatError(f"corrupt: machine code has {', '.join(sorted(_FIELDS))}")
    if not isinstance(stored["units"], list):
        raise FormatError("corrupt: the units of machine code are no list")
    return MachineCode(stored["target"], _texts(stored["made_by"]), tuple(map(_unit, stored["units"])))


def _unit(stored: Any) -> StoredUnit:
    if not isinstance(stored, dict) or {*stored} != _UNIT or not isinstance(stored["objects"], list):
        raise FormatError(f"corrupt: a unit of machine code has {', '.join(sorted(_UNIT))}")
    objects = stored["objects"]
    if not objects or not all(isinstance(x, Array) and x.dtype == np.uint8 and x.ndim == 1 for x in objects):
        raise FormatError("corrupt: machine code is no array of bytes")
    return StoredUnit(_texts(stored["kernels"]), tuple(np.asarray(x).tobytes() for x in objects))


def _texts(stored: Any) -> dict[str, str]:
    try:
        found = json.loads(stored)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(x, str) for x in found.values()):
        raise FormatError(f"corrupt: {stored!r:.80} in machine code is no table of texts")
    return found
