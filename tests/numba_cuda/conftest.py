"""Tests of the runtime over CUDA run on a GPU where there is one, and on a stand-in for the driver everywhere else."""

import pytest

from tests.numba_cuda.fake_driver import FakeDriver
from volta.numba_cuda.device import driver
from volta.runtime import devices, eager, gateway
from volta.runtime.plan_cache import PLAN_CACHE


def forget():
    """Drop what was compiled for a device that is about to change."""
    devices.cuda.cache_clear()
    gateway.BACKENDS.pop("cuda", None)
    PLAN_CACHE.clear()
    eager._executables.clear()


@pytest.fixture
def install(monkeypatch):
    """A function that puts a stand-in in the driver's place until the test ends."""

    def put(**options):
        forget()
        return FakeDriver(**options).install(monkeypatch)

    yield put
    forget()
    driver.use(None)


@pytest.fixture
def fake(install):
    """The stand-in with its settings as they come."""
    made = install()
    yield made
    assert made.violations == []


@pytest.fixture
def gpu(request):
    """The first device: a GPU's, or the stand-in's."""
    if driver.why_none():
        request.getfixturevalue("fake")
    return devices.gpu("cuda:0")
