"""The primitives as functions, under the names of ``jax.lax``: explicit shapes and dtypes, nothing promoted.

``volta.numpy`` is the comfortable namespace; this one is exact. Operands of an elementwise function have one dtype and
one shape (a rank-0 operand is used for every element), and a Python number takes its partner's dtype.

>>> lax.add(np.float32([1, 2]), 1)
Array([2., 3.], dtype=float32)
"""

from typing import TYPE_CHECKING

from volta.core.absent import namespace as _namespace
from volta.lax import linalg as linalg
from volta.ops import lax as _lax

from volta.ops.lax import *  # noqa: F403  isort: skip
from volta.lax.composites import *  # type: ignore[assignment]  # noqa: F403  isort: skip (these take their place)
from volta.lax.bit_generator import *  # noqa: F403
from volta.lax.bit_generator import __all__ as _bit_generator
from volta.lax.branches import *  # noqa: F403
from volta.lax.branches import __all__ as _branches
from volta.lax.composites import __all__ as _composites
from volta.lax.constraints import *  # noqa: F403
from volta.lax.constraints import __all__ as _constraints
from volta.lax.convolution import *  # noqa: F403
from volta.lax.convolution import __all__ as _convolution
from volta.lax.fourier import *  # noqa: F403
from volta.lax.fourier import __all__ as _fourier
from volta.lax.indexing import *  # type: ignore[assignment]  # noqa: F403
from volta.lax.indexing import __all__ as _indexing
from volta.lax.loops import *  # noqa: F403
from volta.lax.loops import __all__ as _loops
from volta.lax.parallel import *  # noqa: F403
from volta.lax.parallel import __all__ as _parallel
from volta.lax.pooling import *  # noqa: F403
from volta.lax.pooling import __all__ as _pooling
from volta.lax.reducing import *  # noqa: F403
from volta.lax.reducing import __all__ as _reducing
from volta.lax.solves import *  # noqa: F403
from volta.lax.solves import __all__ as _solves

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __all__ = sorted(
        {
            *_lax.__all__,
            *_composites,
            *_bit_generator,
            *_branches,
            *_constraints,
            *_convolution,
            *_fourier,
            *_indexing,
            *_loops,
            *_parallel,
            *_pooling,
        }
        | {*_reducing, *_solves, "linalg"}
    )
    __getattr__, __dir__ = _namespace(__name__)
