"""jit: caching, arguments of all kinds, stages, and what it means inside and outside of other transforms."""

import concurrent.futures
import dataclasses
import functools
import sys
import threading
from typing import NamedTuple

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.thread_support import running
from volta import tree_util
from volta.api.jit import jit_is_disabled

X = np.array([1, 2, 3], np.float32)


def counted(fun=None, **options):
    """A jitted function and the list that grows when it is traced."""
    traces = []

    def body(*args, **kwargs):
        traces.append(1)
        return fun(*args, **kwargs)

    return volta.jit(body, **options), traces


def test_one_trace_for_each_kind_of_arguments() -> None:
    f, traces = counted(lambda x, *, y=1.0: x * y)
    for _ in range(3):
        f(X)
        f(vnp.asarray(X))
    assert len(traces) == 1
    f(X.astype(np.float64))
    f(X[:2])
    f(2.0)  # a Python number is weak: another kind than a NumPy scalar
    f(np.float32(2.0))
    assert len(traces) == 5
    f(X, y=2.0)
    f(X, y=3.0)
    assert len(traces) == 6


def test_trees_in_and_out() -> None:
    class Pair(NamedTuple):
        a: object
        b: object

    @tree_util.register_dataclass
    @dataclasses.dataclass
    class Data:
        x: object
        y: object

    @tree_util.register_dataclass
    @attrs.frozen
    class Record:
        w: object

    @volta.jit
    def f(p, d, r, none, empty):
        return {"pair": Pair(p.b, p.a), "data": Data(d.y, [d.x]), "record": r, "none": none, "empty": empty}

    out = f(Pair(X, 1.0), Data(2, X), Record((X, X)), None, {})
    assert out["pair"].b.tolist() == [1, 2, 3]
    assert int(out["data"].y[0]) == 2
    assert out["record"].w[1].tolist() == [1, 2, 3]
    assert out["none"] is None and out["empty"] == {}
    assert int(f(Pair(X, 1.0), Data(5, X), Record((X, X)), None, {})["data"].y[0]) == 5


def test_keyword_arguments_in_any_order() -> None:
    f = volta.jit(lambda a, b: a - b)
    assert float(f(b=1.0, a=3.0)) == float(f(a=3.0, b=1.0)) == 2.0


def test_static_arguments() -> None:
    f, traces = counted(lambda x, n, kind="sum": getattr(vnp, kind)(x) * n, static_argnums=1, static_argnames="kind")
    assert float(f(X, 2, kind="sum")) == 12.0
    assert float(f(X, 2, kind="sum")) == 12.0
    assert len(traces) == 1
    assert float(f(X, 3, kind="max")) == 9.0
    assert len(traces) == 2
    f(X, 3.0, kind="max")  # equal, but of another type
    assert len(traces) == 3


def test_a_static_name_given_by_position_and_the_reverse() -> None:
    @volta.jit
    def plain(x, flag):
        return x * 2 if flag is None else x

    def f(x, flag):
        return x * 2 if flag else x

    by_name = volta.jit(f, static_argnames="flag")
    assert by_name(X, True).tolist() == [2, 4, 6]
    by_number = volta.jit(f, static_argnums=-1)
    assert by_number(X, flag=True).tolist() == [2, 4, 6]
    assert plain(X, None).tolist() == [2, 4, 6]


def test_equal_static_values_that_compute_differently_are_two_programs() -> None:
    f = volta.jit(lambda x, s: x * s[0], static_argnums=1)
    for zero in (0.0, -0.0, np.float32(0), np.float32(-0.0)):
        assert np.signbit(np.asarray(f(X, (zero,)))).tolist() == [bool(np.signbit(zero))] * 3
    count = vnp.asarray([1, 2])
    assert [f(count, (k,)).dtype.name for k in (1, 1.0, True)] == ["int32", "float32", "int32"]
    size = f.cache_size()
    assert np.isnan(f(X, (float("nan"),))).all() and np.isnan(f(X, (float("nan"),))).all()
    assert f.cache_size() == size + 1

    @functools.partial(tree_util.register_dataclass, static=("scale",))
    @dataclasses.dataclass
    class Layer:
        w: object
        scale: object

    g = volta.jit(lambda layer: layer.w * layer.scale)
    assert [g(Layer(count, k)).dtype.name for k in (1, 1.0)] == ["int32", "float32"]
    assert np.signbit(np.asarray(g(Layer(X, -0.0)))).all() and not np.signbit(np.asarray(g(Layer(X, 0.0)))).any()

    class Node(Layer):
        pass

    tree_util.register_pytree_node(Node, lambda n: ((n.w,), n.scale), lambda scale, ws: Node(*ws, scale))
    assert [g(Node(count, k)).dtype.name for k in (1, 1.0)] == ["int32", "float32"]


