"""The tests with every buffer between pages that nobody may touch: VOLTA_TEST_GUARD=over or under.

`over` puts a buffer's end, `under` its start, at the edge of a page that has one without access behind (before) it: a
read or write too far faults, and pytest names the test. The bytes up to the page's other edge hold a pattern, which is
compared when the buffer goes. What is guarded: arrays, a plan's temporaries one by one (they share no memory here),
tables and args blocks, and the scratch memory of every thread. New memory is filled with a pattern that makes NaNs and
indices out of range.

Nothing of the library knows of this; `install` puts it in place before the first test.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pytest

from volta.core.errors import VerificationError
from volta.numba_cpu import backend, launch, launch_ir, threads, threads_ir, unit
from volta.numba_cpu.host_plan import HostPlan
from volta.numba_source import backend as source_backend
from volta.runtime import executable, memory
from volta.xla_like.control_calls import While
from volta.xla_like.kernels import KernelCall
from volta.xla_like.plan import ExecutionPlan

SIDES = ("over", "under")

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

_SLACK, _FRESH = 0xA5, 0xFF
"""The byte around a buffer; the byte that new memory is filled with: a NaN in every float, -1 in every integer."""

broken: list[str] = []
"""What buffers were written around, since the last test that was told so."""


def _alignment(nbytes: int) -> int:
    """The largest power of two that divides a size, up to a cache line: what its elements need, and no more."""
    return min(nbytes & -nbytes, memory.ALIGNMENT)


# -- memory ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Piece:
    """A buffer of a region: where it lies, and the whole pages it lies in."""

    start: int
    nbytes: int
    first_page: int
    pages: int


@attrs.frozen
class Layout:
    """Buffers with a page between each two: where each part begins, the buffers themselves, and bytes in all."""

    starts: tuple[int, ...]
    pieces: tuple[Piece, ...]
    nbytes: int


def layout(side: str, parts: Sequence[int | Layout]) -> Layout:
    """Where buffers of some sizes, or whole layouts, lie: as near to a page's edge as their elements allow."""
    starts: list[int] = []
    pieces: list[Piece] = []
    at = PAGE
    for part in parts:
        if isinstance(part, Layout):
            starts.append(at)
            pieces += [attrs.evolve(p, start=p.start + at, first_page=p.first_page + at) for p in part.pieces]
            at += part.nbytes
            continue
        nbytes = max(part, 1)
        pages, start = -(-nbytes // PAGE) * PAGE, at
        if side == "over":
            start = at + pages - nbytes
            start -= start % _alignment(nbytes)
        starts.append(start)
        pieces.append(Piece(start, nbytes, at, pages))
        at += pages + PAGE
    return Layout(tuple(starts), tuple(pieces), at)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_NONE, _BOTH, _PRIVATE_ANONYMOUS = 0, 3, 0x22


class Region:
    """Memory laid out so, from the system and back to it. Raises MemoryError where there is none."""

    def __init__(self, plan: Layout) -> None:
        self.layout = plan
        self.address = 0
        found = _libc.mmap(None, plan.nbytes, _NONE, _PRIVATE_ANONYMOUS, -1, 0)
        if found in (None, 2**64 - 1):
            raise MemoryError("the system has no more pages, or no more maps of them")
        self.address: int = found
        for piece in plan.pieces:
            if _libc.mprotect(found + piece.first_page, piece.pages, _BOTH):
                raise MemoryError("the system has no more pages, or no more maps of them")
            ctypes.memset(found + piece.first_page, _SLACK, piece.pages)
            ctypes.memset(found + piece.start, _FRESH, piece.nbytes)

    def __del__(
        self, string_at: Any = ctypes.string_at, munmap: Any = _libc.munmap, slack: bytes = bytes([_SLACK]),
        found: list[str] = broken,
    ) -> None:  # fmt: skip
        if not self.address:
            return
        for piece in self.layout.pieces:
            end, last = piece.start + piece.nbytes, piece.first_page + piece.pages
            for where, low, high in (("before", piece.first_page, piece.start), ("behind", end, last)):
                if string_at(self.address + low, high - low).strip(slack):
                    found.append(f"memory {where} a buffer of {piece.nbytes} bytes was written")
        munmap(self.address, self.layout.nbytes)


class _Block(memory._Block):
    """What a guarded pool hands out: `address` is that of the array, or of the arena's first page."""

    def __init__(self, size: int, free: list[memory._Block], plan: Layout, arena: bool) -> None:
        self.size, self.free = size, free
        self.memory = Region(plan)
        self.address = self.memory.address + (0 if arena else plan.pieces[0].start)


class Arena(int):
    """The bytes of an arena as planned, which is what a pool counts, with the layout that it has instead."""

    layout: Layout


class _Request(list[memory._Block]):
    """The free list of one request, on which nothing ever waits: what is given back goes back to the system."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.nbytes = nbytes


class GuardedPool(memory.HostPool):
    """A pool whose buffers are regions of their own. Limits hold, and statistics count, as in any pool."""

    def __init__(self, side: str) -> None:
        super().__init__(pool_limit=-1)
        self.side = side

    def _fresh(self, size: int, nbytes: int, free: list[memory._Block]) -> memory._Block:
        return super()._fresh(size, nbytes, _Request(nbytes))

    def _new_block(self, size: int, free: list[memory._Block]) -> memory._Block:
        assert isinstance(free, _Request)
        arena = isinstance(free.nbytes, Arena)
        plan = free.nbytes.layout if isinstance(free.nbytes, Arena) else layout(self.side, [free.nbytes])
        return _Block(size, free, plan, arena)


# -- plans -------------------------------------------------------------------------------------------------------------


def spread(plan: ExecutionPlan, side: str) -> tuple[ExecutionPlan, Layout | None]:
    """The plan with each temporary in pages of its own, and how its arena is laid out (None: it has none).

    The arena of a loop's body is laid out likewise; choices share theirs, which stays as it is, and so does that of a
    loop that is one native function (`volta.numba_cpu.small_loops`), in whose code the places are.
    """
    calls: list[KernelCall] = []
    inner: dict[int | None, Layout] = {}
    launches = plan.launches if isinstance(plan, HostPlan) else ((),) * len(plan.calls)
    for call, own in zip(plan.calls, launches, strict=True):
        if isinstance(call.kernel, While) and not own:
            body, where = spread(call.plans[0], side)
            if where is not None:
                inner[call.accesses[-1].buffer] = where
                call = attrs.evolve(call, plans=(body,))
        calls.append(call)
    same: dict[int, int] = {}  # a copy that need not run, as its two sides share memory: they must go on to
    for call in calls:
        if call.elided:
            same.update((written, same.get(read, read)) for read, written in call.inplace)
    temps = [b for b in plan.buffers if b.kind == "temp" and b.id not in same]
    if not plan.arena_bytes:
        return plan, None
    found = layout(side, [inner.get(b.id, b.nbytes) for b in temps])
    starts = {b.id: start for b, start in zip(temps, found.starts, strict=True)}
    starts.update({b: starts[shared] for b, shared in same.items() if shared in starts})
    buffers = tuple(attrs.evolve(b, offset=starts.get(b.id, b.offset)) for b in plan.buffers)
    return attrs.evolve(plan, buffers=buffers, calls=tuple(calls), arena_bytes=found.nbytes), found


# -- scratch -----------------------------------------------------------------------------------------------------------

_SCRATCH = """
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @mprotect(ptr, i64, i32)
declare i32 @munmap(ptr, i64)

; Callers ask for 64 bytes more than they use, and round up to a cache line; what is given rounds up to where the
; scratch memory lies. Pages: one that holds the size, one without access, the memory, one without access.
define ptr @guarded_take(i64 %asked) {
  %most = sub i64 %asked, 64
  %used = call i64 @llvm.umax.i64(i64 %most, i64 64)
  %up = add i64 %used, MASK
  %body = and i64 %up, -PAGE
  %total = add i64 %body, THREE
  %base = call ptr @mmap(ptr null, i64 %total, i32 3, i32 34, i32 -1, i64 0)
  %failed = icmp eq ptr %base, inttoptr (i64 -1 to ptr)
  br i1 %failed, label %none, label %some
none:
  ret ptr null
some:
  store i64 %total, ptr %base
  %before = getelementptr i8, ptr %base, i64 PAGE
  %first = getelementptr i8, ptr %before, i64 PAGE
  %behind = getelementptr i8, ptr %first, i64 %body
  %one = call i32 @mprotect(ptr %before, i64 PAGE, i32 0)
  %two = call i32 @mprotect(ptr %behind, i64 PAGE, i32 0)
  call void @llvm.memset.p0.i64(ptr %first, i8 -1, i64 %body, i1 false)
  %unused = sub i64 %body, %used
  %lines = and i64 %unused, -64
  %skipped = select i1 OVER, i64 %lines, i64 0
  %start = getelementptr i8, ptr %first, i64 %skipped
  %given = getelementptr i8, ptr %start, i64 -63
  ret ptr %given
}

define void @guarded_give(ptr %given) {
  %nothing = icmp eq ptr %given, null
  br i1 %nothing, label %done, label %some
some:
  %word = ptrtoint ptr %given to i64
  %start = add i64 %word, 63
  %page = and i64 %start, -PAGE
  %at = sub i64 %page, TWO
  %base = inttoptr i64 %at to ptr
  %total = load i64, ptr %base
  %ignored = call i32 @munmap(ptr %base, i64 %total)
  br label %done
done:
  ret void
}
declare i64 @llvm.umax.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


def _scratch_functions(side: str) -> dict[str, int]:
    """Native functions that take and give back guarded memory, under the names of those that they stand in for."""
    numbers = {"MASK": PAGE - 1, "TWO": 2 * PAGE, "THREE": 3 * PAGE, "PAGE": PAGE, "OVER": str(side == "over").lower()}
    text = re.sub("|".join(numbers), lambda found: str(numbers[found[0]]), _SCRATCH)
    found = unit.compile_module(text, ("guarded_take", "guarded_give"))
    return {"PyMem_RawMalloc": found["guarded_take"], "PyMem_RawFree": found["guarded_give"]}


def _exact(text: str, loose: str, exact: str) -> str:
    """A runtime loop's text in which scratch memory serves again only where it has the very size asked for."""
    if text.count(loose) != 1:
        raise VerificationError(f"the runtime's text has changed: {loose!r} is in it {text.count(loose)} times")
    return text.replace(loose, exact)


# -- putting it in place -----------------------------------------------------------------------------------------------


def install(side: str) -> None:
    """Guard all memory of this process from here on, before anything is compiled or allocated."""
    if side not in SIDES:
        raise ValueError(f"VOLTA_TEST_GUARD must be one of {', '.join(SIDES)}, got {side!r}")
    if threads.native.cache_info().currsize or launch.native.cache_info().currsize:
        raise RuntimeError("memory is guarded from the beginning or not at all")
    memory._default_pool = GuardedPool(side)
    executable._SLAB_LIMIT = -1

    begin = executable.Executable.__init__

    def spreading(prepare: Callable[..., Any]) -> Callable[..., Any]:
        return lambda plan, *rest: prepare(spread(plan, side)[0], *rest)

    def with_arena(self: executable.Executable, plan: ExecutionPlan, *rest: Any) -> None:
        begin(self, plan, *rest)
        where = spread(plan, side)[1]
        if where is not None:
            self._arena = Arena(plan.arena_bytes)
            self._arena.layout = where

    backend.prepare = spreading(backend.prepare)
    for kind, generated in source_backend.KERNELS.items():
        source_backend.KERNELS[kind] = attrs.evolve(generated, prepare=spreading(generated.prepare))
    executable.Executable.__init__ = with_arena

    def words(count: int) -> np.ndarray:
        region = Region(layout(side, [8 * count]))
        block = memory.Buffer(region.address + region.layout.pieces[0].start, 8 * count, region)
        found = memory.as_numpy(block, (count,), None, np.int64, writable=True)
        found[:] = 0
        return found

    launch._aligned = words

    symbols, guarded = threads.python_symbols, _scratch_functions(side)
    threads.python_symbols = lambda names: {name: guarded.get(name, at) for name, at in symbols(names).items()}
    launch_ir.IR = _exact(launch_ir.IR, "icmp uge i64 %size, %bytes", "icmp eq i64 %size, %bytes")
    threads_ir._RUN = _exact(threads_ir._RUN, "icmp ult i64 %size, %scratch_bytes", "icmp ne i64 %size, %scratch_bytes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test fails that wrote beside its buffers; a buffer that goes later fails the test that runs then."""
    yield
    if broken:
        found, broken[:] = broken[:], []
        pytest.fail("\n".join(found))
