"""A plan as HTML, for notebooks: the bytes in use over its calls as a chart with axes, and its calls as a table."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from volta.xla_like.plan import ExecutionPlan

SHOWN = 12
"""Tables of more rows are folded."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560, 90, 84, 30, 10
_TEXT = "font:11px sans-serif;fill:currentColor"


def html_plan(plan: ExecutionPlan) -> str:
    classes = ", ".join(f"{k} {v:,}" for k, v in plan.bytes_by_class().items())
    return (
        f"<div><b>{html.escape(plan.name)}</b> · {plan.level.value} · {plan.contract} · "
        f"peak {plan.peak_live_bytes:,} bytes ({classes})"
        f"{_chart(plan.live_temp_bytes())}{_table(plan)}</div>"
    )


def _chart(live: Sequence[int]) -> str:
    """Bars over two axes: bytes of temporaries in use, and the number of the call."""
    top = max(live, default=0)
    if not top:
        return "<div>no temporaries</div>"
    step = min(16.0, _WIDTH / len(live))
    width, right = step * len(live), _LEFT + step * len(live)
    base = _TOP + _HEIGHT
    bars = "".join(
        f'<rect x="{_LEFT + i * step:.1f}" y="{base - _HEIGHT * n / top:.1f}" width="{max(0.5, step - 1):.1f}" '
        f'height="{_HEIGHT * n / top:.1f}" fill="#4878a8"><title>call {i}: {n:,} bytes</title></rect>'
        for i, n in enumerate(live)
    )
    axes = f'<path d="M{_LEFT} {_TOP}V{base}H{right:.1f}" fill="none" stroke="currentColor"/>'
    marks = "".join(_text(_LEFT - 4, base - _HEIGHT * part + 4, f"{top * part:,.0f}", "end") for part in (0, 0.5, 1))
    last = _text(right, base + 13, str(len(live) - 1), "end") if len(live) > 1 else ""
    names = _text(_LEFT + width / 2, base + 26, "kernel call", "middle")
    names += _text(-_TOP - _HEIGHT / 2, 12, "bytes in use", "middle", 'transform="rotate(-90)"')
    marks += _text(_LEFT, base + 13, "0", "start") + last + names
    size = f'width="{max(right, _LEFT + 90) + 10:.0f}" height="{base + _BOTTOM}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="display:block">{axes}{bars}{marks}</svg>'


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="{_TEXT}" {more}>{text}</text>'


def _table(plan: ExecutionPlan) -> str:
    rows = "".join(
        f"<tr><td>{i}</td><td style='text-align:left'>{html.escape(c.describe())}</td>"
        f"<td style='text-align:left'>{html.escape(c.label)}</td></tr>"
        for i, c in enumerate(plan.calls)
    )
    unfolded = " open" if len(plan.calls) <= SHOWN else ""
    return (
        f"<details{unfolded}><summary>kernel calls: {len(plan.calls)}</summary>"
        f"<table><tr><th>#</th><th>kernel</th><th>from</th></tr>{rows}</table></details>"
    )
