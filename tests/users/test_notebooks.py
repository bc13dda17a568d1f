"""In notebooks lines name the cell, programs are monospaced, charts have axes, long tables fold; converted ones too."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import volta
import volta.numpy as vnp

pytestmark = pytest.mark.turns(6)

HERE = Path(__file__).resolve().parent
CELLS = (
    "import volta, volta.numpy as vnp",
    "def f(x):\n    y = x * 2\n    return y + vnp.ones(5)",
    "program = volta.make_jaxpr(lambda x: vnp.sin(x) * 2)(1.0)\nprogram",
    "try:\n    f(vnp.ones(3))\nexcept volta.errors.ShapeError as error:\n    print(error)",
    "try:\n    volta.jit(lambda x: float(x))(1.0)\nexcept TypeError as error:\n    print(error)",
    "volta.jit(lambda x: vnp.tanh(x @ x).sum()).lower(vnp.ones((64, 64))).compile()",
)


def test_lines_name_the_cell():
    """Of an error, and of an operation in a program."""
    pytest.importorskip("IPython")
    code = (
        "import sys\nfrom IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        f"for cell in {CELLS[:5]!r}:\n"
        "    assert shell.run_cell(cell, store_history=True).success\n"
        "print(shell.user_ns['program'].eqns[0].source)\n"
        "print(shell.user_ns['program']._repr_html_())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "IPYTHONDIR": os.devnull}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "at cell In[2], line 3, in f\n      return y + vnp.ones(5)" in done.stdout
    assert "at cell In[5], line 2, in <lambda>" in done.stdout
    assert "\nIn[3]:1 (<lambda>)\n" in done.stdout
    assert '<span title="In[3]:1 (&lt;lambda&gt;)">' in done.stdout
    assert "/ipykernel" not in done.stdout and "<ipython-input" not in done.stdout


def _plan(layers: int):
    def deep(x):
        for _ in range(layers):
            x = vnp.tanh(x @ x)
        return x

    return volta.jit(deep).lower(volta.ShapeDtypeStruct((32, 32), "float32")).compile().plan


def _chart(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.search("<svg.*</svg>", page).group(0))


def test_programs_say_themselves_that_they_are_monospaced():
    page = volta.make_jaxpr(lambda x: vnp.sin(x) * 2)(1.0)._repr_html_()
    assert re.match(r'<pre style="[^"]*font-family:[^"]*monospace', page) and "white-space:pre" in page


def test_charts_have_axes():
    plan = _plan(9)
    live = plan.live_temp_bytes()
    chart = _chart(plan._repr_html_())
    space = "{http://www.w3.org/2000/svg}"
    texts = [node.text for node in chart.iter(f"{space}text")]
    assert {"0", f"{max(live):,}", str(len(live) - 1), "kernel call", "bytes in use"} <= set(texts)
    bars = list(chart.iter(f"{space}rect"))
    assert [bar.find(f"{space}title").text for bar in bars] == [f"call {i}: {n:,} bytes" for i, n in enumerate(live)]
    heights = [float(bar.get("height")) for bar in bars]
    assert max(heights) == heights[live.index(max(live))]
    width, height = (float(chart.get(side)) for side in ("width", "height"))
    for bar in bars:  # all of it inside of the picture
        assert 0 <= float(bar.get("x")) and float(bar.get("x")) + float(bar.get("width")) <= width
        assert 0 <= float(bar.get("y")) and float(bar.get("y")) + float(bar.get("height")) <= height
    assert "no temporaries" in _plan(0)._repr_html_()


def test_long_tables_are_folded():
    short, long = _plan(2), _plan(40)
    assert len(short.calls) <= 12 < len(long.calls)
    assert f"<details open><summary>kernel calls: {len(short.calls)}</summary><table>" in short._repr_html_()
    assert f"<details><summary>kernel calls: {len(long.calls)}</summary><table>" in long._repr_html_()
    assert float(_chart(long._repr_html_()).get("width")) < 700


@pytest.fixture(scope="module")
def notebook():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    return nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=240).execute()


@pytest.mark.slow
def test_a_notebook_that_is_run(notebook):
    outputs = [cell["outputs"] for cell in notebook["cells"]]
    assert "monospace" in outputs[2][0]["data"]["text/html"]
    assert "at cell In[2], line 3, in f" in outputs[3][0]["text"]
    assert "<svg" in outputs[5][0]["data"]["text/html"] and "In[6]:1" in outputs[5][0]["data"]["text/html"]


@pytest.mark.slow
def test_a_notebook_that_is_converted(notebook):
    exporters = pytest.importorskip("nbconvert", reason="nbconvert is not installed")
    page, _ = exporters.HTMLExporter().from_notebook_node(notebook)
    assert "monospace;white-space:pre" in page and "<svg" in page and "<details" in page
