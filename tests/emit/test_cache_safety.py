"""The disk cache among other users: what they could have put there never runs, and programs go on without it."""

import os
import shutil
import stat
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

import volta
from tests.sampling import sampled
from volta.core.errors import CacheWarning
from volta.emit import cache
from volta.emit.cache import DiskCache, StoredUnit
from volta.numba_cpu import target

UNIT = StoredUnit({"k1": "text one", "k2": "text two"}, (b"\x7fELF object code" * 10, b"", b"another"))
OTHER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


@pytest.fixture
def disk(tmp_path):
    """A cache with one unit."""
    disk = DiskCache(tmp_path / "cache")
    disk.store("env", UNIT)
    return disk


def files(disk, suffix=""):
    return sorted(path for path in disk.folder.iterdir() if path.name.endswith(suffix))


def found(disk):
    return disk.load("env", "k1", "text one")


def test_everything_is_made_for_this_user_alone(tmp_path) -> None:
    for umask in (0, 0o022, 0o277):
        before = os.umask(umask)
        try:
            disk = DiskCache(tmp_path / str(umask) / "deep")
            disk.store("env", UNIT)
        finally:
            os.umask(before)
        assert found(disk) == UNIT
        assert {stat.S_IMODE(path.stat().st_mode) for path in (disk.folder, disk.folder.parent)} == {0o700}
        assert {stat.S_IMODE(path.stat().st_mode) for path in files(disk)} == {0o600}


def test_files_are_replaced_and_never_written_in_place(disk) -> None:
    """Who reads a unit or a reference has it whole, whatever is stored meanwhile."""
    paths = [*files(disk, ".unit"), *files(disk, ".ref")]
    readers = [(open(path, "rb"), path.read_bytes(), path.stat().st_ino) for path in paths]
    disk.store("env", StoredUnit(UNIT.kernels, (b"other code",)))
    assert files(disk) == sorted([*paths, disk.folder / "key"])
    for path, (reader, contents, inode) in zip(paths, readers, strict=True):
        with reader:
            assert reader.read() == contents and path.stat().st_ino != inode
    assert found(disk).objects == (b"other code",)


# -- the key -----------------------------------------------------------------------------------------------------------


def test_a_unit_counts_with_the_key_of_its_folder_alone(disk, tmp_path) -> None:
    """A whole cache that somebody has made elsewhere, and one whose key is another, are worth nothing."""
    other = DiskCache(tmp_path / "other")
    other.store("env", UNIT)
    for path in files(other, ".unit"):
        shutil.copy(path, disk.folder / path.name)
    assert found(disk) is None and not files(disk, ".unit")
    disk.store("env", UNIT)
    shutil.copy(other.folder / "key", disk.folder / "key")
    assert found(disk) is None


@pytest.mark.parametrize("key", [b"", b"short", bytes(33)])
def test_a_key_that_is_none_is_made_again(disk, key) -> None:
    (disk.folder / "key").write_bytes(key)
    for path in files(disk, ".unit"):  # with a digest that anybody could make
        path.write_bytes(cache.encode("env", UNIT, key))
    assert found(disk) is None
    disk.store("env", UNIT)
    assert found(disk) == UNIT and (disk.folder / "key").stat().st_size == 32


def test_keys_differ_and_are_kept(disk, tmp_path) -> None:
    other = DiskCache(tmp_path / "other")
    other.store("env", UNIT)
    keys = [(d.folder / "key").read_bytes() for d in (disk, other)]
    assert keys[0] != keys[1] and {len(key) for key in keys} == {32}
    DiskCache(disk.folder).store("env2", UNIT)
    assert (disk.folder / "key").read_bytes() == keys[0]
    assert DiskCache(disk.folder).load("env2", "k1", "text one") == UNIT and found(disk) == UNIT


