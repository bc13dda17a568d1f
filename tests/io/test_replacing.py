"""How a file takes the place of another: all at once, with what was hashed, its rights, and nothing left behind."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import volta.numpy as vnp
from volta import io
from volta.core import replacing
from volta.core.errors import FormatError
from volta.io import format as fmt

# -- what is written is what was hashed --------------------------------------------------------------------------------


def test_memory_that_changes_while_it_is_saved(path, monkeypatch):
    """The caller's array is written to each time that a piece of it has been hashed."""
    x = np.arange(1_000_000, dtype="f4")
    sha256 = fmt.hashlib.sha256

    class Hash:
        def __init__(self, data):
            self.hash = sha256(data)

        def update(self, data):
            self.hash.update(data)
            x[:] += 1

        def digest(self):
            return self.hash.digest()

        def hexdigest(self):
            return self.hash.hexdigest()

    monkeypatch.setattr(fmt.hashlib, "sha256", Hash)
    io.save(path, {"x": x, "view": x[::-1], "bits": x.view("u4")})
    monkeypatch.undo()
    assert io.load(path)["x"].shape == x.shape


def test_a_thread_that_writes_meanwhile(path):
    x, stop = np.zeros(2_000_000, "f4"), threading.Event()

    def write():
        while not stop.is_set():
            x[::1000] += 1
            x[::999] = np.nan

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(10):
            io.save(path, {"x": x})
            io.load(path)
    finally:
        stop.set()
        thread.join()


def test_an_array_that_gets_another_shape_meanwhile(path, monkeypatch):
    x = np.arange(6, dtype="f4")
    monkeypatch.setattr("volta.io.files.sweep", lambda folder: x.resize((2, 3), refcheck=False))
    io.save(path, x)
    assert x.shape == (2, 3)
    assert io.load(path).shape == (6,)


def test_arrays_are_written_in_pieces_of_a_megabyte():
    """So that saving takes no second copy of a large array."""
    for dtype in ("u1", "f2", "f8"):
        pieces = [len(piece) for piece in fmt._pieces(np.zeros((5, 1 << 18), dtype))]
        assert max(pieces) == 1 << 20 and sum(pieces) == 5 * np.dtype(dtype).itemsize << 18


def test_any_byte_stands_for_true(path):
    io.save(path, {"b": np.array([0, 1, 2, 255], "u1").view(bool), "x": vnp.asarray(np.array([3], "u1").view(bool))})
    assert io.load(path)["b"].tolist() == [False, True, True, True] and io.load(path)["x"].tolist() == [True]


KEYS = st.one_of(
    st.sampled_from(["volta.sha256", 'x"volta.sha256', '"volta.sha256":"' + "0" * 64 + '"', "__metadata__", "\\"]),
    st.text(max_size=4),
)
TEXTS = st.one_of(KEYS, st.just("0" * 64))


@example({}, {'x"volta.sha256': "0" * 64}, False)
@given(st.dictionaries(KEYS, TEXTS, max_size=4), st.dictionaries(TEXTS, TEXTS, max_size=3), st.booleans())
def test_what_is_saved_can_be_loaded(tmp_path_factory, tree, metadata, arrays):
    """Whatever keys and texts are called, and however they look like Volta's own."""
    path = tmp_path_factory.mktemp("saved") / "model"
    value = {key: np.ones(2, "f4") for key in tree} if arrays else tree
    try:
        io.save(path, value, metadata)
    except ValueError as error:
        assert "belong to Volta" in str(error) or "Unicode" in str(error)
    else:
        assert list(io.load(path)) == sorted(tree) and io.load_metadata(path).metadata == metadata


# -- all at once -------------------------------------------------------------------------------------------------------


