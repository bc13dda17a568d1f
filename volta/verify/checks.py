"""Running one program on a device, comparing its bits with the CPU's and with the record that the project keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from volta.api.devices import device_put
from volta.api.jit import jit
from volta.core import pytrees
from volta.runtime.devices import default_device
from volta.testing.bits import bits, differing, digest

RECORD = Path(__file__).parent / "digests" / "programs.json"
"""For each program: the digest of its inputs and that of its results, which are the same on every device."""

FULL, QUICK = "full", "quick"


@attrs.frozen
class Setting:
    """Where the suites run and how much: ``effort`` is 'quick', 'full' or 'exhaustive'."""

    device: str = "cpu"
    effort: str = QUICK

    @property
    def full(self) -> bool:
        return self.effort != QUICK


@attrs.frozen
class Check:
    """The outcome of one check: ``problem`` is empty if it passed. ``figures`` are measurements for the record;
    ``says`` is a line of a table, for a suite that is one."""

    name: str
    elements: int = 0
    differ: int = 0
    problem: str = ""
    inputs: str = ""
    digest: str = ""
    figures: dict[str, Any] = attrs.field(factory=dict)
    says: str = ""


Suite = Callable[[Setting], Iterator[Check]]

Named = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""A program to compare: its name, a function and its arguments (NumPy arrays)."""


def kept() -> dict[str, list[str]]:
    """The record: {suite/program: [digest of the inputs, digest of the results]}."""
    found: dict[str, list[str]] = json.loads(RECORD.read_text(encoding="utf-8"))["programs"]
    return found


def made_under() -> str:
    """The contract of the record. Where it is not this one, bits may have moved since: the changelog says which."""
    found: str = json.loads(RECORD.read_text(encoding="utf-8"))["contract"]
    return found


def on_device(f: Callable[..., Any], args: Any, device: str) -> Any:
    """The result of ``f`` compiled and run on a device, as NumPy arrays."""
    with default_device(device):  # for programs without arguments
        out = jit(f)(*device_put(args, device))
    return pytrees.map(np.asarray, out)


def compare(setting: Setting, programs: Iterator[Named]) -> Iterator[Check]:
    """Each program on the device, against the CPU (if the device is another) and digested for the record."""
    for name, f, args in programs:
        try:
            got = on_device(f, args, setting.device)
            want = got if setting.device == "cpu" else on_device(f, args, "cpu")
        except Exception as error:  # one failure must not hide the others
            yield Check(name, problem=f"{type(error).__name__}: {error}")
            continue
        yield same(name, got, want, args)


def same(name: str, got: Any, want: Any, args: Any = ()) -> Check:
    """A check that two results have the same bits; its digest is that of the first."""
    elements = sum(np.size(x) for x in pytrees.leaves(got))
    if [b[:2] for b in bits(got)] != [b[:2] for b in bits(want)]:
        return Check(name, elements, elements, "shapes or dtypes differ")
    count, first = 0, ""
    for x, y in zip(pytrees.leaves(got), pytrees.leaves(want), strict=True):
        wrong = differing(x, y)
        if wrong.size and not first:
            at = np.unravel_index(int(wrong[0]), np.shape(x))
            first = f"at {tuple(map(int, at))} {np.asarray(x)[at]!r}, expected {np.asarray(y)[at]!r}"
        count += wrong.size
    problem = f"{count} of {elements} elements differ; {first}" if count else ""
    return Check(name, elements, count, problem, digest(args), digest(got))


def against_record(suite: str, check: Check, record: dict[str, list[str]]) -> Check:
    """The check with a problem if the record has other results for the same inputs."""
    inputs, result = record.get(f"{suite}/{check.name}", ("", ""))
    if check.problem or not check.digest or inputs != check.inputs or result == check.digest:
        return check
    return attrs.evolve(check, problem=f"digest {check.digest}, the record of {made_under()} has {result}")
