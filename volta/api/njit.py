"""``volta.njit``: a compiled program as a function that code compiled by Numba calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from volta.api.stages import Compiled
from volta.core import dtypes
from volta.core.boundary import boundary
from volta.core.errors import DeviceError, KernelError
from volta.core.extended import is_key
from volta.core.source import at_user_line
from volta.numba_cpu.host_plan import HostPlan
from volta.numba_cpu.inside import function_of
from volta.runtime.spread import SpreadExecutable


@boundary
def njit(compiled: Compiled) -> Callable[..., Any]:
    """A compiled program as an ``@njit`` function, which your own ``@njit`` functions call, also in ``prange``.

    It takes the leaves of the program's arguments, in their order, as NumPy arrays (any layout; what is not contiguous
    is copied) and, where they have rank 0, as numbers; it gives a new array for each leaf of the output, a number where
    that has rank 0, and a tuple where there are several. Another dtype or rank is an error when Numba compiles the
    call, another shape a ValueError when it is called. It runs LLVM's kernels on the calling thread, with the program's
    bits; what your code computes around it has the bits of Numba and of your machine.

    Args:
        compiled: what ``volta.jit(f).lower(*args).compile()`` gives, for the CPU and without donated arguments.

    Raises:
        KernelError: it is no compiled program, donates arguments, or takes or gives float16, bfloat16 or complex
            numbers.
        DeviceError: it is compiled for a GPU, or for several workers.
        UnsupportedOperationError: it calls Python functions.

    >>> import numba
    >>> import numpy as np
    >>> import volta
    >>> step = volta.njit(volta.jit(lambda x: volta.numpy.tanh(x) * 2).lower(np.ones(3)).compile())
    >>> @numba.njit
    ... def steps(x, n):
    ...     for _ in range(n):
    ...         x = step(x)
    ...     return x
    >>> bool((steps(np.ones(3), 2) == np.asarray(volta.numpy.tanh(volta.numpy.tanh(np.ones(3)) * 2) * 2)).all())
    True
    """
    if not isinstance(compiled, Compiled):
        raise KernelError(
            at_user_line(
                f"volta.njit takes a compiled program, got {compiled!r:.60}: "
                "pass volta.jit(f).lower(*args).compile(), for arguments of the kind that it will be called with"
            )
        )
    executable, name = compiled.executable, compiled.traced.name
    plan = executable.plan  # of a program that calls Python functions there is none, which it says
    if not isinstance(plan, HostPlan):
        place = "several workers" if isinstance(executable, SpreadExecutable) else "a GPU"
        raise DeviceError(
            at_user_line(
                f"`{name}` is compiled for {place}, but code compiled by Numba runs on the CPU: compile it there"
            )
        )
    if plan.donated:
        raise KernelError(
            at_user_line(
                f"`{name}` donates arguments, but arrays of a caller in Numba stay its own: compile it without"
            )
        )
    for aval in (*compiled.traced.jaxpr.in_avals, *compiled.traced.jaxpr.out_avals):
        if is_key(aval.dtype):
            text = f"`{name}` takes or gives {aval.short()}: let it be raw keys, as random.key_data(key) gives them"
            raise KernelError(at_user_line(text))
        if dtypes.is_complex(aval.dtype):
            raise KernelError(
                at_user_line(
                    f"`{name}` takes or gives {aval.short()}, of which programs know the parts: let it take and give "
                    "x.real and x.imag, and put numbers together by lax.complex inside"
                )
            )
        if aval.dtype.name in ("float16", "bfloat16"):
            raise KernelError(
                at_user_line(
                    f"`{name}` takes or gives {aval.short()}, which Numba does not know on the CPU: convert inside of "
                    "the program, with x.astype('float32')"
                )
            )
    consts = tuple(c.numpy() for c in executable.program.consts)
    return function_of(plan, consts, name, executable)
