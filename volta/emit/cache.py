"""Disk cache of compiled units, of either backend.

One file holds one unit: a header (environment, and the full text of every kernel in it), the object files, and a keyed
digest over it all.  Beside it lies one tiny reference file a kernel, so that a plan that shares only some kernels
with an earlier one finds them.  A hit compares the whole key, never just its hash.  Writers use a temporary file and
``os.replace``, so readers in other processes see a whole file or none; whatever is damaged is removed and rebuilt.

What is in these files runs as this user.  So they lie where nobody else can write (see `private`), and a unit counts
only with the digest of a key that lies there too and that nobody else can read: copied to a place that others could
write in, it is worth nothing.
"""

import contextlib
import fcntl
import functools
import hashlib
import hmac
import itertools
import json
import os
import pathlib
import re
import secrets
import struct
import time
import warnings
from collections.abc import Iterator, Mapping

import attrs

from volta.core.errors import CacheWarning
from volta.core.replacing import PREFIX, opened, replacing, sweep
from volta.core.source import user_source
from volta.emit import private

_MAGIC = b"volta-unit-3\n"
_DIGEST_BYTES = 32
_LENGTH = struct.Struct("<Q")
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
_DEFAULT_LIMIT = 512 << 20
_LOOKS = 16  # a process looks at all files whenever it has stored this part of the limit
_SKEW = 3600  # seconds by which clocks of machines that share a folder may differ

_KEY = "key"
_KEY_BYTES = 32
_TARGET = re.compile(r"[0-9a-f]{40}\.unit")
_TARGET_BYTES = 45
# Other files in the folder are not the cache's. The last are what earlier versions left behind.
_OURS = re.compile(r"[0-9a-f]{40}\.(unit|ref)|\.volta-[0-9a-f]{16}\.tmp|tmp\w*\.tmp")


@attrs.frozen
class StoredUnit:
    """A compiled unit: the canonical text of each kernel by name, and the object files that hold them all."""

    kernels: Mapping[str, str]
    objects: tuple[bytes, ...]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def encode(environment: str, unit: StoredUnit, key: bytes) -> bytes:
    """The bytes of a unit file."""
    sizes = [len(code) for code in unit.objects]
    header = json.dumps({"environment": environment, "kernels": dict(unit.kernels), "sizes": sizes}).encode()
    body = b"".join((_LENGTH.pack(len(header)), header, *unit.objects))
    return _MAGIC + hmac.digest(key, body, "sha256") + body


def decode(data: bytes, key: bytes) -> tuple[str, StoredUnit]:
    """The environment and unit in a unit file's bytes; ``ValueError`` if they were not written with this key."""
    start = len(_MAGIC) + _DIGEST_BYTES
    body = memoryview(data)[start:]
    stated = data[len(_MAGIC) : start]
    if data[: len(_MAGIC)] != _MAGIC or not hmac.compare_digest(hmac.digest(key, body, "sha256"), stated):
        raise ValueError("truncated, corrupt or foreign unit file")
    (length,) = _LENGTH.unpack_from(body)
    header = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + length]))
    ends = list(itertools.accumulate(header["sizes"], initial=_LENGTH.size + length))
    if ends[-1] != len(body):
        raise ValueError("the object files do not fill the unit file")
    objects = tuple(bytes(body[start:end]) for start, end in itertools.pairwise(ends))
    return header["environment"], StoredUnit(header["kernels"], objects)


class DiskCache:
    """Units in one folder, which holds at most `limit` bytes; those unused the longest go first.

    A folder that cannot be written, or in which somebody else could have put machine code, is no error: one warning,
    and the cache keeps nothing.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = _DEFAULT_LIMIT) -> None:
        self.folder = pathlib.Path(folder).absolute()
        self.limit = limit
        self._said = False
        self._total: int | None = None  # bytes in the folder when this process last looked
        self._stored = 0  # bytes that it has stored since

    def load(self, environment: str, name: str, text: str) -> StoredUnit | None:
        """The unit that holds kernel `name`, or None.  The whole key is compared: environment, name and text."""
        try:
            place = private.folder(str(self.folder))
            key = _read_key(os.path.join(place, _KEY))
            reference = os.path.join(place, _reference(environment, name, text))
            return self._load(reference, key, environment, name, text)
        except (FileNotFoundError, ValueError):  # nothing there yet, or a key that is none
            return None
        except OSError as error:
            self._say(error)
            return None

    def _load(self, reference: str, key: bytes, environment: str, name: str, text: str) -> StoredUnit | None:
        try:
            target = _target(reference)
            path = os.path.join(os.path.dirname(reference), target)
            data = private.read(path, self.limit)
        except (FileNotFoundError, ValueError):  # evicted by another process, or damaged
            _remove(reference)
            return None
        try:
            found, unit = decode(data, key)
        except (ValueError, KeyError, TypeError, struct.error):
            _remove(path)
            _remove(reference)
            return None
        if found != environment or unit.kernels.get(name) != text:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # recently used
        return unit

    def store(self, environment: str, unit: StoredUnit) -> None:
        """Keep a unit (and drop the least recently used ones beyond the limit)."""
        try:
            place = private.folder(str(self.folder), make=True)
            data = encode(environment, unit, _key(os.path.join(place, _KEY)))
            if len(data) > self.limit:
                return
            target = _digest(environment, *(f"{name}\0{text}" for name, text in sorted(unit.kernels.items()))) + ".unit"
            _write(os.path.join(place, target), data)
            for name, text in unit.kernels.items():
                _write(os.path.join(place, _reference(environment, name, text)), target.encode())
            self._stored += len(data) + _TARGET_BYTES * len(unit.kernels)
            # Each look is at every file, so not each time; but other processes store too, and only a look sees theirs.
            if self._total is None or self._stored > min(self.limit - self._total, self.limit // _LOOKS):
                self._evict(place, keep=target)
        except OSError as error:
            self._say(error)

    def _say(self, error: OSError) -> None:
        if not self._said:
            self._said = True
            _warn(f"Volta keeps no compiled kernels in {self.folder}: {error.strerror or error}.")

    def _evict(self, place: str, keep: str) -> None:
        """Keep the folder below the limit: remove the cache's files there, except what other processes are writing."""
        sweep(place)
        files = {name: (date, size) for name, date, size in _scan(place)}
        now = files[keep][0] if keep in files else time.time()  # by the clock that dates these files
        total = sum(size for _, size in files.values())
        # A date in the future says nothing about when a file was used.
        order = sorted((date if date <= now + _SKEW else 0.0, name) for name, (date, _) in files.items())
        for _, name in order:
            if total > self.limit and name != keep and not name.startswith(PREFIX) and not name.endswith(".ref"):
                _remove(os.path.join(place, name))
                total -= files.pop(name)[1]
        for name in [name for name in files if name.endswith(".ref")]:
            try:
                lost = _target(os.path.join(place, name)) not in files
            except (OSError, ValueError):
                lost = True
            if lost:
                _remove(os.path.join(place, name))
                total -= files.pop(name)[1]
        self._total, self._stored = total, 0


