"""JAX's programs as Volta's and the other way round. Everything that imports JAX is in this folder."""

from volta.interop.jaxprs import inward as inward
from volta.interop.jaxprs import outward as outward
