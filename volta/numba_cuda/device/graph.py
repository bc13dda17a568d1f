"""Loaded code, and the kernels of a plan as something to launch: one by one, or recorded as a graph."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs
import numpy as np

from volta.core.errors import DeviceError, UnsupportedOperationError
from volta.numba_cuda.device import cuda_api
from volta.numba_cuda.device.driver import Device
from volta.numba_cuda.device.launcher import HEADER, ROW, Taking, launcher, launcher_with
from volta.numba_cuda.device.staging import HOST
from volta.numba_cuda.device.streams import Event, Stream

_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  # CUjit_option
_DYNAMIC_SHARED = 8  # CUfunction_attribute
_WAIT_EQUAL = 1  # CUstreamWaitValue_flags
_PRIORITY = 8  # CUlaunchAttributeID
_BY_PRIORITY = 8  # CUgraphInstantiate_flags
_CONDITIONAL = 13  # CUgraphNodeType

_FIRST = 1024
"""Kernels of at most this many blocks go first in a graph: beside a large one they would wait until its last blocks,
and what waits for them would wait behind it. (The order of targets beside the copy of a table of 154 MB: 34 us.)"""


_FEW = 3
"""Plans of more kernels than this are a graph from the start."""

OFTEN = 16
"""Few kernels become a graph when they have been launched so often: the driver launches it in less than half the time
(one kernel: 1.6 us for 3.6), but takes some 70 us and 100 KB of the device's memory to make it."""

ROOM = 256
"""Graphs that a device has at most, besides those that plans are from the start."""

_GATED = 128
"""Kernels that are queued behind one gate to be timed; a stream takes about a thousand commands."""


class ErrorLog:
    """Where the driver's assembler writes what is wrong; ``options`` says so in a call: count, names, values."""

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(8192)
        names = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        self.options = 2, names, (ctypes.c_void_p * 2)(ctypes.addressof(self._text), len(self._text))

    def check(self, device: Device, code: int) -> None:
        """Raise DeviceError for a status, with what was written."""
        try:
            device.check(code)
        except DeviceError as error:
            raise DeviceError(f"{error}{_hint(code, device)}{_said(self._text.value)}") from None


class Module:
    """Loaded machine code, from PTX text or a cubin; keep it as long as its functions are used."""

    def __init__(self, device: Device, image: str | bytes) -> None:
        self.device, self.handle = device, 0
        device.rest()
        device.enter()
        log = ErrorLog()
        data = image.encode() + b"\0" if isinstance(image, str) else image
        out = ctypes.c_void_p()
        log.check(device, device.api.cuModuleLoadDataEx(ctypes.byref(out), data, *log.options))
        self.handle = out.value or 0

    def function(self, name: str) -> int:
        """A kernel by its symbol; DeviceError if the module has none of that name."""
        out = ctypes.c_void_p()
        try:
            self.device.check(self.device.api.cuModuleGetFunction(ctypes.byref(out), self.handle, name.encode()))
        except DeviceError as error:
            raise DeviceError(f"the module has no kernel {name!r}: {error}") from None
        return out.value or 0

    def unload(self) -> None:
        """Drop the code; its functions are gone."""
        handle, self.handle = self.handle, 0
        if handle:
            self.device.rest()
            self.device.enter()
            self.device.check(self.device.api.cuModuleUnload(handle))


def _hint(code: int, device: Device) -> str:
    version = device.runtime.version
    if code == cuda_api.UNSUPPORTED_PTX:
        return (
            f"\nthe code is PTX of a newer version than the driver reads (it knows CUDA {version // 1000}."
            f"{version % 1000 // 10}): update the driver"
        )
    if code in (cuda_api.NO_BINARY, cuda_api.INVALID_PTX, cuda_api.INVALID_IMAGE):
        major, minor = device.info.capability
        return f"\nthe code cannot be loaded on {device.info.name} (compute capability {major}.{minor})"
    return ""


