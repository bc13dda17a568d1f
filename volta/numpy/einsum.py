"""``einsum``: sums of products in index notation, as a chain of contractions of two."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core.array import Array
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import shaping
from volta.numpy.contractions import contract, summed
from volta.numpy.matrices import diagonal
from volta.numpy.promotion import aval_of, promote_dtypes
from volta.ops import lax


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    optimize: Any = "optimal",
) -> Array:
    """The sum of products that ``subscripts`` describe, such as ``'bij,bjk->bik'``; '...' stands for batch axes.

    Axes may also be numbered: ``einsum(x, (0, 1), y, (1, 2), (0, 2))``.

    More than two operands are contracted in pairs, in the order that ``numpy.einsum_path`` finds for ``optimize``: it
    depends on the shapes alone. ``optimize`` may be what :func:`einsum_path` gave, the order itself.

    Raises:
        ShapeError: when the subscripts do not fit the operands, or an index has two sizes.
    """
    subscripts, operands = _spelled(subscripts, operands)
    xs = promote_dtypes("einsum", *operands) if operands else []
    terms, out = _parse(subscripts, [aval_of("einsum", x).shape for x in xs])
    items = []
    sizes: dict[str, int] = {}
    for x, term in zip(xs, terms, strict=True):
        for label, n in zip(term, aval_of("einsum", x).shape, strict=True):
            if sizes.setdefault(label, n) != n and 1 not in (sizes[label], n):
                raise ShapeError(
                    at_user_line(
                        f"einsum({subscripts!r}): index {label!r} has sizes {sizes[label]} and {n} in shapes "
                        + ", ".join(str(aval_of("einsum", v).shape) for v in xs)
                    )
                )
            sizes[label] = max(sizes[label], n) if 0 not in (sizes[label], n) else 0
    for x, term in zip(xs, terms, strict=True):
        items.append(_distinct(*_without_ones(x, term, sizes)))
    items = _reduce_pairs(items, out, terms, sizes, optimize, precision, preferred_element_type)
    x, term = items[0]
    lonely = tuple(i for i, v in enumerate(term) if v not in out)
    x = summed(x, lonely)
    term = "".join(v for v in term if v in out)
    # an index whose operands all had size 1 at its place was dropped: it comes back here
    shape = tuple(sizes[v] for v in out)
    x = shaping.transpose(x, [term.index(v) for v in out if v in term])
    missing = [i for i, v in enumerate(out) if v not in term]
    if missing:
        kept = tuple(i for i in range(len(out)) if i not in missing)
        x = lax.broadcast_in_dim(x, shape, kept)
    return x


def _spelled(subscripts: Any, operands: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Subscripts and operands, where operands alternate with sequences of axis numbers."""
    if isinstance(subscripts, str):
        return subscripts, operands
    items = (subscripts, *operands)
    lists = [x for x in items[1::2] if isinstance(x, (list, tuple))]
    if len(lists) != len(items) // 2 or len(items) < 2:
        raise TypeError(at_user_line("einsum: the first argument must be the subscripts, such as 'ij,jk->ik'"))
    if len(items) % 2:
        lists.append(items[-1])
    numbers = sorted({v for axes in lists for v in axes if v is not Ellipsis})
    names = {v: chr(97 + i) if i < 26 else chr(65 + i - 26) for i, v in enumerate(numbers)}
    texts = ["".join("..." if v is Ellipsis else names[v] for v in axes) for axes in lists]
    arrays = items[: len(items) // 2 * 2 : 2]
    text = ",".join(texts[: len(arrays)])
    return text + (f"->{texts[-1]}" if len(items) % 2 else ""), arrays


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "greedy") -> tuple[list[tuple[int, ...]], str]:
    """The order of pairs in which :func:`einsum` contracts, and NumPy's account of its cost.

    >>> x = np.ones((2, 3), np.float32)
    >>> einsum_path("ij,kj->ik", x, x)[0]
    [(0, 1)]
    """
    subscripts, operands = _spelled(subscripts, operands)
    views = [np.broadcast_to(np.float32(0), aval_of("einsum_path", x).shape) for x in operands]
    path, account = np.einsum_path(subscripts, *views, optimize=True if optimize == "auto" else optimize)
    return path[1:], account


