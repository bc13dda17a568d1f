"""A program where no kernels of the context's kind run: on the CPU, with kernels that are a GPU's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import attrs

from volta.core.errors import DeviceError
from volta.core.ir import ClosedJaxpr
from volta.core.source import at_user_line
from volta.runtime.array import ConcreteArray
from volta.runtime.executable import Executable
from volta.xla_like.plan import ExecutionPlan


def refuse(kernels: str, where: str, way: str) -> NoReturn:
    """Raise DeviceError: kernels of a kind run plans elsewhere."""
    raise DeviceError(
        at_user_line(f"kernels={kernels!r} runs plans on {where}; {way}, or leave it at 'llvm' for what runs elsewhere")
    )


def _refuse(*_: Any) -> NoReturn:
    refuse("cuda.jit", "a GPU", "move the arguments there (volta.device_put, volta.default_device)")


@attrs.frozen
class _Nothing:
    call: Callable[..., Any] = _refuse


class NotHere(Executable):
    """It runs on the GPU that its arguments lie on, and nowhere else."""

    __slots__ = ()

    def __init__(self, plan: ExecutionPlan, program: ClosedJaxpr, elsewhere: Callable[[int], Executable]) -> None:
        super().__init__(plan, program, _Nothing(), elsewhere)

    def _run(self, arrays: Sequence[ConcreteArray]) -> list[ConcreteArray]:
        there = next((x for x in arrays if x.buffer().stream is not None), None)
        return _refuse() if there is None else self._run_there(there, arrays)

    def _generated(self) -> tuple[Any, ExecutionPlan]:
        _refuse()