def _said(log: bytes) -> str:
    text = log.decode(errors="replace").strip()
    return f"\nthe driver's assembler says: {text}" if text else ""


def allow_shared(device: Device, function: int, nbytes: int) -> None:
    """Let a kernel's blocks have this much dynamic shared memory; DeviceError where the device has less."""
    if nbytes:  # what is allowed at first depends on what the kernel has of static shared memory
        device.enter()
        have = device.runtime.number(device.api.cuFuncGetAttribute, _DYNAMIC_SHARED, function)
        if have < nbytes:
            device.check(device.api.cuFuncSetAttribute(function, _DYNAMIC_SHARED, nbytes))


@attrs.frozen
class Row:
    """A kernel to launch: function, blocks, threads in each, the address of its args block, shared memory."""

    function: int
    grid: int
    threads: int
    args: int
    shared: int = 0
    after: tuple[int, ...] = ()  # rows of a graph that it waits for
    inside: tuple[Row, ...] = ()  # what runs behind it if it finds its condition true
    repeats: bool = False  # and again, as long as it does
    early: bool = False  # it waits itself for the row that it comes after

    def flat(self) -> Iterator[Row]:
        """The row, then those inside of it, at any depth."""
        yield self
        for row in self.inside:
            yield from row.flat()


class _Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("threads", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint), ("params", ctypes.c_void_p), ("extra", ctypes.c_void_p),
    )  # fmt: skip


class _Condition(ctypes.Structure):
    """CUgraphNodeParams of a node with a condition."""

    _fields_ = (
        ("kind", ctypes.c_int), ("reserved", ctypes.c_int * 3), ("handle", ctypes.c_uint64), ("repeats", ctypes.c_int),
        ("size", ctypes.c_uint), ("graphs", ctypes.POINTER(ctypes.c_void_p)), ("context", ctypes.c_void_p),
        ("more", ctypes.c_longlong * 25), ("end", ctypes.c_longlong),
    )  # fmt: skip


_BEGUN = (ctypes.c_ubyte * 8)(1, 0, 1)
"""CUgraphEdgeData: from the port that says that a kernel's blocks have begun, to a kernel that waits itself."""

_NO_PATCHES = np.zeros((0, 3), np.int64)


