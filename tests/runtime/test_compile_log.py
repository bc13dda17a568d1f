"""Compilations are said on request: what, why again, how long."""

import logging
import os
import re
import subprocess
import sys

import pytest

import volta
import volta.numpy as vnp
from volta.runtime.plan_cache import PLAN_CACHE


@pytest.fixture
def said(caplog):
    """The lines about functions (not about operations by themselves) since the last time it was asked. Of a plan that
    an earlier test had compiled nothing would be said."""
    PLAN_CACHE.clear()
    caplog.set_level(logging.DEBUG, logger="volta")

    def lines():
        out = [r.getMessage() for r in caplog.records if "an operation by itself" not in r.getMessage()]
        caplog.clear()
        return out

    with volta.log_compiles():
        yield lines


def test_nothing_is_said_unasked(caplog):
    volta.jit(lambda x: x * 3)(vnp.ones(5))
    with volta.log_compiles(), volta.log_compiles(False):
        volta.jit(lambda x: x * 4)(vnp.ones(5))
    assert not caplog.records


def test_what_where_and_how_long(said):
    x = vnp.ones((2, 7))
    said()
    volta.jit(lambda x, s: vnp.tanh(x) * s)(x, 2.0)
    (line,) = said()
    number = r"\d+\.\d ms"
    head = rf"compiled `<lambda>` for \(f32\[2,7\], f\d+\*\[\]\) on cpu:0 in {number} \(plan {number}, code {number}\)"
    assert re.match(head + ", kernel calls: \\d; first call\n  at .*test_compile_log.py:", line)


def test_why_again(said):
    @volta.jit
    def f(params, x):
        return params["w"] * x

    @volta.jit
    def g(*args):
        return args[0] * 2

    power = volta.jit(lambda x, n: x**n, static_argnames="n")
    steps = [
        (lambda: f({"w": vnp.ones(2)}, 1.0), "; first call\n"),
        (lambda: f({"w": vnp.ones(2)}, 1.0), None),  # known
        (lambda: f({"w": vnp.ones(3)}, 1.0), "again, because args[0]['w'] is f32[3], it was f32[2]\n"),
        (lambda: f({"w": vnp.ones(2)}, vnp.ones(2)), "again, because args[1] is f32[2], it was f"),
        (lambda: g(vnp.ones(2)), "; first call\n"),
        (lambda: g(vnp.ones(2), 1.0), "again, because the arguments are "),
        (lambda: power(vnp.ones(2), n=2), "; first call\n"),
        (lambda: power(vnp.ones(2), n=3), "again, because static argument 'n' is 3, it was 2\n"),
    ]
    for step, why in steps:
        step()
        lines = said()
        assert lines == [] if why is None else (len(lines) == 1 and why in lines[0]), lines
    with volta.execution_context(level="device"):
        power(vnp.ones(2), n=3)
    (line,) = said()
    assert "again, because the context's level is DeterminismLevel.DEVICE, it was" in line


def test_a_function_that_is_jitted_again_and_again(said):
    for n in range(3):
        volta.jit(lambda x, n=n: x + n)(vnp.ones(3))
    first, second, third = said()
    assert first.split("; ")[1].startswith("first call\n")
    assert (
        "has been jitted and compiled 1 times before. Call volta.jit once" in second and "test_compile_log.py" in second
    )
    assert "2 times before" in third


def test_parts_that_transforms_make(said):
    f = volta.jit(lambda x: vnp.sin(x) * x)
    volta.grad(lambda x: f(x).sum())(vnp.ones(3))
    lines = said()
    assert len(lines) == 2 and all("a part of `" in line and "<lambda>" in line for line in lines)


@pytest.mark.turns(6)
def test_the_environment_asks_for_a_whole_process():
    code = "import volta; volta.jit(lambda x: x + 1)(1.0)"
    for value, count in (("1", 1), ("0", 0)):
        env = {**os.environ, "VOLTA_LOG_COMPILES": value}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert done.stderr.count("compiled `<lambda>`") == count, done.stderr
