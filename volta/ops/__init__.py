"""The vocabulary: every primitive, defined once, by family. Importing this package fills the registry."""

from volta.ops import lax
from volta.ops.primitive import REGISTRY, Primitive

__all__ = ["REGISTRY", "Primitive", "lax"]
