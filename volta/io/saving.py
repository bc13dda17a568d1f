"""Files that are written beside the program: by one worker, or by several that have parts of the arrays.

Of one file each worker writes its parts, at places that follow from the shapes, then hashes its share of it. What they
tell each other about that stands behind the data until the first worker gives the file its checksum and its name: so no
worker waits for another but where it is asked whether the file is there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO
from weakref import WeakSet

import numpy as np

from volta.core.errors import DistributedError
from volta.core.floats import standard
from volta.core.replacing import replacing, sweep
from volta.core.sharding import Box, even_bounds, index_boxes
from volta.core.source import at_user_line
from volta.io import format as fmt
from volta.io import structure
from volta.io.together import is_shared, mapped, workers_of
from volta.runtime import workers
from volta.runtime.array import plain
from volta.runtime.sharded import ShardedArray

_WRITTEN, _HASHED, _FAILED = 1, 2, 3
"""What a worker says of its part."""

_LOOK = 0.005
"""Seconds between two looks at what the others say."""

PATIENCE = 600.0
"""Seconds that a worker waits for the parts of the others."""

Then = Callable[[], None]


class Saving:
    """A file that is being written. It appears all at once, whether or not anybody waits for it."""

    def __init__(self, path: str, work: Callable[[], None], then: Then):
        self.path = path
        self._work, self._then = work, then
        self._error: BaseException | None = None
        self.asked = False  # whether anybody knows how it ended
        _begun.add(self)
        self._thread = threading.Thread(target=self._run, name="volta-saving")  # a program that ends waits for it
        self._thread.start()

    @standard
    def _run(self) -> None:
        try:
            self._work()
            self._then()
        except BaseException as error:  # for whoever asks for the result
            self._error = error

    def done(self) -> bool:
        """Whether this worker has nothing more to do for it, or has failed."""
        return not self._thread.is_alive()

    def result(self) -> str:
        """Wait until the file is there, and return its path.

        Where several processes write it, all of them call this.

        Raises:
            OSError: it could not be written. The old one is untouched.
            DistributedError: another worker could not write its part, or was silent.
        """
        self._thread.join()
        self.asked = True
        if self._error is not None:
            raise self._error
        return self.path


_begun: WeakSet[Saving] = WeakSet()


@atexit.register
def _end() -> None:
    """The program ends: what could not be saved, and nobody has asked for, is said."""
    for saving in list(_begun):
        saving._thread.join()
        if saving._error is not None and not saving.asked:
            print(f"volta: {saving.path} was not saved: {saving._error!r}", file=sys.stderr)


class SavingTogether(Saving):
    """A file that several workers are writing."""

    def __init__(self, path: str, work: Callable[[], None], then: Then, all_of_them: Sequence[int]):
        self._all, self._engine = tuple(all_of_them), workers.engine()
        super().__init__(path, work, then)

    def result(self) -> str:
        self._thread.join()
        if not self.asked and workers.engine() is self._engine:
            first = f"{self._error}" if self._error is not None else ""
            said = workers.tell(first, "saving", self._all)
            if said and self._error is None:
                text = f"{self.path}: worker {self._all[0]} could not finish the file ({said})"
                self._error = DistributedError(at_user_line(f"{text}; the old one is untouched"))
        return super().result()


def _nothing() -> None:
    """Nothing follows."""


def nothing(path: str) -> Saving:
    """A file that other workers write without this one."""
    return Saving(path, _nothing, _nothing)


def begin(path: str, tree: Any, metadata: Mapping[str, str], then: Then = _nothing) -> Saving:
    """Begin to write a tree to a file; ``then`` is called once it is there, by the first worker.

    What the tree has now is written: arrays of NumPy are copied, and so is what lies on GPUs.

    Raises:
        DistributedError: the first of several workers could not begin.
        And as ``io.save``.
    """
    if not is_shared(tree):
        stored, arrays = structure.describe(tree, _kept)
        fmt.prepare(arrays, stored, metadata)  # what it refuses is refused now

        def work() -> None:
            sweep(os.path.dirname(path))
            with replacing(path, durable=True) as file:
                fmt.write(file, arrays, stored, metadata)

        return Saving(path, work, then)
    stored, arrays, own = described(tree)
    everyone = sorted({w for x in own.values() for w in workers_of(x)})
    names, header, checksum_at = fmt.prepare(arrays, stored, metadata)
    place = everyone.index(workers.engine().here[0])
    shared = _Shared(path, header, [(arrays[name], own.get(name)) for name in names], everyone, place)
    if place:
        temporary = workers.tell("", "saving", everyone)
        if not temporary:
            text = "the first worker could not write the file, and says why; the old one is untouched"
            raise DistributedError(at_user_line(f"save: {text}"))
        return SavingTogether(path, lambda: shared.part(temporary), _nothing, everyone)
    return SavingTogether(path, shared.first(checksum_at), then, everyone)


def _kept(x: Any) -> np.ndarray:
    """The elements of an array as they are now, whatever is done to it later."""
    return np.array(x) if isinstance(x, (np.ndarray, np.generic)) and not np.ma.isMaskedArray(x) else plain(x)


def described(tree: Any) -> tuple[Any, dict[str, np.ndarray], dict[str, ShardedArray]]:
    """The structure of a tree, its arrays by name, and those of them that are cut: of these there stand the shape and
    dtype alone, which take no memory."""
    leaves: list[Any] = []

    def elements(x: Any) -> np.ndarray:
        leaves.append(x)
        return np.broadcast_to(np.zeros((), x.dtype), x.shape) if isinstance(x, ShardedArray) else _kept(x)

    stored, arrays = structure.describe(tree, elements)
    own = {name: x for name, x in zip(arrays, leaves, strict=True) if isinstance(x, ShardedArray)}
    return stored, arrays, own


class _Shared:
    """One file of several workers, as one of them sees it: where everything is, and what this one has of it.

    Behind the header and the data stand a byte for each worker, for what it says, and the hashes of the data.
    """

    def __init__(
        self, path: str, header: bytes, arrays: Sequence[tuple[np.ndarray, ShardedArray | None]],
        everyone: Sequence[int], place: int,
    ):  # fmt: skip
        self._path, self._header, self._everyone, self.place = path, header, tuple(everyone), place
        self._pieces: list[tuple[int, np.ndarray, Box, np.ndarray]] = []  # what this worker writes
        at = self._data = 8 + len(header)
        for like, x in arrays:
            found = [(tuple((0, n) for n in like.shape), like)] if x is None and not self.place else []
            for box, part in _own_parts(x) if x is not None else found:
                self._pieces.append((at, like, box, part))
            at += like.nbytes
        self._words, self._hashes = at, at + len(self._everyone)
        self._cuts = even_bounds(fmt.leaf_count(at - self._data), len(self._everyone))

    def first(self, checksum_at: int) -> Callable[[], None]:
        """Make the file, tell the others where it is, and return what is left to do for the first worker."""
        told = False
        try:
            with contextlib.ExitStack() as opening:
                sweep(os.path.dirname(self._path))
                file = opening.enter_context(replacing(self._path, durable=True))
                file.write(len(self._header).to_bytes(8, "little") + self._header)
                file.truncate(self._hashes + 32 * self._cuts[-1])
                file.flush()
                temporary, told = os.path.abspath(str(file.name)), True
                workers.tell(temporary, "saving", self._everyone)
                still_open = opening.pop_all()
        except OSError:
            if not told:
                workers.tell("", "saving", self._everyone)
            raise

        def finish() -> None:
            with still_open:
                self.part(temporary)
                self._wait(temporary, _HASHED)
                with open(temporary, "rb") as both:
                    both.seek(self._hashes)
                    found = both.read()
                file.seek(8 + checksum_at)
                file.write(fmt.checksum_of(self._header, found).encode())
                file.truncate(self._words)

        return finish

    def part(self, temporary: str) -> None:
        """Write this worker's parts, and once all have, its share of the hashes."""
        mine = slice(*self._cuts[self.place : self.place + 2])
        try:
            with open(temporary, "r+b") as file:
                for at, like, box, part in self._pieces:
                    if part.nbytes:
                        view = np.memmap(file, like.dtype.newbyteorder("<"), "r+", at, like.shape)
                        view[tuple(slice(a, b) for a, b in box)] = fmt.standard_copy(part)
                        view.flush()
                self._say(file, _WRITTEN)
            self._wait(temporary, _WRITTEN)
            with open(temporary, "r+b") as file:
                file.seek(self._data)
                found = fmt.leaves(mapped(file, self._words - self._data), mine.start, mine.stop)
                os.pwrite(file.fileno(), found, self._hashes + 32 * mine.start)
                self._say(file, _HASHED)
        except FileNotFoundError:
            raise self._given_up() from None
        except BaseException:
            with contextlib.suppress(OSError), open(temporary, "r+b") as file:
                self._say(file, _FAILED)
            raise

    def _given_up(self) -> DistributedError:
        return DistributedError(f"{self._path}: worker {self._everyone[0]} has given the file up")

    def _say(self, file: BinaryIO, word: int) -> None:
        os.fsync(file.fileno())
        os.pwrite(file.fileno(), bytes([word]), self._words + self.place)

    def _wait(self, temporary: str, word: int) -> None:
        """Until all workers have said it. The file is opened at each look: so a network's file system looks too."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with open(temporary, "rb") as file:
                    said = os.pread(file.fileno(), len(self._everyone), self._words)
            except FileNotFoundError:
                raise self._given_up() from None
            failed = [w for w, x in zip(self._everyone, said, strict=True) if x == _FAILED]
            if failed:
                raise DistributedError(f"{self._path}: worker {failed[0]} could not write its part, and says why")
            silent = [w for w, x in zip(self._everyone, said, strict=True) if x < word]
            if not silent:
                return
            if time.monotonic() > until:
                names = ", ".join(map(str, silent))
                raise DistributedError(f"{self._path}: workers {names} have not written their parts in {PATIENCE:g} s")
            time.sleep(_LOOK)


def _own_parts(x: ShardedArray) -> list[tuple[Box, np.ndarray]]:
    """What this worker writes of an array: of what several have, the one with the lowest rank writes it."""
    parts = x.parts()
    boxes = index_boxes(x.sharding.mesh, x.layout, x.aval.shape)
    return [(box, parts[ranks[0]].numpy()) for box, ranks in boxes.items() if ranks[0] in parts]
