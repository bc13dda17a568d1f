"""Folders and files that nobody but this user can write: what is read from them is run as machine code.

A folder is as safe as the way to it: who may write in any folder on the way can put another one in its place. So each
step is looked at, from the root on, before the next one is taken, links included. Nobody else can change what has been
looked at: every folder on the way belongs to this user or to root, and nobody else may write in it, or it is one such
as ``/tmp``, where nobody may touch what is somebody else's.
"""

import errno
import io
import os
import stat

from volta.core.replacing import opened

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # the kernel's own limit

FOLDER_MODE, FILE_MODE = 0o700, 0o600


class NotPrivateError(OSError):
    """Somebody else may have written what is there, or could."""


def folder(path: str, make: bool = False) -> str:
    """The place of a folder, with no link on the way to it; made with mode 0700 if it is not there and `make` is set.

    Raises:
        NotPrivateError: somebody else could write in it, or put another one in its place.
        OSError: it is not there, or cannot be made.
    """
    if not os.path.isabs(path):
        raise NotPrivateError(f"{path!r} is no absolute path")
    steps = path.split("/")[::-1]
    here, status, links = "/", os.lstat("/"), 0
    while steps:
        step = steps.pop()
        if step in ("", "."):
            continue
        if step == "..":
            here = os.path.dirname(here)
            status = os.lstat(here)
            continue
        _check_way(here, status)
        there = os.path.join(here, step)
        found = _status(there, make)
        if not stat.S_ISLNK(found.st_mode):
            here, status = there, found
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        _check_owner(there, found)
        target = os.readlink(there)
        steps += target.split("/")[::-1]
        if os.path.isabs(target):
            here, status = "/", os.lstat("/")
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), here)
    _check_own(here, status)
    return here


def read(path: str, most: int, secret: bool = False) -> bytes:
    """The contents of a file in a private folder, of at most so many bytes.

    Raises:
        NotPrivateError: it is somebody else's, may be written by others (or read, if `secret`), or is no plain file.
        ValueError: it is longer.
        OSError: it is not there, or cannot be read.
    """
    _check_plain(path, os.lstat(path))  # a folder could be opened, and be no file
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = opened(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPrivateError(f"{path} is a link") from None
        raise
    with file, io.BufferedReader(file) as reader:
        status = os.fstat(file.fileno())
        _check_plain(path, status)
        _check_own(path, status)
        if secret and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise NotPrivateError(f"{path} can be read by other users; remove it")
        if status.st_size > most:
            raise ValueError(f"{path} has {status.st_size} bytes, more than {most}")
        return reader.read(most)


def _status(path: str, make: bool) -> os.stat_result:
    """What is at a path; if nothing is and `make` is set, a new folder."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:  # another process was faster
        return os.lstat(path)
    os.chmod(path, FOLDER_MODE)  # the umask may have left less, never more
    return os.lstat(path)


def _check_plain(path: str, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise NotPrivateError(f"{path} is a link")
    if not stat.S_ISREG(status.st_mode):
        raise NotPrivateError(f"{path} is no plain file")


def _check_owner(path: str, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise NotPrivateError(f"{path} belongs to another user ({status.st_uid})")


def _check_way(path: str, status: os.stat_result) -> None:
    _check_owner(path, status)
    if status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX:
        raise NotPrivateError(f"{_writable(path, status)}, who could put another folder in the place of the next one")


def _check_own(path: str, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise NotPrivateError(f"{path} belongs to another user ({status.st_uid})")
    if status.st_mode & _OTHERS:
        raise NotPrivateError(_writable(path, status))


def _writable(path: str, status: os.stat_result) -> str:
    return f"{path} can be written by other users (its mode is {stat.S_IMODE(status.st_mode):04o}; try chmod go-w)"
