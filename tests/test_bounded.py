"""What the library remembers is bounded: no cache grows with what a long-lived process is asked for."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "volta"

FEW = {
    "_bessel": "orders of derivatives",
    "_bits_of": "names of primitives",
    "_boxcox": "orders of derivatives, by two functions",
    "_i1_slope": "orders of derivatives",
    "_scaled_slope": "orders of derivatives",
    "_slope_of_spence": "orders of derivatives",
    "_words": "rules by which texts are cut",
    "_slope_of_sine_over": "orders of derivatives",
    "_data_layout": "compute capabilities",
    "_environment": "machines that code is compiled for",
    "source_version": "layers of the package",
    "elsewhere": "GPUs of the machine, for one program",
    "tables": "orders of a grid's threads, in tests on the host",
}
"""Functions whose results are all kept, by what their arguments can be."""


def unbounded() -> dict[str, str]:
    """Functions with arguments under ``functools.cache`` or ``lru_cache(None)``, with the files they are in."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text if "cache" in text else "")):
            if isinstance(node, ast.FunctionDef) and (node.args.args or node.args.vararg):
                for mark in map(ast.unparse, node.decorator_list):
                    if mark in ("functools.cache", "cache", "lru_cache(None)", "lru_cache(maxsize=None)"):
                        found[node.name] = str(path.relative_to(PACKAGE))
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("functools.cache("):
                found[ast.unparse(node.targets[0])] = str(path.relative_to(PACKAGE))
    return found


def test_caches_without_bounds_are_of_few_things():
    found = unbounded()
    assert set(found) == set(FEW), found
