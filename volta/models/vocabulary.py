"""What tokens stand for, by what a GGUF file says: text to tokens and back, for the two kinds of vocabularies that
files have, SentencePiece's (Llama's) and byte pairs (GPT-2's).

Texts are texts: what looks like a token for the end of one, or another that steers a model, is letters like any others.
"""

from __future__ import annotations

import functools
import heapq
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from volta import io
from volta.core.errors import ArgumentError, FormatError

_CONTROL, _BYTE = 3, 6  # kinds of tokens, as files number them
_SPACE = "\u2581"  # what stands for a space in SentencePiece's tokens
_PREFIX = "tokenizer.ggml."


def vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """The vocabulary of a GGUF file.

    Raises:
        FormatError: when the file is damaged, or has no vocabulary of a kind that Volta reads.
        OSError: when it cannot be read.
    """
    try:
        return from_metadata(io.load_gguf(path).metadata)
    except ArgumentError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None


def from_metadata(metadata: dict[str, Any]) -> Vocabulary:
    """The vocabulary that a GGUF file's metadata hold. ArgumentError where they hold none that is read."""
    own = {k.removeprefix(_PREFIX): v for k, v in metadata.items() if k.startswith(_PREFIX)}
    kind, tokens = own.get("model"), own.get("tokens")
    if kind not in ("llama", "gpt2") or not isinstance(tokens, list) or not all(type(t) is str for t in tokens):
        raise ArgumentError(f"no vocabulary of the kind llama or gpt2 is in its metadata (but {kind!r:.40})")
    many = len(tokens)
    kinds, scores = own.get("token_type", [1] * many), own.get("scores", [0.0] * many)
    merges = own.get("merges", [])
    if not all(isinstance(x, list) for x in (kinds, scores, merges)) or {len(kinds), len(scores)} != {many}:
        raise ArgumentError(f"its {many} tokens have {len(kinds)} kinds and {len(scores)} scores")
    pre = str(own.get("pre", ""))
    begins = own.get("add_bos_token", kind == "llama" or pre == "llama-bpe")
    return Vocabulary(
        kind, tuple(tokens), tuple(kinds), tuple(scores), tuple(merges), pre, begin=own.get("bos_token_id"),
        end=own.get("eos_token_id"), begins=bool(begins), spaced=bool(own.get("add_space_prefix", True)),
    )  # fmt: skip


@attrs.frozen(eq=False, repr=False)
class Vocabulary:
    """Tokens by number. ``begin`` and ``end`` are those of a text's ends, where there are such.

    >>> letters = [chr(97 + i) for i in range(26)]
    >>> v = Vocabulary("gpt2", tuple([*letters, "ab"]), (1,) * 27, (0.0,) * 27, ("a b",), "gpt-2")
    >>> v.encode("abc"), v.decode([26, 2])
    ([26, 2], 'abc')
    """

    kind: str
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[str, ...]
    pre: str = ""
    begin: int | None = None
    end: int | None = None
    begins: bool = False
    spaced: bool = True

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, after the one that a text begins with, where the model wants it.

        Raises:
            ArgumentError: for byte pairs, where texts are cut by other rules than GPT-2's, Llama 3's and Qwen's.
        """
        found = [] if not self.begins or self.begin is None else [self.begin]
        return found + list(self._pieces(text) if self.kind == "llama" else self._pairs(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; those that steer a model have none. A part of a character is U+FFFD."""
        raw = b"".join(map(self._bytes, tokens))
        text = raw.decode("utf-8", "replace")
        return text[1:] if self.kind == "llama" and self.spaced and text.startswith(" ") else text

    def _bytes(self, token: int) -> bytes:
        if not 0 <= token < len(self.tokens) or self.kinds[token] == _CONTROL:
            return b""
        text = self.tokens[token]
        if self.kind == "llama":
            if self.kinds[token] == _BYTE and re.fullmatch("<0x[0-9A-F]{2}>", text):
                return bytes([int(text[3:5], 16)])
            return text.replace(_SPACE, " ").encode("utf-8", "surrogateescape")
        table = _of_letters()
        return b"".join(bytes([table[c]]) if c in table else c.encode("utf-8", "surrogateescape") for c in text)

    # -- SentencePiece -------------------------------------------------------------------------------------------------

    def _pieces(self, text: str) -> Iterator[int]:
        """Neighbours are joined while that gives a token: that of the highest score first, of equal ones the left."""
        if not text:
            return
        known = self._numbers
        text = (" " if self.spaced else "") + text

        def gain(left: str, right: str) -> float | None:
            token = known.get(left + right)
            return None if token is None else -self.scores[token]

        for piece in _joined(list(text.replace(" ", _SPACE)), gain):
            if piece in known:
                yield known[piece]
            else:
                for byte in piece.replace(_SPACE, " ").encode("utf-8", "surrogatepass"):
                    yield known.get(f"<0x{byte:02X}>", 0)

    # -- byte pairs ----------------------------------------------------------------------------------------------------

    def _pairs(self, text: str) -> Iterator[int]:
        """Words by themselves; in each, neighbours are joined in the order of the merges."""
        if self.pre not in _CUTS:
            have = ", ".join(_CUTS)
            raise ArgumentError(f"texts are cut by the rules {self.pre!r:.40}, and Volta has {have}: give numbers")
        known, ranks, letters = self._numbers, self._ranks, _letters()
        for word in _words(_CUTS[self.pre]).findall(text):
            parts = [letters[byte] for byte in word.encode("utf-8", "surrogatepass")]
            whole = known.get("".join(parts)) if self.pre in _WHOLE else None
            if whole is not None:
                yield whole
                continue
            for piece in _joined(parts, lambda a, b: ranks.get(f"{a} {b}")):
                yield from (known[piece],) if piece in known else (known[c] for c in piece if c in known)

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: i for i, token in reversed(list(enumerate(self.tokens)))}

    @functools.cached_property
    def _ranks(self) -> dict[str, int]:
        return {pair: i for i, pair in reversed(list(enumerate(self.merges)))}


