"""The documents say what is there: links lead somewhere, examples run, tables name tests and folders that exist."""

import contextlib
import importlib
import io
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import volta
import volta.numpy as vnp

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GROUPS = {"D": 3, "E": 7, "I": 9, "R": 7, "C": 3, "X": 7}
SCRIPTS = ("scripts/demo", "scripts/test", ".ci/run", *(str(p.relative_to(ROOT)) for p in ROOT.glob("scripts/ci/*.sh")))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, kind: str) -> list[str]:
    """The fenced blocks of one kind (`python`, `python raises`, `text`)."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def rows(text: str) -> list[list[str]]:
    """The cells of every table row of a page whose first cell is an id such as S1 or D3."""
    found = re.findall(r"^\| ([A-Z]\d+ \|.*)\|$", text, flags=re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            path, _, anchor = target.partition("#")
            goal = (page.parent / path).resolve() if path else page
            assert goal.exists(), f"{page.name}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", goal.read_text(encoding="utf-8"), flags=re.MULTILINE)
                slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
                assert anchor in slugs, f"{page.name}: {target}"


def test_every_requirement_has_its_row() -> None:
    expected = [f"{group}{n}" for group, count in GROUPS.items() for n in range(1, count + 1)]
    found = [cells[0] for cells in rows(read("docs/requirements.md"))]
    assert found[: len(expected)] == expected
    since = found[len(expected) :]  # the promise's own, S: those that are under way
    assert since == sorted(set(since), key=lambda name: int(name.removeprefix("S")))


@pytest.mark.parametrize("page", ["docs/requirements.md", "docs/determinism.md"])
def test_what_the_tables_name_exists(page: str) -> None:
    found = rows(read(page))
    assert found
    for cells in found:
        *_, tests, status = cells
        assert status in ("works", "building", "planned"), cells
        assert status != "works" or tests.startswith("`tests/"), f"{cells[0]} works, says {page}; which test holds it?"
        for name in re.findall(r"`([\w./-]+)`", " ".join(cells[2:])):
            assert (ROOT / name).exists(), f"{page}, {cells[0]}: {name}"


def test_layout_names_every_folder_of_the_library() -> None:
    text = read("docs/layout.md")
    folders = [path.parent.name for path in (ROOT / "volta").glob("*/__init__.py")]
    missing = [name for name in folders if f"`volta/{name}`" not in text]
    assert not missing, missing
    for name in re.findall(r"`volta/([a-z_]+)`", text):
        assert (ROOT / "volta" / name).is_dir() or (ROOT / "volta" / f"{name}.py").exists(), name


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_sound(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)


def test_readme_shows_the_two_commands() -> None:
    commands = re.findall(r"^    (\./\S+)", read("README.md"), flags=re.MULTILINE)
    assert commands == ["./scripts/demo", "./scripts/test"]
    assert "./scripts/test" in read(".ci/run")


def test_workflows_call_the_verify_scripts() -> None:
    for workflow in ROOT.glob(".github/workflows/*.yml"):
        called = re.findall(r"run: (\S+)", workflow.read_text(encoding="utf-8"))
        assert called and all((ROOT / name).exists() and name.startswith("scripts/ci/") for name in called)


def test_readme_example_prints_what_it_says() -> None:
    text = read("README.md")
    (code,), (expected,) = blocks(text, "python"), blocks(text, "text")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert printed.getvalue() == expected


def _error_sections() -> dict[str, str]:
    parts = re.split(r"^## (\w+)$", read("docs/errors.md"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize(
    "page", ["mixed_precision.md", "from_jax.md", "inference.md", pytest.param("numba.md", marks=pytest.mark.slow)]
)
@pytest.mark.turns(6)
def test_examples_of_pages_run(page: str) -> None:
    text, names = read(f"docs/{page}"), {"__name__": "page"}
    for code in blocks(text, "python"):  # one after the other, as a reader runs them
        exec(compile(code, page, "exec"), names)
    for code in blocks(text, "python raises"):
        with pytest.raises(AttributeError, match=": .* planned"):
            exec(compile(code, page, "exec"), {"__name__": "page"})


def test_what_differs_from_jax_and_numpy() -> None:
    """The claims of the table in docs/from_jax.md that are no other test's."""
    x = vnp.ones(4)
    assert (x / np.sqrt(2)).dtype == np.float64 and (x / 2**0.5).dtype == (x / math.sqrt(2)).dtype == np.float32
    assert vnp.asarray(np.ones(2)).dtype == np.float64 and vnp.asarray([1.0]).dtype == np.float32
    assert vnp.float32 is np.float32 and vnp.asarray(x, "float16").dtype == np.float16
    with pytest.raises(IndexError):
        x[4]
    assert x[np.int32([4])].tolist() == [1.0] and x.at[np.int32([4])].set(0.0).tolist() == [1.0] * 4
    q = vnp.ones((1, 1, 1, 4))
    blind = np.zeros((1, 1, 1, 1), bool)
    assert volta.nn.dot_product_attention(q, q, q, mask=blind).tolist() == [[[[0.0] * 4]]]


def test_every_error_has_its_section() -> None:
    errors = importlib.import_module("volta.core.errors")
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert list(_error_sections()) == [value.__name__ for value in classes if value.__module__ == errors.__name__]


@pytest.mark.parametrize("name", [name for name, text in _error_sections().items() if "```python" in text])
def test_error_examples_raise_and_mend(name: str) -> None:
    """The way out is run first: an example that fails for another reason proves nothing."""
    text = _error_sections()[name]
    for code in blocks(text, "python"):
        exec(compile(code, f"errors.md, {name}", "exec"), {"__name__": "mended"})
    (wrong,) = blocks(text, "python raises")
    with pytest.raises(getattr(importlib.import_module("volta.core.errors"), name)):
        exec(compile(wrong, f"errors.md, {name}", "exec"), {"__name__": "wrong"})


def test_the_contract_page_is_that_of_the_code() -> None:
    contract = importlib.import_module("volta.core.contract")
    text = read("docs/determinism.md")
    assert f"Contract `{contract.NAME}`" in text and f"`{contract.ID}`" in text


def test_generated_pages_are_up_to_date() -> None:
    answer = subprocess.run([sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert not answer.returncode, answer.stderr


def test_the_version_is_stated_once() -> None:
    version = importlib.import_module("volta.version").__version__
    assert re.search(rf"^## {re.escape(version)}\b", read("CHANGELOG.md"), flags=re.MULTILINE)
    assert version not in read("setup.cfg") and version not in read("pyproject.toml")


def test_every_environment_variable_is_documented() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "volta").rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\"(VOLTA_[A-Z_]+)\"", text)}
    documented = set(re.findall(r"^\| `(VOLTA_[A-Z_]+)`", read("docs/settings.md"), flags=re.MULTILINE))
    assert used == documented
