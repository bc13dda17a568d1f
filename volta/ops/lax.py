"""Every operation as a function: what derivative rules, volta.numpy, volta.random and volta.nn are written with.

The functions stand beside their records, in the modules of their families. Each module lists in ``__all__`` those that
are for users, and this one gathers them. Operands are arrays, tracers, NumPy arrays or Python numbers (which take their
partner's dtype); nothing is promoted or broadcast but rank-0 operands.
"""

import typing as _typing

from volta.core.policy import DotAlgorithm as DotAlgorithm
from volta.core.policy import DotAlgorithmPreset as DotAlgorithmPreset
from volta.core.policy import Precision as Precision
from volta.ops.arithmetic import *  # noqa: F403
from volta.ops.assembly import *  # noqa: F403
from volta.ops.attention import *  # noqa: F403
from volta.ops.contraction import *  # noqa: F403
from volta.ops.dynamic import *  # noqa: F403
from volta.ops.indexing import *  # noqa: F403
from volta.ops.movement import *  # noqa: F403
from volta.ops.powers import *  # noqa: F403
from volta.ops.reduction import *  # noqa: F403
from volta.ops.selection import *  # noqa: F403
from volta.ops.shaping import *  # noqa: F403
from volta.ops.sorting import *  # noqa: F403
from volta.ops.transcendental import *  # noqa: F403

if not _typing.TYPE_CHECKING:  # a type checker exports what came by a star
    __all__ = [name for name in sorted(globals()) if not name.startswith("_")]
