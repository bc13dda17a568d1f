"""Volta: traced, differentiable, compiled array programs whose bits do not change.

>>> import volta
>>> import volta.numpy as vnp
>>> loss = lambda w: vnp.sum(w * w)
>>> volta.jit(volta.grad(loss))(vnp.arange(3.0)).tolist()
[0.0, 2.0, 4.0]
"""

from typing import TYPE_CHECKING

from volta import (
    ad_checkpoint,
    custom_batching,
    custom_derivatives,
    debug,
    distributed,
    dlpack,
    dtypes,
    errors,
    experimental,
    flatten_util,
    image,
    io,
    lax,
    models,
    nn,
    numpy,
    optim,
    random,
    scaling,
    sharding,
    train,
    tree,
    tree_util,
    typing,
)
from volta.api.arguments import ShapeDtypeStruct, float0
from volta.api.autodiff import grad, value_and_grad, vjp
from volta.api.callbacks import effects_barrier, pure_callback
from volta.api.checkpointing import checkpoint, checkpoint_policies, remat
from volta.api.closures import closure_convert, custom_gradient
from volta.api.custom_derivatives import custom_jvp, custom_vjp
from volta.api.devices import (
    block_until_ready,
    default_backend,
    device_count,
    device_get,
    device_put,
    devices,
    local_device_count,
    local_devices,
    named_scope,
    process_count,
    process_index,
)
from volta.api.forward import jvp, linearize
from volta.api.jacobian import hessian, jacfwd, jacrev
from volta.api.jit import disable_jit, jit
from volta.api.kernel import kernel
from volta.api.linear import fwd_and_bwd, linear_transpose
from volta.api.planning import plan_for
from volta.api.shard_map import shard_map
from volta.api.shardings import (
    make_array_from_callback,
    make_array_from_process_local_data,
    make_array_from_single_device_arrays,
    make_mesh,
)
from volta.api.tracing import eval_shape, make_jaxpr
from volta.api.vmap import vmap
from volta.core.absent import namespace as _namespace
from volta.core.array import Array
from volta.core.floats import imported as _imported
from volta.core.interp import Tracer
from volta.core.policy import DeterminismLevel
from volta.core.sharding import NamedSharding
from volta.core.sharding import PartitionSpec as P
from volta.core.sizes import symbolic_shape
from volta.interop.bridge import from_jax, to_jax
from volta.models.generation import generate
from volta.numpy.stretches import ds
from volta.programs.exported import Exported
from volta.programs.exporting import export
from volta.programs.reading import load_program
from volta.runtime.compile_log import log_compiles
from volta.runtime.context import ExecutionContext, current_context, default_matmul_precision, execution_context
from volta.runtime.devices import default_device
from volta.runtime.nans import debug_infs, debug_nans
from volta.version import __version__

jacobian = jacrev
_imported()

__all__ = [
    "Array",
    "DeterminismLevel",
    "ExecutionContext",
    "Exported",
    "NamedSharding",
    "P",
    "ShapeDtypeStruct",
    "Tracer",
    "__version__",
    "block_until_ready",
    "ad_checkpoint",
    "checkpoint",
    "checkpoint_policies",
    "closure_convert",
    "current_context",
    "custom_batching",
    "custom_derivatives",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "debug",
    "debug_infs",
    "debug_nans",
    "default_backend",
    "default_device",
    "default_matmul_precision",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "disable_jit",
    "distributed",
    "dlpack",
    "dtypes",
    "ds",
    "effects_barrier",
    "errors",
    "eval_shape",
    "execution_context",
    "experimental",
    "export",
    "flatten_util",
    "float0",
    "from_jax",
    "fwd_and_bwd",
    "generate",
    "get_num_threads",
    "grad",
    "hessian",
    "image",
    "io",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "kernel",
    "lax",
    "linear_transpose",
    "linearize",
    "load_program",
    "local_device_count",
    "local_devices",
    "log_compiles",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "make_jaxpr",
    "make_mesh",
    "models",
    "named_scope",
    "njit",
    "nn",
    "numpy",
    "optim",
    "plan_for",
    "process_count",
    "process_index",
    "pure_callback",
    "random",
    "remat",
    "scaling",
    "scipy",
    "set_num_threads",
    "shard_map",
    "sharding",
    "symbolic_shape",
    "to_jax",
    "train",
    "tree",
    "tree_util",
    "typing",
    "value_and_grad",
    "vjp",
    "vmap",
]

if TYPE_CHECKING:  # so that a type checker knows which names there are
    from volta import scipy
    from volta.api.njit import njit
    from volta.numba_cpu.threads import get_num_threads, set_num_threads
else:  # what compiles comes with the first program, SciPy's functions with the first of them
    __getattr__, __dir__ = _namespace(
        __name__,
        scipy="volta.scipy",
        njit="volta.api.njit",
        get_num_threads="volta.numba_cpu.threads",
        set_num_threads="volta.numba_cpu.threads",
    )
