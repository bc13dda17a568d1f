"""Machine code in programs' files: used where it is asked for and everything fits, and then nothing is compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.programs.test_symbolic import ALL as FOR_ALL_SIZES
from tests.programs.test_symbolic import arguments
from volta import io, lax, nn
from volta.emit import carried
from volta.numba_cpu import elsewhere, target, unit
from volta.programs.machine_code import from_stored, to_stored
from volta.testing.bits import bits, digest
from volta.verify.laws import PROGRAMS

X = np.linspace(-1, 1, 512, dtype=np.float32).reshape(8, 64)
W = np.cos(np.arange(64 * 64, dtype=np.float32)).reshape(64, 64)
KIND = volta.ShapeDtypeStruct(X.shape, X.dtype)
LEVEL = {512: "cpu:x86-64-v4", 256: "cpu:x86-64-v3"}.get(target.vector_bits(), "cpu")


def f(x: Any) -> Any:
    """Products, a softmax, a sort, a loop, and what is known when it is compiled."""
    y = lax.fori_loop(0, 3, lambda i, y: vnp.tanh(y @ W * 0.01) + i, x)
    return vnp.sort(nn.softmax(y), -1).sum(0) + vnp.sin(vnp.arange(64.0)) * 0.3


CHILD = """
import json, sys
import numpy as np
import volta
from volta.numba_cpu import target, unit
from volta.testing.bits import digest
made = []
compile_object = target.compile_object
target.compile_object = lambda text, *to: (made.append(text), compile_object(text, *to))[1]
data = np.load(sys.argv[2])
f = volta.load_program(sys.argv[1], machine_code=sys.argv[3] == "yes")
found = digest(f(*[data[key] for key in data.files]))
print(json.dumps([found, len(made), unit.stats().compiled, unit.stats().loaded]))
"""


def in_a_bare_process(program: Any, args: Any, folder: Path, machine_code: bool = True, **settings: str) -> Any:
    """Digest, LLVM modules compiled, kernels compiled and kernels loaded, of a process with an empty cache."""
    program.save(folder / "program.volta")
    np.savez(folder / "args.npz", *map(np.asarray, args))
    command = [sys.executable, "-c", CHILD, "program.volta", "args.npz", "yes" if machine_code else "no"]
    root = str(Path(volta.__file__).parent.parent)
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "VOLTA_CACHE": "0", **settings},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


UNGUARDED = pytest.mark.skipif(
    "VOLTA_TEST_GUARD" in os.environ,
    reason="the native loops of a process whose memory is guarded are others than the child's",
)


@UNGUARDED
@pytest.mark.parametrize("to", ["cpu", pytest.param(LEVEL, marks=pytest.mark.slow)])
def test_another_process_compiles_nothing(to: str, tmp_path: Path) -> None:
    found, modules_made, compiled, loaded = in_a_bare_process(volta.export(f, KIND).compiled_for(to), [X], tmp_path)
    assert found == digest(volta.jit(f)(X)) and (modules_made, compiled) == (0, 0) and loaded


def test_it_is_run_where_that_is_asked_for_only(tmp_path: Path) -> None:
    program = volta.export(lambda x: vnp.cos(x) * 7.25, KIND).compiled_for("cpu")
    program.save(tmp_path / "f")
    ((name, text),) = program.machine_code[0].units[0].kernels.items()
    plain = volta.load_program(tmp_path / "f")
    assert carried.find(unit.environment(), name, text) is None
    trusted = volta.load_program(tmp_path / "f", machine_code=True)
    assert carried.find(unit.environment(), name, text) is trusted.machine_code[0].units[0]
    assert plain.machine_code[0].units == trusted.machine_code[0].units == program.machine_code[0].units


@pytest.mark.slow
def test_where_it_is_not_asked_for_kernels_are_compiled(tmp_path: Path) -> None:
    found, modules_made, compiled, loaded = in_a_bare_process(
        volta.export(f, KIND).compiled_for("cpu"), [X], tmp_path, machine_code=False
    )
    assert found == digest(volta.jit(f)(X)) and loaded == 0 and compiled > 4 and modules_made > 4


@UNGUARDED
@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_law_programs_compile_nothing(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    args = [rng.normal(size=shape).astype(np.float32) for shape in ((66, 64), (64, 66))]
    program = volta.export(PROGRAMS[name], *args).compiled_for("cpu")
    assert in_a_bare_process(program, args, tmp_path)[:3] == [digest(volta.jit(PROGRAMS[name])(*args)), 0, 0]


@UNGUARDED
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_models_compile_nothing(name: str, tmp_path: Path) -> None:
    f, kinds = FOR_ALL_SIZES[name]
    program = volta.export(f, *kinds).at(b=2, t=5)
    args = arguments(program)
    found = in_a_bare_process(program.compiled_for("cpu"), args, tmp_path)
    assert found[:3] == [digest(volta.jit(f)(*args)), 0, 0]


@UNGUARDED
@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 66])
def test_programs_of_any_size_compile_nothing_at_those_they_were_compiled_for(rows: int, tmp_path: Path) -> None:
    g, kinds = FOR_ALL_SIZES["layers"]
    program = volta.export(g, *kinds).compiled_for("cpu", sizes=[{"b": 1}, {"b": 66}])
    args = arguments(program.at(b=rows))
    assert in_a_bare_process(program, args, tmp_path)[:3] == [digest(volta.jit(g)(*args)), 0, 0]


def test_sizes_to_compile_for_are_those_of_symbols() -> None:
    g, kinds = FOR_ALL_SIZES["elementwise"]
    program = volta.export(g, *kinds).compiled_for("sm_75", sizes=[{"b": 1}, {"b": 66}])
    assert program.at(b=3).machine_code == program.machine_code  # so it is held as long as it may be used
    with pytest.raises(volta.errors.ArgumentError, match="exported for numbers as sizes"):
        volta.export(lambda x: x * 2, KIND).compiled_for("cpu", sizes=[{"b": 1}])
    with pytest.raises(volta.errors.ShapeError, match="exported for b from 1 to 4,096, got 0"):
        program.compiled_for("cpu", sizes=[{"b": 0}])


@UNGUARDED
@pytest.mark.slow
@pytest.mark.skipif(not target.is_x86() or target.vector_bits() < 256, reason="for processors of x86-64-v3")
def test_a_processor_of_a_lesser_level_runs_its_code(tmp_path: Path) -> None:
    lesser = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": target.LEVELS["x86-64-v3"] + ",+cmov"}
    program = volta.export(f, KIND).compiled_for("cpu:x86-64-v3", "cpu:x86-64-v4")
    found = in_a_bare_process(program, [X], tmp_path, **lesser)
    assert found[:3] == [digest(volta.jit(f)(X)), 0, 0]


@pytest.mark.skipif(not target.is_x86(), reason="levels are those of x86-64")
def test_code_for_a_level_keeps_to_its_registers() -> None:
    wide, narrow = (elsewhere.processor(f"cpu:x86-64-{v}").machine for v in ("v4", "v3"))
    assert (wide.vector_bits, narrow.vector_bits) == (512, 256) and target.machine() is target.host()
    text = "define <16 x float> @f(<16 x float> %x) { %y = fadd <16 x float> %x, %x\nret <16 x float> %y }"
    add_zmm, add_ymm = bytes.fromhex("62f17c4858"), bytes.fromhex("c5fc58")
    assert add_zmm in target.compile_object(text, wide) and add_ymm not in target.compile_object(text, wide)
    assert add_ymm in target.compile_object(text, narrow) and add_zmm not in target.compile_object(text, narrow)


def test_the_file_is_a_function_of_program_and_targets(tmp_path: Path) -> None:
    program = volta.export(nn.softmax, KIND)
    program.compiled_for("cpu", "sm_90a").save(tmp_path / "a")
    loaded = volta.load_program(tmp_path / "a")
    loaded.save(tmp_path / "b")
    loaded.compiled_for("cpu", "sm_90a").save(tmp_path / "c")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    assert [x.target for x in loaded.machine_code] == ["cpu", "sm_90a"] and io.load(tmp_path / "a")["format"] == 2
    program.save(tmp_path / "plain")
    assert io.load(tmp_path / "plain")["format"] == 1  # older versions read it


# -- what does not fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("emitter", "0" * 64, "made by emitter 0000"),
        ("llvm", "1.2.3", "made by llvm 1.2.3, and here is"),
        ("python", "cpython 2.7", "made by python cpython 2.7"),
        ("cpu", "pentium", "made by cpu pentium"),
        ("features", "+sse2", "made by features"),
    ],
)
def test_code_made_by_others_is_refused_by_name(key: str, value: str, why: str, tmp_path: Path) -> None:
    program = volta.export(lambda x: x * 2, KIND).compiled_for("cpu")
    (code,) = program.machine_code
    other = attrs.evolve(code, made_by={**code.made_by, key: value})
    attrs.evolve(program, machine_code=(other,)).save(tmp_path / "f")
    with pytest.raises(volta.errors.DeviceError, match=f"cpu: {why}.*Load it without machine_code=True"):
        volta.load_program(tmp_path / "f", machine_code=True)
    assert bits(volta.load_program(tmp_path / "f")(X)) == bits(vnp.asarray(X) * 2)


@pytest.mark.skipif(target.vector_bits() != 512, reason="for processors with AVX-512")
def test_levels_other_than_the_processors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lesser = elsewhere.processor("cpu:x86-64-v3")
    assert "plans for this processor have 512" in elsewhere.why_not(lesser.made_by())
    best = elsewhere.processor("cpu:x86-64-v4").made_by()
    assert not elsewhere.why_not(best)
    monkeypatch.setattr(target, "host", lambda: attrs.evolve(lesser.machine, cpu_name="haswell"))
    assert "(haswell) has no avx512" in elsewhere.why_not(best)


def test_files_without_code_and_gpus_that_are_not_there(tmp_path: Path) -> None:
    volta.export(lambda x: x * 2, KIND).save(tmp_path / "f")
    with pytest.raises(volta.errors.DeviceError, match="the file holds none"):
        volta.load_program(tmp_path / "f", machine_code=True)
    with pytest.raises(volta.errors.ArgumentError, match="there is no target 'cpu:z80'; there are cpu, "):
        volta.export(lambda x: x * 2, KIND).compiled_for("cpu:z80")


def test_kernels_are_found_as_long_as_their_program_is_there() -> None:
    (code,) = volta.export(lambda x: vnp.sin(x) * 3.25, KIND).compiled_for("cpu").machine_code
    kernels = code.units[0]
    ((name, text),) = kernels.kernels.items()
    carried.admit("elsewhere", code.units)
    assert carried.find("elsewhere", name, text) is kernels and carried.find("elsewhere", name, "other") is None
    assert carried.find(unit.environment(), name, text) is None
    del code, kernels
    assert carried.find("elsewhere", name, text) is None


# -- damaged files -----------------------------------------------------------------------------------------------------


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] + [p for key, child in items for p in _places(child, (*path, key))]


def _loaded_tree(tree: Any) -> Any:
    """As `io.load` gives it: bytes are arrays."""
    if isinstance(tree, dict):
        return {key: _loaded_tree(x) for key, x in tree.items()}
    if isinstance(tree, list):
        return [_loaded_tree(x) for x in tree]
    return vnp.asarray(tree) if isinstance(tree, np.ndarray) else tree


STORED = _loaded_tree(to_stored(volta.export(lambda x: x * 2, KIND).compiled_for("sm_75").machine_code[0]))
SCRAPS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=5), st.just([]), st.just({}), st.just({"a": 1}),
    st.sampled_from(['{"a": 1}', "[" * 5000, vnp.ones(3), vnp.ones((2, 2), "uint8"), [vnp.ones(2, "uint8")]]),
)  # fmt: skip


@given(st.sampled_from(_places(STORED)), SCRAPS)
def test_damaged_code_is_refused_by_name(place: tuple[Any, ...], scrap: Any) -> None:
    whole = {"root": _loaded_tree(STORED)}
    node: Any = whole
    path = ("root", *place)
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = scrap
    try:
        code = from_stored(whole["root"])
    except volta.errors.FormatError:
        return
    assert all(isinstance(data, bytes) for x in code.units for data in x.objects)
    assert code.target != "cpu" and all(isinstance(x, str) for x in code.made_by.values())
