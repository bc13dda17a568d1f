"""Optimizers as pure functions over pytrees, with the names and the init/update habits of optax.

>>> import volta.numpy as vnp
>>> from volta import optim
>>> params, gradients = {"w": vnp.ones(3)}, {"w": vnp.ones(3)}
>>> optimizer = optim.adamw(optim.warmup_cosine_decay_schedule(0.0, 3e-4, 100, 1000))
>>> state = optimizer.init(params)
>>> updates, state = optimizer.update(gradients, state, params)
>>> params = optim.apply_updates(params, updates)
"""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.optim.base import (
    EmptyState,
    GradientTransformation,
    Schedule,
    apply_updates,
    chain,
    global_norm,
    identity,
)
from volta.optim.mixed_precision import (
    DynamicLossScale,
    LossScale,
    NoOpLossScale,
    Policy,
    StaticLossScale,
    all_finite,
    get_policy,
    half_dtype,
    select_tree,
)
from volta.optim.optimizers import adagrad, adam, adamw, lion, rmsprop, sgd
from volta.optim.schedules import (
    constant_schedule,
    cosine_decay_schedule,
    exponential_decay,
    join_schedules,
    linear_schedule,
    piecewise_constant_schedule,
    polynomial_schedule,
    warmup_cosine_decay_schedule,
)
from volta.optim.transforms import (
    ScaleByAdamState,
    ScaleByLionState,
    ScaleByRmsState,
    ScaleByRssState,
    ScaleByScheduleState,
    TraceState,
    add_decayed_weights,
    clip,
    clip_by_global_norm,
    scale,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_lion,
    scale_by_rms,
    scale_by_rss,
    scale_by_schedule,
    trace,
)

__all__ = [
    "DynamicLossScale",
    "EmptyState",
    "GradientTransformation",
    "LossScale",
    "NoOpLossScale",
    "Policy",
    "ScaleByAdamState",
    "ScaleByLionState",
    "ScaleByRmsState",
    "ScaleByRssState",
    "ScaleByScheduleState",
    "Schedule",
    "StaticLossScale",
    "TraceState",
    "adagrad",
    "adam",
    "adamw",
    "add_decayed_weights",
    "all_finite",
    "apply_updates",
    "chain",
    "clip",
    "clip_by_global_norm",
    "constant_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
    "get_policy",
    "global_norm",
    "half_dtype",
    "identity",
    "join_schedules",
    "linear_schedule",
    "lion",
    "piecewise_constant_schedule",
    "polynomial_schedule",
    "rmsprop",
    "scale",
    "scale_by_adam",
    "scale_by_learning_rate",
    "scale_by_lion",
    "scale_by_rms",
    "scale_by_rss",
    "scale_by_schedule",
    "select_tree",
    "sgd",
    "trace",
    "warmup_cosine_decay_schedule",
]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
