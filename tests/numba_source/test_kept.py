"""What Numba has compiled for kernels is on disk for the next process: found by all that decides it, and sealed."""

import os
import subprocess
import sys

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.core.recent import Recent
from volta.numba_cpu.lower import kernel_calls
from volta.numba_source import compiling, kept
from volta.numba_source.texts import text_of_kernel
from volta.runtime import plan_cache
from volta.testing import assert_bits_equal, fill

PROGRAM = """
import numpy as np, volta, volta.numpy as vnp
from volta.numba_source import compiling
x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
with volta.execution_context(kernels="njit"):
    y = volta.jit(lambda x: (vnp.exp(x), vnp.sum(x, 0), vnp.sort(x, 1), PART))(x)
print(sum(k.entry.cache_hits for k in compiling._kernels.values()), len(compiling._kernels))
print([np.asarray(z).tobytes().hex() for z in y])
"""


def run(folder, part: str = "x") -> list[str]:
    env = os.environ | {"VOLTA_CACHE_DIR": str(folder)}
    code = PROGRAM.replace("PART", part)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_next_process_compiles_nothing(tmp_path) -> None:
    first, second = run(tmp_path), run(tmp_path)
    assert first[0] == "0 3" and second[0] == "3 3"
    assert first[1] == second[1]


@pytest.mark.slow
def test_what_is_found_and_what_is_compiled_beside_it_keep_apart(tmp_path) -> None:
    """Functions of one name in both (`before`, of other dtypes): machine code has names that say all of it."""
    part = "volta.lax.sort((x.astype('int32'), x), num_keys=2)[1]"
    run(tmp_path)
    mixed, alone = run(tmp_path, part), run(tmp_path / "other", part)
    assert mixed[0].split()[0] == "3" and alone[0].split()[0] == "0"
    assert mixed[1] == alone[1]


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """A process that has compiled nothing yet, and a folder of its own."""
    monkeypatch.setenv("VOLTA_CACHE_DIR", str(tmp_path))

    def forget():
        monkeypatch.setattr(compiling, "_kernels", Recent(256))
        plan_cache.PLAN_CACHE.clear()

    yield forget
    plan_cache.PLAN_CACHE.clear()


def hits() -> list[int]:
    return [k.entry.cache_hits for k in compiling._kernels.values()]


@pytest.mark.turns(2)
def test_found_again_and_compiled_again_where_damaged(anew, tmp_path, monkeypatch) -> None:
    x = fill("normal", (3, 5))

    def compute():
        anew()
        with volta.execution_context(kernels="njit"):
            return np.asarray(volta.jit(lambda x: x * 3 + 1.25)(x))

    want = compute()
    assert hits() == [0]
    assert_bits_equal(compute(), want)
    assert hits() == [1]
    (unit,) = (p for p in tmp_path.iterdir() if p.suffix == ".unit" and b"_njit" in p.read_bytes())
    data = bytearray(unit.read_bytes())
    data[-40] ^= 1
    unit.write_bytes(data)
    assert_bits_equal(compute(), want)
    assert hits() == [0]
    assert_bits_equal(compute(), want)
    assert hits() == [1]
    monkeypatch.setattr(kept, "_environment", lambda: "another compiler")
    assert_bits_equal(compute(), want)
    assert hits() == [0]
    monkeypatch.setenv("VOLTA_CACHE", "0")
    compute()
    assert hits() == [0]


def test_functions_of_one_name_and_other_texts_have_other_symbols() -> None:
    def named(f, x):
        (call,) = kernel_calls(volta.jit(f).lower(x).compile().plan).values()
        found = compiling.dispatcher_of(text_of_kernel(call))
        return found.py_func.__globals__["before"].py_func.__qualname__

    one = named(lambda x: vnp.sort(x, 1), fill("normal", (2, 5), "float16"))
    other = named(lambda x: vnp.sort(x, 1), fill("normal", (2, 5), "int16"))
    assert one != other and one.startswith("before_") and other.startswith("before_")
