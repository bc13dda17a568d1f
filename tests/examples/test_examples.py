"""The example programs run, learn, and repeat their bits; the notebook's cells run in order."""

import ast
import html
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import volta
from tests.workers import launch_settings, needs_mpi

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name):
    """A fresh module from an example's file."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.turns(6)
def test_tiny_transformer_learns_and_repeats_its_bits(tmp_path, capsys):
    module = example("tiny_transformer")
    runs = []
    for name in ("a", "b"):
        losses = module.main(["--steps", "40", "--seed", "3", "--out", str(tmp_path / name)])
        text = capsys.readouterr().out
        sampled = text[text.index("--- sample") : text.index("saved ")]
        runs.append((losses, sampled, (tmp_path / name).read_bytes()))
    assert runs[0] == runs[1], "two runs from one seed differ"
    assert 5 < runs[0][0][0] < 6 and runs[0][0][-1] < 4
    for line in ("bits identical: True", "held-out loss", "bytes at its peak", "time per step", "step     1 "):
        assert line in text


@pytest.mark.slow
@needs_mpi
def test_elastic_training_ends_in_one_workers_bytes(capfd, monkeypatch):
    """Three workers, of which one is killed; two go on; one does it alone: one file, byte for byte."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name, value in launch_settings().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    several, alone = example("elastic_training").main(["--steps", "4"])
    assert several == alone
    text = capfd.readouterr().out
    for line in ("3 workers, step 2", "2 workers, step 3", "1 workers, step 4", "the same bytes: True"):
        assert line in text


def repeated(name, arguments, capsys):
    """What an example returns, and prints; a second run is the same to the last digit."""
    results, texts = [], []
    for _ in range(2):
        results.append(example(name).main(arguments))
        texts.append(capsys.readouterr().out)
    assert results[0] == results[1] and texts[0] == texts[1]
    return results[0], texts[0]


@pytest.mark.slow
def test_a_gaussian_process_finds_the_curve(capsys):
    (values, inside), text = repeated("gaussian_process", ["--steps", "60"], capsys)
    assert values[-1] < 0.6 * values[0] and inside > 0.9 and "learned {'length'" in text


@pytest.mark.slow
def test_a_neural_ode_learns_the_spiral(capsys):
    (first, last), text = repeated("neural_ode", ["--steps", "100"], capsys)
    assert last < 0.01 * first and text.count("#") > 3


@pytest.mark.slow
def test_hamiltonian_samples_have_the_moments(capsys):
    (mean, spread, accepted), _ = repeated("hamiltonian", ["--moves", "300"], capsys)
    np.testing.assert_allclose(mean, [0, 0], atol=0.1)
    np.testing.assert_allclose(spread, [1, 0.866], atol=0.1)
    assert accepted > 0.9


@pytest.mark.turns(6)
def test_an_implicit_layer_learns_roots(capsys):
    values, text = repeated("fixed_point", ["--steps", "60"], capsys)
    assert values[-1] < 0.05 * values[0] and "at rest after" in text


def test_an_implicit_layers_gradient_is_the_unrolled_ones():
    module = example("fixed_point")
    params, x = module.initial(volta.random.key(1), 4), np.float32([[0.5], [2.0]])

    def unrolled(params):
        z = np.zeros((2, 4), np.float32)
        for _ in range(60):
            z = module.layer(params, x, z)
        return (z**2).sum()

    implicit = volta.jit(volta.grad(lambda params: (module.rest(params, x) ** 2).sum()))(params)
    for name, wanted in volta.grad(unrolled)(params).items():
        np.testing.assert_allclose(implicit[name], wanted, atol=1e-4, err_msg=name)


@pytest.mark.turns(6)
def test_solitons_pass_through_one_another(capsys):
    (before, after, crest), text = repeated("spectral", ["--pictures", "16"], capsys)
    np.testing.assert_allclose(after, before, rtol=1e-4)
    assert abs(crest - 3) < 0.05 and text.count("t = ") == 17


@pytest.mark.turns(6)
def test_tiny_transformer_without_rich(tmp_path, capsys):
    module = example("tiny_transformer")
    module.Progress = None
    module.main(["--steps", "2", "--out", str(tmp_path / "model")])
    assert "step     2   loss" in capsys.readouterr().out


def test_the_corpus_is_the_same_at_each_reading():
    module = example("tiny_transformer")
    (training, held_out), again = module.read_corpus(), module.read_corpus()
    assert training.tobytes() == again[0].tobytes() and held_out.tobytes() == again[1].tobytes()
    assert training.size > held_out.size > 10 * module.BATCH * module.LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_models_from_files_give_one_text_in_every_way(name, capsys):
    text, equal = example(name).main(["--tokens", "6"])
    assert equal and len(text) == 6
    assert "the same tokens: True" in capsys.readouterr().out


@pytest.mark.turns(6)
def test_heat_finds_the_plate_and_repeats_its_bits(capsys):
    module = example("heat")
    losses = module.main(["--rounds", "60"])
    assert losses[-1] < losses[0] / 10
    assert "bits identical: True" in capsys.readouterr().out


@pytest.mark.slow
def test_the_derivative_of_heat_is_that_of_its_step():
    """By differences, in float64."""
    module, rng = example("heat"), np.random.default_rng(0)
    heat, conducts = rng.standard_normal((6, 7)), rng.uniform(0.1, 0.2, (6, 7))
    weights = rng.standard_normal((6, 7))

    def value(heat, conducts):
        return volta.numpy.sum(module.spread(heat, conducts) * weights)

    slopes = volta.grad(value, argnums=(0, 1))(heat, conducts)
    for k, slope in enumerate(slopes):
        for i, j in [(0, 0), (2, 3), (5, 6), (4, 1)]:
            ends = []
            for h in (1e-6, -1e-6):
                moved = [heat.copy(), conducts.copy()]
                moved[k][i, j] += h
                ends.append(float(value(*moved)))
            assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float(slope[i, j]), abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["dense", "convolutional"])
def test_digits(network, capsys):
    pytest.importorskip("sklearn", reason="the digits data set is scikit-learn's, which is not installed")
    assert example("digits").main(["--network", network]) > 0.95
    assert "bits identical: True" in capsys.readouterr().out


@pytest.mark.turns(6)
def test_digits_says_what_to_install():
    program = f"import runpy, sys; sys.modules['sklearn'] = None; runpy.run_path({str(EXAMPLES / 'digits.py')!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=EXAMPLES.parent)
    assert done.returncode == 1
    assert "pip install scikit-learn" in done.stderr and "Traceback" not in done.stderr


# -- the notebook ------------------------------------------------------------------------------------------------------

NOTEBOOK = json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))


def shown(source, namespace):
    """Run a cell as a notebook does; the value of a last expression, which would be displayed."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)


def test_notebook_is_clean():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, "clear the outputs before committing"


def test_notebook_runs():
    namespace = {"__name__": "__main__"}
    values = [shown("".join(c["source"]), namespace) for c in NOTEBOOK["cells"] if c["cell_type"] == "code"]
    program, plan = (value for value in values if hasattr(value, "_repr_html_"))
    assert html.unescape(re.sub("<[^>]*>", "", program._repr_html_())) == str(program)
    assert "bytes" in plan._repr_html_() and "<table>" in plan._repr_html_()
    assert namespace["params"].keys() == {"slope", "offset"}
    assert abs(float(namespace["params"]["slope"]) - 3) < 0.1
