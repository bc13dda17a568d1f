"""Names and keywords that people look for and that are not there: what to write instead, said where they look.

Each public namespace has ``__getattr__ = absent(__name__)``; :data:`WAYS` holds what it says, by namespace. Transforms
are under :func:`explains_keywords`, which says what :data:`KEYWORDS` holds, by transform.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from volta.core.source import at_user_line

P = ParamSpec("P")
R = TypeVar("R")

_RULE = (
    "derivative rules of your own are planned. Until then f(x) with the derivative of g(x) is "
    "stop_gradient(f(x)) + (g(x) - stop_gradient(g(x))), with volta.lax.stop_gradient"
)
_DEVICES = (
    "programs over several devices are planned. Until then volta.device_put(x, 'cuda:1') puts data on a device, and a "
    "jitted call runs where its arguments are"
)
_INSIDE = (
    "a compiled program calls nothing outside of itself. Return the value, or run under volta.disable_jit(), where "
    "every operation runs by itself and print shows numbers"
)
_NANS = (
    "nothing looks for NaN while a program runs. Run it under volta.disable_jit() and test with "
    "volta.numpy.isfinite(x).all() where it may arise"
)
_SWITCHES = "there are no global switches; docs/settings.md lists the settings, volta.execution_context sets a block's"
_FLOAT64 = "float64 is always there: ask for it by dtype"
_INTEGERS = "integers have no tangents: name the float arguments with argnums"
_COMPLEX = "there are no complex dtypes; keep the real and the imaginary part as two arrays"
_MATRICES = (
    "decompositions and solvers are planned. Outside of traced functions use NumPy's or SciPy's on numpy.asarray(x)"
)
_CONVOLUTION = "convolutions and windows are planned; volta.numpy.convolve has those of one dimension"
_REJECTION = (
    "this distribution needs a compiled loop, which is planned; sample it with NumPy or SciPy, and pass the result"
)
_COLLECTIVE = "collectives are planned with programs over several devices; sum over a mapped axis outside of vmap"


def _each(way: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), way)


WAYS: dict[str, dict[str, str]] = {
    "volta": {
        **_each(_RULE, "custom_jvp custom_vjp custom_gradient"),
        **_each(_DEVICES, "pmap shard_map make_mesh set_mesh NamedSharding sharding"),
        **_each(_INSIDE, "debug pure_callback experimental"),
        **_each(_NANS, "debug_nans debug_infs"),
        **_each(_SWITCHES, "config"),
        **_each(_FLOAT64, "enable_x64"),
        **_each(
            "it is volta.tree.map, volta.tree.leaves and so on", "tree_map tree_leaves tree_flatten tree_unflatten"
        ),
        "checkpoint_policies": "checkpoint recomputes all of its function; give it the parts to recompute",
        "export": "a jitted function's .lower(*args) gives its program and plan; `volta offline` writes GPU kernels",
        "named_call": "it is volta.named_scope",
    },
    "volta.ops": {
        **{name: f"it is volta.nn.{name}" for name in ("segment_sum", "segment_prod", "segment_max", "segment_min")},
    },
    "volta.lax": {
        **_each(_CONVOLUTION, "conv conv_general_dilated conv_transpose conv_with_general_padding reduce_window"),
        **_each(_RULE, "custom_root custom_linear_solve"),
        **_each(_COLLECTIVE, "psum pmean pmax pmin all_gather all_to_all ppermute psum_scatter axis_index axis_size"),
        **_each(_COMPLEX, "complex conj fft"),
        **{f"scatter_{op}": f"it is x.at[indices].{op}(updates)" for op in ("add", "mul", "min", "max")},
        **_each(_MATRICES, "linalg"),
    },
    "volta.numpy": {
        **_each(_COMPLEX, "complex64 complex128 csingle cdouble complex_ fft"),
        **_each(_MATRICES, "polyfit roots"),
        **_each("arrays have one layout: it is volta.numpy.asarray", "asanyarray ascontiguousarray asfortranarray"),
        "random": "random numbers come from keys: volta.random.normal(volta.random.key(0), (3,))",
        "copyto": "arrays are immutable: x = x.at[...].set(y), or volta.numpy.where(mask, y, x)",
        "trapz": "it is volta.numpy.trapezoid",
        "in1d": "it is volta.numpy.isin",
        "row_stack": "it is volta.numpy.vstack",
    },
    "volta.numpy.linalg": {
        **_each(
            _MATRICES,
            "cholesky cond det eig eigh eigvals eigvalsh inv lstsq matrix_rank pinv qr slogdet solve svd svdvals "
            "tensorinv tensorsolve",
        ),
    },
    "volta.random": {
        **_each(_REJECTION, "gamma loggamma beta binomial chisquare dirichlet f multinomial poisson t wald"),
        **_each(_MATRICES, "multivariate_normal orthogonal"),
    },
}

_AXIS = "axes of vmap have no names, since collectives are planned; sum over the mapped axis outside of vmap"
_SHARDED = "programs over several devices are planned; a jitted call runs where its arguments are"
_PLACED = "a jitted call runs where its arguments are: volta.device_put(x, 'cuda:0')"

KEYWORDS: dict[str, dict[str, str]] = {
    "jit": {
        **_each(_PLACED, "backend device"),
        **_each(_SHARDED, "in_shardings out_shardings axis_resources"),
        "abstracted_axes": "each shape has its own program; pad to a few shapes to have few of them",
        "compiler_options": "volta.execution_context(level=..., options=...) holds what a compilation is for",
    },
    "vmap": {
        **_each(_AXIS, "axis_name spmd_axis_name"),
        "sum_match": "sum over the mapped axis outside of vmap",
    },
    "checkpoint": {
        "policy": "checkpoint recomputes all of its function: put it around the parts to recompute",
        "concrete": "mark settings with static_argnums",
    },
    **{name: {"reduce_axes": _AXIS} for name in ("grad", "value_and_grad", "vjp")},
    **{name: {"holomorphic": _COMPLEX, "allow_int": _INTEGERS} for name in ("jacfwd", "jacrev", "hessian")},
    "make_jaxpr": {
        "axis_env": _AXIS,
        "abstracted_axes": "each shape has its own program: pass volta.ShapeDtypeStruct of the shapes you mean",
    },
}


def explains_keywords(transform: Callable[P, R]) -> Callable[P, R]:
    """``transform``, which says of a keyword that it does not have what to do instead."""
    code, name = transform.__code__, transform.__name__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(transform)
    def explaining(*args: P.args, **kwargs: P.kwargs) -> R:
        for word in kwargs:
            if word not in known:
                way = KEYWORDS.get(name, {}).get(word, f"it has {', '.join(known[1:])}")
                raise TypeError(at_user_line(f"{name}: there is no keyword {word!r}: {way}"))
        return transform(*args, **kwargs)

    return explaining


def absent(module: str) -> Callable[[str], Any]:
    """A module's ``__getattr__``: an AttributeError that says what to do where the name is one of :data:`WAYS`."""

    def get(name: str) -> NoReturn:
        way = WAYS[module].get(name)
        raise AttributeError(
            f"module {module!r} has no attribute {name!r}" + (f": {way}" if way else ""),
            name=name,
            obj=sys.modules[module],
        )

    return get