def failing(number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return fail


STEPS = ("open", "fchmod", "fsync", "replace")


@pytest.mark.parametrize("step", STEPS)
def test_a_failed_write_leaves_the_old_file(path, monkeypatch, step):
    io.save(path, {"w": vnp.ones(2)})
    old = path.read_bytes()
    monkeypatch.setattr(replacing.os, step, failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        io.save(path, {"w": vnp.zeros(3)})
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert os.listdir(path.parent) == [path.name]


def test_a_file_is_replaced_and_never_written_in_place(path):
    io.save(path, 1)
    os.link(path, path.parent / "other name")
    with open(path, "rb") as reader:
        old = path.read_bytes()
        io.save(path, 2)
        assert reader.read() == old
    assert (io.load(path), io.load(path.parent / "other name")) == (2, 1)


def test_an_interrupt_leaves_the_old_file(path, monkeypatch):
    io.save(path, {"w": vnp.ones(2)})
    old = path.read_bytes()
    monkeypatch.setattr(fmt.hashlib, "sha256", lambda data: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        io.save(path, {"w": vnp.zeros(3)})
    assert path.read_bytes() == old and os.listdir(path.parent) == [path.name]


def test_data_reach_the_disk_before_the_name_does(path, monkeypatch):
    calls = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(stat.S_IFMT(os.fstat(fd).st_mode)), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    io.save(path, {})
    assert calls == [stat.S_IFREG, "replace", stat.S_IFDIR]


def test_a_folder_that_cannot_be_flushed(path, monkeypatch):
    """The new file is in place, and the error says so."""
    io.save(path, 1)
    sync = os.fsync
    failure = {"errno": errno.EIO}

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            failing(failure["errno"])()
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="the new file is in place, but its folder could not be flushed") as error:
        io.save(path, 2)
    assert error.value.errno == errno.EIO and error.value.filename == str(path)
    assert io.load(path) == 2
    failure["errno"] = errno.EINVAL  # a file system that has no flush for folders
    io.save(path, 3)
    assert io.load(path) == 3 and os.listdir(path.parent) == [path.name]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_cannot_be_read(path):
    io.save(path, 1)
    path.parent.chmod(0o300)
    try:
        with pytest.raises(PermissionError):
            io.save(path, 2)
        assert io.load(path) == 1
    finally:
        path.parent.chmod(0o700)


def test_what_is_no_plain_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name, words in (("fifo", "not a plain file"), ("loop", "Too many levels"), (".", "Is a directory")):
        with pytest.raises(OSError, match=words):
            io.save(tmp_path / name, 1)
    assert sorted(os.listdir(tmp_path)) == ["fifo", "loop"]


def test_paths(tmp_path):
    io.save(os.fsencode(tmp_path / "bytes"), 1)
    (tmp_path / "link").symlink_to("target")
    io.save(tmp_path / "link", 2)
    assert (io.load(os.fsencode(tmp_path / "bytes")), io.load(tmp_path / "target")) == (1, 2)
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(FileNotFoundError):
        io.save(tmp_path / "no" / "model", {})
    with pytest.raises(FileNotFoundError):
        io.load(tmp_path / "model")


# -- rights ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("mask, expected", [(0o022, 0o644), (0o077, 0o600), (0, 0o666)])
def test_a_new_file_has_the_mode_of_the_umask(path, mask, expected):
    with umask(mask):
        io.save(path, 1)
    assert mode(path) == expected


@pytest.mark.parametrize("rights", [0o600, 0o640, 0o444, 0o666])
def test_the_file_that_is_replaced_hands_on_its_mode(path, monkeypatch, rights):
    """And while the new one is written, nobody else can read it."""
    io.save(path, 1)
    path.chmod(rights)
    seen = []
    sync = os.fsync
    write = fmt.write
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(mode(fd)), sync(fd)))
    monkeypatch.setattr(fmt, "write", lambda file, *args: (seen.append(mode(file.fileno())), write(file, *args)))
    with umask(0):
        io.save(path, 2)
    assert io.load(path) == 2 and mode(path) == rights
    assert seen[:2] == [0o600, rights]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_file_that_is_replaced_hands_on_its_owner(path, monkeypatch):
    io.save(path, 1)
    os.chown(path, 12345, 23456)
    io.save(path, 2)
    assert (os.stat(path).st_uid, os.stat(path).st_gid) == (12345, 23456)
    path.chmod(0o664)
    monkeypatch.setattr(os, "fchown", failing(errno.EPERM))
    io.save(path, 3)
    assert mode(path) == 0o604, "what one group might do, another one may"


