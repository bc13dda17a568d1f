"""Law: another rounding mode, or flush-to-zero, left on by a foreign library, changes no bit of any result.

Kernels, conversions of host values, tracing, compiling, saving and loading, and the import itself.
"""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax, nn, optim, random
from volta.core import floats, pytrees
from volta.numba_cpu import fpenv, target
from volta.runtime import eager
from volta.runtime.plan_cache import PLAN_CACHE
from volta.testing import assert_bits_equal

pytestmark = pytest.mark.turns(6)

X86 = {"flush": 0x8000, "subnormals are zero": 0x40, "both": 0x8040, "down": 0x2000, "up": 0x4000, "truncate": 0x6000}
AARCH64 = {"flush": 1 << 24, "up": 1 << 22, "down": 2 << 22, "truncate": 3 << 22}
MODES = X86 if target.is_x86() else AARCH64

rng = np.random.default_rng(0)
SUBNORMAL = rng.integers(0, 2**23, 24).astype("u4").view("f4")
X = np.concatenate([rng.normal(size=24).astype("f4"), SUBNORMAL, np.float32([0, -0.0, np.inf, np.nan, 1e-38, 3.4e38])])
X64 = np.concatenate([rng.normal(size=24), rng.integers(0, 2**52, 8).astype("u8").view("f8")])
ONE = np.float32(1e-40)  # made here, where the environment is the standard one
A, B, M = vnp.asarray(X), vnp.asarray(X64), vnp.asarray(rng.normal(size=(20, 20)).astype("f4"))

PROGRAMS: dict[str, Callable[[], Any]] = {
    "literals": lambda: volta.jit(lambda x: x * 1e-40 + 1e-41 + 0.1)(A),
    "a number as argument": lambda: volta.jit(lambda x, c, d: x * c + d)(A, 1e-40, 0.1),
    "numbers as arrays": lambda: [vnp.asarray(0.1), vnp.asarray(1e-40), vnp.asarray([0.1, 1 / 3, 1e-40])],
    "numbers of NumPy": lambda: [A * np.float64(0.1), vnp.asarray(X64, "float32"), vnp.asarray(X, "bfloat16")],
    "lists of numbers of NumPy": lambda: vnp.asarray([ONE, 0.5]),
    "filled": lambda: [vnp.full(3, 1e-40), vnp.full(3, 0.1, "bfloat16")],
    "dtypes": lambda: [B.astype("float32"), A.astype("float16"), vnp.asarray(X64, "float16")],
    "by operation": lambda: [A * 0.1, A + 1e-40, A**0.1, vnp.clip(A, 1e-41, 0.1), vnp.where(A > 0, 1e-40, 0.1)],
    "products": lambda: M @ (M * 1e-39),
    "gradients": lambda: volta.grad(lambda x: vnp.sum(vnp.tanh(x) * 1e-39 + 0.1 * x))(A[:20]),
    "ranges": lambda: [vnp.linspace(0.1, 0.7, 9), vnp.arange(0, 1, 0.1), vnp.logspace(-40, 1, 7)],
    "more ranges": lambda: vnp.geomspace(0.1, 9, 5),
    "random numbers": lambda: [
        random.normal(random.key(1), (20,)), random.uniform(random.key(1), (20,), minval=1e-40, maxval=1e-38)
    ],
    "loops": lambda: [
        lax.scan(lambda c, x: (c * 0.999 + x * 1e-38, c), ONE, A)[1],
        lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] * 0.1, c[1] + 1), (A, 0))[0],
    ],
    "constants that are folded": lambda: volta.jit(
        lambda x: x * (vnp.exp(vnp.asarray(-1.0)) / 3.0) + vnp.asarray(1e-30) * 1e-12
    )(A),
    "statistics": lambda: [vnp.var(A[:20]), vnp.std(A[:20], ddof=1), vnp.mean(A[:19]), vnp.quantile(A[:20], 0.1)],
    "functions": lambda: [nn.gelu(A), nn.softmax(A * 1e-3), vnp.interp(A[:9], vnp.arange(5.0), vnp.arange(5.0) * 0.1)],
    "windows": lambda: [vnp.hanning(7), vnp.hamming(7), vnp.blackman(7), vnp.kaiser(7, 8.6), vnp.i0(A[:9])],
    "weak numbers": lambda: vnp.asarray(np.float16([1, 2])) * 0.1,
    "batches": lambda: volta.vmap(lambda x: x * 0.3 + 1e-40)(A),
    "Python numbers": lambda: [A.tolist(), float(vnp.asarray(ONE)), vnp.asarray(ONE).item(), f"{vnp.asarray(ONE):.9g}"],
    "text": lambda: repr(A) + str(volta.make_jaxpr(lambda x: x * 1e-40 + 0.1)(A)),
    "activations": lambda: [getattr(nn, f)(A) for f in ("gelu", "mish", "selu", "celu", "hard_swish", "log_sigmoid")],
    "angles": lambda: [vnp.deg2rad(A), vnp.rad2deg(A), vnp.sinc(A)],
    "special functions": lambda: [volta.scipy.special.ndtr(A), volta.scipy.special.ndtri(A)],
    "optimizers": lambda: [
        t.update(M, t.init(M), M)[0]
        for t in (optim.adamw(optim.cosine_decay_schedule(0.1, 7)), optim.rmsprop(0.1), optim.lion(0.1))
    ],
    "attention": lambda: nn.dot_product_attention(M[None, :, None], M[None, :, None], M[None, :, None]),
    "initializers": lambda: nn.initializers.glorot_normal()(random.key(0), (3, 5)),
}  # fmt: skip


