"""Prints which names of JAX's public namespaces Volta lacks, and what it says of them.

    JAX_PLATFORMS=cpu python scripts/conformance/namespaces.py [--all] [numpy scipy.special …]

JAX must be installed. A name that is not there has a hint that says what to write instead
(``volta/core/hints.py``), or is marked ``?``. Without ``--all`` primitives (``*_p``) are left out.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import types
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("namespaces", nargs="*", default=NAMESPACES.split())
    parser.add_argument("--all", action="store_true", help="primitives too")
    given = parser.parse_args()
    for name in given.namespaces:
        count, absent = missing(name)
        print(f"{name}: {count - len(absent)} of {count}")
        for n, instead in absent.items():
            if given.all or not n.endswith("_p"):
                print(f"    {n}: {instead or '?'}")


if __name__ == "__main__":
    main()
