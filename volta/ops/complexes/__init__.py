"""The meaning of operations for complex numbers, as operations on their real and imaginary parts."""

from volta.ops.complexes import arithmetic as _arithmetic  # noqa: F401 (these enter their rules)
from volta.ops.complexes import functions as _functions  # noqa: F401
from volta.ops.complexes import structure as _structure  # noqa: F401
from volta.ops.complexes.pair import Pair as Pair
