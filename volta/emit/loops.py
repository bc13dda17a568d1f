"""Small structured-control helpers over llvmlite's ``IRBuilder``, shared by all kernel emitters.

Counters are ``i64``; addresses are opaque pointers moved by byte offsets.  Loops are emitted in rotated form (a guard,
then a do-while), which is what LLVM wants, so the code is good even before any optimisation pass has run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from llvmlite import ir

I1 = ir.IntType(1)
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
PTR = ir.PointerType()
VOID = ir.VoidType()


def as_i64(value: ir.Value | int) -> ir.Value:
    """An ``i64`` value: Python integers become constants, LLVM values pass through."""
    return I64(value) if isinstance(value, int) else value


def load_arg(b: ir.IRBuilder, args: ir.Value, index: ir.Value | int) -> ir.Value:
    """The int64 at position `index` of the args block."""
    return b.load(b.gep(args, [as_i64(index)], inbounds=True, source_etype=I64), align=8, typ=I64)


def load_args(b: ir.IRBuilder, args: ir.Value, count: int, first: int = 0) -> list[ir.Value]:
    """The int64 values at positions ``first .. first + count - 1`` of the args block."""
    return [load_arg(b, args, first + i) for i in range(count)]


def load_pointer(b: ir.IRBuilder, args: ir.Value, index: ir.Value | int) -> ir.Value:
    """The address at position `index` of the args block, as a pointer."""
    return b.inttoptr(load_arg(b, args, index), PTR)


def offset(b: ir.IRBuilder, pointer: ir.Value, nbytes: ir.Value | int) -> ir.Value:
    """`pointer` moved by `nbytes` bytes (a constant or an ``i64`` value, may be negative)."""
    return b.gep(pointer, [as_i64(nbytes)], source_etype=I8)


def minimum(b: ir.IRBuilder, x: ir.Value, y: ir.Value | int) -> ir.Value:
    """The smaller of two signed integers."""
    y = x.type(y) if isinstance(y, int) else y
    return b.select(b.icmp_signed("<", x, y), x, y)


class Loop:
    """A loop under construction: see `loop`."""

    def __init__(self, index: ir.PhiInstr, step: ir.Value, values: list[ir.PhiInstr]):
        self.index = index
        self.step = step
        self.values = values
        self.results: list[ir.Value] = []
        self._next: list[ir.Value] | None = None if values else []

    def advance(self, *values: ir.Value) -> None:
        """Declare what the carried values become in the next iteration; call it once, at the end of the body."""
        if len(values) != len(self.values):
            raise ValueError(f"loop carries {len(self.values)} values, advance got {len(values)}")
        self._next = list(values)

    @property
    def next_values(self) -> list[ir.Value]:
        """What `advance` was given; an error if the body carries values and never advanced them."""
        if self._next is None:
            raise ValueError("the loop body carries values but did not call advance()")
        return self._next


@contextmanager
def loop(
    b: ir.IRBuilder,
    start: ir.Value | int,
    stop: ir.Value | int,
    step: ir.Value | int = 1,
    init: Sequence[ir.Value] = (),
    some: bool = False,
) -> Iterator[Loop]:
    """``for index in range(start, stop, step)`` with loop-carried values; `step` must be positive.

    The body may set ``it.step`` to a value of its own, for steps that vary. With ``some`` the range is known not to be
    empty.

    Inside the block ``it.index`` and ``it.values`` are the current ones and ``it.advance(...)`` gives the next ones.
    After the block ``it.results`` holds the final values (those of `init` if the loop ran no iteration)::

        with loop(b, 0, n, init=[zero]) as it:
            it.advance(b.fadd(it.values[0], load(it.index)))
        total = it.results[0]
    """
    start, stop, step = as_i64(start), as_i64(stop), as_i64(step)
    before = b.block
    body, after = b.append_basic_block("loop"), b.append_basic_block("done")
    if some:
        b.branch(body)
    else:
        b.cbranch(b.icmp_signed("<", start, stop), body, after)

    b.position_at_end(body)
    index = b.phi(start.type)
    values = [b.phi(value.type) for value in init]
    it = Loop(index, step, values)
    yield it
    following = b.add(index, it.step)
    latch = b.block
    b.cbranch(b.icmp_signed("<", following, stop), body, after)

    for phi, first, then in zip([index, *values], [start, *init], [following, *it.next_values], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(then, latch)
    b.position_at_end(after)
    for first, then in zip(init, it.next_values, strict=True):
        result = b.phi(first.type)
        if not some:
            result.add_incoming(first, before)
        result.add_incoming(then, latch)
        it.results.append(result)


@contextmanager
def for_range(
    b: ir.IRBuilder, start: ir.Value | int, stop: ir.Value | int, step: ir.Value | int = 1
) -> Iterator[ir.Value]:
    """``for index in range(start, stop, step)`` without carried values; gives the index."""
    with loop(b, start, stop, step) as it:
        yield it.index


def while_loop(b: ir.IRBuilder, condition: Callable[[], ir.Value], body: Callable[[], None]) -> None:
    """``while condition(): body()``, for loops whose state lives in stack slots."""
    head, inside, after = (b.append_basic_block(label) for label in ("while", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    b.cbranch(condition(), inside, after)
    b.position_at_end(inside)
    body()
    b.branch(head)
    b.position_at_end(after)


@contextmanager
def if_then(b: ir.IRBuilder, condition: ir.Value, likely: bool | None = None) -> Iterator[None]:
    """Run the block only where `condition` (``i1``) holds."""
    with b.if_then(condition, likely=likely):
        yield


class Branch:
    """A two-way branch under construction: see `if_else`."""

    def __init__(self, b: ir.IRBuilder, then_block: ir.Block, else_block: ir.Block, after: ir.Block):
        self._b, self._blocks, self._after = b, (then_block, else_block), after
        self._ends: list[tuple[ir.Block, tuple[ir.Value, ...]]] = []
        self.results: list[ir.Value] = []

    @contextmanager
    def _arm(self, which: int) -> Iterator[None]:
        self._b.position_at_end(self._blocks[which])
        yield
        if len(self._ends) == which:
            self._ends.append((self._b.block, ()))
        self._b.branch(self._after)

    def then(self) -> AbstractContextManager[None]:
        """The arm taken where the condition holds; write it first."""
        return self._arm(0)

    def otherwise(self) -> AbstractContextManager[None]:
        """The arm taken where the condition does not hold."""
        return self._arm(1)

    def give(self, *values: ir.Value) -> None:
        """Declare the values of this arm; call it last in the arm (both arms must give the same number)."""
        self._ends.append((self._b.block, values))


@contextmanager
def if_else(b: ir.IRBuilder, condition: ir.Value) -> Iterator[Branch]:
    """A branch with two arms that may give values, merged into ``results`` afterwards::

    with if_else(b, condition) as branch:
        with branch.then():
            branch.give(x)
        with branch.otherwise():
            branch.give(y)
    merged = branch.results[0]
    """
    blocks = [b.append_basic_block(label) for label in ("then", "else", "endif")]
    b.cbranch(condition, blocks[0], blocks[1])
    branch = Branch(b, *blocks)
    yield branch
    if len(branch._ends) != 2 or len(branch._ends[0][1]) != len(branch._ends[1][1]):
        raise ValueError("both arms of a branch must be written, and give the same number of values")
    b.position_at_end(blocks[2])
    for left, right in zip(branch._ends[0][1], branch._ends[1][1], strict=True):
        merged = b.phi(left.type)
        merged.add_incoming(left, branch._ends[0][0])
        merged.add_incoming(right, branch._ends[1][0])
        branch.results.append(merged)


def intrinsic(module: ir.Module, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> ir.Function:
    """Declare an LLVM intrinsic (or any external function) once per module."""
    found = module.globals.get(name)
    if found is None:
        found = ir.Function(module, ir.FunctionType(result, list(arguments)), name)
    return found


def prefetch(b: ir.IRBuilder, pointer: ir.Value, writes: bool = False) -> None:
    """Ask for a line of memory that is touched soon. Any address may be asked for."""
    function = intrinsic(b.module, "llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
    b.call(function, [pointer, I32(int(writes)), I32(3), I32(1)])


def fma(b: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """``x * y + z`` with one rounding, for floating scalars and vectors."""
    kind = x.type
    if isinstance(kind, ir.VectorType):
        suffix = f"v{kind.count}{kind.element.intrinsic_name}"
    else:
        suffix = kind.intrinsic_name
    return b.call(intrinsic(b.module, f"llvm.fma.{suffix}", kind, [kind] * 3), [x, y, z])


def splat(b: ir.IRBuilder, scalar: ir.Value, lanes: int) -> ir.Value:
    """A vector with `scalar` in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    zeros = ir.Constant(ir.VectorType(I32, lanes), None)
    return b.shuffle_vector(b.insert_element(undefined, scalar, I32(0)), undefined, zeros)


def any_of(b: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """Whether a mask has any lane."""
    name = f"llvm.vector.reduce.or.v{mask.type.count}i1"
    return b.call(intrinsic(b.module, name, I1, [mask.type]), [mask])


def counted(b: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """How many lanes a mask has."""
    bits = b.zext(b.bitcast(mask, ir.IntType(mask.type.count)), I64)
    return b.call(intrinsic(b.module, "llvm.ctpop.i64", I64, [I64]), [bits])


def compressed(b: ir.IRBuilder, x: ir.Value, mask: ir.Value) -> ir.Value:
    """The elements of a vector of integers that a mask has, moved to the front."""
    kind = x.type
    name = f"llvm.experimental.vector.compress.v{kind.count}i{kind.element.width}"
    return b.call(intrinsic(b.module, name, kind, [kind, mask.type, kind]), [x, mask, ir.Constant(kind, None)])
