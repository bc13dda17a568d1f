"""`volta offline` writes PTX, and machine code where NVIDIA's assembler is there, with a manifest; no GPU is needed."""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import volta
from volta import offline
from volta.commands.main import main
from volta.commands.targets import TargetError, functions_of
from volta.numba_cuda.codegen import nvjitlink, ptx

MODEL = """
import numpy as np
import volta.numpy as vnp
from volta import lax, nn, offline

def predict(x, w):
    return nn.softmax(x @ w)

FUNCTIONS = [offline.Function(predict, (np.zeros((4, 8), "f"), np.zeros((8, 3), "f")), "small"),
             offline.Function(vnp.tanh, (np.zeros(9, "f"),))]
ONE = FUNCTIONS[0]
NUMBER = 3

def product(x, y):
    return lax.dot(x, y, precision="bf16")
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


@pytest.mark.turns(2)
def test_files_and_manifest(model, tmp_path, capsys):
    out = tmp_path / "kernels"
    targets = [f"wide={model}:predict(f32[64,256], f32[256,64])", f"{model}:FUNCTIONS"]
    assert main(["offline", *targets, "--capability", "7.5", "9.0", "--out", str(out)]) == 0
    found = json.loads((out / offline.MANIFEST).read_text())
    assert found["contract"] == volta.core.contract.ID
    assert [f["name"] for f in found["functions"]] == ["wide", "small", "tanh"]
    wide = found["functions"][0]
    assert (wide["inputs"], wide["outputs"]) == (["f32[64,256]", "f32[256,64]"], ["f32[64,64]"])
    for target in wide["targets"]:
        data = (out / target["ptx"]["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == target["ptx"]["sha256"]
        assert f".target {target['processor']}".encode() in data and "cubin" not in target
        assert list(target["kernels"]) == list(dict.fromkeys(x["kernel"] for x in target["launches"]))
        assert all(f".entry {k}(".encode() in data for k in target["kernels"])
    assert {p.name for p in out.iterdir()} == {offline.MANIFEST} | {
        f"{name}.sm_{n}.ptx" for name in ("wide", "small", "tanh") for n in (75, 90)
    }
    assert "wide: 2 launches of 2 kernels" in capsys.readouterr().out


def test_tensor_cores_need_a_level_below_strict(model, tmp_path, capsys):
    run = ["offline", f"{model}:product(f32[256,256], f32[256,256])", "--capability", "8.0", "--out", str(tmp_path)]
    assert main(run) == 2
    assert "bf16" in (said := capsys.readouterr().err) and "--level device" in said
    assert main([*run, "--level", "device"]) == 0
    assert "mma.sync" in (tmp_path / "product.sm_80.ptx").read_text()
    assert json.loads((tmp_path / offline.MANIFEST).read_text())["functions"][0]["level"] == "device"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("nothing", "is no target"),
        ("MODEL:predict", "a function needs shapes"),
        ("MODEL:NUMBER(f32[3])", "has no function NUMBER"),
        ("name=MODEL:FUNCTIONS", "have names of their own"),
        ("MODEL:gone", "a function needs shapes"),
        ("MODEL:predict(f31[3])", "is no list of shapes"),
        ("MODEL:predict(f32[3], 7)", "is no list of shapes"),
        ("MODEL:predict(f32[4,8])", r"predict\(x, w\) is given 1 shapes: missing a required argument: 'w'"),
        ("MODEL:predict(f32[3], f32[3], f32[3])", "is given 3 shapes: too many"),
        ("absent.py:f(f32[3])", "no file absent.py"),
        ("volta.absent:f(f32[3])", "cannot be imported"),
    ],
)
def test_a_target_that_says_nothing_is_refused(model, target, text):
    with pytest.raises(TargetError, match=text):
        functions_of(target.replace("MODEL", str(model)))


def test_targets_in_modules_and_alone(model):
    (f,) = functions_of("volta.numpy:tanh(bf16[2,3])")
    assert (f.name, f.args[0].shape, f.args[0].dtype.name) == ("tanh", (2, 3), "bfloat16")
    assert functions_of(f"{model}:ONE")[0].name == "small"
    assert functions_of(f"other={model}:ONE")[0].name == "other"


def test_an_unknown_capability_and_a_repeated_name_are_refused(model, capsys):
    assert main(["offline", f"{model}:ONE", "--capability", "6.0"]) == 2
    assert "no compute capability 6.0" in capsys.readouterr().err
    assert main(["offline", "--capability", f"{model}:ONE"]) == 2
    assert "is named behind --capability" in capsys.readouterr().err
    f = offline.Function(lambda x: x, (np.zeros(3, np.float32),), "f")
    with pytest.raises(ValueError, match="two functions are named 'f'"):
        offline.compile_functions([f, f])


def test_targets_may_stand_behind_capabilities(model, tmp_path, capsys):
    assert main(["offline", "--out", str(tmp_path), "--capability", "8.0", f"{model}:ONE"]) == 0
    assert (tmp_path / "small.sm_80.ptx").exists()
    assert main(["offline", "--capability", "8.0"]) == 2
    assert "nothing to compile" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_stops_before_the_work(model, monkeypatch, capsys):
    monkeypatch.setattr(offline, "compile_functions", lambda *args, **kwargs: pytest.fail("compiled"))
    assert main(["offline", f"{model}:ONE", "--out", f"{model}/kernels"]) == 2
    assert f"volta offline: the files cannot be written: {model} is no folder" in capsys.readouterr().err


def test_a_function_that_cannot_be_compiled_leaves_no_folder(model, tmp_path):
    assert main(["offline", f"{model}:product(f32[2,2], f32[2,2])", "--out", str(tmp_path / "kernels")]) == 2
    assert not (tmp_path / "kernels").exists()


def test_functions_of_one_name_need_another_name(model, tmp_path, capsys):
    small, large = (f"{model}:predict(f32[{n},8], f32[8,3])" for n in (4, 8))
    assert main(["offline", small, large, "--out", str(tmp_path)]) == 2
    assert "two functions are named 'predict': write NAME=FILE_OR_MODULE:FUNCTION" in capsys.readouterr().err
    assert main(["offline", small, f"large={large}", "--capability", "8.0", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "large.sm_80.ptx").exists()


def test_tensor_cores_say_which_capabilities_have_them(model, tmp_path, capsys):
    product = f"{model}:product(f32[256,256], f32[256,256])"
    assert main(["offline", product, "--level", "device", "--out", str(tmp_path)]) == 2
    assert "8.0 or newer, not 7.5" in (text := capsys.readouterr().err) and "--capability 8.0 8.6 8.9 9.0" in text


def test_without_nvjitlink_the_error_says_what_to_install(model, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(nvjitlink, "libraries", lambda: [])
    assert main(["offline", f"{model}:ONE", "--cubin", "--out", str(tmp_path)]) == 2
    assert "pip install 'volta[offline]'" in capsys.readouterr().err


ORDERS = """
import sys
import numpy as np
import volta.numpy as vnp
from volta import nn, offline
names = sys.argv[1:]
make = {"a": lambda x: nn.softmax(x @ x.T), "b": lambda x: vnp.sort(vnp.cumsum(x, 0), 1)}
done = offline.compile_functions([offline.Function(make[n], (np.zeros((64, 64), "f"),), n) for n in names], ["8.0"])
import hashlib
print(sorted((f.name, hashlib.sha256(f.targets[0].ptx.encode()).hexdigest()) for f in done))
"""


@pytest.mark.turns(6)
def test_ptx_is_the_same_in_any_process_and_order(monkeypatch, capsys):
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), "VOLTA_CACHE": "0"}
    run = [sys.executable, "-c", ORDERS, "a", "b"]
    there = subprocess.run(run, env=environment, check=True, capture_output=True, text=True).stdout
    monkeypatch.setattr(sys, "argv", ["", "b", "a"])
    exec(ORDERS, {})
    assert capsys.readouterr().out == there != ""


needs_nvjitlink = pytest.mark.skipif(not nvjitlink.libraries(), reason="nvJitLink is not installed (volta[offline])")


@needs_nvjitlink
@pytest.mark.parametrize("capability", [*offline.CAPABILITIES, "9.0a"])
def test_machine_code_says_what_kernels_need(model, capability):
    (done,) = offline.compile_functions(functions_of(f"{model}:ONE"), [capability], cubin=True)
    (target,) = done.targets
    assert target.cubin.startswith(b"\x7fELF") and target.assembler
    for launch in target.launches:
        needs = target.resources[launch.kernel]
        assert 0 < needs.registers * launch.threads <= 65536 and needs.shared <= 48 << 10
        assert needs.spill_stores == needs.spill_loads == 0


@needs_nvjitlink
def test_what_the_assembler_does_not_take_is_an_error():
    library = nvjitlink.library_for("9.0")
    with pytest.raises(volta.errors.DeviceError, match="does not take the PTX for 9.0"):
        library.assemble(".version 7.8\n.target sm_90\n.address_size 64\nnonsense;\n", "9.0")


def test_an_assembler_knows_what_its_cuda_knows():
    """Each capability that PTX is made for can be asked about: Hopper's own, 9.0a, is no number."""
    library = object.__new__(nvjitlink.Library)
    for version, oldest in (((12, 9), "5.0"), ((13, 0), "7.5"), ((14, 1), "7.5")):
        library.version = version
        found = [c for c in ptx.CAPABILITIES if library.supports(c)]
        assert found == [c for c in ptx.CAPABILITIES if ptx.level_of(c) >= ptx.level_of(oldest)]


def test_what_an_assembler_says_is_read():
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 126 registers, used 1 barriers, 16 bytes cumulative stack size, 4096 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers
info    : used 126 registers, used 1 barriers, 0 stack, 1024 bytes smem, 536 bytes cmem[0], 0 bytes lmem
"""
    assert nvjitlink.resources_of(log) == {
        "first": nvjitlink.Resources(126, 4096, 16, 8, 4),
        "second": nvjitlink.Resources(20, 0, 0, 0, 0),
    }


def test_every_capability_has_a_target():
    assert set(offline.CAPABILITIES) <= set(ptx.CAPABILITIES)
