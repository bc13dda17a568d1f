"""`volta verify`: passes where the bits are right, and says so where they are not."""

import json

import pytest

from volta.commands import verify
from volta.commands.main import main
from volta.core import contract
from volta.verify import checks, parity

pytestmark = pytest.mark.turns(6)


def test_the_cpu_has_the_bits_on_record(capsys, tmp_path):
    path = tmp_path / "record.json"
    suites = ["functions", "products", "inference"]
    assert main(["verify", "--device", "cpu", "--json", str(path), *suites]) == 0
    record = json.loads(path.read_text())
    assert list(record["suites"]) == suites and record["contract"] == contract.ID
    assert all(s["checks"] and s["elements"] and not s["differ"] for s in record["suites"].values())
    assert "verdict: all" in capsys.readouterr().out


@pytest.mark.slow
def test_every_suite_passes_in_full_on_the_cpu(capsys):
    assert main(["verify", "--device", "cpu", "--full"]) == 0, capsys.readouterr().out


@pytest.mark.gpu
def test_every_suite_passes_on_the_gpu(capsys):
    assert main(["verify", "--device", "cuda"]) == 0, capsys.readouterr().out


def test_the_record_is_of_this_contract_and_speaks_of_what_is_checked():
    assert json.loads(checks.RECORD.read_text())["contract"] == contract.ID
    setting = checks.Setting("cpu", checks.FULL)
    every = {f"products/{check.name}": check for check in parity.products(setting)}
    assert all(checks.kept()[name] == [check.inputs, check.digest] for name, check in every.items())


def test_a_changed_bit_is_reported(monkeypatch, capsys):
    wrong = {name: [inputs, "0" * 16] for name, (inputs, _) in checks.kept().items()}
    monkeypatch.setattr(checks, "kept", lambda: wrong)
    assert main(["verify", "--device", "cpu", "inference"]) == 1
    said = capsys.readouterr().out
    assert "logits: digest" in said and "0000000000000000" in said and "FAILED" in said


def test_a_record_of_an_earlier_contract_is_read_and_named(monkeypatch, tmp_path):
    record = json.loads(checks.RECORD.read_text())
    monkeypatch.setattr(checks, "RECORD", tmp_path / "programs.json")
    checks.RECORD.write_text(json.dumps({**record, "contract": "strict-v1-e71ff13f"}))
    assert checks.kept() == record["programs"]
    name, (inputs, digest) = next(iter(checks.kept().items()))
    suite, name = name.split("/", 1)
    assert not checks.against_record(suite, checks.Check(name, inputs=inputs, digest=digest), checks.kept()).problem
    other = checks.against_record(suite, checks.Check(name, inputs=inputs, digest="0" * 16), checks.kept())
    assert f"the record of strict-v1-e71ff13f has {digest}" in other.problem


def test_a_failure_is_reported_and_the_rest_goes_on():
    programs = [("bad", lambda x: x + [], (1.0,)), ("good", lambda x: x + 1, (1.0,))]
    bad, good = checks.compare(checks.Setting(), iter(programs))
    assert "Error" in bad.problem and not good.problem


def test_other_inputs_are_not_compared_with_the_record():
    check = checks.Check("a", inputs="1", digest="2")
    assert checks.against_record("s", check, {"s/a": ["other", "3"]}) == check
    assert checks.against_record("s", check, {"s/a": ["1", "3"]}).problem


def test_what_is_not_there_is_refused(capsys):
    for options, said in ((["nonsense"], "no suite nonsense"), (["--device", "tpu"], "no device 'tpu'")):
        assert main(["verify", *options]) == 2
        assert said in capsys.readouterr().err


def test_a_record_that_cannot_be_written_stops_before_the_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(verify.SUITES, "laws", lambda setting: pytest.fail("the suite has run"))
    path = tmp_path / "absent" / "record.json"
    assert main(["verify", "--device", "cpu", "--json", str(path), "laws"]) == 2
    assert f"volta verify: the record cannot be written: [Errno 2] No such file or directory: '{path}'" in (
        capsys.readouterr().err
    )