def test_static_errors() -> None:
    f = volta.jit(lambda x, n: x, static_argnums=1)
    with pytest.raises(volta.errors.StaticArgumentError, match=r"number 1 of `<lambda>` is \[1, 2\] of type list"):
        f(X, [1, 2])
    with pytest.raises(volta.errors.StaticArgumentError, match="no number 5"):
        volta.jit(lambda x: x, static_argnums=5)
    with pytest.raises(volta.errors.StaticArgumentError, match="no argument 'k'; it has x"):
        volta.jit(lambda x: x, static_argnames="k")
    with pytest.raises(volta.errors.StaticArgumentError, match="both static and donated"):
        volta.jit(lambda x: x, static_argnums=0, donate_argnums=0)


def test_arguments_that_are_no_arrays_are_named_by_their_path() -> None:
    f = volta.jit(lambda config, x: x)
    with pytest.raises(volta.errors.DTypeError, match=r"args\[0\]\['name'\] is 'adam' of type str"):
        f({"name": "adam"}, X)
    with pytest.raises(volta.errors.DTypeError, match=r"args\[2\]\[0\] is 'a'"):
        volta.jit(lambda x, n, y: x, static_argnums=1)(X, 2, ["a"])
    with pytest.raises(volta.errors.DTypeError, match=r"kwargs\['k'\] is 'a'"):
        volta.jit(lambda x, k: x)(X, k="a")
    with pytest.raises(volta.errors.DTypeError, match=r"args\[1\]\['k'\] is 'a'"):
        volta.grad(lambda x, p: x, argnums=(0, 1))(1.0, {"k": "a"})
    with pytest.raises(volta.errors.DTypeError, match="the output of `<lambda>`: output is .*type str"):
        volta.jit(lambda x: "text")(X)


def test_decorator_with_options_and_methods() -> None:
    class Model:
        @volta.jit
        def call(self, x):
            return x * 2

    tree_util.register_pytree_node(Model, lambda m: ((), None), lambda aux, children: Model())
    assert Model().call(X).tolist() == [2, 4, 6]

    @volta.jit(static_argnames=("n",))
    def power(x, n):
        """Doc."""
        return x**n

    assert power(X, n=2).tolist() == [1, 4, 9]
    assert power.__name__ == "power" and power.__doc__ == "Doc."


def test_stages() -> None:
    f = volta.jit(lambda x, s: {"y": x * s}, static_argnums=1)
    lowered = f.lower(volta.ShapeDtypeStruct((3,), "float32"), 2.0)
    assert "mul" in lowered.as_text()
    assert lowered.out_info["y"].shape == (3,)
    compiled = lowered.compile()
    assert compiled(X)["y"].tolist() == [2, 4, 6]
    with pytest.raises(volta.errors.TreeError, match=r"compiled for f32\[3\] as leaf 0 .* got f32\[2\]"):
        compiled(X[:2])
    with pytest.raises(volta.errors.TreeError, match="compiled for arguments"):
        compiled(X, X)
    for transform in (volta.jit, volta.vmap, lambda g: volta.grad(lambda x: g(x)["y"].sum())):
        with pytest.raises(volta.errors.TracerError, match="is compiled: .* Call the jitted function"):
            transform(compiled)(X)
    assert all("mul" in stage._repr_html_() for stage in (f.trace(X, 2.0), lowered, compiled))
    assert f.eval_shape(X, 2.0)["y"].dtype == np.float32
    assert "mul" in f.trace(X, 2.0).as_text()


def test_a_compiled_function_shows_its_plan_and_memory() -> None:
    compiled = volta.jit(lambda x: vnp.sum(vnp.exp(x) * x)).lower(X).compile()
    assert compiled.peak_live_bytes == compiled.plan.peak_live_bytes >= X.nbytes + 4
    assert f"{compiled.peak_live_bytes:,}" in compiled.memory_report()
    assert "exp" in compiled.as_text() and "level=strict" in compiled.as_text()


