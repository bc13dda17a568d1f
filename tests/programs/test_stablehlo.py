"""Programs as StableHLO text: every operation has text or is refused by name, and XLA reads what was meant."""

import re

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax, nn
from volta.core import pytrees
from volta.ops.primitive import Family
from volta.programs.stablehlo.module import module_text
from volta.testing import cases
from volta.testing.bits import bits

REFUSED = {Family.CALLBACK, Family.USER, Family.COLLECTIVE}


def defined_once_and_before_use(text: str) -> None:
    """Names count up over the whole module, so a name in a region that is over is found too."""
    known: list[set[str]] = [set()]
    for line in text.splitlines()[1:]:
        left, _, right = line.partition(" = ") if re.match(r" *%\d+(, %\d+)* = ", line) else ("", "", line)
        uses = [] if "^bb0" in line or "func.func" in line else re.findall(r"%\d+", right)
        assert {*uses} <= set().union(*known), line
        defines = re.findall(r"%\d+", line if not uses and not left else left)
        if "})" in line or "}, {" in line:
            known.pop()
        assert not {*defines} & set().union(*known), line
        if line.endswith("({") or line.endswith(", {"):
            waiting = defines
            known.append(set())
            known[-2].update(waiting)  # its results: nothing inside says their names, as they are smaller
        else:
            known[-1].update(defines)


def programs(primitive):
    """A program of each case of a primitive, with its name and arguments."""
    for dtype in cases.dtypes_of(primitive):
        for case in cases.cases(primitive, dtype):
            yield str(case), lambda *xs, p=case.params: primitive.bind(*xs, **p), case.args


TRAVELS = [p for p in cases.vocabulary() if p.family not in REFUSED]


@pytest.mark.parametrize("primitive", TRAVELS, ids=str)
def test_every_operation_has_text(primitive) -> None:
    for name, f, args in programs(primitive):
        defined_once_and_before_use(module_text(volta.make_jaxpr(f)(*args), name))


def xla(text: str, args):
    """The results of a module that XLA compiles for the CPU."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jaxlib import _jax

    with mlir.make_ir_context():
        module = str(ir.Module.parse(text))
    with jax.enable_x64(True):
        devices = jax.devices("cpu")[:1]
        made = devices[0].client.compile_and_load(module, _jax.DeviceList(tuple(devices)), _jax.CompileOptions())
        found = made.execute_sharded([jax.device_put(x, devices[0]) for x in args])
        return [np.asarray(x[0]) for x in found.disassemble_into_single_device_arrays()]


def close(found, wanted, dtype) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    if wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
    else:
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        size = np.finfo(np.float32).eps if wanted.dtype.itemsize > 2 else 2.0**-7
        np.testing.assert_allclose(found.astype(wide), wanted.astype(wide), rtol=200 * size, atol=200 * size)


@pytest.mark.turns(40)
@pytest.mark.parametrize("primitive", TRAVELS, ids=str)
def test_xla_computes_what_was_meant(primitive) -> None:
    """To within rounding, which is all that other compilers promise."""
    for name, f, args in programs(primitive):
        found = xla(module_text(volta.make_jaxpr(f)(*args), name), args)
        for have, want in zip(found, pytrees.leaves(f(*args)), strict=True):
            close(have, want, have.dtype)


def model(params, x):
    """A little of everything that is not one operation."""
    w, table, i = params
    q = table[i].reshape(1, 1, 6, 4)
    y = nn.dot_product_attention(q, q, q, is_causal=True)[0, 0] @ w
    last, ys = lax.scan(lambda c, row: (vnp.tanh(c + row), c.sum()), x, y)
    n = lax.while_loop(lambda n: n[0] < 5, lambda n: (n[0] + 1, n[1] * 2), (0, lax.stop_gradient(vnp.sum(last))))[1]
    return vnp.sum(lax.cond(n > 0, lambda v: vnp.sort(v), lambda v: v * 2, ys)) + n * 1e-3


def arguments():
    rng = np.random.default_rng(0)
    w, table = rng.normal(size=(4, 4)).astype(np.float32), rng.normal(size=(9, 4)).astype(np.float32)
    return (w, table, np.array([3, 1, 8, 0, 3, 2])), rng.normal(size=4).astype(np.float32)


def test_a_program_and_its_text() -> None:
    program = volta.export(model, *arguments())
    text = program.mlir_module()
    defined_once_and_before_use(text)
    for word in ("while", "case", "gather", "sort", "dot_general", "reduce", "exponential"):
        assert f'"stablehlo.{word}"' in text
    assert text.startswith('module @"model" {\n  func.func public @main(%0: tensor<4x4xf32>, %1: tensor<9x4xf32>')


@pytest.mark.turns(2)
def test_xla_runs_a_program_and_its_gradient() -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    args = arguments()
    step = lambda w, rest, x: volta.value_and_grad(lambda w: model((w, *rest), x))(w)  # noqa: E731
    (w, *rest), x = args
    flat = pytrees.leaves((w, tuple(rest), x))
    found = xla(volta.export(step, w, tuple(rest), x).mlir_module(), flat)
    for have, want in zip(found, pytrees.leaves(step(w, tuple(rest), x)), strict=True):
        close(have, want, have.dtype)


def test_constants_are_written_to_the_bit() -> None:
    numbers = [
        np.float32([1, 1e-5, np.inf, -0.0, 1e-45, 3.4e38]), np.float16([0.1, 65504]), np.float64([np.nan, 5e-324]),
        np.arange(40, dtype=np.int8), np.array([True, False]), np.complex64([1 + 2j, -0.0]),
        np.linspace(0, 1, 100), np.zeros((0, 3), np.float32), np.full((7, 7), 2.5), np.bool_([[1, 0]] * 20),
    ]  # fmt: skip
    consts = [vnp.asarray(x) for x in numbers]
    text = module_text(volta.make_jaxpr(lambda: tuple(consts))(), "constants")
    defined_once_and_before_use(text)
    for have, want in zip(xla(text, []), numbers, strict=True):
        assert have.dtype == want.dtype and bits(have) == bits(want)


def test_what_has_no_text_is_named() -> None:
    def f(x):
        return volta.pure_callback(lambda x: x, volta.ShapeDtypeStruct((3,), np.float32), x)

    program = volta.make_jaxpr(f)(np.zeros(3, np.float32))
    with pytest.raises(
        volta.errors.UnsupportedOperationError, match="to StableHLO: pure_callback of `<lambda>`.*Python"
    ):
        module_text(program, "f")
