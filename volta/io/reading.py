"""JSON text read piece by piece, where the reader knows what must come: nothing else is ever built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]  # C; json's own decoder calls it

from volta.core.errors import FormatError

_SPACE = re.compile(r"[ \t\n\r]*")


class Reader:
    """JSON text, read from left to right; FormatError, which begins with `fault`, where it is not what is expected."""

    def __init__(self, text: str, fault: str) -> None:
        self.text = text
        self.fault = fault
        self.at = 0

    def fail(self, why: str) -> FormatError:
        return FormatError(f"{self.fault} ({why} at character {self.at})")

    def next(self) -> str:
        """The next character that is not space; empty at the end."""
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # it matches anywhere
        return self.text[self.at : self.at + 1]

    def accept(self, character: str) -> bool:
        found = self.text.startswith(character, self.at) or self.next() == character  # mostly there is no space
        self.at += found
        return found

    def expect(self, character: str) -> None:
        if not self.accept(character):
            raise self.fail(f"no {character!r}")

    def string(self) -> str:
        self.expect('"')
        try:
            found, self.at = scanstring(self.text, self.at, True)
        except ValueError as error:
            raise self.fail(getattr(error, "msg", str(error))) from None
        return found

    def word(self, word: str) -> bool:
        self.next()
        found = self.text.startswith(word, self.at)
        self.at += len(word) * found
        return found

    def each(self, opening: str, closing: str) -> Iterator[None]:
        """Stops at each item of a list or an object. Whoever asks for the next one must have read this one."""
        self.expect(opening)
        if self.accept(closing):
            return
        yield
        while not self.accept(closing):
            self.expect(",")
            yield

    def members(self) -> Iterator[str]:
        """The keys of an object, with the reader at their values, which must be read before the next one."""
        seen = set()
        for _ in self.each("{", "}"):
            key = self.string()
            if key in seen:
                raise self.fail(f"key {key!r:.80} occurs twice")
            seen.add(key)
            self.expect(":")
            yield key

    def end(self) -> None:
        if self.next():
            raise self.fail("more text")
