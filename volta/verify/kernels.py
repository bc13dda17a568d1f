"""Plans on generated kernels: as Numba functions, and as the Python that these are written in, beside LLVM's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import volta.numpy as vnp
from volta.runtime.context import execution_context
from volta.testing.cases import cases, dtypes_of, vocabulary
from volta.testing.data import fill
from volta.testing.kernel_kinds import GENERATED, with_kernels
from volta.testing.loops import loop_programs
from volta.verify.checks import Check, Named, Setting, same
from volta.verify.laws import PROGRAMS
from volta.verify.model import train


def kernels(setting: Setting) -> Iterator[Check]:
    """A few programs with each kind of kernels, and every primitive's text as Python runs it, on the CPU.

    Full: with each kind the cases of every dtype, loops, and a hundred steps of training on Numba functions.
    """
    for (name, f, args), kinds in _programs(setting):
        try:
            want = with_kernels("llvm", f, *args)
            for kind in kinds:
                yield same(f"{name}: {kind}", with_kernels(kind, f, *args), want)
        except Exception as error:  # one failure must not hide the others
            yield Check(name, problem=f"{type(error).__name__}: {error}")
    if setting.full:
        yield _training(100)


def _training(steps: int) -> Check:
    files = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("llvm", "njit"):
            path = Path(folder) / kind
            with execution_context(kernels=kind):
                train("cpu", steps, path)
            files.append(np.frombuffer(path.read_bytes(), np.uint8))
    return same(f"checkpoint file after {steps} steps: njit", files[1], files[0])


def _programs(setting: Setting) -> Iterator[tuple[Named, Sequence[str]]]:
    """Programs, and the kinds of kernels to run each with."""
    x, w = fill("normal", (66, 64)), fill("normal", (64, 66), seed=1)
    for name, f in PROGRAMS.items():
        yield (name, f, (x, w)), GENERATED
    long = fill("ladder", (20481, 2))
    yield ("long rows", lambda x: (vnp.sum(x), vnp.sum(x, 0), vnp.max(x), vnp.argmin(x)), (long,)), GENERATED
    for primitive in vocabulary():
        for dtype in dtypes_of(primitive)[: None if setting.full else 1]:
            for case in cases(primitive, dtype)[: None if setting.full else 1]:
                named = str(case), lambda *args, c=case: c.primitive.bind(*args, **c.params), case.args
                yield named, GENERATED if setting.full else ("python",)
    if setting.full:
        for p in loop_programs():
            yield (p.name, p.f, tuple(map(np.asarray, p.args))), GENERATED
