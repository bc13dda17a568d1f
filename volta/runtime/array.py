"""Arrays with elements: immutable, in device memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from volta.core import dtypes
from volta.core.array import Array
from volta.core.avals import ShapedArray
from volta.core.device import Device
from volta.core.errors import DonatedBufferError, DTypeError
from volta.core.extended import is_key, refusal
from volta.core.floats import standard
from volta.core.recent import Recent
from volta.core.sharding import Shard, SingleDeviceSharding
from volta.core.source import at_user_line
from volta.emit.arrays import describe
from volta.runtime.memory import Buffer, as_numpy, default_pool
from volta.runtime.shared_buffer import SharedBuffer

_FLAGS_READ_ONLY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # exports by DLPack say that they are


class ConcreteArray(Array):
    """An array whose elements are known: they lie in ``buffer``. Users know it as :class:`volta.Array`."""

    __slots__ = ("aval", "address", "_buffer", "__weakref__")

    def __init__(self, aval: ShapedArray, buffer: Buffer, address: int):
        self.aval = aval
        self.address = address  # in host memory; 0 where the array lies on another device
        self._buffer: Buffer | None = buffer  # None where the array is gone: native code may take it (emit.arrays)

    @staticmethod
    @standard
    def from_numpy(x: Any, weak_type: bool = False) -> ConcreteArray:
        """A copy of a NumPy array or scalar as an Array (dtypes are kept, as volta.core.dtypes.canonicalize has it)."""
        x = plain(x)
        dtype = dtypes.canonicalize(x.dtype)
        aval = intern_aval(ShapedArray(x.shape, dtype, weak_type))
        buffer = default_pool().allocate(aval.nbytes)
        if aval.nbytes:
            elements = as_numpy(buffer, x.shape, None, dtype, writable=True)
            if dtype == dtypes.bool_:  # in foreign memory any byte but 0 may stand for True
                np.not_equal(x.view(np.uint8), 0, out=elements)
            else:
                elements[...] = x
        return ConcreteArray(aval, buffer, buffer.address)

    # -- access --------------------------------------------------------------------------------------------------------

    def buffer(self) -> Buffer:
        """The memory behind the array; DonatedBufferError when it has been given away."""
        if self._buffer is None:
            raise DonatedBufferError(
                at_user_line(
                    f"this {self.aval.short()} array was donated to a jitted call (donate_argnums) and is gone. "
                    "Use the call's result instead, or do not donate the argument."
                )
            )
        return self._buffer

    def share(self) -> Buffer:
        """The memory behind the array, from now on never written again: something else reads it as well."""
        buffer = self.buffer()
        if type(buffer) is not SharedBuffer:
            buffer = self._buffer = SharedBuffer(buffer.address, buffer.nbytes, buffer)
        return buffer

    def another(self) -> ConcreteArray:
        """The same elements as an array that stays where this one is donated or deleted."""
        return ConcreteArray(self.aval, self.share(), self.address)

    def retyped(self, aval: ShapedArray) -> ConcreteArray:
        """The same bytes as elements of another type, in the same memory."""
        return ConcreteArray(intern_aval(aval), self.share(), self.address)

    def stored(self) -> ConcreteArray:
        """Random keys as their words, in the same memory; anything else itself."""
        return self.retyped(self.aval.stored) if is_key(self.aval.dtype) else self

    def keyed(self, kind: Any) -> ConcreteArray:
        """Words of random keys as keys of a type, in the same memory."""
        return self.retyped(self.aval.keys(kind))

    def is_deleted(self) -> bool:
        return self._buffer is None

    def delete(self) -> None:
        """Release the memory now; any later use raises DonatedBufferError."""
        self._buffer = None  # that is all: a call that reads the memory holds it

    def numpy(self) -> np.ndarray:
        """A read-only NumPy view of the array's memory (no copy; from another device than the host, a copy).

        Raises:
            DTypeError: the elements are random keys: ``random.key_data`` gives their words.
        """
        if self.address:
            self.share()
        return self._numbers()

    def _view(self) -> np.ndarray:
        """The elements, read-only, where a view that outlives this call is no reason to keep the memory unchanged.
        Random keys are their words."""
        if not self.address:
            x = self._copy()
            x.flags.writeable = False
            return x
        buffer = self.buffer()
        aval = self.aval.stored
        return as_numpy(buffer, aval.shape, None, aval.dtype, offset=self.address - buffer.address)

    def _numbers(self) -> np.ndarray:
        """The elements for a user, read-only.

        Raises:
            DTypeError: they are random keys, which are no numbers.
        """
        if is_key(self.aval.dtype):
            raise DTypeError(at_user_line(f"{self.aval} is no array of numbers: {refusal(self.aval.dtype)}"))
        return self._view()

    def _copy(self) -> np.ndarray:
        """The elements in memory of their own."""
        if self.address:
            return self._view().copy()
        aval = self.aval.stored
        x: np.ndarray = self.buffer().read(aval)[: aval.nbytes].view(aval.dtype)  # type: ignore[attr-defined]
        return x.reshape(aval.shape)

    @standard
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if dtype is not None and np.dtype(dtype) != self.aval.dtype:
            if copy is False:
                raise ValueError(f"converting {self.aval.dtype} to {np.dtype(dtype)} needs a copy")
            return self._numbers().astype(dtype)
        return self._numbers().copy() if copy else self.numpy()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The elements for another library: the memory itself for one that is told not to write to it, else a copy.

        A flag for memory that is not to be written to came with DLPack 1.0; who asks for no such version gets a copy.

        Raises:
            DTypeError: for bfloat16.
            BufferError: for another device than the host; where ``copy`` is False and only a copy will do.
        """
        if dtypes.bfloat16 == self.aval.dtype:
            raise DTypeError("NumPy's DLPack export has no bfloat16; use x.view('uint16') or convert to float32 first")
        if stream is not None or dl_device not in (None, self.__dlpack_device__()):
            wanted = f"dl_device={dl_device}" if stream is None else f"stream={stream}"
            raise BufferError(
                at_user_line(f"{wanted}: arrays are exported from the host's memory, (1, 0), in no stream")
            )
        if max_version is not None and max_version[0] >= 1 and _FLAGS_READ_ONLY:
            if copy is False and not self.address:
                raise BufferError(at_user_line(f"an array on {self.device} is not exported without a copy"))
            return self.numpy().__dlpack__(max_version=(1, 0), copy=copy)
        if copy is False:
            raise BufferError(
                at_user_line(
                    "arrays are immutable, and before DLPack 1.0 (and NumPy 2.1) nothing tells a library not to write "
                    "to them: pass max_version=(1, 0), or let it have a copy"
                )
            )
        return self._numbers().copy().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    @standard
    def item(self, *index: Any) -> Any:
        """The single element as a Python number."""
        return self._numbers().item(*index)

    @standard
    def tolist(self) -> Any:
        """The array as nested lists of Python numbers."""
        return self._numbers().tolist()

    @standard
    def _scalar(self, kind: str) -> Any:
        if self.aval.size != 1 or (kind != "bool" and self.aval.ndim):
            if kind == "bool":
                raise ValueError(
                    at_user_line(
                        f"the truth value of an array of shape {self.shape} is ambiguous; use .any() or .all()"
                    )
                )
            raise TypeError(at_user_line(f"only scalar arrays convert to {kind}; this one has shape {self.shape}"))
        if kind in ("int", "float") and dtypes.is_complex(self.aval.dtype):
            raise TypeError(at_user_line(f"a complex number is no {kind}: take x.real, x.imag or abs(x)"))
        return self._numbers().item()

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if not (dtypes.is_integer(self.aval.dtype)):
            raise TypeError(at_user_line(f"only integer scalars can be an index; this is {self.aval.short()}"))
        return int(self._scalar("int"))

    @standard
    def __format__(self, spec: str) -> str:
        """The number in a format; of an array each number in it, as NumPy lays them out: ``f"{x:.2f}"``."""
        if not spec and (self.aval.ndim or is_key(self.aval.dtype)):
            return str(self)
        view = self._numbers()
        each: Any = {"all": lambda v: format(v, spec)}
        return np.array2string(view, formatter=each) if self.aval.ndim else format(view[()], spec)

    def __buffer__(self, flags: int) -> memoryview:
        """``memoryview(x)``, from Python 3.12 on (before: ``memoryview(numpy.asarray(x))``). It is read-only.

        Raises:
            BufferError: memory to write to is asked for, the dtype is bfloat16, or the array lies on a GPU.
        """
        # NumPy asks here before it asks for an array, and drops what is raised: an interrupt of a wait, for one.
        if not self.address and self._buffer is not None:
            text = f"an array on {self.device} is no buffer of the host's: memoryview(numpy.asarray(x)) copies it"
            raise BufferError(at_user_line(text))
        if flags & 1:  # PyBUF_WRITABLE
            raise BufferError(at_user_line("arrays are immutable: a buffer of one is not to be written to"))
        if dtypes.bfloat16 == self.aval.dtype:
            raise BufferError(
                at_user_line("buffers have no bfloat16; use x.view('uint16') or convert to float32 first")
            )
        view: Any = self.numpy()  # of which NumPy's stubs say from Python 3.12 on that it is a buffer
        return memoryview(view)

    # -- the usual protocol --------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    @property
    def itemsize(self) -> int:
        return self.aval.dtype.itemsize

    @property
    def device(self) -> str:
        """Where the array lies: 'cpu:0' or 'cuda:0'."""
        return "cpu:0" if self._buffer is None else self._buffer.device

    @property
    def sharding(self) -> SingleDeviceSharding:
        """How the array lies: on one device."""
        return SingleDeviceSharding(self.device)

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts that this process has: one, which is all."""
        return [Shard(self.device, (slice(None),) * self.aval.ndim, self)]

    def addressable_data(self, index: int) -> ConcreteArray:
        """The part of this process's device of that number: all of it, as there is one."""
        data: ConcreteArray = self.addressable_shards[index].data
        return data

    def devices(self) -> frozenset[Device]:
        """The devices that the array lies on: one."""
        return frozenset([Device(self.device)])

    @property
    def is_fully_addressable(self) -> bool:
        return True

    @property
    def is_fully_replicated(self) -> bool:
        return True

    def block_until_ready(self) -> ConcreteArray:
        """Wait until the value is there (on the CPU it always is). Returns the array."""
        buffer = self._buffer or self.buffer()
        if not self.address:
            buffer.wait(self.aval)  # type: ignore[attr-defined]
        return self

    def copy_to_host_async(self) -> None:
        """The host will read the value: it then waits for what was launched so far, not for what is launched later."""
        buffer = self._buffer or self.buffer()
        if not self.address:
            buffer.mark()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        raise TypeError("arrays are compared by value and cannot be hashed; hash x.tobytes() or id(x) instead")

    def tobytes(self) -> bytes:
        """The elements in row-major order as bytes."""
        return self._numbers().tobytes()

    def __copy__(self) -> ConcreteArray:
        return self.another()

    def __deepcopy__(self, memo: Any) -> ConcreteArray:
        return ConcreteArray.from_numpy(self._view()).retyped(self.aval)

    def __reduce__(self) -> Any:
        x = self._view()
        x = x.view("u2") if self.dtype == dtypes.bfloat16 else x
        return _unpickle, (x, self.dtype.name, self.aval.weak_type)

    @standard
    def __repr__(self) -> str:
        if gone := self._gone():
            return f"Array(<{gone}>, shape={self.shape}, dtype={self.dtype})"
        if is_key(self.aval.dtype):
            return f"Array({self.shape}, dtype={self.dtype}) overlaying:\n{self.stored()}"
        weak = ", weak_type=True" if self.aval.weak_type else ""
        prefix = "Array("
        if 0 in self.shape:
            return f"Array([], shape={self.shape}, dtype={self.dtype}{weak})"
        body = np.array2string(self._view(), separator=", ", prefix=prefix)
        return f"{prefix}{body}, dtype={self.dtype}{weak})"

    @standard
    def __str__(self) -> str:
        if gone := self._gone():
            return f"<{gone}>"
        return repr(self) if is_key(self.aval.dtype) else str(self._view())

    def _gone(self) -> str:
        """Why there are no elements, where it is known that there are none."""
        if self._buffer is None:
            return "donated"
        stretch = self._buffer.stretch
        return "cut short" if stretch is not None and stretch.lost else ""


