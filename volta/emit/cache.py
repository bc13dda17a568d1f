"""Disk cache of compiled units, of either backend.

One file holds one unit: a header (environment, and the full text of every kernel in it), the object files, and a
checksum over it all.  Beside it lies one tiny reference file a kernel, so that a plan that shares only some kernels
with an earlier one finds them.  A hit compares the whole key, never just its hash.  Writers use a temporary file and
``os.replace``, so readers in other processes see a whole file or none; whatever is damaged is removed and rebuilt.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import pathlib
import struct
import tempfile
import warnings
from collections.abc import Iterator, Mapping

import attrs

_MAGIC = b"volta-unit-2\n"
_LENGTH = struct.Struct("<Q")
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
_DEFAULT_LIMIT = 512 << 20


@attrs.frozen
class StoredUnit:
    """A compiled unit: the canonical text of each kernel by name, and the object files that hold them all."""

    kernels: Mapping[str, str]
    objects: tuple[bytes, ...]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def encode(environment: str, unit: StoredUnit) -> bytes:
    """The bytes of a unit file."""
    sizes = [len(code) for code in unit.objects]
    header = json.dumps({"environment": environment, "kernels": dict(unit.kernels), "sizes": sizes}).encode()
    body = b"".join((_LENGTH.pack(len(header)), header, *unit.objects))
    return _MAGIC + hashlib.sha256(body).digest() + body


def decode(data: bytes) -> tuple[str, StoredUnit]:
    """The environment and unit in a unit file's bytes; ``ValueError`` if they are damaged."""
    start = len(_MAGIC) + 32
    body = memoryview(data)[start:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        raise ValueError("truncated, corrupt or foreign unit file")
    (length,) = _LENGTH.unpack_from(body)
    header = json.loads(bytes(body[_LENGTH.size : _LENGTH.size + length]))
    ends = list(itertools.accumulate(header["sizes"], initial=_LENGTH.size + length))
    if ends[-1] != len(body):
        raise ValueError("the object files do not fill the unit file")
    objects = tuple(bytes(body[start:end]) for start, end in itertools.pairwise(ends))
    return header["environment"], StoredUnit(header["kernels"], objects)


class DiskCache:
    """Units in one folder, at most `limit` bytes of them; those unused the longest go first.

    An unwritable folder is no error: one warning, and the cache keeps nothing.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = _DEFAULT_LIMIT) -> None:
        self.folder = pathlib.Path(folder)
        self.limit = limit
        self._warned = False
        self._total: int | None = None  # bytes of units, as far as this process knows

    def _reference(self, environment: str, name: str, text: str) -> pathlib.Path:
        return self.folder / (_digest(environment, name, text) + ".ref")

    def load(self, environment: str, name: str, text: str) -> StoredUnit | None:
        """The unit that holds kernel `name`, or None.  The whole key is compared: environment, name and text."""
        reference = self._reference(environment, name, text)
        try:
            target = reference.read_bytes().decode("ascii", "replace")
        except OSError:
            return None
        if len(target) != 45 or not target.endswith(".unit") or "/" in target or os.sep in target:
            self._remove(reference)
            return None
        path = self.folder / target
        try:
            data = path.read_bytes()
        except OSError:  # evicted by another process
            self._remove(reference)
            return None
        try:
            found, unit = decode(data)
        except (ValueError, KeyError, TypeError, struct.error):
            self._remove(path)
            self._remove(reference)
            return None
        if found != environment or unit.kernels.get(name) != text:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # recently used
        return unit

    def store(self, environment: str, unit: StoredUnit) -> None:
        """Keep a unit (and drop the least recently used ones beyond the limit)."""
        data = encode(environment, unit)
        if len(data) > self.limit:
            return
        target = _digest(environment, *(f"{name}\0{text}" for name, text in sorted(unit.kernels.items()))) + ".unit"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(self.folder / target, data)
            for name, text in unit.kernels.items():
                self._write(self._reference(environment, name, text), target.encode())
            if self._total is not None:
                self._total += len(data)
            if self._total is None or self._total > self.limit:  # a look at every file, so not each time
                self._evict(keep=target)
        except OSError as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"Volta cannot keep compiled kernels in {self.folder} ({error.strerror or error}); "
                    "every process will compile again. Set VOLTA_CACHE_DIR to a writable folder, or VOLTA_CACHE=0.",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _write(self, path: pathlib.Path, data: bytes) -> None:
        handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            self._remove(pathlib.Path(temporary))
            raise

    @staticmethod
    def _remove(path: pathlib.Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()

    def _scan(self, suffix: str) -> Iterator[tuple[float, int, pathlib.Path]]:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(suffix):
                    with contextlib.suppress(OSError):  # gone meanwhile
                        status = entry.stat()
                        yield status.st_mtime, status.st_size, pathlib.Path(entry.path)

    def _evict(self, keep: str) -> None:
        units = sorted(self._scan(".unit"), key=lambda item: (item[0], item[2].name))
        self._total = total = sum(size for _, size, _ in units)
        if total <= self.limit:
            return
        newest = units[-1][0]
        for _, size, path in units:
            if path.name != keep:
                self._remove(path)
                total -= size
            if total <= self.limit:
                break
        self._total = total
        for _, _, reference in self._scan(".ref"):
            with contextlib.suppress(OSError):
                if not (self.folder / reference.read_bytes().decode("ascii", "replace")).exists():
                    self._remove(reference)
        for written, _, temporary in self._scan(".tmp"):  # left behind by a process that was killed
            if written < newest - 3600:
                self._remove(temporary)


@functools.cache
def source_version(layers: tuple[str, ...]) -> str:
    """A hash of the source of layers of Volta."""
    digest = hashlib.sha256()
    for layer in layers:
        for path in sorted((_PACKAGE / layer).rglob("*.py")):
            digest.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


_caches: dict[tuple[str, int], DiskCache] = {}


def from_environment() -> DiskCache | None:
    """The cache that the environment asks for.

    ``VOLTA_CACHE=0`` turns it off, ``VOLTA_CACHE_DIR`` names the folder (default ``~/.cache/volta``) and
    ``VOLTA_CACHE_BYTES`` the limit (default 512 MB).  Raises ``ValueError`` if the limit is no whole number.
    """
    if os.environ.get("VOLTA_CACHE", "1") == "0":
        return None
    folder = os.environ.get("VOLTA_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "volta"
    )
    limit = os.environ.get("VOLTA_CACHE_BYTES") or str(_DEFAULT_LIMIT)
    if not limit.isdecimal():
        raise ValueError(f"VOLTA_CACHE_BYTES must be a whole number of bytes, got {limit!r}")
    key = (folder, int(limit))
    if key not in _caches:
        _caches[key] = DiskCache(folder, int(limit))
    return _caches[key]
