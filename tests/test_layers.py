"""The order of the house: which module may import which, read from the source without importing it."""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400

# Lowest first; a module may import its own layer and those below it. docs/layout.md tells what each is for.
LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "version core",
        "ops",
        "xla_like",
        "emit",
        "numba_cpu numba_cuda",
        "numba_source",
        "runtime",
        "trace",
        "api interop programs numpy lax random nn models optim scipy io testing numba offline tree tree_util "
        "flatten_util ad_checkpoint as_jax custom_batching custom_derivatives debug experimental distributed sharding "
        "scaling train typing errors dlpack dtypes image volta",
        "verify commands __main__",
    )
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# The two backends are one layer, yet neither knows the other.
STRANGERS = {("numba_cpu", "numba_cuda"), ("numba_cuda", "numba_cpu")}
# Plans, programs and passes are pure data: whoever reads them needs no compiler.
NO_COMPILER = ("core", "ops", "xla_like")
COMPILERS = ("numba", "llvmlite")
# The imports inside functions that are allowed: the runtime loads backends on their first use, and the engine
# whose import starts MPI where a program asks for it. Names that a namespace says are there later come when they are
# asked for.
# JAX is imported where from_jax or to_jax is called; modules under JAX's names are made when they are asked for.
LAZY = {
    "core": ("(computed at run time)",),
    "runtime": ("volta.numba_cpu", "volta.numba_cuda", "volta.numba_source", "volta.runtime.mpi"),
    "interop": ("jax", "volta.interop.jaxprs", "(computed at run time)"),
}

# Calls that import, and what may hold statements that do.
COMPUTING = ("import_module", "import_later", "__import__")
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


class Import(NamedTuple):
    importer: str  # dotted name of the module that imports
    target: str  # dotted name of what it imports
    where: str  # file:line
    in_function: bool
    types_only: bool  # under `if TYPE_CHECKING:`


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / "volta").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def room(module: str) -> str:
    """The top-level name a module of Volta belongs to: `volta.ops.reduce` -> `ops`, `volta` -> `volta`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _targets(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = ".".join(filter(None, [*package.split(".")[: len(package.split(".")) - node.level + 1], base]))
        return [f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names]
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in COMPUTING:
            argument = node.args[0] if node.args else None
            return [str(argument.value) if isinstance(argument, ast.Constant) else "(computed at run time)"]
    return []


def _imports_of(module: str, path: Path) -> Iterator[Import]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    text = path.read_text(encoding="utf-8")
    inside = ast.AST if any(name in text for name in COMPUTING) else STATEMENTS  # who has no such call has imports only

    def walk(node: ast.AST, in_function: bool, types_only: bool) -> Iterator[Import]:
        for target in dict.fromkeys(_targets(node, package)):
            where = f"{path.relative_to(ROOT)}:{node.lineno}"  # type: ignore[attr-defined]
            yield Import(module, target, where, in_function, types_only)
        in_function |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types_only |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, inside):
                yield from walk(child, in_function, types_only)

    yield from walk(ast.parse(text), False, False)


@functools.cache
def imports() -> list[Import]:
    """All imports: read when a test asks, not in every process that only collects this file."""
    return [found for module, path in MODULES.items() for found in _imports_of(module, path)]


def own() -> list[Import]:
    """Those of Volta's modules."""
    return [found for found in imports() if found.target.split(".")[0] == "volta"]


def is_allowed_lazy(found: Import) -> bool:
    return found.target.startswith(LAZY.get(room(found.importer), ()))


def test_every_room_has_a_place_in_the_order() -> None:
    unknown = sorted({room(module) for module in MODULES} - RANK.keys())
    assert not unknown, f"not in LAYERS of {Path(__file__).name}: {unknown}"


