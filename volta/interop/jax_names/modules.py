"""The one table: a module of JAX's -> where its names are found. The first place that has a name gives it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import attrs

import volta
from volta.core.absent import way
from volta.interop.jax_names import gradients, internals, own, partial, primitives, shapes
from volta.scipy.stats.distribution import Distribution


@attrs.frozen
class Answer:
    """What answers for a module: names of its own, then a namespace of Volta's (or a distribution, which JAX has as
    a module)."""

    names: dict[str, Any]
    namespace: Any = None
    internal: bool = False  # names that are not there are stand-ins, which say so where they are used

    def public(self) -> list[str]:
        shared = getattr(self.namespace, "__all__", None)
        if shared is None:
            shared = [name for name in dir(self.namespace) if not name.startswith("_")] if self.namespace else []
        return [*self.names, *(name for name in shared if name not in self.names)]


_VOLTAS = frozenset("io kernel njit numba optim train".split())
"""Names of Volta's at the top that JAX does not have."""


def _namespaces(module: str, namespace: Any) -> dict[str, Answer]:
    """The namespaces below one, under JAX's names of them."""
    found = {}
    for name in getattr(namespace, "__all__", ()):
        value, inside = getattr(namespace, name), f"{module}.{name}"
        if isinstance(value, Distribution):
            found[inside] = Answer({}, value)
        elif isinstance(value, ModuleType) and not (module == "jax" and name in _VOLTAS):
            found[inside] = Answer({}, value)
            found |= _namespaces(inside, value)
    return found


_ARRAY_API = {name: getattr(volta.numpy, name) for name in ("__array_api_version__", "__array_namespace_info__")}

ANSWERS: dict[str, Answer] = {
    **_namespaces("jax", volta),
    "jax": Answer(own.JAX, volta),
    "jax._src": Answer({}, internal=True),
    "jax._src.dispatch": Answer(internals.DISPATCH, internal=True),
    "jax._src.dtypes": Answer({"TypePromotionError": volta.errors.DTypeError}, internal=True),
    "jax._src.traceback_util": Answer(internals.TRACEBACKS, internal=True),
    "jax.ad_checkpoint": Answer({"checkpoint": volta.checkpoint, "remat": volta.remat}, volta.ad_checkpoint),
    "jax.api_util": Answer(partial.API_UTIL, internal=True),
    "jax.core": Answer(own.CORE, internal=True),
    "jax.dtypes": Answer(own.DTYPES, getattr(volta, "dtypes", None)),
    "jax.experimental.hijax": Answer({}, internal=True),
    "jax.experimental.array_api": Answer(_ARRAY_API, volta.numpy),
    "jax.experimental.jet": Answer(shapes.JET, volta.experimental.jet),
    "jax.experimental.layout": Answer({}, internal=True),
    "jax.experimental.pjit": Answer({"pjit": volta.jit}),
    "jax.experimental.shard_map": Answer({"shard_map": volta.shard_map}),
    "jax.extend": Answer({}),
    "jax.extend.core": Answer({**own.CORE, **primitives.CORE}, internal=True),
    "jax.extend.linear_util": Answer(partial.LINEAR_UTIL, internal=True),
    "jax.extend.source_info_util": Answer(internals.TRACEBACKS, internal=True),
    "jax.interpreters": Answer({}),
    "jax.interpreters.ad": Answer(primitives.AD, internal=True),
    "jax.interpreters.batching": Answer(primitives.BATCHING, internal=True),
    "jax.interpreters.mlir": Answer(internals.MLIR, internal=True),
    "jax.interpreters.partial_eval": Answer({**internals.PARTIAL_EVAL, **partial.PARTIAL_EVAL}, internal=True),
    "jax.interpreters.xla": Answer({}, internal=True),
    "jax.lax": Answer({**own.LAX, **shapes.LAX}, volta.lax),
    "jax.monitoring": Answer(dict.fromkeys(("record_event", "record_event_duration_secs"), internals.accepted)),
    "jax.nn": Answer(own.NN, volta.nn),
    "jax.nn.initializers": Answer({"Initializer": Callable}, volta.nn.initializers),
    "jax.ops": Answer(own.OPS),
    "jax.numpy": Answer({**own.NUMPY, **_ARRAY_API}, volta.numpy),
    "jax.random": Answer(own.RANDOM, volta.random),
    "jax.sharding": Answer(own.SHARDING, volta.sharding),
    "jax.stages": Answer({}, internal=True),
    "jax.test_util": Answer(gradients.NAMES),
    "jax.typing": Answer(own.TYPING, volta.typing),
    "jax.version": Answer({"__version__": own.JAX["__version__"], "__version_info__": own.VERSION}),
}


def missing(module: str, name: str) -> str:
    """What is said of a name that a module does not have."""
    namespace = ANSWERS[module].namespace
    instead = way(namespace.__name__, name) if isinstance(namespace, ModuleType) else None
    return f"{module!r} has no {name!r} under volta.as_jax" + (f": {instead}" if instead else "")
