"""A module that has become text leaves next to nothing to the collector of garbage."""

import gc
import weakref
from collections.abc import Iterator

import pytest
from llvmlite import ir

import volta
import volta.numpy as vnp
from volta.emit.module_text import text_of
from volta.numba_cuda.codegen import ptx
from volta.numba_cuda.kernels import launches_of
from volta.numba_cuda.launches import every
from volta.offline import plan_on_cuda


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def counting() -> ir.Module:
    """A loop: its variable is what it was plus one."""
    module, i32 = ir.Module("m"), ir.IntType(32)
    function = ir.Function(module, ir.FunctionType(i32, [i32]), "f")
    entry, again, end = (function.append_basic_block(name) for name in ("entry", "again", "end"))
    builder = ir.IRBuilder(entry)
    builder.branch(again)
    builder.position_at_end(again)
    i = builder.phi(i32)
    after = builder.add(i, ir.Constant(i32, 1))
    i.add_incoming(ir.Constant(i32, 0), entry)
    i.add_incoming(after, again)
    builder.cbranch(builder.icmp_signed("<", after, function.args[0]), again, end)
    builder.position_at_end(end)
    builder.ret(after)
    return module


def test_instructions_are_freed(uncollected: None) -> None:
    module = counting()
    found = [weakref.ref(i) for function in module.functions for block in function.blocks for i in block.instructions]
    before = str(module)
    assert text_of(module) == before and len(found) == 6
    assert not [ref() for ref in found if ref() is not None]


def test_kernels_leave_little(uncollected: None) -> None:
    """A product has thousands of instructions; what functions know of themselves is what is left."""
    program = volta.jit(lambda x, w: vnp.tanh(x @ w)).trace(*[volta.ShapeDtypeStruct((64, 64), vnp.float32)] * 2).jaxpr
    plan, _ = plan_on_cuda(program)
    sources = {x.source.name: x.source for x in every(launches_of(plan))}.values()
    gc.collect()
    text = ptx.emit_text(sources, "9.0")
    assert gc.collect() < text.count("\n") / 4
