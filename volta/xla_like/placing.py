"""Parts of a concatenation are computed where they belong in it, instead of being copied there.

A value that a loop computes and only a concatenation reads needs no memory of its own: the loop writes it into the
result. What an element is computed from does not change, only where it is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from volta.xla_like.groups import Group
from volta.xla_like.nodes import Lowered, Node, Ref, Val
from volta.xla_like.views import View


@attrs.frozen(eq=False)
class Place:
    """Where a value lies: a view, in its own shape, of the memory of another one."""

    whole: Val
    view: View


NOWHERE: Mapping[Val, Place] = {}


def places(groups: Sequence[Group], lowered: Lowered) -> dict[Val, Place]:
    """The values that lie in another one, and where; a concatenation of which others are made may be one."""
    readers = Counter(x.val for g in groups for n in g.nodes for x in n.operands if isinstance(x, Ref))
    home = {val: g for g in groups for val in g.levels}
    joins = [n for g in groups for n in g.nodes if n.kind == "concatenate"]
    found: dict[Val, Place] = {}
    for node in sorted(joins, key=lambda n: n.index, reverse=True):  # those that others are parts of come first
        whole = place_of(node.outputs[0], found)
        for x, part in zip(node.operands, parts(node, whole.view), strict=True):
            if not isinstance(x, Ref) or not x.is_whole or readers[x.val] > 1 or x.val in lowered.outputs:
                continue
            source, view = home.get(x.val), part.reshape(x.val.shape)
            if source is None or view is None or not x.val.size:
                continue
            if (source.fusible and source.reduced == 1) or source.nodes[0].kind == "concatenate":
                found[x.val] = Place(whole.whole, view)
    return found


def place_of(val: Val, placed: Mapping[Val, Place]) -> Place:
    """Where a value lies, which may be in its own memory."""
    return placed[val] if val in placed else Place(val, View.of(val.shape))


def parts(node: Node, whole: View) -> list[View]:
    """Of a concatenation: where each operand belongs in the result, which lies as ``whole``."""
    axis, found, at = node.params["dimension"], [], 0
    for x in node.operands:
        size = x.view.shape[axis]
        low = tuple(at if d == axis else 0 for d in range(len(whole.shape)))
        high = tuple(at + size if d == axis else n for d, n in enumerate(whole.shape))
        found.append(whole.slice(low, high, None))
        at += size
    return found
