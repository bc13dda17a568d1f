"""Execution: arrays, the gateway (the only door to a backend), policy, memory. Importing it installs eager mode."""

from volta.core.interp import set_eval_trace
from volta.runtime import ending
from volta.runtime.eager import EvalTrace

set_eval_trace(EvalTrace())
ending.watch()
