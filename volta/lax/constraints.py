"""Where values of a program lie, if it runs on several workers."""

from __future__ import annotations

from typing import Any

from volta.api.shardings import prefix, put
from volta.core import pytrees

__all__ = ["with_sharding_constraint"]


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """``x``, which is to lie on the devices of a mesh as told: a ``NamedSharding``, or a pytree prefix of them.

    In a jitted function it says where a value is cut; it never changes a bit. Outside it is ``device_put``.

    Raises:
        ShardingError: a value cannot be cut so.

    >>> import volta
    >>> from volta.sharding import NamedSharding, PartitionSpec as P, make_mesh
    >>> rows = NamedSharding(make_mesh((1,), ("data",)), P("data"))
    >>> volta.jit(lambda x: volta.lax.with_sharding_constraint(x * 2, rows))(volta.numpy.arange(3)).tolist()
    [0, 2, 4]
    """
    leaves, tree = pytrees.flatten(x)
    wanted = prefix(shardings, x, "with_sharding_constraint")
    return pytrees.unflatten(tree, [v if s is None else put(v, s) for v, s in zip(leaves, wanted, strict=True)])