def _reduce_pairs(
    items: list[tuple[Any, str]],
    out: str,
    terms: list[str],
    sizes: dict[str, int],
    optimize: Any,
    precision: Any,
    want: Any,
) -> list[tuple[Any, str]]:
    path: list[Any] = [(0, 1)]
    if len(items) > 2:
        path = [(0, 1)] * (len(items) - 1)
        if isinstance(optimize, (list, tuple)) and all(isinstance(step, tuple) for step in optimize):
            path = list(optimize)
        elif optimize not in (False, None):
            # np.einsum_path reads shapes only: views of one element stand for the operands
            views = [np.broadcast_to(np.float32(0), tuple(sizes[v] for v in term)) for _, term in items]
            names = {v: chr(97 + i) if i < 26 else chr(65 + i - 26) for i, v in enumerate(sizes)}
            spelled = ",".join("".join(names[v] for v in term) for _, term in items)
            shown = "".join(names[v] for v in out if any(v in term for _, term in items))
            path = np.einsum_path(f"{spelled}->{shown}", *views, optimize=True if optimize == "auto" else optimize)[0][
                1:
            ]
    for step in path if len(items) > 1 else ():
        group = [items[i] for i in sorted(step)]
        items = [item for i, item in enumerate(items) if i not in step]
        x, xs = group.pop(0)
        while group:  # a step may name more than two operands: from left to right
            y, ys = group.pop(0)
            later = [*group, *items]
            wanted = out if not later else [*out, *(v for _, term in later for v in term)]
            result = "".join(v for v in (dict.fromkeys(xs + ys) if later else out) if v in wanted and v in xs + ys)
            x, xs = contract(x, xs, y, ys, result, precision, want), result
        items.append((x, xs))
    return items


def _parse(subscripts: str, shapes: list[tuple[int, ...]]) -> tuple[list[str], str]:
    """The labels of each operand and of the result; '...' becomes labels that are no letters."""
    text = subscripts.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ShapeError(at_user_line(f"einsum({subscripts!r}): {len(terms)} terms but {len(shapes)} operands"))
    extra = 0
    expanded = []
    for term, shape in zip(terms, shapes, strict=True):
        letters = term.replace("...", "")
        rest = len(shape) - len(letters)
        if not all(c.isalpha() for c in letters) or term.count("...") > 1:
            raise ShapeError(
                at_user_line(f"einsum({subscripts!r}): term {term!r} must be letters and at most one '...'")
            )
        if rest < 0 or (rest and "..." not in term):
            raise ShapeError(
                at_user_line(
                    f"einsum({subscripts!r}): term {term!r} names {len(letters)} axes, its operand has shape {shape}"
                )
            )
        extra = max(extra, rest)
        expanded.append(term.replace("...", _ellipsis(rest)))
    if arrow:
        out = out.replace("...", _ellipsis(extra))
    else:
        letters = "".join(sorted(c for c in left if c.isalpha()))
        out = _ellipsis(extra) + "".join(c for c in letters if letters.count(c) == 1)
    known = set("".join(expanded))
    if len(set(out)) != len(out) or not known.issuperset(out):
        raise ShapeError(
            at_user_line(f"einsum({subscripts!r}): the result must name each index once, and only indices of operands")
        )
    return expanded, out


def _ellipsis(n: int) -> str:
    """Labels for ``n`` batch axes, aligned at the right: digits-like characters that no subscript can contain."""
    return "".join(chr(0x2460 + i) for i in range(n))[::-1]


def _without_ones(x: Any, term: str, sizes: dict[str, int]) -> tuple[Any, str]:
    """Axes of size 1 whose index is longer elsewhere are dropped: broadcasting them would only repeat."""
    shape = aval_of("einsum", x).shape
    keep = [i for i, (v, n) in enumerate(zip(term, shape, strict=True)) if n == sizes[v]]
    if len(keep) == len(term):
        return x, term
    return lax.reshape(x, tuple(shape[i] for i in keep)), "".join(term[i] for i in keep)


def _distinct(x: Any, term: str) -> tuple[Any, str]:
    """Axes that share an index within one operand become its diagonal."""
    for label in dict.fromkeys(term):
        while term.count(label) > 1:
            i = term.index(label)
            j = term.index(label, i + 1)
            x = diagonal(x, 0, i, j)
            term = term[:i] + term[i + 1 : j] + term[j + 1 :] + label
    return x, term