def test_a_folder_that_was_removed_meanwhile(disk) -> None:
    shutil.rmtree(disk.folder)
    DiskCache(disk.folder).store("env", UNIT)
    assert found(disk) == UNIT
    shutil.rmtree(disk.folder)
    assert found(disk) is None
    disk.store("env", UNIT)
    assert found(DiskCache(disk.folder)) == UNIT


# -- what is refused, said once ----------------------------------------------------------------------------------------

FLAWS = {
    "a folder that all may write": (lambda disk: disk.folder.chmod(0o777), "can be written by other users"),
    "a folder that a group may write": (lambda disk: disk.folder.chmod(0o770), "can be written by other users"),
    "a folder like /tmp": (lambda disk: disk.folder.chmod(0o1777), "can be written by other users"),
    "a folder in one that all may write": (lambda disk: disk.folder.parent.chmod(0o777), "in the place of the next"),
    "a unit that all may write": (lambda disk: files(disk, ".unit")[0].chmod(0o666), "can be written by other users"),
    "references that all may write": (lambda disk: [p.chmod(0o666) for p in files(disk, ".ref")], "can be written"),
    "a key that all may write": (lambda disk: (disk.folder / "key").chmod(0o602), "can be written by other users"),
    "a key that a group may read": (lambda disk: (disk.folder / "key").chmod(0o640), "can be read by other users"),
    "a link for a unit": (lambda disk: linked(files(disk, ".unit")[0]), "is a link"),
    "a link for the key": (lambda disk: linked(disk.folder / "key"), "is a link"),
    "a folder for a unit": (lambda disk: replaced(files(disk, ".unit")[0], os.mkdir), "is no plain file"),
    "a pipe for the key": (lambda disk: replaced(disk.folder / "key", os.mkfifo), "is no plain file"),
    "a folder of somebody else": (lambda disk: given_away(disk.folder), "belongs to another user"),
    "a folder in one of somebody else": (lambda disk: given_away(disk.folder.parent), "belongs to another user"),
    "a unit of somebody else": (lambda disk: given_away(files(disk, ".unit")[0]), "belongs to another user"),
    "a key of somebody else": (lambda disk: given_away(disk.folder / "key"), "belongs to another user"),
}


def linked(path):
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def replaced(path, make):
    path.unlink()
    make(path)


def given_away(path):
    if os.geteuid():
        pytest.skip("only root may give files away")
    os.chown(path, OTHER, OTHER)


@pytest.mark.parametrize("flaw", FLAWS)
def test_refused_and_said_once(disk, flaw) -> None:
    damage, words = FLAWS[flaw]
    damage(disk)
    with pytest.warns(CacheWarning, match=words) as said:
        assert found(disk) is None
    (warning,) = said
    assert "VOLTA_CACHE_DIR" in str(warning.message) and warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found(disk) is None
        disk.store("env", UNIT)
        if "folder" in flaw or "key" in flaw:
            assert found(disk) is None


@pytest.mark.parametrize("flaw", [flaw for flaw in FLAWS if flaw.startswith("a folder") and "for" not in flaw])
def test_nothing_is_written_where_others_may_write(disk, flaw) -> None:
    damage, _ = FLAWS[flaw]
    damage(disk)
    before = sorted(path.name for path in disk.folder.iterdir())
    with pytest.warns(CacheWarning):
        disk.store("env2", UNIT)
    assert sorted(path.name for path in disk.folder.iterdir()) == before


def test_where_warnings_are_errors_the_next_call_goes_on(disk) -> None:
    disk.folder.chmod(0o777)
    with pytest.raises(CacheWarning, match="can be written"):
        found(disk)
    assert found(disk) is None
    disk.store("env", UNIT)


