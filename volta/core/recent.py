"""What was made before and may be wanted again, within bounds."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """A dict of at most twice ``generation`` entries: what was not used for long is forgotten.

    What is new is in the dict itself, so what is asked for again and again is found by a dict's own ``get``, without
    any bookkeeping. When the dict is full it becomes the old generation, and what was the old one is gone; `find` looks
    there too, and takes back what it finds. So nothing is lost that was found once in ``generation`` new entries.

    >>> squares = Recent(2)
    >>> [squares.keep(n, n * n) for n in range(3)]
    [0, 1, 4]
    >>> squares.get(0), squares.find(0), squares.get(0)
    (None, 0, 0)
    """

    __slots__ = ("generation", "old")

    def __init__(self, generation: int) -> None:
        super().__init__()
        self.generation = generation
        self.old: dict[K, V] = {}

    def find(self, key: K) -> V | None:
        """The value of a key in either generation, or None."""
        found = self.get(key)
        if found is None and self.old:
            found = self.old.pop(key, None)
            if found is not None:
                self.keep(key, found)
        return found

    def keep(self, key: K, value: V) -> V:
        """Remember a value (not None), and return it."""
        if super().__len__() >= self.generation and key not in self:
            self.old = dict(self)
            super().clear()
        self[key] = value
        return value

    def clear(self) -> None:
        self.old = {}
        super().clear()

    def __len__(self) -> int:
        return super().__len__() + len(self.old)
