"""Programs as C libraries: C code gets the program's bits, without Python, from any memory and any thread."""

import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax, nn
from volta.core import dtypes, pytrees
from volta.testing.bits import bits
from volta.testing.loops import loop_programs
from volta.testing.transformer import Transformer
from volta.verify.laws import PROGRAMS

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
LOOPS = [
    x
    for x in loop_programs()
    if all(np.prod(np.shape(s)) for s in pytrees.leaves((x.args, volta.eval_shape(x.f, *x.args))))
]
X = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)


def shifted(x: np.ndarray, by: int) -> np.ndarray:
    """A copy whose memory begins so many elements behind a multiple of 64 bytes."""
    raw = np.empty(x.nbytes + 64 + by * x.itemsize, np.uint8)
    start = -raw.ctypes.data % 64 + by * x.itemsize
    out = raw[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


class Called:
    """A program's library, called through ctypes."""

    def __init__(self, f: Any, args: Any, folder: Path, name: str = "program") -> None:
        self.program = volta.export(f, *args)
        self.files = self.program.save_library(folder, name)
        self.function = getattr(ctypes.CDLL(str(self.files.library)), name)

    def __call__(self, *args: Any, by: int = 0) -> Any:
        given = [shifted(np.asarray(x, a.dtype), by) for x, a in zip(args, self.program.in_avals, strict=True)]
        outs = [shifted(np.zeros(a.shape, a.dtype), by) for a in self.program.out_avals]
        workspace = shifted(np.full(max(self.files.workspace_bytes, 1), 0xAB, np.uint8), 0)
        pointers = [ctypes.c_void_p(x.ctypes.data) for x in (*given, *outs, workspace)]
        assert self.function(*pointers) == 0
        return pytrees.unflatten(pytrees.structure(self.program.outputs), outs)


def same(f: Any, args: Any, folder: Path) -> None:
    called, want = Called(f, args, folder), volta.jit(f)(*args)
    for by in (0, 1):
        got = called(*pytrees.leaves(tuple(args)), by=by)
        assert bits(got) == bits(pytrees.map(np.asarray, want))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.turns(3)
def test_programs_of_the_laws(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    same(PROGRAMS[name], [rng.normal(size=shape).astype(np.float32) for shape in ((66, 64), (64, 66))], tmp_path)


@pytest.mark.few(3)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
def test_loops_and_choices(loop: Any, tmp_path: Path) -> None:
    same(loop.f, loop.args, tmp_path)


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.turns(6)
def test_every_dtype(dtype: Any, tmp_path: Path) -> None:
    x = (X * 4).astype(dtype)
    same(lambda x: (x, (x[::-1] + x).sum(0), vnp.where(x == 0, x, x[0])), [x], tmp_path)


def test_results_that_are_arguments_constants_and_each_other(tmp_path: Path) -> None:
    table = vnp.arange(6.0)
    same(lambda x: (x, table, y := x * 2, y, y.T, x[0] + table), [X], tmp_path)


@pytest.mark.turns(2)
def test_decompositions_transforms_and_sorts(tmp_path: Path) -> None:
    same(lambda x: (vnp.linalg.inv(x), vnp.fft.fft(x), vnp.sort(x, 0), vnp.argsort(x, 1)), [X], tmp_path)


@pytest.mark.slow
def test_loops_that_run_tile_by_tile(tmp_path: Path) -> None:
    x = (np.arange(1 << 17) % 1009).astype(np.complex64).reshape(128, 1024)
    same(lambda x: (vnp.fft.fft(x), vnp.fft.fft2(x), vnp.fft.rfft2(x.real[:, :1000])), [x], tmp_path)


@pytest.mark.slow
def test_a_training_step(tmp_path: Path) -> None:
    model = Transformer()
    params = model.init(volta.random.key(0))
    same(volta.value_and_grad(model.loss), (params, *model.draw(volta.random.key(1))), tmp_path)


def test_threads_may_call_it_at_once(tmp_path: Path) -> None:
    called = Called(lambda x: vnp.sort(nn.softmax(x @ x, 0), 1), [X], tmp_path)
    many = [X * (i + 1) for i in range(16)]
    alone = [bits(called(x)) for x in many]
    with ThreadPoolExecutor(8) as threads:
        assert [bits(x) for x in threads.map(called, many)] == alone


MAIN = """
#include "step.h"
#include <stdio.h>
static float x[3] = {1, 2, 3}, y[3], total[1];
static int32_t n[1] = {4};
_Alignas(64) static char workspace[STEP_WORKSPACE_BYTES + 64];
int main(void) {
    int status = step(x, n, y, total, workspace);
    printf("%d %a %a %a %a\\n", status, y[0], y[1], y[2], total[0]);
    return 0;
}
"""


def test_a_program_in_c(tmp_path: Path) -> None:
    def step(params: Any, *, int: Any) -> Any:
        y = lax.fori_loop(0, int, lambda i, y: vnp.tanh(y), params["w x"])
        return {"y": y, "sum": y.sum()}

    args = {"w x": vnp.arange(1.0, 4.0)}, vnp.int32(4)
    program = volta.export(step, args[0], int=args[1])
    program.save_library(tmp_path)
    header = (tmp_path / "step.h").read_text()
    assert "const float *args_0_w_x, /* f32[3] */\n    const int32_t *x_int, /* i32[] */" in header
    assert "float *out_sum, /* f32[] */\n    float *out_y, /* f32[3] */" in header
    (tmp_path / "main.c").write_text(MAIN.replace("y, total, workspace", "total, y, workspace"))
    subprocess.run(["cc", "-Wall", "-Werror", "main.c", "-L.", "-lstep", "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run(
        ["./main"], cwd=tmp_path, check=True, capture_output=True, text=True, env={"LD_LIBRARY_PATH": "."}
    )
    want = step(args[0], int=args[1])
    status, *numbers = done.stdout.split()
    assert status == "0"
    got = [np.float32(float.fromhex(x)) for x in numbers]
    assert bits(got) == bits([*np.asarray(want["y"]), np.asarray(want["sum"])])


def test_what_is_refused(tmp_path: Path) -> None:
    program = volta.export(lambda x: x + 1, X)
    with pytest.raises(volta.errors.ArgumentError, match="no name of a function in C; pass name="):
        program.save_library(tmp_path)
    with pytest.raises(volta.errors.DeviceError, match="no C compiler 'no-such-compiler'"):
        program.save_library(tmp_path, "f", cc="no-such-compiler")
    with pytest.raises(volta.errors.DeviceError, match="could not link"):
        program.save_library(tmp_path, "f", cc="false")
    with pytest.raises(volta.errors.UnsupportedOperationError, match="without elements"):
        volta.export(lambda x: x + 1, X[:0]).save_library(tmp_path, "f")
    with pytest.raises(OSError):
        program.save_library(tmp_path / "nowhere", "f")
    assert not list(tmp_path.iterdir())
