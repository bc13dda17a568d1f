"""XLA's gather and scatter, under JAX's names."""

from __future__ import annotations

from typing import Any

from volta.interop.jaxprs.equations import Equation, Rule
from volta.lax.boxes import gather_boxes, scatter_boxes


def _mode(e: Equation) -> str:
    """'clip', 'fill' or 'promise'."""
    return str(getattr(e.params["mode"], "name", e.params["mode"])).lower().split("_")[0]


def _gather(e: Equation, operand: Any, starts: Any) -> Any:
    p = e.params
    return gather_boxes(operand, starts, p["dimension_numbers"], p["slice_sizes"], _mode(e), p.get("fill_value"))


def _scatter(op: str) -> Rule:
    return lambda e, x, starts, updates: scatter_boxes(x, starts, updates, e.params["dimension_numbers"], _mode(e), op)


RULES: dict[str, Rule] = {
    "gather": _gather,
    "scatter": _scatter("set"),
    **{f"scatter{link}{op}": _scatter(op) for op in ("add", "max", "min", "mul", "sub") for link in "-_"},
}