class _Graph:
    """Kernels recorded as a graph, in which a kernel waits for those that its row names."""

    _graph = exec = 0
    _counted: list[None] | None = None

    def __init__(self, stream: Stream, rows: Sequence[Row], params: Sequence[int], counted: list[None]) -> None:
        """``params`` has for each kernel the address of the address of what it is given; that is read here.

        It is to be launched on the stream, as its loops look at that one's stop word. ``counted`` has an entry as long
        as the graph is there.
        """
        self._stream, self._device = stream, stream.device
        device, api = stream.device, stream.device.api
        device.enter()
        self._graph = device.runtime.number(api.cuGraphCreate, 0, kind=ctypes.c_void_p)
        first = (ctypes.c_int * 16)()  # a CUlaunchAttributeValue
        if len(rows) > 1:
            device.check(api.cuCtxGetStreamPriorityRange(None, ctypes.addressof(first)))
        self._first = first if len(rows) > 1 else None
        self._add(self._graph, rows, iter(params))
        flags = _BY_PRIORITY
        self.exec = device.runtime.number(api.cuGraphInstantiateWithFlags, self._graph, flags, kind=ctypes.c_void_p)
        counted.append(None)
        self._counted = counted

    def _add(self, graph: int, rows: Sequence[Row], params: Iterator[int]) -> list[int]:
        """Add rows to a graph; returns their nodes."""
        nodes: list[int] = []
        for row in rows:
            before = [nodes[p] for p in row.after]
            if row.inside:
                nodes.append(self._add_turns(graph, row, params, before))
                continue
            early = graph == self._graph and self._begins_early(row, rows)
            nodes.append(self._kernel(graph, row, next(params), [] if early else before))
            if early:
                self._follow(graph, before[0], nodes[-1])
            if graph == self._graph and self._first is not None and row.grid <= _FIRST:
                api, first = self._device.api, ctypes.addressof(self._first)
                self._device.check(api.cuGraphKernelNodeSetAttribute(nodes[-1], _PRIORITY, first))
        return nodes

    def _kernel(self, graph: int, row: Row, param: int, before: Sequence[int]) -> int:
        api, out = self._device.api, ctypes.c_void_p()
        waits = (ctypes.c_void_p * max(1, len(before)))(*before)
        node = _Node(row.function, (row.grid, 1, 1), (row.threads, 1, 1), row.shared, param, None)
        self._device.check(
            api.cuGraphAddKernelNode(
                ctypes.byref(out), graph, ctypes.addressof(waits), len(before), ctypes.addressof(node)
            )
        )
        return out.value or 0

    def _begins_early(self, row: Row, rows: Sequence[Row]) -> bool:
        """Whether a kernel may begin while the only one that it comes after still runs."""
        known = self._device.api.cuGraphAddDependencies is not None
        return known and row.early and len(row.after) == 1 and not rows[row.after[0]].inside

    def _follow(self, graph: int, before: int, node: int) -> None:
        """Let a kernel begin as soon as all blocks of another one have."""
        ends = (ctypes.c_void_p * 2)(before, node)
        place = ctypes.addressof(ends)
        self._device.check(
            self._device.api.cuGraphAddDependencies(graph, place, place + 8, ctypes.addressof(_BEGUN), 1)
        )

    def _add_turns(self, graph: int, row: Row, params: Iterator[int], before: Sequence[int]) -> int:
        """A kernel that sets a condition, and behind it a node that runs the rows inside if it holds."""
        device, api = self._device, self._device.api
        if api.cuGraphConditionalHandleCreate is None:
            raise UnsupportedOperationError("loops and choices on a GPU need a driver for CUDA 12.3 or newer")
        handle = ctypes.c_uint64()
        device.check(api.cuGraphConditionalHandleCreate(ctypes.byref(handle), graph, device.context, 0, 0))
        args = ctypes.c_void_p.from_address(next(params)).value
        stop = ctypes.c_uint64(self._stream.watched().copy if row.repeats else 0)
        given = (ctypes.c_void_p * 3)(args, ctypes.addressof(handle), ctypes.addressof(stop))
        test = self._kernel(graph, row, ctypes.addressof(given), before)
        node = _Condition(_CONDITIONAL, handle=handle.value, repeats=row.repeats, size=1, context=device.context)
        out, waits = ctypes.c_void_p(), (ctypes.c_void_p * 1)(test)
        device.check(api.cuGraphAddNode(ctypes.byref(out), graph, ctypes.addressof(waits), 1, ctypes.addressof(node)))
        body = node.graphs[0]
        nodes = self._add(body, row.inside, params)
        if row.repeats:
            self._kernel(body, row, ctypes.addressof(given), nodes)
        return out.value or 0

    def __del__(self) -> None:
        if self._counted is not None:
            self._counted.pop()
        if self.exec:
            self._device.api.cuGraphExecDestroy(self.exec)
        if self._graph:
            self._device.api.cuGraphDestroy(self._graph)


