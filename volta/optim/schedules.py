"""Schedules: functions of the step count (a number or an int array) that give a learning rate, in float32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import volta.numpy as vnp
from volta.core.floats import standard
from volta.optim.base import Schedule


def _positive(name: str, steps: int) -> int:
    if steps <= 0:
        raise ValueError(f"{name} must be a positive number of steps, got {steps}")
    return steps


def _float(count: Any) -> Any:
    return vnp.asarray(count).astype(vnp.float32)


def constant_schedule(value: float) -> Schedule:
    """The same value at every step."""
    return lambda count: value


def polynomial_schedule(
    init_value: float, end_value: float, power: float, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """From ``init_value`` to ``end_value`` as ``(1 - progress) ** power``, over ``transition_steps`` steps."""
    _positive("transition_steps", transition_steps)

    @standard
    def schedule(count: Any) -> Any:
        done = vnp.clip(_float(count) - transition_begin, 0, transition_steps) / transition_steps
        left = 1 - done
        return (init_value - end_value) * (left if power == 1 else left**power) + end_value

    return schedule


def linear_schedule(init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0) -> Schedule:
    """A straight line from ``init_value`` to ``end_value`` over ``transition_steps``, constant before and after."""
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def exponential_decay(
    init_value: float,
    transition_steps: int,
    decay_rate: float,
    transition_begin: int = 0,
    staircase: bool = False,
    end_value: float | None = None,
) -> Schedule:
    """``init_value * decay_rate ** (count / transition_steps)``, in whole steps of the exponent with ``staircase``.

    ``end_value`` bounds it: from below when ``decay_rate < 1``, else from above.
    """
    _positive("transition_steps", transition_steps)
    if decay_rate <= 0:
        raise ValueError(f"exponential_decay needs a positive decay_rate, got {decay_rate}")

    @standard
    def schedule(count: Any) -> Any:
        since = _float(count) - transition_begin
        exponent = since / transition_steps
        if staircase:
            exponent = vnp.floor(exponent)
        value = vnp.where(since <= 0, init_value, init_value * decay_rate**exponent)
        if end_value is None:
            return value
        return vnp.maximum(value, end_value) if decay_rate < 1 else vnp.minimum(value, end_value)

    return schedule


def cosine_decay_schedule(init_value: float, decay_steps: int, alpha: float = 0.0, exponent: float = 1.0) -> Schedule:
    """Half a cosine from ``init_value`` down to ``alpha * init_value`` over ``decay_steps`` (arXiv:1608.03983)."""
    _positive("decay_steps", decay_steps)

    @standard
    def schedule(count: Any) -> Any:
        wave = 0.5 * (1 + vnp.cos(math.pi * vnp.minimum(_float(count), decay_steps) / decay_steps))
        return init_value * ((1 - alpha) * (wave if exponent == 1 else wave**exponent) + alpha)

    return schedule


def warmup_cosine_decay_schedule(
    init_value: float,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    end_value: float = 0.0,
    exponent: float = 1.0,
) -> Schedule:
    """A line up to ``peak_value`` in ``warmup_steps``, then a cosine down to ``end_value``; ``decay_steps`` in all."""
    if not 0 < warmup_steps < decay_steps:
        raise ValueError(
            "decay_steps counts the warm-up too: "
            f"need 0 < warmup_steps < decay_steps, got {warmup_steps} and {decay_steps}"
        )
    alpha = 0.0 if peak_value == 0.0 else end_value / peak_value
    return join_schedules(
        [
            linear_schedule(init_value, peak_value, warmup_steps),
            cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent),
        ],
        [warmup_steps],
    )


def piecewise_constant_schedule(init_value: float, boundaries_and_scales: Mapping[int, float]) -> Schedule:
    """``init_value``, multiplied by each scale from its boundary step on.

    >>> from volta import optim
    >>> rate = optim.piecewise_constant_schedule(1.0, {100: 0.1, 200: 0.01})   # 1.0, from 100 on 0.1, from 200 on 0.001
    """
    pieces = sorted(boundaries_and_scales.items())
    if any(s < 0 for _, s in pieces):
        raise ValueError(f"piecewise_constant_schedule needs scales of at least 0, got {dict(pieces)}")

    @standard
    def schedule(count: Any) -> Any:
        count = vnp.asarray(count)
        value = init_value
        rate: Any = vnp.asarray(value, vnp.float32)
        for boundary, factor in pieces:
            value = value * factor
            rate = vnp.where(count < boundary, rate, value)
        return rate

    return schedule


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after the other; each counts its steps from the boundary where it begins.

    ``boundaries`` has one entry fewer than ``schedules``.
    """
    if len(schedules) != len(boundaries) + 1:
        raise ValueError(f"{len(schedules)} schedules need {len(schedules) - 1} boundaries, got {len(boundaries)}")

    @standard
    def schedule(count: Any) -> Any:
        count = vnp.asarray(count)
        value = schedules[0](count)
        for boundary, later in zip(boundaries, schedules[1:], strict=True):
            value = vnp.where(count < boundary, value, later(count - boundary))
        return value

    return schedule