# -- where it lies -----------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch):
    """Sets the variables that name the folder; those not given are not set."""
    monkeypatch.setattr(cache, "_refused", set())
    for name in ("VOLTA_CACHE", "VOLTA_CACHE_DIR", "VOLTA_CACHE_BYTES", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def set_variables(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.parametrize(
    "variables, words",
    [
        ({}, "HOME is not set"),
        ({"HOME": ""}, "HOME is not set"),
        ({"HOME": "."}, "HOME is '.', no absolute path"),
        ({"HOME": "~"}, "no absolute path"),
        ({"HOME": "/root", "XDG_CACHE_HOME": "cache"}, "XDG_CACHE_HOME is 'cache', no absolute path"),
    ],
)
def test_without_a_place_kernels_stay_in_memory(environment, variables, words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment(**variables)
    with pytest.warns(CacheWarning, match=words):
        assert cache.from_environment() is None
    assert cache.from_environment() is None  # said once
    assert volta.numpy.add(np.float32(1), 1.5) == 2.5
    assert not os.listdir(tmp_path)


def test_places(environment, tmp_path, monkeypatch) -> None:
    environment(HOME="/home/me")
    assert str(cache.from_environment().folder) == "/home/me/.cache/volta"
    environment(XDG_CACHE_HOME="/var/cache/me")
    assert str(cache.from_environment().folder) == "/var/cache/me/volta"
    monkeypatch.chdir(tmp_path)
    environment(VOLTA_CACHE_DIR="named")
    disk = cache.from_environment()
    assert disk.folder == tmp_path / "named"
    monkeypatch.chdir("/")
    assert cache.from_environment() is disk


# -- what others have planted ------------------------------------------------------------------------------------------

PROGRAM = """
import numpy as np, volta
print(volta.jit(lambda x: (x * 3 + 1).sum())(np.arange(5, dtype="f4")))
"""


def run(folder, *options):
    process = subprocess.run(
        [sys.executable, *options, "-c", PROGRAM],
        env={**os.environ, "VOLTA_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "35.0\n"
    return process.stderr


def plant(folder, canary, key=None):
    """In the place of each unit one that makes a file; what it needs to know lies in the folder (key None)."""
    text = f"touch {canary}\0".encode()
    literal = "".join(f"\\{byte:02X}" for byte in text)
    for path in folder.glob("*.unit"):
        environment, unit = cache.decode(path.read_bytes(), (folder / "key").read_bytes())
        bodies = "".join(
            f"define void @{name}(ptr %a, i64 %b, i64 %c, ptr %d) {{ %r = call i32 @system(ptr @s) ret void }}\n"
            for name in unit.kernels
        )
        ir = f'@s = internal constant [{len(text)} x i8] c"{literal}"\ndeclare i32 @system(ptr)\n{bodies}'
        planted = StoredUnit(unit.kernels, (target.compile_object(ir),))
        path.write_bytes(cache.encode(environment, planted, key or (folder / "key").read_bytes()))


@pytest.mark.slow
def test_planted_code_would_run(tmp_path) -> None:
    """The attack itself works, for who can write in the folder and read its key: so the tests below prove something."""
    run(tmp_path / "cache")
    plant(tmp_path / "cache", tmp_path / "canary")
    subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "VOLTA_CACHE_DIR": str(tmp_path / "cache")}, check=False
    )
    assert (tmp_path / "canary").exists()


PLANTED = {
    "without the key": lambda folder: None,
    "in a folder that all may write": lambda folder: folder.chmod(0o777),
    "in a folder of somebody else": lambda folder: given_away(folder),
    "as files of somebody else": lambda folder: [given_away(path) for path in folder.iterdir()],
    "by a key of somebody else": lambda folder: given_away(folder / "key"),
}


@sampled("how", PLANTED, quick=["in a folder that all may write"])
@pytest.mark.turns(6)
def test_planted_code_never_runs(tmp_path, how) -> None:
    folder = tmp_path / "cache"
    run(folder)
    plant(folder, tmp_path / "canary", bytes(32) if how == "without the key" else None)
    PLANTED[how](folder)
    said = run(folder, "-W", "default")
    assert ("CacheWarning" in said) == (how != "without the key")
    assert not (tmp_path / "canary").exists()


# -- the bound ---------------------------------------------------------------------------------------------------------


def unit(name, size=10_000):
    return StoredUnit({name: "t"}, (os.urandom(size),))


def total(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_units_of_the_future_go_first(tmp_path) -> None:
    disk = DiskCache(tmp_path, 50_000)
    disk.store("env", unit("f"))
    (future,) = files(disk, ".unit")
    os.utime(future, (time.time() + 3e8,) * 2)
    for k in range(8):
        disk.store("env", unit(f"c{k}"))
        assert total(tmp_path) <= 50_000 + 11_000
    assert not future.exists() and disk.load("env", "c7", "t") is not None
    disk.store("env", unit("g"))
    newest = max(files(disk, ".unit"), key=lambda path: path.stat().st_mtime)
    os.utime(newest, (time.time() + 60,) * 2)  # clocks differ a little
    disk.store("env", unit("h"))
    assert newest.exists()


def test_a_unit_of_the_future_that_is_used_is_of_today(tmp_path) -> None:
    disk = DiskCache(tmp_path)
    disk.store("env", unit("f"))
    (future,) = files(disk, ".unit")
    os.utime(future, (time.time() + 3e8,) * 2)
    assert disk.load("env", "f", "t") is not None
    assert future.stat().st_mtime < time.time() + 10


def test_all_files_count(tmp_path) -> None:
    """References and what is left of earlier versions' writers too; files that are not the cache's are left alone."""
    disk = DiskCache(tmp_path, 50_000)
    for k in range(10):
        (tmp_path / f"tmp{k}_left.tmp").write_bytes(bytes(10_000))
    (tmp_path / "notes.txt").write_bytes(bytes(100_000))
    (tmp_path / "x.tmp").write_bytes(bytes(100_000))
    disk.store("env", unit("a"))
    assert total(tmp_path) <= 250_000
    assert not files(disk, "_left.tmp") or total(tmp_path) - 200_000 <= 50_000
    assert (tmp_path / "notes.txt").exists() and (tmp_path / "x.tmp").exists()
    assert disk.load("env", "a", "t") is not None


def test_temporaries_of_killed_writers_go_at_once(tmp_path) -> None:
    left = tmp_path / ".volta-0123456789abcdef.tmp"
    left.write_bytes(bytes(1000))
    os.utime(left, (time.time() + 3e8,) * 2)
    DiskCache(tmp_path).store("env", unit("a"))  # far below the limit
    assert not left.exists()


def test_what_is_being_written_is_left_alone(tmp_path) -> None:
    """Also where a unit is dated in the future, and the temporary long ago."""
    disk = DiskCache(tmp_path, 30_000)
    disk.store("env", unit("f"))
    os.utime(files(disk, ".unit")[0], (time.time() + 3e8,) * 2)
    with cache.replacing(str(tmp_path / "theirs"), private=True) as file:
        file.write(b"x")
        file.flush()
        (written,) = tmp_path.glob(".volta-*")
        os.utime(written, (1, 1))
        for k in range(6):
            disk.store("env", unit(f"c{k}"))
        assert written.exists()
    assert (tmp_path / "theirs").read_bytes() == b"x"


@pytest.mark.turns(6)
def test_several_processes_keep_to_the_bound(tmp_path) -> None:
    """Each knows of its own files alone, until it looks."""
    limit, caches = 400_000, [DiskCache(tmp_path, 400_000) for _ in range(8)]
    most = 0
    for k in range(40):
        for n, disk in enumerate(caches):
            disk.store("env", unit(f"k{n}_{k}"))
        most = max(most, total(tmp_path))
    assert most <= 1.6 * limit


def test_a_unit_that_is_far_too_long_is_not_read(tmp_path) -> None:
    disk = DiskCache(tmp_path, 100_000)
    disk.store("env", unit("a"))
    (path,) = files(disk, ".unit")
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    assert disk.load("env", "a", "t") is None and not files(disk, ".ref")
