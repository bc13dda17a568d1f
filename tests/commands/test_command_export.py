"""`volta export`: functions of a file become programs that travel, and those become C libraries."""

import shutil
from pathlib import Path

import pytest

import volta
import volta.numpy as vnp
from volta.commands.main import main

MODEL = """
import volta.numpy as vnp
from volta.offline import Function

def predict(x, w):
    return vnp.tanh(x @ w)

FUNCTIONS = [Function(predict, ({"a": vnp.ones(3)}["a"], vnp.ones((3, 2))), "predict_3")]
"""


def test_functions_become_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.py"
    model.write_text(MODEL)
    out = tmp_path / "programs"
    assert main(["export", f"{model}:predict(f32[4,3], f32[3,2])", f"{model}:FUNCTIONS", "--out", str(out)]) == 0
    assert f"{out / 'predict.volta'}: 2 operations, contract strict" in capsys.readouterr().out
    assert volta.load_program(out / "predict.volta")(vnp.ones((4, 3)), vnp.ones((3, 2))).shape == (4, 2)
    assert volta.load_program(out / "predict_3.volta")(vnp.ones(3), vnp.ones((3, 2))).shape == (2,)
    assert main(["export", "--stablehlo", str(out / "predict.volta"), "--out", str(out)]) == 0
    assert (out / "predict.mlir").read_text().startswith('module @"predict" {')
    assert main(["export", f"any={model}:predict(f32[2*b, n], f32[n,2])", "--out", str(out)]) == 0
    assert volta.load_program(out / "any.volta")(vnp.ones((6, 5)), vnp.ones((5, 2))).shape == (6, 2)
    targets = ["--target", "cpu", "--target", "sm_90"]
    assert main(["export", *targets, str(out / "predict_3.volta"), "--out", str(out)]) == 0
    assert "kernels for cpu, kernels for sm_90" in capsys.readouterr().out
    program = volta.load_program(out / "predict_3.volta", machine_code=True)
    assert [x.target for x in program.machine_code] == ["cpu", "sm_90"]
    assert main(["export", "--target", "z80", str(out / "predict.volta"), "--out", str(out)]) == 2
    assert "there is no target 'z80'; there are cpu, " in capsys.readouterr().err
    if shutil.which("cc"):
        assert main(["export", "--c", str(out / "predict.volta"), "--out", str(out)]) == 0
        assert {x.name for x in out.iterdir()} >= {"predict.h", "libpredict.so"}


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.volta").write_bytes(b"no program")
    for target, why in (
        (str(tmp_path / "no.volta"), "no.volta"),
        (str(tmp_path / "none.volta"), "cannot be read"),
        ("no target", "is no target"),
    ):
        assert main(["export", target, "--out", str(tmp_path / "out")]) == 2
        assert why in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
