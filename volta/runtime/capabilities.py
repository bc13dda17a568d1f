"""What each backend can run, and at which determinism level: the contract that the gateway checks plans against."""

from __future__ import annotations

import attrs

from volta.core.errors import UnsupportedOperationError
from volta.core.policy import DeterminismLevel
from volta.ops.primitive import REGISTRY
from volta.xla_like.kernels import kernel_class
from volta.xla_like.plan import ExecutionPlan

LEVELS = (DeterminismLevel.RELAXED, DeterminismLevel.DEVICE, DeterminismLevel.STRICT)
"""From the weakest promise to the strongest."""


@attrs.frozen
class BackendCapabilities:
    """Kernel classes a backend has, each with the strongest level at which it is deterministic."""

    backend: str
    kernels: tuple[tuple[str, DeterminismLevel], ...]

    def level_of(self, kernel_class: str) -> DeterminismLevel | None:
        return dict(self.kernels).get(kernel_class)

    def check(self, plan: ExecutionPlan) -> None:
        """Raise UnsupportedOperationError for the first call that has no kernel at the plan's level."""
        for call, kernel in ((c, part.kernel) for c in plan.all_calls() for part in c.each()):
            name = kernel_class(kernel)
            level = self.level_of(name)
            if level is None or LEVELS.index(level) < LEVELS.index(plan.level):
                raise UnsupportedOperationError(
                    f"operation {name!r} has no kernel on backend {self.backend!r} at determinism level "
                    f"{plan.level.value!r}{' (from ' + call.label + ')' if call.label else ''}. "
                    "Use another operation, another backend, or a weaker level (volta.execution_context)."
                )


def matrix_rows(capabilities: tuple[BackendCapabilities, ...]) -> list[tuple[str, ...]]:
    """The capability matrix: primitive, family, then each backend's level (or what is missing)."""
    rows = []
    for name in sorted(REGISTRY):
        primitive = REGISTRY[name]
        cells = []
        for c in capabilities:
            missing = [k for k in primitive.kernels if c.level_of(k) is None]
            levels = [c.level_of(k) for k in primitive.kernels]
            weakest = min((LEVELS.index(x) for x in levels if x is not None), default=len(LEVELS) - 1)
            cell = f"no kernel: {', '.join(missing)}" if missing else LEVELS[weakest].value
            kernel, precisions = primitive.on_tensor_cores or ("", "")
            tensor = c.level_of(kernel)
            cells.append(cell if tensor is None else f"{cell} ({precisions}: {tensor.value})")
        rows.append((name, primitive.family.value, *cells))
    return rows
