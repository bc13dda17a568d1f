"""Functions of single elements or slices, applied to whole arrays by :func:`volta.vmap`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from volta.api.vmap import vmap
from volta.core import pytrees
from volta.core.array import Array, ArrayLike
from volta.core.boundary import boundary
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.numpy import shaping
from volta.numpy.creation import asarray
from volta.numpy.promotion import broadcast_shapes_of, canonical_axis

Dims = tuple[str, ...]

_NAME = r"[A-Za-z0-9_]+"
_CORE = rf"\((?:{_NAME}(?:,{_NAME})*)?,?\)"
_SIGNATURE = re.compile(rf"^{_CORE}(?:,{_CORE})*->{_CORE}(?:,{_CORE})*$")


def _parse(signature: str) -> tuple[list[Dims], list[Dims]]:
    text = re.sub(r"\s+", "", signature)
    if not _SIGNATURE.match(text):
        raise ValueError(at_user_line(f"vectorize: not a signature such as '(m,n),(n)->(m)': {signature!r}"))
    sides = text.split("->")
    ins, outs = ([tuple(re.findall(_NAME, core)) for core in re.findall(_CORE, side)] for side in sides)
    return ins, outs


def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Collection[int | str] = (), signature: str | None = None
) -> Callable[..., Any]:
    """A function of scalars (or of the core axes that ``signature`` names) as one of arrays, which broadcast.

    Positions and keywords in ``excluded`` are passed on as they are. It is traced once, through :func:`volta.vmap`, so
    that it differentiates and compiles.

    >>> import volta.numpy as vnp
    >>> f = vectorize(lambda row, v: (row * v).sum(), signature="(k),(k)->()")
    >>> f(vnp.ones((2, 3)), vnp.arange(3.0))
    Array([3., 3.], dtype=float32)
    """
    if any(not isinstance(e, (int, str)) for e in excluded):
        raise TypeError(at_user_line(f"vectorize: excluded are positions and keywords, not {excluded!r}"))
    cores = None if signature is None else _parse(signature)

    @functools.wraps(pyfunc, updated=())
    @boundary
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        mapped = [i for i in range(len(args)) if i not in excluded]
        names = [k for k in kwargs if k not in excluded]
        if names and cores is not None:
            raise TypeError(
                at_user_line(f"vectorize: keyword {names[0]!r} cannot be mapped with a signature; exclude it")
            )
        arrays = [asarray(args[i]) for i in mapped] + [asarray(kwargs[k]) for k in names]

        def core(*items: Any) -> Any:
            full, named = list(args), dict(kwargs)
            for i, x in zip(mapped, items, strict=False):
                full[i] = x
            named.update(zip(names, items[len(mapped) :], strict=True))
            out = pyfunc(*full, **named)
            if cores is not None:
                _check_outputs(out, cores[1], sizes)
            return out

        ins: list[Dims] = [()] * len(arrays) if cores is None else cores[0]
        if len(ins) != len(arrays):
            raise TypeError(at_user_line(f"vectorize: {signature!r} is for {len(ins)} arrays, got {len(arrays)}"))
        sizes: dict[str, int] = {}
        for x, dims in zip(arrays, ins, strict=True):
            _bind(x.shape, dims, sizes)
        outer = [x.shape[: x.ndim - len(dims)] for x, dims in zip(arrays, ins, strict=True)]
        shape = broadcast_shapes_of("vectorize", outer)
        f: Callable[..., Any] = core
        for k in range(1, len(shape) + 1):  # from the innermost axis: counted from the end, -k
            here = [len(s) >= k and (s[-k] != 1 or shape[-k] == 1) for s in outer]
            f = vmap(f, in_axes=tuple(0 if h else None for h in here))
        # axes of size 1 that others broadcast are dropped: vmap hands such operands on whole
        squeezed = [
            shaping.reshape(
                x, tuple(n for n, m in zip(s, shape[len(shape) - len(s) :], strict=True) if n == m) + x.shape[len(s) :]
            )
            for x, s in zip(arrays, outer, strict=True)
        ]
        return pytrees.map(asarray, f(*squeezed))

    return wrapped


def _bind(shape: tuple[int, ...], dims: Dims, sizes: dict[str, int]) -> None:
    if len(shape) < len(dims):
        raise ShapeError(at_user_line(f"vectorize: an operand of shape {shape} has fewer axes than its core {dims}"))
    for label, n in zip(dims, shape[len(shape) - len(dims) :], strict=True):
        if sizes.setdefault(label, int(label) if label.isdigit() else n) != n:
            raise ShapeError(at_user_line(f"vectorize: core axis {label!r} has the sizes {sizes[label]} and {n}"))


def _check_outputs(out: Any, cores: Sequence[Dims], sizes: dict[str, int]) -> None:
    items = out if isinstance(out, tuple) else (out,)
    if len(items) != len(cores):
        raise TypeError(at_user_line(f"vectorize: the function gave {len(items)} outputs, the signature {len(cores)}"))
    for x, dims in zip(items, cores, strict=True):
        shape = shaping.shape(x)
        if len(shape) != len(dims):
            raise ShapeError(at_user_line(f"vectorize: an output of shape {shape} does not have the core axes {dims}"))
        _bind(shape, dims, sizes)


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: ArrayLike, *args: Any, **kwargs: Any) -> Array:
    """``func1d`` of each vector of ``arr`` along ``axis``; its output's axes take that axis' place.

    >>> import volta.numpy as vnp
    >>> apply_along_axis(vnp.sum, 0, vnp.ones((3, 2)))
    Array([3., 3.], dtype=float32)
    """
    arr = asarray(arr)
    axis = canonical_axis("apply_along_axis", axis, arr.ndim)
    f: Callable[..., Any] = lambda x: func1d(x, *args, **kwargs)  # noqa: E731
    for _ in range(arr.ndim - 1 - axis):
        f = vmap(f, in_axes=1, out_axes=-1)
    for _ in range(axis):
        f = vmap(f)
    return f(arr)


def apply_over_axes(func: Callable[[Any, int], Any], a: ArrayLike, axes: Any) -> Array:
    """``func(a, axis)`` for one axis after the other; an axis that is gone afterwards comes back with size 1.

    >>> import volta.numpy as vnp
    >>> apply_over_axes(vnp.sum, vnp.ones((2, 3)), [0, 1]).shape
    (1, 1)
    """
    a = asarray(a)
    for axis in (axes,) if isinstance(axes, int) else axes:
        axis = canonical_axis("apply_over_axes", axis, a.ndim)
        out = func(a, axis)
        lost = a.ndim - shaping.ndim(out)
        a = shaping.expand_dims(out, axis) if lost == 1 else out
        if lost not in (0, 1):
            raise ShapeError(at_user_line("apply_over_axes: the function must keep the number of axes or drop one"))
    return a
