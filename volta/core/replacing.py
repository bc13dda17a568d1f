"""Files that are replaced all at once: written beside their place under another name, then renamed.

A temporary is locked as long as somebody writes it. So who finds one without a lock knows that its writer was killed,
and removes it: no age has to be guessed, and no clock trusted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import secrets
import stat
from collections.abc import Iterator
from typing import BinaryIO

PREFIX, SUFFIX = ".volta-", ".tmp"
PRIVATE = 0o600


@contextlib.contextmanager
def replacing(path: str, private: bool = False, durable: bool = False) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends; if an error ends it, nothing has changed.

    The new file has the mode of the old one and, where the system lets this process say so, its owner and group. The
    first of its name has the mode that the umask leaves. While it is written, nobody may read it who may not read it
    then. `private` files have mode 0600 whatever was there. `durable` ones reach the disk before their name does.

    Raises:
        OSError: nothing has changed. The one exception says so: the file is replaced, but its folder could not be
            flushed to the disk.
    """
    folder, old = os.path.dirname(path), _status(path)
    mode = 0o666 if old is None and not private else PRIVATE
    # A folder that cannot be opened cannot be flushed either: better said before anything has changed.
    with _opened(folder) if durable else contextlib.nullcontext() as place:
        file, temporary = _new_temporary(folder, mode)
        try:
            yield file
            file.flush()
            if private:
                os.fchmod(file.fileno(), PRIVATE)  # whatever the umask
            elif old is not None:
                _adopt(file.fileno(), old)
            if durable:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            with contextlib.suppress(OSError):  # either the data have been flushed, or another error is on its way
                file.close()
        if place is not None:
            _flush_name(place, path)


def opened(path: str, flags: int, mode: str = "rb", permissions: int = 0o600) -> io.FileIO:
    """A file opened with the system's own flags; made with these permissions if the flags say that it is to be made.

    No step of Python's lies between the opening and the object that closes the file: an interrupt there would leave it
    open for ever.
    """
    return next(map(io.FileIO, map(os.open, (path,), (flags,), (permissions,)), (mode,)))


def sweep(folder: str) -> None:
    """Remove the temporaries in a folder that this user's killed processes have left there."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX):
                with contextlib.suppress(OSError):  # gone meanwhile, locked, or no plain file
                    _remove_if_left_behind(entry.path)


def _remove_if_left_behind(temporary: str) -> None:
    with opened(temporary, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, "wb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(temporary)


def _new_temporary(folder: str, mode: int) -> tuple[BinaryIO, str]:
    """A new file and its name, locked."""
    while True:
        name = os.path.join(folder, f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}")
        raw = opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, "wb", mode)
        raw.name = name  # so that whoever writes it can say where it is
        file = io.BufferedWriter(raw)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody sweeps the folder and came before the lock
            file.close()
            continue
        except OSError:  # a file system without locks: whoever sweeps it leaves what it cannot lock
            pass
        if os.fstat(file.fileno()).st_nlink:
            return file, name
        file.close()  # swept before it was locked


def _status(path: str) -> os.stat_result | None:
    """What is there now: a plain file or nothing."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a plain file, so it is not replaced by one", path)
    return status


def _adopt(descriptor: int, old: os.stat_result) -> None:
    """Give a new file the owner, group and mode of an old one."""
    mode, new = stat.S_IMODE(old.st_mode) & 0o777, os.fstat(descriptor)
    if new.st_uid != old.st_uid:
        with contextlib.suppress(OSError):  # only root may give files away
            os.fchown(descriptor, old.st_uid, -1)
    if new.st_gid != old.st_gid:
        try:
            os.fchown(descriptor, -1, old.st_gid)
        except OSError:
            mode &= ~stat.S_IRWXG  # what the old group might do is nothing that another one may
    os.fchmod(descriptor, mode)


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    found: list[int] = []
    try:
        # no step of Python's between the two: see `opened`
        found.extend(map(os.open, (folder,), (os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC,)))
        yield found[0]
    finally:
        with contextlib.suppress(OSError):  # nothing was written by it
            for descriptor in found:
                os.close(descriptor)


def _flush_name(folder: int, path: str) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno == errno.EINVAL:  # a file system that flushes names by itself
            return
        raise OSError(
            error.errno,
            f"the new file is in place, but its folder could not be flushed to the disk ({error.strerror or error}): "
            "if the machine crashes now, the old one may be back",
            path,
        ) from error
