"""What programs cost, counted: exact counts, loops and choices, beside XLA's."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax

X, Y = vnp.ones((10, 20)), vnp.ones((20, 5))


def cost(f, *args):
    return volta.jit(f).lower(*args).cost_analysis()


def test_products_functions_and_bytes_are_counted_exactly():
    found = cost(lambda x, y: vnp.sum(vnp.tanh(x @ y)), X, Y)
    assert found == {
        "flops": 2.0 * 10 * 20 * 5 + 49,  # a product, and a sum of 50
        "transcendentals": 50.0,
        "bytes accessed": 4.0 * (200 + 100 + 50 + 50 + 50 + 50 + 1),
    }


def test_the_order_of_a_chain_of_products_shows():
    x, y, z = vnp.ones((200, 5)), vnp.ones((5, 100)), vnp.ones((100, 10))
    assert cost(lambda x, y, z: (x @ y) @ z, x, y, z)["flops"] == 600_000
    assert cost(lambda x, y, z: x @ (y @ z), x, y, z)["flops"] == 30_000
    assert cost(vnp.linalg.multi_dot, [x, y, z])["flops"] == 30_000


def test_loops_and_choices():
    once = cost(lambda x: vnp.sin(x) * 2, X)
    scanned = cost(lambda x: lax.scan(lambda c, _: (vnp.sin(c) * 2, None), x, length=7)[0], X)
    assert (scanned["flops"], scanned["transcendentals"]) == (7 * once["flops"], 7 * once["transcendentals"])
    chosen = cost(lambda p, x: lax.cond(p, lambda x: x * 2 + 1, lambda x: x, x), True, X)
    assert chosen["flops"] == 400
    assert cost(lambda x: lax.while_loop(lambda c: c[0, 0] < 3, lambda c: c + 1, x), X)["flops"] >= 200
    assert cost(lambda i: i * 2 + 1, vnp.arange(5))["flops"] == 0  # of integers nothing


def test_counts_are_xlas():
    jax = pytest.importorskip("jax")
    for f in (
        lambda m, x, y: m.numpy.sum(m.numpy.tanh(x @ y)),
        lambda m, x, y: m.numpy.exp(x).T @ (x + 1) @ y,
        lambda m, x, y: m.lax.dot_general(x, x, (((1,), (1,)), ((0,), (0,)))) / 2,
    ):
        ours = volta.jit(lambda x, y, f=f: f(volta, x, y)).lower(X, Y).cost_analysis()
        theirs = jax.jit(lambda x, y, f=f: f(jax, x, y)).lower(np.asarray(X), np.asarray(Y)).cost_analysis()
        assert ours["flops"] == theirs["flops"]
        assert ours["transcendentals"] == theirs.get("transcendentals", 0)


def test_of_what_is_compiled_the_plan_is_counted():
    compiled = volta.jit(lambda x: vnp.exp(x) * 1 + 0 * x).lower(X).compile()
    assert compiled.cost_analysis()["transcendentals"] == 200
    fused = volta.jit(lambda x: vnp.sin(vnp.exp(x) + 1)).lower(X)
    assert fused.compile().cost_analysis()["bytes accessed"] == 2 * X.nbytes < fused.cost_analysis()["bytes accessed"]
    memory = fused.compile().memory_analysis()
    assert (memory.argument_size_in_bytes, memory.output_size_in_bytes) == (X.nbytes, X.nbytes)
    assert memory.alias_size_in_bytes == 0 == memory.temp_size_in_bytes


def test_what_calls_python_is_counted_as_it_was_traced():
    def f(x):
        volta.debug.callback(lambda v: None, x)
        return vnp.exp(x)

    assert volta.jit(f).lower(X).compile().cost_analysis()["transcendentals"] == 200
