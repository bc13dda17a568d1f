"""What `volta offline` writes, on record: for three samples a manifest with digests of all PTX, for one the PTX itself.

After a change that is meant: VOLTA_UPDATE_GOLDEN=1 python -m pytest tests/golden/test_golden_offline.py, then read the
difference. The record holds for one LLVM; where another is installed the texts are compared with each other only.
"""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path

import pytest

import volta
import volta.numpy as vnp
from volta import nn, offline, optim
from volta.numba_cuda.codegen import ptx

HERE = Path(__file__).resolve().parent / "offline"
UPDATE = os.environ.get("VOLTA_UPDATE_GOLDEN") == "1"
READABLE = "softmax.sm_90.ptx"


def training_step() -> offline.Function:
    """A step of a classifier of words by Adam; parameters and state are donated."""
    optimizer = optim.adam(1e-3)

    def loss(params: dict, tokens: object, labels: object) -> object:
        logits = nn.gelu(vnp.mean(params["table"][tokens], 1)) @ params["w"]
        return vnp.mean(nn.softmax_cross_entropy_with_integer_labels(logits, labels))

    def step(params: dict, state: object, tokens: object, labels: object) -> object:
        value, gradients = volta.value_and_grad(loss)(params, tokens, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optim.apply_updates(params, updates), state, value

    params = {"table": shape(100, 64), "w": shape(64, 10)}
    state = volta.eval_shape(optimizer.init, params)
    leaves = len(volta.tree.leaves((params, state)))
    args = (params, state, shape(32, 20, dtype="int32"), shape(32, dtype="int32"))
    return offline.Function(step, args, "training_step", tuple(range(leaves)))


def shape(*dims: int, dtype: str = "float32") -> volta.ShapeDtypeStruct:
    return volta.ShapeDtypeStruct(dims, dtype)


def samples() -> list[offline.Function]:
    return [
        offline.Function(nn.softmax, (shape(64, 1000),), "softmax"),
        offline.Function(lambda x, y: x @ y, (shape(512, 512), shape(512, 512)), "product"),
        training_step(),
    ]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offline")
    offline.write_files(folder, offline.compile_functions(samples()))
    return folder


def other_llvm(found: dict) -> str:
    """Why texts cannot be compared with the record; empty where they can."""
    path = HERE / offline.MANIFEST
    if UPDATE or not path.exists():
        return ""
    kept = json.loads(path.read_text())["toolchain"]["llvm"]
    here = found["toolchain"]["llvm"]
    return "" if kept == here else f"the record was made with LLVM {kept}, this is {here}"


def short(found: dict) -> dict:
    """A manifest without what is long and follows from the rest, and without what differs from release to release."""
    functions = []
    for f in found["functions"]:
        targets = [
            {
                "capability": t["capability"],
                "ptx": t["ptx"],
                "kernels": len(t["kernels"]),
                "launches": len(t["launches"]),
            }
            for t in f["targets"]
        ]
        functions.append({**f, "inputs": len(f["inputs"]), "outputs": len(f["outputs"]), "targets": targets})
    toolchain = {"llvm": found["toolchain"]["llvm"]}
    return {"contract": found["contract"], "toolchain": toolchain, "functions": functions}


@pytest.mark.turns(6)
def test_the_manifest_is_the_one_on_record(made: Path) -> None:
    found = json.loads((made / offline.MANIFEST).read_text())
    text = json.dumps(short(found), indent=1) + "\n"
    if why := other_llvm(found):
        pytest.skip(why)
    path = HERE / offline.MANIFEST
    if UPDATE:
        HERE.mkdir(exist_ok=True)
        path.write_text(text)
    changed = "".join(difflib.unified_diff(path.read_text().splitlines(True), text.splitlines(True)))
    assert not changed, f"{changed}\nsee the head of this file"


@pytest.mark.turns(6)
def test_the_text_is_the_one_on_record(made: Path) -> None:
    if why := other_llvm(json.loads((made / offline.MANIFEST).read_text())):
        pytest.skip(why)
    text, path = (made / READABLE).read_text(), HERE / READABLE
    if UPDATE:
        path.write_text(text)
    changed = "".join(difflib.unified_diff(path.read_text().splitlines(True), text.splitlines(True), n=1))
    assert not changed, f"{changed[:2000]}\nsee the head of this file"


@pytest.mark.turns(6)
def test_what_is_written_keeps_the_rules(made: Path) -> None:
    for path in made.glob("*.ptx"):
        assert ptx.violations(path.read_text()) == []
    assert len(list(made.glob("*.ptx"))) == 3 * len(offline.CAPABILITIES)
