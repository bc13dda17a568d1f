"""How arrays are cut over workers: meshes of devices with named axes, and what an array is cut along.

>>> from volta.sharding import NamedSharding, PartitionSpec as P, make_mesh
>>> mesh = make_mesh((1,), ("data",))
>>> volta.device_put(volta.numpy.arange(4.0), NamedSharding(mesh, P("data"))).sharding.spec
PartitionSpec('data',)
"""

from typing import TYPE_CHECKING

from volta.api.shardings import make_mesh
from volta.core.absent import namespace as _namespace
from volta.core.sharding import Mesh, NamedSharding, PartitionSpec, Shard, SingleDeviceSharding

__all__ = ["Mesh", "NamedSharding", "PartitionSpec", "Shard", "SingleDeviceSharding", "make_mesh"]

if not TYPE_CHECKING:  # so that a type checker still knows which names there are
    __getattr__, __dir__ = _namespace(__name__)