class Launches:
    """Kernels on a stream. Each is given one param: the args themselves, which lie in host memory, or their address."""

    def __init__(self, stream: Stream, rows: Sequence[Row], args: np.ndarray | None = None) -> None:
        """The rows' args lie among the int64 words ``args`` in host memory, or in device memory."""
        self._device, self.stream, self._rows = stream.device, stream, tuple(rows)
        flat = [x for row in rows for x in row.flat()]
        self._at = [0, *itertools.accumulate(sum(1 for _ in row.flat()) for row in rows)]  # where each begins in `flat`
        self._params = np.array([row.args for row in flat], np.int64) if args is None else args
        start = self._params.ctypes.data
        self._starts = [8 * i if args is None else row.args - start for i, row in enumerate(flat)]
        self._places = np.array([start + at for at in self._starts], np.int64)
        few = len(flat) == len(rows) <= _FEW
        self._left = OFTEN if few else 0  # launches before they become a graph
        self._launch = partial(self.kernel_by_kernel(_NO_PATCHES), []) if self._left else self._graph([])

    def launch(self, taking: Taking = None) -> int:
        """Launch all kernels with the args that are in place; returns the driver's status, or `REFUSED`."""
        status = self._launch(taking)
        if self._left:
            self._left -= 1
            if not self._left:
                self._launch = self.graph_if_room() or self._launch
        return status

    def _graph(self, counted: list[None]) -> Callable[[Taking], int]:
        """A function that launches all kernels, with the params of now, as one graph; returns the driver's status."""
        made = _Graph(self.stream, self._rows, [self._place(i) for i in range(len(self._places))], counted)
        words = self.stream.words(self._device.api.cuGraphLaunch, 1)
        words[4] = made.exec
        return launcher(words, made)

    def graph_if_room(self) -> Callable[[Taking], int] | None:
        """A function that launches all kernels, with the params of now, as one graph; returns the driver's status.

        None where memory is short: the kernels can be launched without.
        """
        counted = self._device.graphs
        if len(counted) >= ROOM:
            return None
        try:
            return self._graph(counted)
        except (DeviceError, MemoryError):
            return None

    def kernel_by_kernel(self, patches: np.ndarray) -> Callable[[list[int], Taking], int]:
        """A function that launches the kernels in order, and returns the driver's status; it takes a list of addresses.

        These are put into copies of the params: ``patches`` are rows of word, position in the list, distance.
        """
        params, count = self._params, len(self._rows)
        words = self.stream.words(self._device.api.cuLaunchKernel, HEADER - 4 + ROW * count)
        words[4:HEADER] = count, params.ctypes.data, len(params), patches.ctypes.data, len(patches)
        for i, row in enumerate(self._rows):
            at = HEADER + ROW * i
            words[at : at + ROW] = row.function, row.grid, row.threads, row.shared, self._starts[i]
        return launcher_with(words, (params, patches))

    def _place(self, i: int) -> int:
        """Where the driver finds the address of a kernel's param."""
        return int(self._places.ctypes.data) + 8 * i

    def _each(self, i: int, alone: dict[int, _Graph]) -> None:
        row, device, at = self._rows[i], self._device, self._at[i]
        if row.inside:
            device.check(device.api.cuGraphLaunch(alone[i].exec, self.stream.handle))
            return
        code = device.api.cuLaunchKernel(
            row.function, row.grid, 1, 1, row.threads, 1, 1, row.shared, self.stream.handle, self._place(at), None
        )
        device.check(code)

    def _alone(self, i: int) -> _Graph:
        """A loop or a choice by itself."""
        places = [self._place(k) for k in range(self._at[i], self._at[i + 1])]
        return _Graph(self.stream, [attrs.evolve(self._rows[i], after=())], places, [])

    def timed(self) -> list[float]:
        """Launch one by one and wait; microseconds that each took on the device.

        The kernels queue behind a gate, so that none waits for the host. A time includes the gap to the next kernel,
        about a microsecond.
        """
        device, stream, found = self._device, self.stream, []
        alone = {i: self._alone(i) for i, row in enumerate(self._rows) if row.inside}
        device.enter()
        gate = device.pinned.take(64, HOST)
        word = ctypes.c_uint32.from_address(gate.address)
        try:
            for start in range(0, len(self._rows), _GATED):
                word.value = 0
                device.check(device.api.cuStreamWaitValue32(stream.handle, gate.address, 1, _WAIT_EQUAL))
                try:
                    events = [Event(stream, timing=True)]
                    for i in range(start, min(len(self._rows), start + _GATED)):
                        self._each(i, alone)
                        events.append(Event(stream, timing=True))
                finally:
                    word.value = 1
                stream.synchronize()
                found += [after.since(before) for before, after in zip(events, events[1:], strict=False)]
        finally:
            gate.give_back()
        return found