def test_donated_arguments_are_gone() -> None:
    f = volta.jit(lambda x, y: (x + y, y * 2), donate_argnums=0)
    x, y = vnp.asarray(X), vnp.asarray(X)
    assert f(x, y)[0].tolist() == [2, 4, 6]
    assert y.tolist() == [1, 2, 3]
    with pytest.raises(volta.errors.DonatedBufferError, match="donated"):
        x.tolist()


def test_a_donation_that_fails_takes_nothing() -> None:
    f = volta.jit(lambda x, y: (x + 1, y + 1), donate_argnums=(0, 1))
    x, y = vnp.asarray(X), vnp.asarray(X)
    assert (f.lower(x, y).compile()(x, y)[0] == X + 1).all()
    gone, x = y, vnp.asarray(X)
    with pytest.raises(volta.errors.DonatedBufferError, match="is gone"):
        f(x, gone)
    assert x.tolist() == [1, 2, 3]


def test_two_threads_cannot_donate_one_array() -> None:
    f = volta.jit(lambda x: x * 0 - 7, donate_argnums=0)

    def donate(x):
        try:
            return float(f(x)[0])
        except volta.errors.DonatedBufferError:
            return None

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in range(50):
            x = vnp.ones(100_000)
            first, second = pool.submit(donate, x), pool.submit(donate, x)
            assert sorted([first.result(), second.result()], key=str) == [-7.0, None]


def test_donating_a_constant_of_another_program_leaves_that_program_alone() -> None:
    # Its kernels are bound to the constant's memory: the donating call used to write into it.
    table = vnp.arange(4000.0)
    f = volta.jit(lambda x: (x + table, table))
    want = f(1.0)[0].tolist()
    assert volta.jit(lambda x: x * 0 - 7, donate_argnums=0)(table).tolist() == [-7] * 4000
    assert table.is_deleted()
    assert f(1.0)[0].tolist() == want
    assert (f(1.0)[1] + 1).tolist() == want


def test_disable_jit_runs_the_plain_function() -> None:
    seen = []

    @volta.jit
    def f(x):
        seen.append(isinstance(x, volta.Tracer))
        return x + 1

    compiled = f(vnp.asarray(X))
    with volta.disable_jit():
        plain = f(vnp.asarray(X))
    assert seen == [True, False]
    assert np.asarray(plain).tobytes() == np.asarray(compiled).tobytes()


def test_jit_of_python_control_flow_on_static_values() -> None:
    @volta.jit
    def f(x):
        for i in range(x.shape[0]):
            x = x + i
        return x if x.ndim == 1 else x.sum()

    assert f(X).tolist() == [4, 5, 6]


def test_make_jaxpr_and_eval_shape() -> None:
    program, shapes = volta.make_jaxpr(lambda x, n: (x * n, x), static_argnums=1, return_shape=True)(X, 2)
    assert [e.primitive.name for e in program.eqns] == ["mul"]
    assert shapes[0] == volta.ShapeDtypeStruct((3,), "float32")
    struct = volta.eval_shape(lambda x: {"a": vnp.sum(x)}, volta.ShapeDtypeStruct((4, 5), "float64"))
    assert struct["a"] == volta.ShapeDtypeStruct((), "float64")


def test_a_compiled_call_belongs_to_its_execution_context() -> None:
    f = volta.jit(lambda x: vnp.sum(x * 2))
    assert float(f(X)) == 12
    with volta.execution_context(memory_budget=1):
        with pytest.raises(volta.errors.MemoryBudgetError):
            f(X)
    assert float(f(X)) == 12
    assert f.cache_size() == 1
    f.clear_cache()
    assert f.cache_size() == 0


def test_calls_from_several_threads() -> None:
    f = volta.jit(volta.grad(lambda x: vnp.sum(vnp.sin(x) * x)))
    want = np.asarray(f(X)).tobytes()

    def work(i: int) -> bool:
        g = volta.grad(lambda x: vnp.sum(volta.vmap(vnp.sin)(x) * x))
        return all(np.asarray(h(X)).tobytes() == want for h in (f, g, volta.jit(g)))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_names_of_functions() -> None:
    def affine(x, a):
        return x * a

    for fun in (functools.partial(affine, a=2), functools.partial(functools.partial(affine), a=2)):
        assert volta.jit(fun).trace(X).name == "affine"

    class Callable:
        def __call__(self, x):
            return x

    assert volta.jit(Callable()).trace(X).name == "Callable"


