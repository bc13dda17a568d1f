"""Kernels that Python runs: a debugger sees their lines, and what they raise arrives where the function was called."""

import gc
import io
import linecache
import pdb
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax
from volta.numba_source import python_words
from volta.runtime import plan_cache
from volta.testing import assert_bits_equal, fill


@pytest.fixture(autouse=True)
def anew():
    plan_cache.PLAN_CACHE.clear()
    yield
    plan_cache.PLAN_CACHE.clear()


def stepped(f, *args):
    with volta.execution_context(kernels="python"):
        return volta.jit(f)(*args)


def lines_of(f, *args) -> list[tuple[str, int]]:
    """The lines of generated text that a tracer sees, with their files."""
    seen = []

    def trace(frame, event, arg):
        if frame.f_code.co_filename.startswith("<volta volta_"):
            seen.append((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        stepped(f, *args)
    finally:
        sys.settrace(before)
    return seen


def test_a_tracer_sees_every_line_of_a_kernel() -> None:
    seen = lines_of(lambda x: vnp.tanh(x) + 1, fill("normal", (3,)))
    (file,) = {file for file, _ in seen}
    assert "map" in file and len({line for _, line in seen}) > 30


def test_the_debugger_stops_in_a_kernel_and_may_leave(monkeypatch) -> None:
    """A debugger with a breakpoint in the text: it prints a value of the kernel, and quits."""
    said = []

    class Debugger(pdb.Pdb):
        def interaction(self, frame, *rest):
            said.append((frame.f_code.co_name, frame.f_locals["v0"]))
            self.set_quit()

    debugger = Debugger(nosigint=True, readrc=False)
    real = python_words.NAMES["store_f32"]

    def store(*args):
        real(*args)
        debugger.set_trace(sys._getframe(1))

    monkeypatch.setitem(python_words.NAMES, "store_f32", store)
    before = sys.gettrace()
    try:
        with pytest.raises(pdb.bdb.BdbQuit):
            stepped(lambda x: x * 2, np.full(3, 5, np.float32))
    finally:
        sys.settrace(before)
    ((name, value),) = said
    assert name.startswith("volta_map_") and value == 5


def test_the_page_says_how_to_step_into_a_kernel() -> None:
    """The commands of docs/numba.md, typed."""
    typed = ["from volta.numba_source.stepping import Stepped", "break Stepped.launch", "continue", "step", "step"]
    typed += ["list", "p begin, end", "clear 1", "continue"]
    out = io.StringIO()
    debugger = pdb.Pdb(
        stdin=io.StringIO("".join(f"{line}\n" for line in typed)), stdout=out, nosigint=True, readrc=False
    )
    found = debugger.runcall(stepped, lambda x: x * 2, np.full(3, 5, np.float32))
    np.testing.assert_array_equal(found, [10, 10, 10])
    said = out.getvalue()
    assert "-> n0 = args[0]" in said and "for task in range(begin, end):" in said and "(0, 1)" in said


def test_lines_of_kernels_are_kept_as_long_as_these() -> None:
    before = {file for file in linecache.cache if file.startswith("<volta ")}
    stepped(lambda x: vnp.cos(x) * 3.25, fill("normal", (3,)))
    assert {file for file in linecache.cache if file.startswith("<volta ")} - before
    plan_cache.PLAN_CACHE.clear()
    gc.collect()
    assert not {file for file in linecache.cache if file.startswith("<volta ")} - before


def test_what_a_kernel_raises_arrives_and_the_next_call_works(monkeypatch) -> None:
    f, x = volta.jit(lambda x: x * 2), fill("normal", (3,))
    with volta.execution_context(kernels="python"), monkeypatch.context() as broken:
        broken.setitem(python_words.NAMES, "load_f32", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError) as caught:
            f(x)
        with pytest.raises(ZeroDivisionError):
            f(x)
    assert any("volta_map_" in str(entry.path) for entry in caught.traceback)
    plan_cache.PLAN_CACHE.clear()
    assert_bits_equal(stepped(lambda x: x * 2, x), x * 2)


def test_an_error_ends_a_loop(monkeypatch) -> None:
    """A kernel that raises in a while loop's body: the loop's condition would hold for ever."""
    monkeypatch.setitem(python_words.NAMES, "store_f32", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stepped(lambda x: lax.while_loop(lambda x: x < 5, lambda x: x * 2 + 1, x), np.float32(1))


def test_kernels_run_on_the_calling_thread() -> None:
    """However large: a debugger follows no other."""
    seen = set()

    def call(i: int):
        def f(x):
            return x + i

        trace = lambda *_: seen.add((i, threading.get_ident()))  # noqa: E731
        sys.settrace(trace)
        try:
            return np.asarray(stepped(f, np.zeros(3, np.float32)))
        finally:
            sys.settrace(None)

    before = sys.gettrace()
    with ThreadPoolExecutor(4) as threads:
        for i, found in enumerate(threads.map(call, range(8))):
            np.testing.assert_array_equal(found, np.full(3, i))
    sys.settrace(before)
    assert len({i for i, _ in seen}) == 8 == len(seen)


def test_one_function_from_several_threads() -> None:
    x = fill("normal", (4, 40))
    with volta.execution_context(kernels="python"):
        f = volta.jit(lambda x: vnp.sum(x * 2, 1))
        want = np.asarray(f(x))

        def call(_: int):
            with volta.execution_context(kernels="python"):
                return np.asarray(f(x))

        with ThreadPoolExecutor(4) as threads:
            for found in threads.map(call, range(12)):
                assert_bits_equal(found, want)


def test_donated_memory_and_numbers() -> None:
    with volta.execution_context(kernels="python"):
        x = vnp.arange(4.0)
        f = volta.jit(lambda x, k: x * k, donate_argnums=0)
        np.testing.assert_array_equal(f(x, 3.0), [0, 3, 6, 9])
        assert x.is_deleted()
