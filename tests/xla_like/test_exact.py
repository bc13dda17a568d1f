"""What products of precision "exact" become: products of int8, which whoever runs plans has kernels for."""

import numpy as np

import volta
import volta.numpy as vnp
from volta import lax
from volta.testing import fill
from volta.xla_like.compile import build_plan
from volta.xla_like.dot import Dot
from volta.xla_like.exact import exact_products
from volta.xla_like.verify import verify_graph


def exact(a, b):
    return vnp.matmul(a, b, precision="exact")


def struct(*shape):
    return volta.ShapeDtypeStruct(shape, np.float32)


def dots(f, *args):
    calls = build_plan(volta.make_jaxpr(f)(*args))[0].calls
    return [p.kernel for call in calls for p in (call.parts or (call,)) if isinstance(p.kernel, Dot)]


def test_four_products_of_int8_whose_sums_are_int32() -> None:
    found = dots(exact, struct(40, 100), struct(100, 50))
    assert {(x.spec.lhs, x.spec.rhs, x.spec.out, x.spec.precision) for x in found} == {
        ("int8", "int8", "int32", "default")
    }
    assert [(x.m, x.n, x.k) for x in found] == [(40, 50, 112 * digits) for digits in (4, 3, 2, 1)]


def test_a_long_contraction_is_a_batch_of_blocks() -> None:
    assert [(x.batches, x.k) for x in dots(exact, struct(3, 80_000), struct(80_000, 2))] == [
        (3, 26_672 * digits) for digits in (4, 3, 2, 1)
    ]


def test_digits_of_an_operand_are_made_once() -> None:
    plan = build_plan(volta.make_jaxpr(lambda a, b, c: (exact(a, b), exact(a, c)))(*[struct(64, 64)] * 3))[0]
    digits = [b for b in plan.buffers if b.aval.dtype == np.int8]
    assert [b.aval.shape for b in digits] == [(64, 4 * 64)] * 3


def test_programs_of_loops_are_rewritten_where_they_are_compiled() -> None:
    a = fill("normal", (6, 6), "float32")
    program = volta.make_jaxpr(lambda a: lax.fori_loop(0, 3, lambda i, c: exact(c, a), a))(a)
    assert exact_products(program) is program
    kernels = "".join(build_plan(program)[0].kernel_texts().values())
    assert "int8" in kernels or "i8" in kernels


def test_the_rewritten_program_has_the_same_inputs_and_results() -> None:
    program = volta.make_jaxpr(lambda a, b: (exact(a, b) + 1, a))(struct(3, 5), struct(5, 2))
    while not any(e.primitive.name == "dot_general" for e in program.eqns):
        (call,) = [e for e in program.eqns if "jaxpr" in e.params]
        program = call.params["jaxpr"]
    found = exact_products(program)
    verify_graph(found)
    assert found.in_avals == program.in_avals and found.out_avals == program.out_avals
    assert not any(e.params.get("precision") == "exact" for e in found.eqns)
