"""Python text that notebooks show in colour."""

from __future__ import annotations

import html
import io
import keyword
import tokenize

_COLOURS = {"comment": "#6a737d", "string": "#22863a", "keyword": "#b31d7c", "number": "#005cc5"}


class PythonText(str):
    """Python source. Printed it is text; in a notebook its keywords, numbers, docstrings and comments have colours."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        lines, out, at = self.splitlines(keepends=True), [], (1, 0)
        for token in tokenize.generate_tokens(io.StringIO(self).readline):
            out += [_between(lines, at, token.start), _coloured(token)]
            at = token.end
        return f'<pre style="line-height:1.25">{"".join(out)}</pre>'


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The spaces between two tokens."""
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]] if start[0] <= len(lines) else ""
    return lines[end[0] - 1][: end[1]] if end[0] <= len(lines) else ""


def _coloured(token: tokenize.TokenInfo) -> str:
    if token.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
        return token.string if token.type == tokenize.INDENT else ""
    text = html.escape(token.string)
    kind = {tokenize.COMMENT: "comment", tokenize.STRING: "string", tokenize.NUMBER: "number"}.get(token.type)
    if token.type == tokenize.NAME and keyword.iskeyword(token.string):
        kind = "keyword"
    return text if kind is None else f'<span style="color:{_COLOURS[kind]}">{text}</span>'