def test_disable_jit_is_a_threads_own():
    """Others go on with compiled programs; the block that ends first does not end the other's."""
    inside, go_on, seen = threading.Event(), threading.Event(), []

    def other():
        with volta.disable_jit():
            inside.set()
            go_on.wait()
            seen.append(jit_is_disabled())

    with running(other):
        inside.wait()
        seen.append(jit_is_disabled())
        with volta.disable_jit():
            seen.append(jit_is_disabled())
        volta.jit(lambda x: seen.append(type(x).__name__) or x)(vnp.ones(2))
        go_on.set()
    assert seen[:2] == [False, True] and seen[2] != "ConcreteArray" and seen[3] is True


def calls_of_functions(run) -> int:
    """How many functions of Python's `run` calls, itself included."""
    called = []
    sys.setprofile(lambda frame, event, arg: called.append(frame.f_code) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(called)


@pytest.mark.parametrize("number", [3, -2.5, True, 1j, np.int32(3), np.float64(0.1), vnp.bfloat16(2), np.bool_(True)])
def test_numbers_are_arguments_as_cheap_as_arrays(number) -> None:
    f, g = volta.jit(lambda x, n: x * n), volta.jit(lambda tree, n: tree["x"] * n)
    x = vnp.asarray(X)
    first = f(x, number), g({"x": x}, number)
    for again, one in zip((f(x, number), g({"x": x}, number)), first, strict=True):
        assert again.dtype == one.dtype and again.tobytes() == one.tobytes()
    assert calls_of_functions(lambda: f(x, number)) <= 16
    assert calls_of_functions(lambda: g({"x": x}, number)) <= 30


def test_numbers_that_are_equal_and_differ_in_their_bits() -> None:
    f = volta.jit(lambda n: vnp.copysign(vnp.float32(1), n))
    for zero in (0.0, -0.0, np.float32(0.0), np.float32(-0.0), 0.0, -0.0):
        assert float(f(zero)) == (-1 if np.signbit(zero) else 1)
    g = volta.jit(lambda n: n + n)
    kinds = [(1, "int64"), (1.0, "float64"), (True, "bool"), (np.int8(1), "int8"), (np.float16(1), "float16")]
    for number, dtype in kinds * 2:
        assert g(number).dtype == dtype, number
    payload = np.frombuffer(np.uint32([0x7FC00001, 0xFFC00002]).tobytes(), np.float32)
    bits = volta.jit(lambda n: volta.lax.bitcast_convert_type(n, "uint32"))
    for nan in (*payload, *payload):
        assert int(bits(nan)) == int(bits(vnp.asarray(nan)))


def test_numbers_that_do_not_fit_are_refused_at_each_call() -> None:
    f, g = volta.jit(lambda x, n: x + n), volta.jit(lambda n: n * 1.0)
    x, tree = vnp.ones(3, "uint8"), volta.jit(lambda t: t[0] + t[1])
    for _ in range(2):
        assert f(x, 255).tolist() == [0, 0, 0] and tree((x, 255)).tolist() == [0, 0, 0]
        with pytest.raises(OverflowError, match=r"300 does not fit uint8.*args\[1\]"):
            f(x, 300)
        with pytest.raises(OverflowError, match=r"300 does not fit uint8.*args\[0\]\[1\]"):
            tree((x, 300))
        assert float(g(3)) == 3
        with pytest.raises(volta.errors.DTypeError, match=r"args\[0\] is"):
            g(2**64)


def test_a_number_that_is_donated_or_returned_is_nobody_elses() -> None:
    same, plus = volta.jit(lambda n: n), volta.jit(lambda n: n + 1, donate_argnums=0)
    for _ in range(3):
        assert int(plus(np.int32(5))) == 6 and int(plus(same(np.int32(5)))) == 6
        assert int(same(np.int32(5))) == 5 and int(same(5)) == 5 and int(plus(same(5))) == 6
