"""Functions of elements with NumPy's methods, made of any function of Python's: :func:`frompyfunc`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from volta.core.array import Array, ArrayLike
from volta.core.errors import ShapeError
from volta.core.source import at_user_line
from volta.lax.loops import scan
from volta.numpy import binary, shaping
from volta.numpy.creation import array, asarray, full
from volta.numpy.promotion import canonical_axis, is_number
from volta.numpy.taking import where
from volta.numpy.vectorizing import vectorize

Function = Callable[[Any, Any], Any]


class _Kind(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return callable(x) and all(hasattr(x, name) for name in ("nin", "nout", "identity", "outer"))


class ufunc(metaclass=_Kind):  # noqa: N801 - NumPy's name
    """A function of elements with NumPy's methods. :func:`frompyfunc` makes one.

    The functions of two arrays in this namespace (``add``, ``maximum``, …) are plain functions with these attributes;
    they count as instances.

    >>> import volta.numpy as vnp
    >>> isinstance(vnp.add, vnp.ufunc), vnp.add.nin, vnp.add.identity
    (True, 2, 0)
    """

    def __init__(self, func: Callable[..., Any], nin: int, nout: int, *, identity: Any = None) -> None:
        self.__name__ = getattr(func, "__name__", type(func).__name__)
        self.__doc__ = getattr(func, "__doc__", None)
        self.nin, self.nout, self.nargs, self.identity = nin, nout, nin + nout, identity
        self._func, self._call = func, vectorize(func)

    @classmethod
    def of_arrays(cls, func: Callable[..., Any], nin: int, identity: Any = None) -> ufunc:
        """One of a function that takes arrays already."""
        found = cls(func, nin, 1, identity=identity)
        found._call = func
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ufunc) and self._key == getattr(other, "_key", None)

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        return self._func, self.nin, self.nout, self.identity

    def __repr__(self) -> str:
        return f"<volta.numpy.ufunc {self.__name__!r}>"

    def __call__(self, *args: ArrayLike) -> Any:
        if len(args) != self.nin:
            raise TypeError(at_user_line(f"{self.__name__}: takes {self.nin} arrays, got {len(args)}"))
        return self._call(*args)

    def _of_two(self, method: str) -> None:
        if (self.nin, self.nout) != (2, 1):
            raise ValueError(
                at_user_line(f"{self.__name__}.{method}: only functions of two arrays with one result have it")
            )

    def outer(self, a: ArrayLike, b: ArrayLike) -> Array:
        """The function of every element of ``a`` and every one of ``b``."""
        self._of_two("outer")
        return outer(self)(array(a), array(b))

    def reduce(
        self,
        a: ArrayLike,
        axis: int | None = 0,
        dtype: Any = None,
        *,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Array:
        """The function of ``initial`` and the elements along ``axis`` (None: all), from the first to the last.

        Elements where ``where`` is not true are left out, for which there must be an identity or ``initial``.
        """
        self._of_two("reduce")
        start = self.identity if initial is None else initial
        if where is not None and start is None:
            raise ValueError(at_user_line(f"{self.__name__}.reduce: where= needs initial=, as there is no identity"))
        x = asarray(a, dtype)
        shape = x.shape
        seen = None if where is None else shaping.broadcast_to(asarray(where, np.bool_), shape)
        if axis is None:
            x, axis, kept = shaping.ravel(x), 0, (1,) * len(shape)
            seen = None if seen is None else shaping.ravel(seen)
        else:
            axis = canonical_axis(f"{self.__name__}.reduce", axis, x.ndim)
            kept = (*shape[:axis], 1, *shape[axis + 1 :])
        x = shaping.moveaxis(x, axis, 0)
        if not len(x) and start is None:
            raise ShapeError(at_user_line(f"{self.__name__}.reduce: of no elements there is no result"))
        if len(x) and initial is None and seen is None:
            out = _folded(self, x)[0]
        else:
            out = _folded_from(self, start, x, None if seen is None else shaping.moveaxis(seen, axis, 0))
        return shaping.reshape(out, kept) if keepdims else out

    def accumulate(self, a: ArrayLike, axis: int = 0, dtype: Any = None) -> Array:
        """What :meth:`reduce` has after each element."""
        self._of_two("accumulate")
        x = asarray(a, dtype)
        axis = canonical_axis(f"{self.__name__}.accumulate", axis, x.ndim)
        x = shaping.moveaxis(x, axis, 0)
        return shaping.moveaxis(_folded(self, x)[1] if len(x) else x, 0, axis)

    def at(self, a: ArrayLike, indices: Any, b: ArrayLike | None = None, *, inplace: bool = True) -> Array:
        """A copy of ``a`` with the function of the elements at ``indices`` (and of ``b``), one after the other."""
        if inplace:
            raise ValueError(
                at_user_line(f"{self.__name__}.at: arrays are immutable; pass inplace=False and use the result")
            )
        x = asarray(a)
        if (self.nin, self.nout) == (1, 1) and b is None:
            return x.at[indices].set(self(x[indices]))
        self._of_two("at")
        places = asarray(np.arange(x.size, dtype=np.int32).reshape(x.shape))[indices]
        values = shaping.ravel(shaping.broadcast_to(asarray(b), places.shape))

        def put(flat: Array, one: Any) -> tuple[Array, None]:
            place, value = one
            return flat.at[place].set(asarray(self(flat[place], value), x.dtype)), None

        return shaping.reshape(scan(put, shaping.ravel(x), (shaping.ravel(places), values))[0], x.shape)

    def reduceat(self, a: ArrayLike, indices: ArrayLike, axis: int = 0, dtype: Any = None) -> Array:
        """:meth:`reduce` of the parts that begin at ``indices``, each up to where the next one begins."""
        self._of_two("reduceat")
        return reduceat(self)(a, indices, axis, dtype)


def _folded(function: Function, x: Array) -> tuple[Array, Array]:
    """The function of the slices of ``x``, from the first to the last, and what it has after each."""
    first = asarray(function(x[0], x[0])) if len(x) else x
    x = asarray(x, first.dtype)

    def step(carry: Array, item: Array) -> tuple[Array, Array]:
        out = asarray(function(carry, item), first.dtype)
        return out, out

    last, rest = scan(step, x[0], x[1:])
    return last, shaping.concatenate([x[:1], rest])


def _folded_from(function: Function, start: Any, x: Array, seen: Array | None) -> Array:
    """The function of a number and the slices of ``x``, of those that are seen."""
    probe = full(x.shape[1:], start, x.dtype)
    dtype = asarray(function(probe, probe)).dtype
    x, begun = asarray(x, dtype), asarray(full(x.shape[1:], start, x.dtype), dtype)

    def step(carry: Array, one: Any) -> tuple[Array, None]:
        item, mask = one
        out = asarray(function(carry, item), dtype)
        return out if mask is None else where(mask, out, carry), None

    return scan(step, begun, (x, seen), length=len(x))[0]


def outer(function: Function) -> Callable[[Array, Array], Any]:
    """``function.outer``."""

    def outer(a: Array, b: Array) -> Array:
        a, b = (x if is_number(x) else asarray(x) for x in (a, b))  # a number takes the dtype of what it meets
        return function(a if is_number(a) else shaping.reshape(a, a.shape + (1,) * shaping.ndim(b)), b)

    outer.__doc__ = f"``{_name(function)}(x, y)`` for every element x of ``a`` and y of ``b``."
    return outer


def reduceat(function: Function) -> Callable[..., Array]:
    """``function.reduceat``."""

    def reduceat(a: ArrayLike, indices: ArrayLike, axis: int = 0, dtype: Any = None) -> Array:
        x, starts = asarray(a, dtype), asarray(array(indices), np.int32)
        axis = canonical_axis(f"{_name(function)}.reduceat", axis, x.ndim)
        x = shaping.moveaxis(x, axis, 0)
        n = len(x)
        following = shaping.concatenate([starts[1:], full((1,), n, np.int32)])
        ends = where(binary.greater(following, starts), following, binary.add(starts, 1))
        spread = lambda v: shaping.reshape(v, (-1,) + (1,) * (x.ndim - 1))  # noqa: E731

        def step(carry: Array, one: Any) -> tuple[Array, None]:
            place, item = one
            inside = spread(binary.logical_and(binary.greater(place, starts), binary.less(place, ends)))
            return where(inside, asarray(function(carry, item), carry.dtype), carry), None

        begun = asarray(x[starts], asarray(function(x[:1], x[:1])).dtype if n else None)
        out = scan(step, begun, (asarray(np.arange(n, dtype=np.int32)), x))[0]
        return shaping.moveaxis(out, 0, axis)

    reduceat.__doc__ = f"``{_name(function)}`` of the elements from each of ``indices`` up to the next one."
    return reduceat


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """A function of elements, traced once, as one of arrays that broadcast, with NumPy's methods.

    Its results have the dtypes that ``func`` gives. ``reduce`` and its like go from the first element to the last.

    Args:
        func: of ``nin`` scalars, giving ``nout``, written with ``volta.numpy``.
        identity: what ``reduce`` gives of no elements.

    >>> import volta.numpy as vnp
    >>> f = vnp.frompyfunc(lambda x, y: 2 * x + y, 2, 1, identity=0)
    >>> f.reduce(vnp.array([1, 2, 3])), f.outer([1, 2], [10]).tolist()
    (Array(11, dtype=int32), [[12], [14]])
    """
    return ufunc(func, nin, nout, identity=identity)
