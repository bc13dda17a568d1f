"""Prints which names of JAX's public namespaces, and which of their parameters, Volta lacks, and what it says of them.

    JAX_PLATFORMS=cpu python scripts/conformance/namespaces.py [--all] [numpy scipy.special …]

JAX must be installed. A name that is not there has a hint that says what to write instead (``volta/core/hints.py``), a
parameter the reason in ``declared.py``; others are marked ``?``, and then it exits 1. Without ``--all`` primitives
(``*_p``) are left out, and parameters are counted only.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import types
from pathlib import Path
from typing import Any

from declared import JAX_PARAMETERS, reason

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

NAMESPACES = """jax numpy numpy.linalg numpy.fft lax lax.linalg nn nn.initializers random scipy scipy.special
    scipy.linalg scipy.stats scipy.signal scipy.optimize scipy.integrate scipy.interpolate scipy.ndimage scipy.fft
    scipy.cluster.vq scipy.sparse.linalg scipy.spatial.transform image dtypes dlpack typing tree tree_util flatten_util
    experimental errors debug custom_batching custom_derivatives ad_checkpoint sharding"""


def missing(name: str) -> tuple[int, dict[str, str | None]]:
    """How many public names a namespace of JAX has, and those that Volta lacks with what it says of them."""
    absent = importlib.import_module("volta.core.absent")
    theirs = importlib.import_module("jax" if name == "jax" else f"jax.{name}")
    own = "volta" if name == "jax" else f"volta.{name}"
    try:
        there = vars(importlib.import_module(own))
    except ImportError:
        there = {}
    public = [
        n
        for n, thing in sorted(vars(theirs).items())
        if not n.startswith("_")
        and not (isinstance(thing, types.ModuleType) and not thing.__name__.startswith(theirs.__name__))
    ]
    lost = {n: absent.way(own, n) for n in public if n not in there}
    if not there:  # the namespace is not there, and one above says what to write
        lost = dict.fromkeys(lost, absent.way("volta.scipy", "spatial"))
    return len(public), lost


def _parameters(function: Any) -> list[str] | None:
    """What a function may be given by name; None where it does not say, or takes any."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in found):
        return None
    return [p.name for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def parameters(name: str) -> dict[str, str | None]:
    """Parameters of a namespace's functions that Volta's of the same name lack, with the reason."""
    theirs = importlib.import_module("jax" if name == "jax" else f"jax.{name}")
    try:
        ours = vars(importlib.import_module("volta" if name == "jax" else f"volta.{name}"))
    except ImportError:
        return {}
    lost: dict[str, str | None] = {}
    for n, thing in sorted(vars(theirs).items()):
        if n.startswith("_") or n not in ours or not callable(thing) or inspect.isclass(thing):
            continue
        wanted, there = _parameters(thing), _parameters(ours[n])
        if wanted is None or there is None:
            continue
        for word in (w for w in wanted if w not in there and not w.startswith("_")):
            lost[f"{n}({word}=)"] = reason(JAX_PARAMETERS, f"{name}.{n}({word}=)")
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("namespaces", nargs="*", default=NAMESPACES.split())
    parser.add_argument("--all", action="store_true", help="primitives too")
    given = parser.parse_args()
    unsaid = 0
    for name in given.namespaces:
        count, absent = missing(name)
        print(f"{name}: {count - len(absent)} of {count}")
        for n, instead in absent.items():
            if given.all or not n.endswith("_p"):
                print(f"    {n}: {instead or '?'}")
                unsaid += instead is None
        words = parameters(name)
        if words:
            print(f"    {len(words)} parameters of its functions are not there")
        for n, instead in words.items():
            if given.all or instead is None:
                print(f"    {n}: {instead or '?'}")
            unsaid += instead is None
    return int(unsaid > 0)


if __name__ == "__main__":
    sys.exit(main())
