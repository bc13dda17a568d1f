"""A stand-in for NVIDIA's driver, in host memory: what Volta's runtime over it does can be tested without a GPU.

Work is queued and runs when somebody waits for it, so what relies on an order that streams do not promise goes wrong.
Freed memory is overwritten, and copies and kernels are checked to stay inside what is allocated. Kernels run on the
host (`volta.numba_cuda.host.host`), or do nothing.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.numba_cuda import host_condition
from tests.numba_cuda.fake_kernels import kernel_of
from tests.numba_cuda.fake_streams import FakeStreams, Stream, finished, put
from volta.emit.cache import DiskCache
from volta.numba_cuda import conditional_nodes, iterations, moves
from volta.numba_cuda.codegen import modules
from volta.numba_cuda.codegen.ptx import KernelSource
from volta.numba_cuda.device import boxes, cuda_api, driver
from volta.numba_cuda.device import graph as graphs
from volta.numba_cuda.host.host import Range
from volta.numba_cuda.host.host_runtime import READ, WRITE

ERRORS = {
    0: "SUCCESS", 1: "INVALID_VALUE", 2: "OUT_OF_MEMORY", 100: "NO_DEVICE", 101: "INVALID_DEVICE",
    200: "INVALID_IMAGE", 201: "INVALID_CONTEXT", 218: "INVALID_PTX", 222: "UNSUPPORTED_PTX_VERSION",
    400: "INVALID_HANDLE", 500: "NOT_FOUND", 600: "NOT_READY", 700: "ILLEGAL_ADDRESS",
}  # fmt: skip


class FakeDriver(FakeStreams):
    """The state behind the functions. ``log`` counts calls by name; ``fail[name] = code`` makes the next one fail."""

    def __init__(self, devices: int = 1, memory: int = 1 << 30, version: int = 13000, capability: str = "9.0") -> None:
        super().__init__()
        self.devices, self.memory, self.version, self.capability = devices, memory, version, capability
        self.log, self.fail = dict[str, int](), dict[str, int]()
        self.run_kernels = True
        self.disk: DiskCache | None = None
        self.allocations: dict[int, tuple[np.ndarray, int, int]] = {}  # address: memory, bytes, device
        self.pinned = dict[int, np.ndarray]()
        self.sources: dict[str, KernelSource] = {}
        self.violations: list[Any] = []
        self._bodies, self.iterations = list[Any](), 0  # how often loops and choices were decided about
        self.conditions: dict[int, bool] = {}  # of a graph's nodes, by their handles
        self.priorities: dict[int, int] = {}  # of a graph's kernels, by their number of blocks
        self.lock = threading.RLock()
        self.functions = self._functions()

    # -- the table of functions ----------------------------------------------------------------------------------------

    def _functions(self) -> SimpleNamespace:
        found = {}
        for symbol, arguments in cuda_api.SIGNATURES.items():
            name = cuda_api.name_of(symbol)
            found[name] = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self._watched(name))
        return SimpleNamespace(**found, fake=self)

    def _watched(self, name: str) -> Callable[..., int]:
        function = getattr(self, name)

        def call(*args: Any) -> int:
            with self.lock:
                self.log[name] = self.log.get(name, 0) + 1
                if name in ("cuEventQuery", "cuStreamQuery"):
                    self.again = (name, args[0]) in self.asked
                    self.asked.add((name, args[0]))
                elif name != "cuCtxSetCurrent":
                    self.asked.clear()
                if name in self.fail:
                    return self.fail.pop(name)
                if self.sticky and not name.startswith(("cuGetError", "cuEventDestroy", "cuCtxSet")):
                    return self.sticky
                return function(*args) or self.sticky if not name.startswith("cuGetError") else function(*args) or 0

        return call

    # -- devices -------------------------------------------------------------------------------------------------------

    def cuInit(self, flags: int) -> int:
        return 0 if self.devices else 100

    def cuDriverGetVersion(self, out: int) -> int:
        return put(out, self.version, ctypes.c_int) or 0

    def cuGetErrorName(self, code: int, out: int) -> int:
        self.name = ctypes.create_string_buffer(f"CUDA_ERROR_{ERRORS.get(code, code)}".encode())
        return put(out, ctypes.addressof(self.name)) or 0

    def cuGetErrorString(self, code: int, out: int) -> int:
        self.text = ctypes.create_string_buffer(f"what {code} means".encode())
        return put(out, ctypes.addressof(self.text)) or 0

    def cuDeviceGetCount(self, out: int) -> int:
        return put(out, self.devices, ctypes.c_int) or 0

    def cuDeviceGet(self, out: int, index: int) -> int:
        return put(out, index, ctypes.c_int) or 0 if index < self.devices else 101

    def cuDeviceGetName(self, out: int, size: int, index: int) -> int:
        ctypes.memmove(out, b"Fake GPU\0", 9)
        return 0

    def cuDeviceGetAttribute(self, out: int, which: int, index: int) -> int:
        major, minor = map(int, self.capability.split("."))
        return put(out, {75: major, 76: minor, 16: 132, 97: 227 << 10}[which], ctypes.c_int) or 0

    def cuDeviceTotalMem(self, out: int, index: int) -> int:
        return put(out, self.memory) or 0

    def cuDevicePrimaryCtxRetain(self, out: int, index: int) -> int:
        return put(out, 0xC0 + index) or 0

    def cuCtxGetStreamPriorityRange(self, least: int, greatest: int) -> int:
        ctypes.c_int.from_address(greatest).value = -5
        return 0

    def cuCtxSetCurrent(self, context: int) -> int:
        self.local.device = context - 0xC0
        return 0

    # -- memory --------------------------------------------------------------------------------------------------------

    def _used(self, device: int) -> int:
        return sum(n for _, n, d in self.allocations.values() if d == device)

    def cuMemGetInfo(self, free: int, total: int) -> int:
        put(free, self.memory - self._used(self.local.device))
        return put(total, self.memory) or 0

    def cuMemAlloc(self, out: int, nbytes: int) -> int:
        if self._used(self.local.device) + nbytes > self.memory:
            return 2
        memory = np.empty(nbytes + 256, np.uint8)
        address = memory.ctypes.data + -memory.ctypes.data % 256
        self.allocations[address] = memory, nbytes, self.local.device
        return put(out, address) or 0

    def cuMemFree(self, address: int) -> int:
        self.drain_all()  # the driver waits for the work that uses it
        memory, _, _ = self.allocations.pop(address)
        if len(memory) < 1 << 22:
            memory[:] = 0xDD
        return 0

    def cuMemHostAlloc(self, out: int, nbytes: int, flags: int) -> int:
        memory = np.empty(nbytes + 256, np.uint8)
        memory = memory[-memory.ctypes.data % 256 :][:nbytes]
        self.pinned[memory.ctypes.data] = memory
        return put(out, memory.ctypes.data) or 0

    def cuMemFreeHost(self, address: int) -> int:
        del self.pinned[address]
        return 0

    def _inside(self, address: int, nbytes: int) -> bool:
        return any(a <= address and address + nbytes <= a + n for a, (_, n, _) in self.allocations.items())

    def _is_pinned(self, address: int) -> bool:
        return any(a <= address < a + len(m) for a, m in self.pinned.items())

    def _copy(self, to: int, source: int, nbytes: int) -> int:
        ctypes.memmove(to, source, nbytes)
        return 0

    def cuMemcpyHtoDAsync(self, to: int, source: int, nbytes: int, stream: int) -> int:
        if not self._inside(to, nbytes):
            return 1
        if self._is_pinned(source):
            return self.push(stream, lambda: self._copy(to, source, nbytes))
        kept = ctypes.string_at(source, nbytes)  # the driver has read ordinary memory when it returns
        return self.push(stream, lambda: ctypes.memmove(to, kept, nbytes) and 0 or 0)

    def cuMemcpyDtoHAsync(self, to: int, source: int, nbytes: int, stream: int) -> int:
        return self.push(stream, lambda: self._copy(to, source, nbytes)) if self._inside(source, nbytes) else 1

    def cuMemcpyDtoDAsync(self, to: int, source: int, nbytes: int, stream: int) -> int:
        if not self._inside(source, nbytes) or not self._inside(to, nbytes):
            return 1
        return self.push(stream, lambda: self._copy(to, source, nbytes))

    def cuMemcpy3DAsync(self, params: int, stream: int) -> int:
        call = boxes.Copy3D.from_buffer_copy(ctypes.string_at(params, ctypes.sizeof(boxes.Copy3D)))
        rows, planes, pairs = call.rows, call.planes, []
        for side in (call.source, call.to):
            if side.kind != 2 or side.pitch < call.width or side.height < rows or side.pitch >= 1 << 31:
                return 1
            at = [side.device + (p * side.height + r) * side.pitch for p in range(planes) for r in range(rows)]
            if not self._inside(at[0], at[-1] + call.width - at[0]):
                return 1
            pairs.append(at)

        def run() -> int:
            for source, to in zip(*pairs, strict=True):
                ctypes.memmove(to, source, call.width)
            return 0

        return self.push(stream, run)

    def cuMemcpyPeerAsync(self, to: int, there: int, source: int, here: int, nbytes: int, stream: int) -> int:
        return self.cuMemcpyDtoDAsync(to, source, nbytes, stream)

    # -- code ----------------------------------------------------------------------------------------------------------

    def cuLinkCreate(self, count: int, options: int, values: int, out: int) -> int:
        return put(out, self.new_handle([values])) or 0

    def cuLinkAddData(
        self, state: int, kind: int, image: int, size: int, name: bytes, count: int, options: int, values: int
    ) -> int:
        module = ctypes.c_int64()
        self.objects[state].append(ctypes.create_string_buffer(ctypes.string_at(image, size)))
        status = self.cuModuleLoadDataEx(ctypes.addressof(module), image, 2, 0, self.objects[state][0])
        self.objects.pop(module.value, None)
        return status

    def cuLinkComplete(self, state: int, out: int, size: int) -> int:
        code = self.objects[state][1]
        return put(out, ctypes.addressof(code)) or put(size, len(code)) or 0

    def cuLinkDestroy(self, state: int) -> int:
        del self.objects[state]
        return 0

    def cuModuleLoadDataEx(self, out: int, image: int, count: int, options: int, values: int) -> int:
        text = ctypes.string_at(image).decode(errors="replace")
        names = re.findall(r"\.entry (\w+)", text)
        if not names:
            log = ctypes.c_void_p.from_address(values).value
            assert log
            ctypes.memmove(log, b"line 1: syntax error\0", 21)
            return 218
        return put(out, self.new_handle(set(names))) or 0

    def cuModuleUnload(self, module: int) -> int:
        del self.objects[module]
        return 0

    def cuModuleGetFunction(self, out: int, module: int, name: bytes) -> int:
        if name.decode() not in self.objects[module]:
            return 500
        return put(out, self.new_handle(("kernel", name.decode(), [49152]))) or 0

    def cuFuncGetAttribute(self, out: int, which: int, function: int) -> int:
        return put(out, self.objects[function][2][0], ctypes.c_int) or 0

    def cuFuncSetAttribute(self, function: int, which: int, value: int) -> int:
        if value > 227 << 10:
            return 1
        self.objects[function][2][0] = value
        return 0

    def cuLaunchKernel(
        self, function: int, gx: int, gy: int, gz: int, tx: int, ty: int, tz: int, shared: int, stream: int,
        params: int, extra: int,
    ) -> int:  # fmt: skip
        _, name, limit = self.objects[function]
        if not gx or tx > 1024 or shared > limit[0]:
            return 1
        (value,) = (ctypes.c_void_p * 1).from_address(params)
        if name == conditional_nodes.CONDITION.name:  # it has two more params: condition, copy of the stop word
            found = (ctypes.c_void_p * 3).from_address(params)
            args, condition, stop = (ctypes.c_uint64.from_address(x).value for x in found)
            return self.push(stream, lambda: self._condition(args, condition, stop))
        by_value = re.search(r"_v(\d+)$", name)
        if by_value:  # the args are read now
            kept = (ctypes.c_int64 * int(by_value[1])).from_buffer_copy(ctypes.string_at(value, 8 * int(by_value[1])))
            return self.push(stream, lambda: self._run(name, kept, gx, tx, shared))
        args = (ctypes.c_int64 * 1).from_address(ctypes.c_uint64.from_address(value).value)
        if not self._inside(ctypes.addressof(args), 8):
            return 700
        return self.push(stream, lambda: self._run(name, args, gx, tx, shared))

    def _condition(self, args: int, condition: int, stop: int) -> int:
        if not self._inside(args, 48) or (stop and not self._inside(stop, 24)):
            return 700
        iteration = host_condition.condition()
        iteration.pass_time(10_000)
        self.iterations += 1
        self.conditions[condition] = iteration.run(args, condition, stop)
        return 0

    def _run(self, name: str, args: Any, grid: int, threads: int, shared: int) -> int:
        if not self.run_kernels:
            return 0
        ranges = [Range(f"{a:#x}", a, n, READ | WRITE) for a, (_, n, _) in self.allocations.items()]
        if name.startswith(moves.NAME):  # no other kernel touches the host's memory
            ranges += [Range("pinned", a, len(m), READ | WRITE) for a, m in self.pinned.items()]
        ranges.append(Range("args", ctypes.addressof(args), ctypes.sizeof(args), READ))
        wrong = kernel_of(self.sources, name).run(name, ctypes.addressof(args), grid, threads, ranges, dynamic=shared)
        self.violations += wrong
        return 700 if wrong else 0

    # -- graphs --------------------------------------------------------------------------------------------------------

    def cuGraphCreate(self, out: int, flags: int) -> int:
        return put(out, self.new_handle([])) or 0

    def cuGraphAddKernelNode(self, out: int, graph: int, before: int, count: int, params: int) -> int:
        node = graphs._Node.from_buffer_copy(ctypes.string_at(params, ctypes.sizeof(graphs._Node)))
        earlier = list((ctypes.c_void_p * count).from_address(before)) if count else []
        made = self.new_handle(node)
        work: list[Callable[[], int]] = []
        stream = Stream(0)
        stream.recording = work
        at = self.new_handle(stream)
        code = self.cuLaunchKernel(node.function, *node.grid, *node.threads, node.shared, at, node.params, 0)
        del self.objects[at]
        self.objects[graph].append((made, earlier, *work))
        return code or put(out, made) or 0

    def cuGraphAddDependencies(self, graph: int, before: int, after: int, edges: int, count: int) -> int:
        """Of kernels that begin early; here they come one after the other."""
        first, second = (ctypes.c_void_p.from_address(x).value for x in (before, after))
        next(node for node in self.objects[graph] if node[0] == second)[1].append(first)
        return int((ctypes.c_ubyte * 3).from_address(edges)[:] != [1, 0, 1] or count != 1)

    def cuGraphConditionalHandleCreate(self, out: int, graph: int, context: int, first: int, flags: int) -> int:
        handle = self.new_handle(None)
        self.conditions[handle] = bool(first)
        return put(out, handle, ctypes.c_uint64) or 0

    def cuGraphAddNode(self, out: int, graph: int, before: int, count: int, params: int) -> int:
        """A node that runs a graph of its own on a condition."""
        node = graphs._Condition.from_address(params)
        if node.kind != 13 or node.size != 1 or node.handle not in self.conditions:
            return 1
        earlier, made, body = list((ctypes.c_void_p * count).from_address(before)), self.new_handle(None), []
        self._bodies.append((ctypes.c_void_p * 1)(self.new_handle(body)))
        node.graphs = ctypes.cast(self._bodies[-1], ctypes.POINTER(ctypes.c_void_p))
        handle, repeats = int(node.handle), bool(node.repeats)

        def run() -> Iterator[int]:
            """Yields once a iteration."""
            while self.conditions[handle]:
                works: list[Any] = []
                self._launch(body, works.append)
                for work in works:
                    yield from finished(work())
                yield 0
                if not repeats:
                    break

        self.objects[graph].append((made, earlier, run))
        return put(out, made) or 0

    def cuGraphKernelNodeSetAttribute(self, node: int, attribute: int, value: int) -> int:
        if attribute != 8 or node not in self.objects:  # the priority
            return 1
        self.priorities[self.objects[node].grid[0]] = ctypes.c_int.from_address(value).value
        return 0

    def cuGraphInstantiateWithFlags(self, out: int, graph: int, flags: int) -> int:
        if flags != 8:  # otherwise the priorities of nodes mean nothing
            return 1
        return put(out, self.new_handle(list(self.objects[graph]))) or 0

    def cuGraphLaunch(self, graph: int, stream: int) -> int:
        self._launch(self.objects[graph], lambda work: self.push(stream, work))
        return 0

    def _launch(self, graph: Sequence[Any], push: Callable[[Any], Any]) -> None:
        """The last node that may run comes next: what relies on the order in which they were added goes wrong."""
        left, done = list(graph), set()
        while left:
            node, _, work = found = [x for x in left if done.issuperset(x[1])][-1]
            left.remove(found)
            done.add(node)
            push(work)

    def cuGraphExecDestroy(self, graph: int) -> int:
        del self.objects[graph]
        return 0

    cuGraphDestroy = cuGraphExecDestroy  # noqa: N815 (the driver's name)

    # -- in place of the real one --------------------------------------------------------------------------------------

    def emit_text(self, sources: Iterable[KernelSource], capability: str = "9.0") -> str:
        """Instead of PTX, the kernels' names; their LLVM is kept to be run."""
        found = list(sources)
        self.sources.update({s.name: s for s in found})
        return "\n".join(f".visible .entry {s.name}(" for s in found)

    def install(self, monkeypatch: Any) -> FakeDriver:
        """Make it the driver for a test."""
        monkeypatch.setattr(modules.ptx, "emit_text", self.emit_text)
        monkeypatch.setattr(modules.ptx, "assemble", lambda text, capability: text)
        monkeypatch.setattr(modules, "disk_cache", lambda: self.disk)
        monkeypatch.setattr(iterations.small_loops, "ITERATIONS", 2)  # kernels take time
        driver.use(lambda: self.functions)
        return self