def _reference(environment: str, name: str, text: str) -> str:
    return _digest(environment, name, text) + ".ref"


def _target(reference: str) -> str:
    """The name of the unit that a reference names; ``ValueError`` if it names none."""
    target = private.read(reference, _TARGET_BYTES).decode("ascii", "replace")
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{reference} names no unit")
    return target


def _read_key(path: str) -> bytes:
    key = private.read(path, _KEY_BYTES, secret=True)
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{path} holds no key")
    return key


def _key(path: str) -> bytes:
    """The key of a folder, made if it has none: of several processes that make one, one does and all read it."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return _read_key(path)
    with opened(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, "r+b") as file:
        with contextlib.suppress(OSError):  # without locks two keys may be made, and the units of one are made again
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_size != _KEY_BYTES:
            os.fchmod(file.fileno(), private.FILE_MODE)  # whatever the umask
            file.truncate(0)
            file.write(secrets.token_bytes(_KEY_BYTES))
    return _read_key(path)


def _write(path: str, data: bytes) -> None:
    with replacing(path, private=True) as file:
        file.write(data)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _scan(place: str) -> Iterator[tuple[str, float, int]]:
    with os.scandir(place) as entries:
        for entry in filter(lambda entry: _OURS.fullmatch(entry.name), entries):
            with contextlib.suppress(OSError):  # gone meanwhile
                status = entry.stat(follow_symlinks=False)
                yield entry.name, status.st_mtime, status.st_size


def _warn(why: str) -> None:
    message = (
        f"{why} Every process compiles them again. Set VOLTA_CACHE_DIR to a folder in which only you can write, or "
        "VOLTA_CACHE=0 to keep none."
    )
    source = user_source()
    if source is None:
        warnings.warn(message, CacheWarning, stacklevel=1)
    else:
        warnings.warn_explicit(message, CacheWarning, source.file, source.line)


@functools.cache
def source_version(layers: tuple[str, ...]) -> str:
    """A hash of the source of layers of Volta."""
    digest = hashlib.sha256()
    for layer in layers:
        for path in sorted((_PACKAGE / layer).rglob("*.py")):
            digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


_caches: dict[tuple[str, int], DiskCache] = {}
_refused: set[str] = set()


def from_environment() -> DiskCache | None:
    """The cache that the environment asks for; None for none, with a warning where it does not say which folder.

    ``VOLTA_CACHE=0`` turns it off, ``VOLTA_CACHE_DIR`` names the folder (default ``~/.cache/volta``) and
    ``VOLTA_CACHE_BYTES`` the limit (default 512 MB).  Raises ``ValueError`` if the limit is no whole number.
    """
    if os.environ.get("VOLTA_CACHE", "1") == "0":
        return None
    limit = os.environ.get("VOLTA_CACHE_BYTES") or str(_DEFAULT_LIMIT)
    if not (limit.isascii() and limit.isdecimal()):
        raise ValueError(f"VOLTA_CACHE_BYTES must be a whole number of bytes, got {limit!r}")
    folder = os.environ.get("VOLTA_CACHE_DIR") or _default_folder()
    if folder is None:
        return None
    key = (folder, int(limit))
    if key not in _caches:
        _caches[key] = DiskCache(folder, int(limit))
    return _caches[key]


def _default_folder() -> str | None:
    """``volta`` in the user's cache folder; None, said once, where the environment does not say where that is.

    A relative path would lie wherever a program happens to be started, among other users' files.
    """
    variable = "XDG_CACHE_HOME" if os.environ.get("XDG_CACHE_HOME") else "HOME"
    base = os.environ.get(variable, "")
    if os.path.isabs(base):
        return os.path.join(base, "volta" if variable == "XDG_CACHE_HOME" else ".cache/volta")
    why = f"{variable} is {base!r}, no absolute path" if base else "HOME is not set"
    if why not in _refused:
        _refused.add(why)
        _warn(f"Volta keeps no compiled kernels on disk: {why}.")
    return None
