"""``from_jax`` and ``to_jax``: JAX itself is imported where a program asks for one of them, and nowhere else."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from volta.api.arguments import check_callable
from volta.core.boundary import boundary
from volta.core.source import at_user_line

Numbers = int | Sequence[int] | None
Names = str | Sequence[str] | None


@boundary
def from_jax(
    fun: Callable[..., Any], *, static_argnums: Numbers = None, static_argnames: Names = None
) -> Callable[..., Any]:
    """A function written for JAX, as it is, as one of Volta's.

    JAX traces ``fun``, once for each kind of arguments; the program that it gives, with the derivatives that ``fun``
    itself asks JAX for, is translated operation by operation and runs as any program of Volta's: on the CPU and on GPUs
    with the same bits. The function that is returned is jitted, and may be jitted, differentiated and mapped by Volta.
    Derivative rules that ``fun`` has are kept. docs/jax.md says what is translated.

    Args:
        fun: from pytrees of arrays to pytrees of arrays. Classes that JAX knows as pytrees (of flax, optax, equinox)
            are pytrees here too from then on.
        static_argnums, static_argnames: arguments that are no data, as of :func:`volta.jit`.

    Arguments are arrays of Volta's, of NumPy or of JAX; keys of ``jax.random`` go in as JAX makes them. dtypes are
    JAX's: unless its 64 bits are on, float64 becomes float32. Results are Volta's arrays; keys stay keys.

    Raises:
        ModuleNotFoundError: JAX is not installed.
        UnsupportedOperationError: the program has an operation that is not translated; it is named, with the line of
            ``fun`` and the way out.

    >>> import volta
    >>> f = volta.from_jax(lambda x: 2 * x)
    >>> f(volta.numpy.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """
    check_callable(fun, "from_jax")
    return _jaxprs("from_jax").inward.from_jax(fun, static_argnums, static_argnames)


@boundary
def to_jax(fun: Callable[..., Any], *, vmap_method: str = "sequential") -> Callable[..., Any]:
    """A function of Volta's as one that JAX's programs may call: under ``jax.jit``, ``jax.grad`` and ``jax.vmap``.

    JAX calls back into Python, and Volta computes: arrays are copied to the host and back, on GPUs too, and a call
    costs some hundred microseconds besides: give JAX large pieces of work. Shapes come from :func:`volta.eval_shape`;
    derivatives are Volta's, and reverse ones only (a ``jax.custom_vjp``); the forward computation is done again for
    them. Bits are Volta's.

    Args:
        fun: from pytrees of arrays to pytrees of arrays.
        vmap_method: how ``jax.vmap`` maps it: 'sequential' (a call for each example) or 'broadcast_all' (one call for
            all of them, which ``volta.vmap`` maps: the same bits, faster).

    Raises:
        ModuleNotFoundError: JAX is not installed.
        ArgumentError: ``vmap_method`` is neither.

    >>> import volta
    >>> f = volta.to_jax(lambda x: volta.numpy.sum(x * x))
    >>> import jax
    >>> jax.grad(f)(jax.numpy.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """
    check_callable(fun, "to_jax")
    return _jaxprs("to_jax").outward.to_jax(fun, vmap_method)


def _jaxprs(name: str) -> Any:
    """The package that imports JAX."""
    if any(getattr(each, "__module__", None) == "volta.interop.jax_names.finder" for each in sys.meta_path):
        raise ModuleNotFoundError(
            at_user_line(f"{name} needs JAX itself, and in this process `import jax` means Volta (volta.as_jax)")
        )
    try:
        importlib.import_module("jax")
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            at_user_line(f"{name} needs JAX, which cannot be imported ({missing}): pip install jax")
        ) from None
    return importlib.import_module("volta.interop.jaxprs")
