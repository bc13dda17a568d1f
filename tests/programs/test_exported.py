"""Programs that travel: what is loaded is the program that was saved, and nothing else can be loaded."""

import json
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from tests.user_kernels import smooth
from volta import io, lax, nn
from volta.core import contract
from volta.programs.document import Reader, Writer
from volta.testing import cases
from volta.testing.bits import bits, digest
from volta.testing.loops import loop_programs
from volta.verify.laws import PROGRAMS

Pair = namedtuple("Pair", "a b")
VECTOR = volta.ShapeDtypeStruct((3,), "float32")


def travelled(program: Any) -> str:
    writer = Writer()
    text = json.dumps(writer.program(program))
    return str(Reader(writer.constants).whole(json.loads(text)))


@pytest.mark.parametrize("primitive", cases.vocabulary(), ids=str)
def test_every_operation_travels(primitive: Any) -> None:
    for dtype in cases.dtypes_of(primitive):
        for case in cases.cases(primitive, dtype):
            program = volta.make_jaxpr(lambda *xs, p=case.params: primitive.bind(*xs, **p))(*case.args)
            assert travelled(program) == str(program)


def test_loops_and_choices_travel() -> None:
    for loop in loop_programs():
        program = volta.make_jaxpr(loop.f)(*loop.args)
        once = travelled(program)
        assert "scan" in once or "while" in once or "cond" in once


CHILD = """
import json, sys
import numpy as np
import volta
from volta.testing.bits import digest
data = np.load(sys.argv[2])
args = [data[key] for key in data.files]
print(json.dumps(digest(volta.load_program(sys.argv[1])(*args))))
"""


def in_another_process(program: Any, args: Any, folder: Path) -> str:
    program.save(folder / "program.volta")
    np.savez(folder / "args.npz", *map(np.asarray, args))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder / "program.volta"), str(folder / "args.npz")],
        capture_output=True, text=True, check=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(volta.__file__).parent.parent)},
    )  # fmt: skip
    return json.loads(done.stdout)


ELSEWHERE = [*PROGRAMS, *(loop.name for loop in loop_programs())]


@pytest.mark.turns(len(ELSEWHERE))
@pytest.mark.parametrize("name", ELSEWHERE)
def test_another_process_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    if name in PROGRAMS:
        rng = np.random.default_rng(0)
        f: Any = PROGRAMS[name]
        args: Any = [rng.normal(size=shape).astype(np.float32) for shape in ((66, 64), (64, 66))]
    else:
        ((f, args),) = [(loop.f, loop.args) for loop in loop_programs() if loop.name == name]
        args = [np.asarray(x) for x in args]
    assert in_another_process(volta.export(f, *args), args, tmp_path) == digest(volta.jit(f)(*args))


def test_the_file_is_a_function_of_the_program_and_holds_its_constants(tmp_path: Path) -> None:
    table = vnp.arange(12.0).reshape(3, 4)

    def f(params: Any, x: Any, *, scale: float) -> Any:
        return {"y": lax.scan(lambda c, t: (c + t @ table, c), x, params["w"])[0] * scale, "nothing": None, "t": table}

    args = ({"w": vnp.ones((2, 4, 3))}, vnp.zeros((4, 4)))
    first = volta.export(f, *args, scale=0.1)
    first.save(tmp_path / "a")
    loaded = volta.load_program(tmp_path / "a")
    loaded.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(io.load_metadata(tmp_path / "a").arrays) == ["constants.0"]
    assert loaded.fun_name == "f" and loaded.contract == contract.ID and loaded.as_text() == first.as_text()
    want, got = volta.jit(f)(*args, scale=0.1), loaded(*args, scale=0.1)
    assert want["nothing"] is None is got["nothing"] and bits(got) == bits(want)


def test_a_loaded_program_is_transformed_like_the_function(tmp_path: Path) -> None:
    def f(p: Any) -> Any:
        return Pair(vnp.sum(vnp.tanh(p.a) * p.b), p.a)

    p = Pair(vnp.arange(3.0), vnp.ones(3))
    volta.export(volta.jit(f), p).save(tmp_path / "f")
    g = volta.load_program(tmp_path / "f")
    assert bits(volta.grad(lambda p: g(p).a)(p)) == bits(volta.grad(lambda p: f(p).a)(p))
    many = Pair(vnp.arange(6.0).reshape(2, 3), vnp.ones((2, 3)))
    assert bits(volta.vmap(g)(many)) == bits(volta.vmap(f)(many))
    assert type(g(p)) is Pair and bits(volta.jit(lambda p: g(p))(p)) == bits(f(p))


def test_donations_and_static_arguments_are_kept(tmp_path: Path) -> None:
    f = volta.jit(lambda n, x, y: x * n + y, static_argnums=0, donate_argnums=1)
    volta.export(f, 3, vnp.ones(3), vnp.ones(3)).save(tmp_path / "f")
    x, y = vnp.ones(3), vnp.ones(3)
    assert (volta.load_program(tmp_path / "f")(x, y) == 4).all() and x.is_deleted() and not y.is_deleted()


