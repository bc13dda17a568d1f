"""What in a text depends on what runs it: a CPU's launch table, or the grid of a GPU. All else is the same in both."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from volta.numba_cpu.loop_schedule import columns_of
from volta.xla_like.kernels import LoopKernel


@attrs.frozen
class Dialect:
    """How a text says what a CPU and a GPU say differently.

    ``kernel`` and ``function`` are the decorators of kernels and of what these call, ``tasks`` is what a kernel's loop
    over its tasks goes through, ``own_scratch`` are lines that a kernel begins with which needs scratch memory of its
    thread's own. A task of a 'col' kernel is its so many ``columns``.
    """

    words: str
    kernel: str
    function: str
    parameters: tuple[str, ...]
    tasks: str
    empty: str
    columns: Callable[[LoopKernel], int]
    own_scratch: tuple[str, ...] = ()

    def array(self, shape: int, dtype: str) -> str:
        """A new array of a thread's own, as text."""
        return f"{self.empty}({shape}, {dtype})"


NJIT = Dialect(
    "numba_words import *  # python_words has the same, without compiling", "@njit", "@njit",
    ("args", "begin", "end", "scratch"), "range(begin, end)", "np.empty", columns_of,
)  # fmt: skip
"""For the launch table: a kernel is given its args, the tasks from ``begin`` to ``end``, and scratch memory."""


def cuda_jit(words: int) -> Dialect:
    """For a grid of threads, each of which takes every so many-th task.

    A kernel is given its args: behind ``words`` of its own the number of tasks, then, where it asks for it, the address
    of scratch memory and how much of it a thread has.
    """
    scratch = f"scratch = args[{words + 1}] + cuda.grid(1) * args[{words + 2}]  # of this thread's own"
    return Dialect(
        "cuda.words import *", "@cuda_jit", "@cuda_jit(device=True)", ("args",),
        f"range(cuda.grid(1), args[{words}], cuda.gridsize(1))", "cuda.local.array", lambda kernel: 1, (scratch,),
    )  # fmt: skip
