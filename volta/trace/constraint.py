"""How a value is to lie on workers, as an equation: it returns its operand, and on one worker it is nothing.

It carries the program that returns its argument, so that where a program is not cut it is inlined away.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from volta.core.avals import ShapedArray
from volta.core.interp import get_aval
from volta.core.ir import ClosedJaxpr, Jaxpr, Var
from volta.core.sharding import NamedSharding, PartitionSpec
from volta.ops.primitive import Linear, Zero
from volta.trace.meaning import means_its_program
from volta.xla_like.partition.partition import CONSTRAINT


@lru_cache(maxsize=1024)
def _same(aval: ShapedArray) -> ClosedJaxpr:
    var = Var(aval)
    return ClosedJaxpr(Jaxpr((), (var,), (), (var,)), ())


def constrain(x: Any, sharding: NamedSharding) -> Any:
    """``x`` as one equation that says how it is to lie. Raises ShardingError where it cannot be cut so."""
    aval = get_aval(x)
    sharding.layout(aval.shape, "with_sharding_constraint: an array")
    (out,) = constraint_p.bind(x, jaxpr=_same(aval), name=CONSTRAINT, sharding=sharding)
    return out


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, sharding: NamedSharding, **params: Any) -> Any:
    (x,), (t,) = primals, tangents
    return [constrain(x, sharding)], [t if isinstance(t, Zero) else constrain(t, sharding)]


def _transpose(cts: Sequence[Any], x: Linear, *, sharding: NamedSharding, **params: Any) -> list[Any]:
    (ct,) = cts
    return [None if isinstance(ct, Zero) else constrain(ct, sharding)]


def _batch(
    args: Sequence[Any], dims: Sequence[int | None], trace: Any, *, sharding: NamedSharding, **params: Any
) -> Any:
    """The mapped axis is not cut."""
    (x,), (dim,) = args, dims
    assert dim is not None
    entries = [sharding.spec[d] if d < len(sharding.spec) else None for d in range(get_aval(x).ndim - 1)]
    entries.insert(dim, None)
    bounds = {d + (d >= dim): at for d, at in sharding.bounds}
    return [constrain(x, NamedSharding(sharding.mesh, PartitionSpec(*entries), bounds=bounds))], [dim]


def _linearize(nonzero: Sequence[bool], x: Any, *, sharding: NamedSharding, **params: Any) -> Any:
    return [constrain(x, sharding)], tuple(nonzero), lambda *live: [constrain(t, sharding) for t in live]


constraint_p = means_its_program(
    CONSTRAINT,
    jvp=_jvp,
    batch=_batch,
    linearize=_linearize,
    transpose=_transpose,
    doc="Its operand, which is to lie on the devices of a mesh in a given way.",
)
