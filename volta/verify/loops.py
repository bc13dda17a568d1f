"""Loops and choices, compiled, against the CPU's bits and against the same written out in Python."""

from __future__ import annotations

from collections.abc import Iterator

from volta.api.autodiff import grad
from volta.testing.loops import loop_programs, total
from volta.verify.checks import Check, Named, Setting, compare, on_device, same


def loops(setting: Setting) -> Iterator[Check]:
    """Each program forwards and, where it has them, its gradients; then what it is written out."""
    programs = loop_programs()

    def found() -> Iterator[Named]:
        for p in programs:
            yield p.name, p.f, p.args
            if p.differentiable:
                yield f"{p.name}: gradients", grad(total(p.f), p.floats), p.args

    yield from compare(setting, found())
    for p in programs:
        if p.known:
            want = on_device(p.written_out, p.args, setting.device)
            yield same(f"{p.name}: written out", on_device(p.f, p.args, setting.device), want)