class SpreadArray(Array):
    """An array whose parts several workers have (see ``runtime.sharded``)."""

    __slots__ = ()

    def assembled(self) -> ConcreteArray:
        """All of it, on this process's device."""
        raise NotImplementedError


describe(ConcreteArray, "address", "_buffer", SharedBuffer)


def _unpickle(x: np.ndarray, dtype: str, weak_type: bool) -> ConcreteArray:
    kind, array = dtypes.BY_NAME[dtype], ConcreteArray.from_numpy(x)
    return array.keyed(kind) if is_key(kind) else array.retyped(ShapedArray(x.shape, kind, weak_type))


_interned: Recent[ShapedArray, ShapedArray] = Recent(4096)


def intern_aval(aval: ShapedArray) -> ShapedArray:
    """One object per distinct aval, as long as it is in use, so that cache keys mostly compare by identity."""
    return _interned.get(aval) or _interned.find(aval) or _interned.keep(aval, aval)


def plain(x: Any) -> np.ndarray:
    """``x`` as a NumPy array without a subclass; a mask is nothing to drop unseen."""
    if isinstance(x, np.ma.MaskedArray):
        raise DTypeError(
            at_user_line(
                "a masked array has elements that are not there: give them a value, x.filled(0), or pass x.data and "
                "x.mask as two arrays"
            )
        )
    return np.asarray(x)


@standard
def as_array(x: Any) -> ConcreteArray:
    """An operand as an Array: arrays pass through, NumPy values and Python numbers are copied."""
    if type(x) is ConcreteArray:
        return x
    if isinstance(x, (np.ndarray, np.generic)):
        return ConcreteArray.from_numpy(x)
    if isinstance(x, SpreadArray):
        return x.assembled()
    dtype = dtypes.of_python_scalar(x)
    if dtype is None:
        raise DTypeError(at_user_line(f"a value of type {type(x).__name__} is not a valid operand: {x!r:.80}"))
    return ConcreteArray.from_numpy(np.asarray(x, dtype), weak_type=type(x) is not bool)