def forget() -> None:
    """What was converted and compiled is converted and compiled anew."""
    PLAN_CACHE.clear()
    eager._executables.clear()
    eager._scalars.clear()


@pytest.fixture
def foreign(request) -> Iterator[str]:
    """A foreign setting in this thread; it is still there when the test is over."""
    before = fpenv.get_control()
    setting = before | MODES[request.param]
    forget()
    fpenv.set_control(setting)
    yield request.param
    after = fpenv.get_control()
    fpenv.set_control(before)
    forget()
    mask = fpenv.control_bits().mask
    assert after & mask == setting & mask, "the setting was not restored"


def exact(out: Any) -> list[Any]:
    """Leaves that compare by their bits."""
    return [x.hex() if isinstance(x, float) else x for x in pytrees.leaves(out)]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return {name: exact(program()) for name, program in PROGRAMS.items()}


every_mode = pytest.mark.parametrize("foreign", MODES, indirect=True)


@every_mode
def test_no_program_has_other_bits(expected, foreign) -> None:
    for name, program in PROGRAMS.items():
        got = floats.in_standard(exact, program())
        for x, y in zip(got, expected[name], strict=True):
            if isinstance(y, volta.Array):
                floats.in_standard(assert_bits_equal, x, y, name)
            else:
                assert x == y, name


@every_mode
def test_what_was_compiled_there_is_right_elsewhere(foreign) -> None:
    f = volta.jit(lambda x: x * 1e-40 + 0.1)
    f(A)

    def elsewhere() -> None:
        forget()
        assert_bits_equal(f(A), volta.jit(lambda x: x * 1e-40 + 0.1)(A))

    floats.in_standard(elsewhere)


@every_mode
def test_files_are_the_same(foreign, tmp_path) -> None:
    tree = {"a": A, "x": 1e-310, "b": B}
    volta.io.save(tmp_path / "foreign", tree)
    floats.in_standard(volta.io.save, tmp_path / "standard", tree)
    assert (tmp_path / "foreign").read_bytes() == (tmp_path / "standard").read_bytes()
    loaded = volta.io.load(tmp_path / "standard")
    assert loaded["x"].hex() == (1e-310).hex() if isinstance(loaded["x"], float) else True
    floats.in_standard(assert_bits_equal, loaded["a"], A)


@every_mode
def test_a_foreign_setting_is_seen(foreign) -> None:
    assert not floats.is_standard() and not fpenv.is_standard()
    assert floats.in_standard(floats.is_standard) and floats.in_standard(fpenv.is_standard)
    assert not floats.is_standard()


@every_mode
def test_a_setting_is_restored_after_errors(foreign) -> None:
    def fails(x: Any) -> Any:
        assert floats.is_standard()  # functions are traced in the standard environment
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        volta.jit(fails)(A)
    assert not floats.is_standard()


class Shown(doctest.DocTestRunner):
    """Runs examples, and remembers what they show."""

    def report_success(self, out: Any, test: Any, example: Any, got: str) -> None:
        self.shown.append(got)

    report_failure = report_success

    @classmethod
    def of(cls, test: doctest.DocTest) -> list[Any]:
        runner = cls(verbose=False)
        runner.shown: list[str] = []
        runner.run(test, out=lambda text: None, clear_globs=False)
        return runner.shown


def documented() -> list[str]:
    packages = ("numpy", "lax", "nn", "random", "scipy", "optim", "io", "api")
    found = [f"volta.{p}" for p in packages]
    for p in packages:
        module = importlib.import_module(f"volta.{p}")
        found += [f"volta.{p}.{m.name}" for m in pkgutil.iter_modules(module.__path__)]
    return found


@pytest.mark.slow
@every_mode
def test_every_example_of_the_documentation_has_the_same_result(foreign) -> None:
    for name in documented():
        module = floats.in_standard(importlib.import_module, name)
        for example in floats.in_standard(doctest.DocTestFinder().find, module, extraglobs={"volta": volta}):
            if any("round(" in e.source or "printoptions(" in e.source for e in example.examples):
                continue  # Python's own rounding in the user's environment; how NumPy prints its own arrays
            there = Shown.of(example)
            assert there == floats.in_standard(Shown.of, example), example.name


CHILD = """
import ctypes, sys
mode = int(sys.argv[1])
ctypes.CDLL(None).fesetround(mode)
import volta, volta.numpy as vnp, numpy as np
assert ctypes.CDLL(None).fegetround() == mode
vnp.zeros(3) + 1  # the backend is imported here
assert ctypes.CDLL(None).fegetround() == mode
ctypes.CDLL(None).fesetround(0)
x = vnp.asarray(np.linspace(0.1, 9, 40), 'float32')
out = [vnp.i0(x), vnp.log2(x), volta.grad(lambda x: vnp.log10(x).sum())(x), vnp.exp2(x), volta.nn.gelu(x), vnp.log1p(x)]
print(b"".join(np.asarray(y).tobytes() for y in out).hex())
"""


@pytest.mark.parametrize("mode", [0x800, pytest.param(0xC00, marks=pytest.mark.slow)])
@pytest.mark.skipif(not target.is_x86(), reason="numbers of rounding modes are x86's")
def test_the_import_computes_the_same_constants(mode) -> None:
    def run(mode: int) -> str:
        command = [sys.executable, "-c", CHILD, str(mode)]
        child = subprocess.run(command, check=False, capture_output=True, text=True)
        assert not child.stderr, child.stderr
        return child.stdout

    assert run(mode) == run(0)