def test_imports_point_downwards() -> None:
    wrong = [
        f"{found.where}: {room(found.importer)} imports {found.target}"
        for found in own()
        if not is_allowed_lazy(found)
        and (
            RANK.get(room(found.importer), 0) < RANK.get(room(found.target), len(LAYERS))
            or (room(found.importer), room(found.target)) in STRANGERS
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_no_import_cycles_between_modules() -> None:
    graph: dict[str, list[str]] = {module: [] for module in MODULES}
    for found in own():
        if not found.types_only and not found.in_function and found.target in MODULES:
            graph[found.importer].append(found.target)
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> None:
        if module in trail:
            pytest.fail("import cycle: " + " -> ".join([*trail[trail.index(module) :], module]))
        if module not in done:
            for target in graph[module]:
                visit(target, [*trail, module])
            done.add(module)

    for module in MODULES:
        visit(module, [])


def test_no_imports_inside_functions() -> None:
    wrong = [
        f"{found.where}: {found.target}"
        for found in imports()
        if (found.in_function or found.target.startswith("(")) and not is_allowed_lazy(found)
    ]
    assert not wrong, "\n".join(wrong)


def test_programs_and_plans_need_no_compiler() -> None:
    """Neither directly nor through a module of Volta that they import."""
    wrong = []
    for start in (module for module in MODULES if room(module) in NO_COMPILER):
        reached, todo = {start}, [start]
        while todo:
            module = todo.pop()
            for found in (found for found in imports() if found.importer == module):
                if found.target.split(".")[0] in COMPILERS:
                    wrong.append(f"{start} reaches {found.target} through {found.where}")
                elif found.target in MODULES and found.target not in reached:
                    reached.add(found.target)
                    todo.append(found.target)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["numba.cuda", "cuda", "numba_cuda"])
def test_only_the_cuda_backend_imports_cuda(name: str) -> None:
    wrong = [
        f"{found.where}: {found.target}"
        for found in imports()
        if (found.target == name or found.target.startswith(name + ".")) and room(found.importer) != "numba_cuda"
    ]
    assert not wrong, "\n".join(wrong)


def test_only_one_folder_imports_jax() -> None:
    """And nothing imports that folder but where a program asks for it."""
    users = {m for found in imports() if found.target.split(".")[0] == "jax" for m in (found.importer,)}
    assert users and all(m.startswith("volta.interop.jaxprs") or m == "volta.interop.bridge" for m in users)
    inside = "volta.interop.jaxprs"
    wrong = [f.where for f in own() if f.target.startswith(inside) and not f.importer.startswith(inside)]
    lazy = [
        f.where for f in own() if f.target.startswith(inside) and f.importer == "volta.interop.bridge" and f.in_function
    ]
    assert wrong == lazy


def test_files_stay_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in [*MODULES.values(), *(ROOT / "tests").rglob("*.py")]
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert not long, f"longer than {MAX_LINES} lines, so more than one subject: {long}"


def test_no_folder_of_tests_is_taken_for_the_module_of_its_name() -> None:
    """Others ask whether there is a scipy, or where numba_cuda is: tests/scipy and tests/numba_cuda are neither."""
    assert not [folder for folder in sys.path if (ROOT / "tests") in (Path(folder).resolve() / "_").parents]


def test_the_reader_of_imports_sees_each_form() -> None:
    """The checks above are worth what this reader sees."""
    code = (
        "import numpy as np\nfrom . import a\nfrom .. import core\nfrom ..ops.b import c\n"
        "def f():\n    import late\n    importlib.import_module('volta.numba_cuda')\n    __import__(name)\n"
        "if TYPE_CHECKING:\n    from volta.trace import Tracer\n"
    )
    tree = ast.parse(code)
    seen = [target for node in ast.walk(tree) for target in _targets(node, "volta.runtime")]
    assert sorted(seen) == sorted(
        [
            "numpy",
            "volta.runtime",
            "volta.core" if "volta.core" in MODULES else "volta",
            "volta.ops.b",
            "late",
            "volta.numba_cuda",
            "(computed at run time)",
            "volta.trace",
        ]
    )
