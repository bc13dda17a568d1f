"""The vocabulary: every primitive, defined once, by family. Importing this package fills the registry."""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.ops import complexes as _complexes  # noqa: F401 (it completes records)
from volta.ops import lax
from volta.ops.primitive import REGISTRY, Primitive

__all__ = ["REGISTRY", "Primitive", "lax"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