def _joined(parts: list[str], cost: Any) -> Iterable[str]:
    """Neighbours joined as long as any have a cost: those of the least first, of equal ones the left."""
    after, before = list(range(1, len(parts) + 1)), list(range(-1, len(parts) - 1))
    waiting: list[tuple[float, int, int, str, str]] = []

    def consider(left: int, right: int) -> None:
        if 0 <= left and right < len(parts):
            price = cost(parts[left], parts[right])
            if price is not None:
                heapq.heappush(waiting, (price, left, right, parts[left], parts[right]))

    for i in range(len(parts) - 1):
        consider(i, i + 1)
    while waiting:
        _, left, right, a, b = heapq.heappop(waiting)
        if (parts[left], parts[right]) != (a, b) or after[left] != right:
            continue  # one of them has been joined with another
        parts[left], parts[right] = a + b, ""
        after[left] = after[right]
        if after[left] < len(parts):
            before[after[left]] = left
        consider(before[left], left)
        consider(left, after[left])
    return [p for p in parts if p]


@functools.cache
def _letters() -> list[str]:
    """GPT-2's letter for each byte: itself where it shows, else one from 256 on."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


@functools.cache
def _of_letters() -> dict[str, int]:
    return {letter: byte for byte, letter in enumerate(_letters())}


_ENDS, _REST = "'s|'t|'re|'ve|'m|'ll|'d", "[S]+(?![^S])|[S]+"
_MODERN = rf"(?i:{_ENDS})|[^\r\nLN]?[L]+|NUMBERS| ?[^SLN]+[\r\n]*|[S]*[\r\n]+|{_REST}"
_CUTS = {
    "gpt-2": rf"{_ENDS}| ?[L]+| ?[N]+| ?[^SLN]+|{_REST}",
    "llama-bpe": _MODERN.replace("NUMBERS", "[N]{1,3}"),
    "qwen2": _MODERN.replace("NUMBERS", "[N]"),
}
"""How texts are cut into words before bytes are paired, by the names that files have for it: regular expressions in
which L, N and S are letters, numbers and spaces."""

_WHOLE = ("llama-bpe",)
"""Where a word that is a token is this token, whatever pairs would make of it."""


@functools.cache
def _words(cut: str) -> re.Pattern[str]:
    space = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    classes = {"L": _class("L"), "N": _class("N"), "S": space}
    return re.compile(re.sub("[LNS]", lambda x: classes[x[0]], cut))


def _class(kind: str) -> str:
    """The characters of a category of Unicode's, as ranges of a regular expression."""
    found: list[list[int]] = []
    for i in range(sys.maxunicode + 1):
        if unicodedata.category(chr(i))[0] == kind:
            if found and found[-1][1] == i - 1:
                found[-1][1] = i
            else:
                found.append([i, i])
    return "".join(f"{chr(a)}-{chr(b)}" for a, b in found)
