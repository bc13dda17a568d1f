"""Settings shared by all tests: a kernel cache of their own, hypothesis profiles, and honest skips without a GPU."""

import atexit
import ctypes
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.costs import Costs
from tests.sampling import commit_number, mark_cases, mark_turns

# Before anything imports volta: tests never read or write the user's kernel cache, and start from an empty one, which
# the processes of a run (pytest -n 2) share. VOLTA_TEST_CACHE=<folder> keeps it between runs instead.
# What JAX computes is read once or twice: its compiler takes half as long where it need not make programs fast.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("VOLTA_TRACEBACKS", "all")  # who reads a failed test wants to see where it failed
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX, the reference, leaves a GPU's memory to others
if "VOLTA_TEST_CACHE" in os.environ:
    os.environ["VOLTA_CACHE_DIR"] = os.path.abspath(os.environ["VOLTA_TEST_CACHE"])
elif "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["VOLTA_CACHE_DIR"] = tempfile.mkdtemp(prefix="volta-test-cache-")
    atexit.register(shutil.rmtree, os.environ["VOLTA_CACHE_DIR"], ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs())
    if side := os.environ.get("VOLTA_TEST_GUARD"):
        from tests import guarded_memory

        guarded_memory.install(side)
        config.pluginmanager.register(guarded_memory)


# Tests make much that lives until they end, and what they free is freed without it: looking for cycles at every 700 new
# objects took a twentieth of the time of all tests. Those that want garbage collected collect it.
gc.set_threshold(20_000, 20, 20)

# A first call compiles, so times say nothing about an example: no deadlines.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, database=None, max_examples=20, print_blob=True, **_common)
settings.register_profile("dev", max_examples=20, **_common)
settings.register_profile("nightly", max_examples=400, print_blob=True, **_common)
PROFILE = os.environ.get("VOLTA_HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev")
settings.load_profile(PROFILE)
if PROFILE == "ci" and hasattr(providers, "_get_local_constants"):
    # hypothesis reads all of Volta's source for constants to try: seconds for each process of a fresh checkout, and
    # other examples everywhere when a constant changes anywhere. The other profiles do it.
    providers._get_local_constants = providers.Constants


def _why_no_gpu() -> str | None:
    """Ask the driver itself, so that no CUDA package has to be imported. None: there is a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver on this machine (libcuda.so.1 does not load)"
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return f"the NVIDIA driver reports no usable GPU (status {status}, {count.value} devices)"
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `pytest -n auto`: a process for each processor; none where there is a GPU, whose memory is measured."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if _why_no_gpu() is None else min(8, processors)


@pytest.fixture(scope="module", autouse=True)
def _earlier_modules_are_not_garbage() -> None:
    """What earlier tests compiled stays; walking it in every full collection took a tenth of the time of all tests."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """What is made while tests are found stays, like what modules import: walking it over and over finds no garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


COMMIT = commit_number()


@pytest.hookimpl(wrapper=True)  # after everything that gives a test its cases
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[object]:
    result = yield
    config = metafunc.config
    asked = config.option.keyword or any("::" in argument for argument in config.args)
    quick = config.option.markexpr == "not slow"
    mark_cases(metafunc, COMMIT, "quick" if quick else "asked" if asked else "whole")
    return result


@pytest.hookimpl(tryfirst=True)  # before what is slow is deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_turns([item for item in items if not hasattr(item, "callspec")], COMMIT)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and (reason := _why_no_gpu()):
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
