"""The disk cache: whole keys, damage, concurrency, bounds."""

import os
import pathlib
import subprocess
import sys
import warnings

import pytest

import volta
from volta.core.errors import CacheWarning
from volta.emit import cache
from volta.emit.cache import DiskCache, StoredUnit

UNIT = StoredUnit({"k1": "text one", "k2": "text two"}, (b"\x7fELF object code" * 10, b"", b"another"))

_PROGRAM = """
import sys; sys.path.insert(0, {path!r})
from tests.numba_cpu.kernels import scale_kernel; from volta.numba_cpu import unit, launch
import numpy as np
sources = [scale_kernel(1.0 + n) for n in range({count})]
addresses = unit.compile_kernels(sources)
x, out = np.array([3.0]), np.zeros(1)
for n, source in enumerate(sources):
    table = launch.LaunchTable()
    table.append(addresses[source.name], [x.ctypes.data, out.ctypes.data])
    table.build(0).call()
    assert out[0] == 3.0 * (1.0 + n), (n, out)
s = unit.stats()
print(s.compiled, s.loaded, s.units_loaded)
"""


def run(folder, count=3, wait=True, **environment):
    """(compiled, loaded, units loaded) of a process that compiles `count` kernels and checks what they compute."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _PROGRAM.format(path=os.path.dirname(__file__), count=count)],
        env={**os.environ, "VOLTA_CACHE_DIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return finish(process) if wait else process


def finish(process):
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    return tuple(map(int, out.split()))


def files(folder, suffix):
    return sorted(pathlib.Path(folder).glob("*" + suffix))


def test_round_trip(tmp_path):
    disk = DiskCache(tmp_path / "new" / "folder")
    assert disk.load("env", "k1", "text one") is None
    disk.store("env", UNIT)
    for name, text in UNIT.kernels.items():
        assert disk.load("env", name, text) == UNIT
    assert not files(disk.folder, ".tmp")


@pytest.mark.parametrize("key", [("env2", "k1", "text one"), ("env", "k1", "text two"), ("env", "k3", "text one")])
def test_another_key_misses(tmp_path, key):
    disk = DiskCache(tmp_path)
    disk.store("env", UNIT)
    assert disk.load(*key) is None


def test_machine_code_is_of_the_source_that_emits_it(tmp_path, monkeypatch):
    assert cache._PACKAGE == pathlib.Path(volta.__file__).parent
    version = cache.source_version.__wrapped__
    monkeypatch.setattr(cache, "_PACKAGE", tmp_path)
    path = tmp_path / "emit" / "deep" / "a.py"
    path.parent.mkdir(parents=True)
    versions = [version(("emit",))]
    path.write_text("x = 1")
    versions.append(version(("emit",)))
    path.write_text("x = 2")
    versions.append(version(("emit",)))
    path.rename(path.with_name("b.py"))
    versions.append(version(("emit",)))
    assert len(set(versions)) == 4
    (tmp_path / "io").mkdir()
    (tmp_path / "io" / "c.py").write_text("")
    assert version(("emit",)) == versions[-1] != version(("emit", "io"))


def test_a_hash_collision_is_no_hit(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_digest", lambda *parts: "0" * 40)
    disk = DiskCache(tmp_path)
    disk.store("env", UNIT)
    assert disk.load("env", "k1", "text one") == UNIT
    assert disk.load("env", "k1", "another text") is None
    assert disk.load("another environment", "k1", "text one") is None


def test_what_somebody_reads_is_replaced_and_not_written_over(tmp_path):
    disk = DiskCache(tmp_path)
    disk.store("env", UNIT)
    before = {path.name: path.open("rb") for path in (*files(tmp_path, ".unit"), *files(tmp_path, ".ref"))}
    whole = {name: os.pread(file.fileno(), 1 << 20, 0) for name, file in before.items()}
    disk.store("env", UNIT)
    for name, file in before.items():
        with file:
            assert os.fstat(file.fileno()).st_nlink == 0, f"{name} was written in place"
            assert os.pread(file.fileno(), 1 << 20, 0) == whole[name]
    assert disk.load("env", "k1", "text one") == UNIT


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "foreign"])
def test_damaged_units_are_removed(tmp_path, damage):
    disk = DiskCache(tmp_path)
    disk.store("env", UNIT)
    (path,) = files(tmp_path, ".unit")
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        data = data[:-1]
    elif damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "empty":
        data = bytearray()
    else:
        data = bytearray(b"not one of ours")
    path.write_bytes(data)
    assert disk.load("env", "k1", "text one") is None
    assert not path.exists()
    disk.store("env", UNIT)
    assert disk.load("env", "k2", "text two") == UNIT


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 45, b"../../../../../../../../../../etc/passwd.unit", b"0" * 40 + b".unit"]
)
def test_damaged_references_are_removed(tmp_path, content):
    disk = DiskCache(tmp_path)
    disk.store("env", UNIT)
    for path in files(tmp_path, ".ref"):
        path.write_bytes(content)
    assert disk.load("env", "k1", "text one") is None
    assert len(files(tmp_path, ".ref")) == 1


def test_the_least_recently_used_go_first(tmp_path):
    size = len(cache.encode("env", StoredUnit({"k0": "t"}, (bytes(1000),)), bytes(32)))
    disk = DiskCache(tmp_path, limit=3 * size + 4 * 45)
    for n in range(3):
        disk.store("env", StoredUnit({f"k{n}": "t"}, (bytes(1000),)))
        os.utime(next(p for p in files(tmp_path, ".unit") if p.stat().st_mtime > 1e6), (n, n))
    for path in files(tmp_path, ".ref"):  # they go with their units, however old they are
        os.utime(path, (0, 0))
    assert disk.load("env", "k0", "t") is not None  # used: now the youngest
    disk.store("env", StoredUnit({"k3": "t"}, (bytes(1000),)))
    assert [disk.load("env", f"k{n}", "t") is not None for n in range(4)] == [True, False, True, True]
    assert len(files(tmp_path, ".ref")) == 3
    disk.store("env", StoredUnit({"huge": "t"}, (bytes(4 * size),)))
    assert disk.load("env", "huge", "t") is None and len(files(tmp_path, ".unit")) == 3


def test_an_unwritable_folder_warns_once(tmp_path):
    blocked = tmp_path / "a file"
    blocked.write_text("")
    disk = DiskCache(blocked / "cache")
    with pytest.warns(CacheWarning, match="VOLTA_CACHE_DIR"):
        disk.store("env", UNIT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk.store("env", UNIT)
    assert disk.load("env", "k1", "text one") is None


def test_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("VOLTA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("VOLTA_CACHE_BYTES", "1234")
    disk = cache.from_environment()
    assert disk.folder == tmp_path and disk.limit == 1234 and cache.from_environment() is disk
    monkeypatch.setenv("VOLTA_CACHE_BYTES", "a lot")
    with pytest.raises(ValueError, match="VOLTA_CACHE_BYTES must be a whole number of bytes, got 'a lot'"):
        cache.from_environment()
    monkeypatch.setenv("VOLTA_CACHE", "0")
    assert cache.from_environment() is None
    for name in ("VOLTA_CACHE", "VOLTA_CACHE_BYTES", "VOLTA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.from_environment().folder == tmp_path / ".cache" / "volta"


@pytest.mark.turns(6)
def test_a_second_process_loads_what_the_first_compiled_and_compiles_again_what_is_damaged(tmp_path):
    assert run(tmp_path, 3) == (3, 0, 0)
    assert run(tmp_path, 5) == (2, 3, 1)  # shares three kernels with the earlier unit
    for path in files(tmp_path, ".unit"):
        path.write_bytes(path.read_bytes()[:-7])
    assert run(tmp_path, 5) == (5, 0, 0)
    assert run(tmp_path, 5) == (0, 5, 1)


@pytest.mark.slow
def test_without_the_cache_a_process_compiles(tmp_path):
    for _ in range(2):
        assert run(tmp_path, 3, VOLTA_CACHE="0") == (3, 0, 0)
    assert not files(tmp_path, ".unit")


@pytest.mark.turns(6)
def test_concurrent_processes(tmp_path):
    running = [run(tmp_path, 8, wait=False) for _ in range(2)]
    for process in running:
        compiled, loaded, _ = finish(process)
        assert compiled + loaded == 8
    assert run(tmp_path, 8)[:2] == (0, 8)
    assert not files(tmp_path, ".tmp")
