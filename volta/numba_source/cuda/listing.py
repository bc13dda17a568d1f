"""The kernels of a plan on a GPU for who reads them: one text for all, and the text of one."""

from __future__ import annotations

from volta.numba_cuda.device_plan import DevicePlan
from volta.numba_cuda.launches import every
from volta.numba_source.cuda.launches import TextSource
from volta.numba_source.dialects import cuda_jit
from volta.numba_source.highlighted import PythonText
from volta.numba_source.listing import comments, described, listed, named
from volta.numba_source.text import Module


def listing(plan: DevicePlan) -> PythonText:
    """The plan as comments, then every kernel behind the launches that run it: a module of Python.

    What decides about loops, and functions of the user's own, have no text: they are named.
    """
    module, kernels = Module(cuda_jit(0)), []
    for launch in {x.source.name: x for x in every(plan.launches)}.values():
        source = launch.source
        if isinstance(source, TextSource):
            runs = [(i, x.source) for i, x in enumerate(plan.launches) if x.source.name == source.name]
            said = [described(f"launch {i}", plan, x.call) for i, x in runs if isinstance(x, TextSource)]
            kernels.append("\n".join([*comments(said), source.kernel(module).function]))
        else:
            kernels.append(f"# {launch.label}: {source.name}, which has no text")
    return listed(plan.as_text(), module, kernels)


def source(plan: DevicePlan, kernel: str) -> PythonText:
    """The text of one kernel, as a module of its own."""
    return PythonText(found(plan, kernel).kernel().source)


def found(plan: DevicePlan, kernel: str) -> TextSource:
    """The text that is named, or whose name alone has this part."""
    return named(
        plan, kernel, {x.source.name: x.source for x in every(plan.launches) if isinstance(x.source, TextSource)}
    )
