"""Arrays from buffers, files, text and functions, and how arrays print."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from volta.api.vmap import vmap
from volta.core import dtypes
from volta.core.array import Array, ArrayLike
from volta.core.avals import as_shape
from volta.core.errors import DTypeError
from volta.core.source import at_user_line
from volta.numpy.creation import array, asarray
from volta.numpy.grids import indices
from volta.numpy.placing import lying
from volta.numpy.shaping import unstack

# Arrays print as NumPy's do, so that NumPy's settings are theirs.
printoptions = np.printoptions
set_printoptions = np.set_printoptions
get_printoptions = np.get_printoptions
save = np.save
savez = np.savez


def _dtype(dtype: Any) -> np.dtype:
    """What NumPy is to read: ``float`` and ``int`` mean Volta's own."""
    return dtypes.canonicalize(dtype)


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Array:
    """The memory of a buffer as a vector of ``dtype`` (a copy).

    >>> frombuffer(b"\\x01\\x02", dtype="uint8")
    Array([1, 2], dtype=uint8)
    """
    return asarray(np.frombuffer(buffer, _dtype(dtype), count, offset))


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Array:
    """Numbers written in a text, ``sep`` between them.

    >>> fromstring("1 2 3", dtype=int, sep=" ")
    Array([1, 2, 3], dtype=int32)
    """
    return asarray(np.fromstring(string, _dtype(dtype), count, sep=sep))


def fromiter(iter: Iterable[Any], dtype: Any, count: int = -1) -> Array:
    """The items of an iterable as a vector."""
    return asarray(np.fromiter(iter, _dtype(dtype), count))


def fromfile(file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0) -> Array:
    """The contents of a file as a vector of ``dtype``."""
    return asarray(np.fromfile(file, _dtype(dtype), count, sep, offset))


def load(file: Any, mmap_mode: Any = None, allow_pickle: bool = False) -> Any:
    """What :func:`save` wrote: an array. Archives of several arrays come as NumPy opens them."""
    out = np.load(file, mmap_mode=mmap_mode, allow_pickle=allow_pickle)
    if not isinstance(out, np.ndarray):
        return out
    # .npy files have no name for bfloat16: NumPy writes and reads its bytes as a void of two
    return array(out.view(dtypes.bfloat16) if out.dtype == np.dtype("V2") else out)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array of another library, through DLPack: a copy, which that library's later writes do not reach.

    ``device`` is where the result is to lie. An array of Volta's own is immutable, and stays itself.

    Raises:
        DTypeError: for what has no ``__dlpack__``, lies on a device, or has a dtype that NumPy cannot take.
        BufferError: where no copy is allowed, and the memory is another library's.

    >>> from_dlpack(np.float32([1, 2]))
    Array([1., 2.], dtype=float32)
    """
    if isinstance(x, Array):
        return lying(x, device)
    if copy is False:
        raise BufferError(
            at_user_line("from_dlpack: another library may write to its memory, so its elements are always copied")
        )
    if not hasattr(x, "__dlpack__"):
        raise DTypeError(at_user_line(f"from_dlpack: a {type(x).__name__} has no __dlpack__; try vnp.asarray"))
    try:
        view = np.from_dlpack(x)
    except (BufferError, RuntimeError) as error:
        message = f"from_dlpack: {error} Bring it to the host, or to another dtype, first."
        raise DTypeError(at_user_line(message)) from error
    return array(view, device=device)


def fromfunction(function: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any) -> Array:
    """``function`` of the coordinates at each place of an array of ``shape``; it is called with traced scalars.

    >>> import volta.numpy as vnp
    >>> fromfunction(vnp.multiply, shape=(2, 3), dtype=int)
    Array([[0, 0, 0],
           [0, 1, 2]], dtype=int32)
    """
    sizes = as_shape("fromfunction", shape)
    f: Callable[..., Any] = lambda *places: function(*places, **kwargs)  # noqa: E731
    for _ in sizes:
        f = vmap(f)
    return f(*unstack(indices(sizes, _dtype(dtype)))) if sizes else asarray(function(**kwargs))


def array_repr(
    arr: ArrayLike, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:
    """``repr`` of an array with settings of its own."""
    with np.printoptions(**_settings(max_line_width, precision, suppress_small)):
        return repr(asarray(arr))


def array_str(
    a: ArrayLike, max_line_width: int | None = None, precision: int | None = None, suppress_small: bool | None = None
) -> str:
    """``str`` of an array with settings of its own."""
    with np.printoptions(**_settings(max_line_width, precision, suppress_small)):
        return str(asarray(a))


def _settings(width: int | None, precision: int | None, suppress: bool | None) -> dict[str, Any]:
    given = {"linewidth": width, "precision": precision, "suppress": suppress}
    return {k: v for k, v in given.items() if v is not None}


def iterable(y: Any) -> bool:
    """Whether ``y`` can be iterated over."""
    return bool(np.iterable(y))


def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    """Whether NumPy's rules allow a cast between dtypes."""
    return bool(np.can_cast(from_, to, casting))