# -- what killed processes leave ---------------------------------------------------------------------------------------


KILLED = """
import os, signal, sys
from volta.core.replacing import replacing
with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.turns(6)
def test_what_a_killed_process_leaves_is_swept(path):
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -signal.SIGKILL
    (left,) = os.listdir(path.parent)
    assert left.startswith(replacing.PREFIX) and left.endswith(replacing.SUFFIX)
    io.save(path, 1)
    assert os.listdir(path.parent) == [path.name]


def test_what_is_being_written_is_not_swept(path):
    with replacing.replacing(str(path)) as file:
        file.write(b"first")
        io.save(path.parent / "other", 1)
        file.write(b", second")
    assert path.read_bytes() == b"first, second"


def test_only_temporaries_are_swept(tmp_path):
    names = [".volta-1", "1.tmp", ".volta-link.tmp", ".volta-fifo.tmp", ".volta-folder.tmp"]
    (tmp_path / "target").write_text("")
    for name in names[:2]:
        (tmp_path / name).write_text("")
    (tmp_path / names[2]).symlink_to("target")
    os.mkfifo(tmp_path / names[3])
    (tmp_path / names[4]).mkdir()
    reader = os.open(tmp_path / names[3], os.O_RDONLY | os.O_NONBLOCK)  # a pipe that can be opened
    replacing.sweep(str(tmp_path))
    os.close(reader)
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "target"])
    replacing.sweep(str(tmp_path / "missing"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_files_of_others_are_not_swept(tmp_path):
    theirs = tmp_path / ".volta-theirs.tmp"
    theirs.write_text("")
    os.chown(theirs, 12345, 12345)
    replacing.sweep(str(tmp_path))
    assert theirs.exists()


def test_a_temporary_that_is_swept_before_it_is_locked(path, monkeypatch):
    """Another one is made: between making a file and locking it somebody may take it for left behind."""
    flock, swept = fcntl.flock, []

    def sweep_first(descriptor, how):
        (name,) = os.listdir(path.parent)
        swept.append(name)
        monkeypatch.setattr(fcntl, "flock", flock)
        if len(swept) == 1:
            replacing.sweep(str(path.parent))
            monkeypatch.setattr(fcntl, "flock", sweep_first)
            flock(descriptor, how)
        else:
            with open(path.parent / name, "r+b") as other:  # the sweeper has the lock, and will remove the file
                flock(other.fileno(), fcntl.LOCK_EX)
                os.unlink(path.parent / name)
                flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    with replacing.replacing(str(path)) as file:
        file.write(b"there")
    assert len(set(swept)) == 2 and path.read_bytes() == b"there" and os.listdir(path.parent) == [path.name]


def test_a_file_system_without_locks(path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    left = path.parent / ".volta-left.tmp"
    left.write_bytes(b"")
    io.save(path, 1)
    assert io.load(path) == 1 and left.exists()


def test_savers_and_loaders_together(path):
    """Each load sees one whole file, whoever sweeps and replaces meanwhile."""
    trees = [{"n": n, "w": np.full(20_000, n, "f4")} for n in range(4)]
    io.save(path, trees[0])
    failures = []

    def save(tree):
        for _ in range(12):
            io.save(path, tree)

    def load():
        for _ in range(30):
            tree = io.load(path)
            if not (np.asarray(tree["w"]) == tree["n"]).all():
                failures.append(tree["n"])

    def guarded(f, *args):
        try:
            f(*args)
        except (OSError, FormatError) as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(save, tree)) for tree in trees]
    threads.append(threading.Thread(target=guarded, args=(load,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and os.listdir(path.parent) == [path.name]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
def test_no_file_stays_open(path, monkeypatch):
    def failing(*args):
        raise OSError(5, "no")

    io.save(path, np.ones(3))
    before = len(os.listdir("/proc/self/fd"))
    io.save(path, np.ones(4))
    with pytest.raises(OSError):
        io.save(path / "no folder" / "x", np.ones(3))
    with monkeypatch.context() as m, pytest.raises(OSError):
        m.setattr(os, "fsync", failing)
        io.save(path, np.ones(5))
    assert len(os.listdir("/proc/self/fd")) == before
