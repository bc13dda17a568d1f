"""From a kernel's description to its text: for a launch table, or for the grid of a GPU (`dialects`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from volta.core.errors import UnsupportedOperationError
from volta.numba_source import attentions, dots, ordering, scatters
from volta.numba_source.dialects import NJIT, Dialect
from volta.numba_source.loops import combine_text, loop_text
from volta.numba_source.text import Module, function_text
from volta.xla_like.kernels import Kernel, KernelCall, LibraryKernel, kernel_class, kernel_name


@attrs.frozen(eq=False)
class KernelText:
    """One kernel as Python: its function, and the functions and tables that this one calls, all by name."""

    name: str
    identity: str  # the kernel's own text: that of two kernels is never the same
    function: str
    functions: Mapping[str, str]
    tables: Mapping[str, str]
    dialect: Dialect = NJIT

    @property
    def source(self) -> str:
        """Everything, as a module that can be run: tables, functions, then the kernel."""
        return module_text(self.dialect, [*self.tables.values()], [*self.functions.values(), self.function])


def module_text(dialect: Dialect, tables: Sequence[str], functions: Sequence[str]) -> str:
    """A module of these tables and functions."""
    words = f"from volta.numba_source.{dialect.words}"
    return "\n\n\n".join(["\n".join([words, *tables]), *functions]) + "\n"


Text = Callable[[Any, Module, Mapping[int, str]], list[str]]

KERNELS: dict[str, Text] = {
    "loop": loop_text,
    "combine": combine_text,
    "attention": attentions.attention_text,
    "attention_backward": attentions.attention_backward_text,
    "attention_dkv": attentions.attention_dkv_text,
    "attention_dq": attentions.attention_dq_text,
    "epilogue": ordering.epilogue_text,
    "dot": dots.dot_text,
    "dot_pack": dots.dot_pack_text,
    "dot_row": dots.dot_text,
    "scan": ordering.scan_text,
    "scatter": scatters.scatter_text,
    "scatter_count": scatters.scatter_count_text,
    "scatter_few": scatters.scatter_few_text,
    "scatter_place": scatters.scatter_place_text,
    "scatter_starts": scatters.scatter_starts_text,
    "sort": ordering.sort_text,
}
"""By class of kernel: ``text(spec, module, notes)`` gives the lines of the function."""

ON_GRIDS: dict[str, Text] = {"dot_element": dots.dot_element_text}
"""Those that grids alone run."""


def text_of_kernel(call: KernelCall, module: Module | None = None) -> KernelText:
    """The text of a call's kernel; beside its operations stand the user's lines. ``module`` collects what it calls, and
    says in which dialect it is.

    Raises:
        UnsupportedOperationError: for a kernel that has no text.
    """
    kernel, module = call.kernel, Module() if module is None else module
    name, notes = kernel_name(kernel), _notes(call)
    spec, dialect = kernel.spec if isinstance(kernel, LibraryKernel) else kernel, module.dialect
    body = _text(kernel, call.label)(spec, module, notes)
    function = function_text(dialect.kernel, name, dialect.parameters, body, _said(kernel))
    return KernelText(name, kernel.text(), function, module.functions, module.tables, dialect)


def _notes(call: KernelCall) -> dict[int, str]:
    """Beside each value the user's line that asks for it."""
    found = ((i, source) for i, source in enumerate(call.sources) if source is not None)
    return {i: f"{source}{': ' + source.text() if source.text() else ''}" for i, source in found}


def has_text(kernel: Kernel) -> bool:
    """Whether a kernel of the CPU has one."""
    return kernel_class(kernel) in KERNELS


def _text(kernel: Kernel, label: str) -> Text:
    name = kernel_class(kernel)
    found = KERNELS.get(name) or ON_GRIDS.get(name)
    if found is None:
        raise UnsupportedOperationError(
            f"kernel {name!r}{f' of {label}' if label else ''} has no text for Numba: leave the execution "
            "context's kernels at 'llvm' for it"
        )
    return found


def _said(kernel: Kernel) -> str:
    """The docstring: what the plan's text says of the kernel."""
    return kernel.text().replace("\n", "\n    ")