def test_python_numbers_stay_numbers(tmp_path: Path) -> None:
    x = vnp.arange(3.0, dtype="float64")
    volta.export(lambda x, s: x * s, x, 0.5).save(tmp_path / "f")
    g = volta.load_program(tmp_path / "f")
    assert bits(g(x, 0.1)) == bits(x * 0.1)
    assert bits(volta.export(lambda x: x + 1, VECTOR)(vnp.ones(3))) == bits(vnp.full(3, 2.0))
    assert bits(volta.export(lambda s: s + 1, volta.ShapeDtypeStruct((), "float32"))(0.1)) == bits(vnp.float32(0.1) + 1)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_other_arguments_are_refused() -> None:
    g = volta.export(lambda x, y: x + y["k"], VECTOR, {"k": VECTOR})
    with pytest.raises(volta.errors.ShapeError, match=r"exported for f32\[3\] as args\[1\]\['k'\], got f32\[4\]"):
        g(vnp.ones(3), {"k": vnp.ones(4)})
    with pytest.raises(volta.errors.DTypeError, match="astype"):
        g(vnp.ones(3, "int32"), {"k": vnp.ones(3)})
    with pytest.raises(volta.errors.TreeError, match="exported for arguments of the structure"):
        g(vnp.ones(3), vnp.ones(3))
    with pytest.raises(volta.errors.TreeError):
        g(vnp.ones(3), y={"k": vnp.ones(3)})


def test_what_is_of_one_process_is_not_exported() -> None:
    with pytest.raises(volta.errors.UnsupportedOperationError, match="pure_callback of `sin` calls a Python function"):
        volta.export(lambda x: volta.pure_callback(np.sin, VECTOR, x), VECTOR)
    with pytest.raises(volta.errors.UnsupportedOperationError, match="export: `smooth` is a kernel of the user's own"):
        volta.export(lambda x: smooth(x), VECTOR)

    @volta.tree_util.register_pytree_node_class
    class Own:
        def __init__(self, x: Any) -> None:
            self.x = x

        def tree_flatten(self) -> Any:
            return (self.x,), None

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> Any:
            return cls(*children)

    with pytest.raises(volta.errors.TreeError, match="pass and return dicts, lists, tuples"):
        volta.export(lambda own: own.x, Own(VECTOR))


def test_rules_of_its_own_are_not_part_of_a_program(tmp_path: Path) -> None:
    volta.export(nn.log_sigmoid, VECTOR).save(tmp_path / "f")
    g = volta.load_program(tmp_path / "f")
    x = vnp.ones(3)
    assert bits(volta.vmap(g)(x[None])) == bits(nn.log_sigmoid(x)[None])
    with pytest.raises(volta.errors.NotDifferentiableError, match=r"volta.export\(volta.grad"):
        volta.grad(lambda x: g(x).sum())(x)
    gradient = volta.export(volta.grad(lambda x: nn.log_sigmoid(x).sum()), VECTOR)
    assert bits(gradient(x)) == bits(volta.jit(volta.grad(lambda x: nn.log_sigmoid(x).sum()))(x))


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    io.save(tmp_path / "arrays", {"w": vnp.ones(3)})
    with pytest.raises(volta.errors.FormatError, match=r"volta.io.load reads it"):
        volta.load_program(tmp_path / "arrays")
    g = volta.export(vnp.tanh, VECTOR)
    g.save(tmp_path / "f")
    stored = io.load(tmp_path / "f")
    io.save(tmp_path / "newer", {**stored, "format": 3})
    with pytest.raises(volta.errors.FormatError, match="a program of format 3"):
        volta.load_program(tmp_path / "newer")


def test_another_contract_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volta.io.format.CONTRACT", "strict-v1")
    volta.export(vnp.tanh, VECTOR).save(tmp_path / "f")
    with pytest.raises(volta.errors.FormatError, match="made under the bit contract strict-v1"):
        volta.load_program(tmp_path / "f")


def _document() -> tuple[Any, list[Any]]:
    def f(x: Any, i: Any) -> Any:
        y = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ c[1] * 0.5), (i, x))[1]
        return vnp.sort(y, 0).sum(1) + lax.cond(i > 1, lambda z: z[0], lambda z: z[1] * vnp.arange(3.0), y)

    writer = Writer()
    return writer.program(volta.make_jaxpr(f)(vnp.ones((3, 3)), np.int32(0))), writer.constants


DOCUMENT, CONSTANTS = _document()
SCRAPS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=5), st.just([]), st.just({}),
    st.sampled_from(["float32", "add", "jit", "scan", "callback", ["float32", [3]], ["0000", ["float32", []]],
                     {"float": "nan"}, {"dtype": "int8"}, {"program": {}}, [["float32", [2**40, 2**40]]]]),
)  # fmt: skip


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] + [p for key, child in items for p in _places(child, (*path, key))]


PLACES = _places(DOCUMENT)


@given(st.sampled_from(PLACES[1:]), SCRAPS)
def test_damaged_programs_are_refused_by_name(place: tuple[Any, ...], scrap: Any) -> None:
    damaged = json.loads(json.dumps(DOCUMENT))
    node = damaged
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = scrap
    try:
        program = Reader(CONSTANTS).whole(damaged)
    except volta.errors.FormatError:
        return
    str(program)  # another program, which is one


def test_deep_programs_are_refused() -> None:
    deep: Any = {"constants": [], "inputs": [], "equations": [], "outputs": []}
    for _ in range(100):
        deep = {**deep, "equations": [["scan", [], {"jaxpr": {"program": deep}}, []]]} if deep else deep
    with pytest.raises(volta.errors.FormatError, match="levels deep"):
        Reader([]).whole(deep)


def test_what_is_said_of_a_program() -> None:
    g = volta.export(lambda x: x * 2, VECTOR)
    assert repr(g) == "<volta.Exported <lambda>(f32[3]) -> f32[3]>" and "mul" in g.as_text()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        g.fun_name = "h"
