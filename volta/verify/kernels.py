"""Plans on generated kernels: as Numba functions, as the Python that these are written in, and on a GPU as functions of
numba-cuda, beside LLVM's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import volta.numpy as vnp
from volta.runtime.context import KERNELS, ON_GPUS, execution_context
from volta.testing.cases import cases, dtypes_of, vocabulary
from volta.testing.data import fill
from volta.testing.kernel_kinds import GENERATED, has_numba_cuda, with_kernels
from volta.testing.loops import loop_programs
from volta.verify.checks import Check, Named, Setting, on_device, same
from volta.verify.laws import PROGRAMS
from volta.verify.model import train


def kernels(setting: Setting) -> Iterator[Check]:
    """A few programs with each kind of kernels that the device has, and every primitive's text: on the CPU as Python
    runs it, on a GPU as numba-cuda compiles it.

    Full: with each kind the cases of every dtype, loops, and a hundred steps of training on functions of Numba.
    """
    yield from _on_the_cpu(setting) if setting.device == "cpu" else _on_a_gpu(setting)


def _on_the_cpu(setting: Setting) -> Iterator[Check]:
    for (name, f, args), kinds in _programs(setting):
        try:
            want = with_kernels(KERNELS[0], f, *args)
            for kind in kinds:
                yield same(f"{name}: {kind}", with_kernels(kind, f, *args), want)
        except Exception as error:  # one failure must not hide the others
            yield Check(name, problem=f"{type(error).__name__}: {error}")
    if setting.full:
        yield training("cpu", "njit", 100)


def _on_a_gpu(setting: Setting) -> Iterator[Check]:
    if not has_numba_cuda():
        yield Check(f"{ON_GPUS}: nothing, as numba-cuda is not installed")
        return
    for (name, f, args), _ in _programs(setting):
        yield on_gpu(setting.device, name, f, args)
    yield training(setting.device, ON_GPUS, 100 if setting.full else 3)


def on_gpu(device: str, name: str, f: Callable[..., Any], args: tuple[Any, ...]) -> Check:
    """A program on a GPU's generated kernels, beside LLVM's on the CPU."""
    try:
        want = with_kernels(KERNELS[0], f, *args)
        with execution_context(kernels=ON_GPUS):
            return same(f"{name}: {ON_GPUS}", on_device(f, args, device), want)
    except Exception as error:
        return Check(name, problem=f"{type(error).__name__}: {error}")


def training(device: str, kernels: str, steps: int) -> Check:
    """Steps of Adam on a device's generated kernels: the checkpoint file is that of LLVM's on the CPU."""
    files = []
    with tempfile.TemporaryDirectory() as folder:
        for where, kind in (("cpu", KERNELS[0]), (device, kernels)):
            path = Path(folder) / kind
            train(where, steps, path, kind)
            files.append(np.frombuffer(path.read_bytes(), np.uint8))
    return same(f"checkpoint file after {steps} steps: {kernels}", files[1], files[0])


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
