"""What people read when a traced value meets Python: the class, their own line, and the way out."""

import dataclasses
import subprocess
import sys

import attrs
import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import errors

X = np.array([1, 2, 3], np.float32)
TRANSFORMS = {"jit": volta.jit, "vmap": volta.vmap, "make_jaxpr": volta.make_jaxpr, "checkpoint": volta.checkpoint}


def message_of(error, fun, *args) -> str:
    with pytest.raises(error) as caught:
        fun(*args)
    return str(caught.value)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_if_on_a_traced_value(name) -> None:
    def relu(x):
        if (x * 2 > 0).any():  # the user's line
            return x
        return 0 * x

    text = message_of(errors.TracerBoolConversionError, TRANSFORMS[name](relu), np.ones((2, 3), np.float32))
    assert "truth value" in text and "`relu`" in text and name in text
    assert "# the user's line" in text
    assert name == "vmap" or "it depends on args[0]" in text
    assert "volta.numpy.where" in text and ("in_axes" if name == "vmap" else "static_argnums") in text
    assert "test_api_errors.py" in text


def test_integers_and_floats_of_traced_values() -> None:
    text = message_of(errors.TracerIntegerConversionError, volta.jit(lambda n: list(range(n))), 3)
    assert "range(n)" in text and "x.shape[0]" in text and "it is args[0]" in text
    text = message_of(errors.TracerIntegerConversionError, volta.jit(lambda n: [1, 2, 3][n]), 1)
    assert "volta.numpy.asarray" in text
    text = message_of(errors.ConcretizationTypeError, volta.jit(lambda x: int(x)), 1.0)
    assert "int()" in text and "astype" in text
    text = message_of(errors.ConcretizationTypeError, volta.jit(lambda x: float(x)), 1.0)
    assert "float()" in text
    message_of(errors.ConcretizationTypeError, volta.jit(lambda x: x.item()), 1.0)
    message_of(errors.ConcretizationTypeError, volta.jit(lambda x: x.tolist()), X)


def test_numpy_on_a_traced_value() -> None:
    text = message_of(errors.TracerArrayConversionError, volta.jit(lambda x: np.asarray(x)), X)
    assert "np.asarray(x)" in text and "volta.numpy" in text
    message_of(errors.TracerArrayConversionError, volta.grad(lambda x: np.sum(np.asarray(x))), X)


def test_numpys_types_do_not_convert_traced_values() -> None:
    text = message_of(errors.TracerArrayConversionError, volta.jit(lambda x: vnp.float32(x)), 1)
    assert "x.astype(dtype)" in text


@pytest.mark.parametrize(
    "make",
    [
        vnp.zeros,
        vnp.ones,
        vnp.empty,
        lambda n: vnp.full(n, 2.0),
        lambda n: vnp.ones((2, n)),
        lambda n: volta.random.normal(volta.random.key(0), (n,)),
    ],
)
def test_a_traced_shape(make) -> None:
    text = message_of(errors.TracerIntegerConversionError, volta.jit(lambda n: make(n)), 3)
    assert "it is args[0]" in text and "static_argnums" in text
    assert make(vnp.asarray(3)).shape[-1] == 3, "a concrete array of rank 0 is a size"


@pytest.mark.parametrize("transform", [volta.jit, volta.make_jaxpr, volta.vmap])
def test_a_value_that_outlived_its_trace_says_so(transform) -> None:
    kept = []
    transform(lambda x: kept.append(x * 2) or x)(X)
    for use in (bool, float, np.asarray, np.sin, lambda x: x.item(), lambda x: x.tolist(), lambda x: x + 1):
        text = message_of(errors.UnexpectedTracerError, use, kept[0])
        assert "has ended" in text and "Return it from the transformed function" in text


def test_classes_that_are_no_pytrees() -> None:
    @dataclasses.dataclass
    class Params:
        w: np.ndarray

    @attrs.define
    class State:
        w: np.ndarray

    for made in (Params(X), State(X)):
        text = message_of(errors.DTypeError, volta.jit(lambda p: p.w), made)
        name = type(made).__name__
        assert f"args[0] is a {name}, a class that is not registered" in text
        assert f"volta.tree_util.register_dataclass({name})" in text
        volta.tree_util.register_dataclass(type(made))
        np.testing.assert_array_equal(volta.jit(lambda p: p.w)(made), X)


def test_hashing_a_traced_value() -> None:
    text = message_of(TypeError, volta.jit(lambda x: {x: 1}), 1.0)
    assert "cannot be hashed" in text and "{x: 1}" in text


def test_the_conversions_work_where_values_are_known() -> None:
    def f(x):
        n = 0
        while x > 1:  # Python control flow on the concrete value
            x = x / 2
            n += int(x > 0)
        return x * float(x) * n

    assert float(volta.grad(f)(6.0)) > 0
    assert f"{volta.jvp(lambda x: x, (1.5,), (1.0,))[0]:.1f}" == "1.5"
    with pytest.raises(errors.TracerBoolConversionError):
        volta.jit(volta.grad(f))(6.0)


def test_grad_of_a_non_scalar() -> None:
    def vector(x):
        return x * 2

    text = message_of(errors.NonScalarGradError, volta.grad(vector), X)
    assert "`vector` returned f32[3]" in text and "jacrev" in text and "def vector(x)" in text
    text = message_of(errors.NonScalarGradError, volta.grad(lambda x: (x.sum(), x)), X)
    assert "has_aux=True" in text
    text = message_of(errors.NonScalarGradError, volta.grad(lambda x: (x > 0).any()), X)
    assert "returned bool[]" in text
    message_of(errors.TreeError, volta.grad(lambda x: x.sum(), has_aux=True), X)


def test_grad_of_integers() -> None:
    text = message_of(errors.IntegerGradError, volta.grad(lambda p: p["n"] * 2.0), {"n": 3})
    assert "argument 0['n']" in text and "i64*[]" in text and "allow_int" in text and "3.0" in text
    message_of(errors.DTypeError, volta.grad(lambda x: x, holomorphic=True), 1.0)
    message_of(errors.ArgumentNumberError, volta.grad(lambda x: x, argnums=2), 1.0)


def test_vmap_axes() -> None:
    f = volta.vmap(lambda x, y: x + y, in_axes=(0, 0))
    text = message_of(errors.VmapAxesError, f, np.ones((2, 3), np.float32), np.ones((4, 3), np.float32))
    assert "args[0]: axis 0 of f32[2,3] has size 2" in text and "args[1]" in text and "has size 4" in text
    text = message_of(errors.VmapAxesError, f, X)
    assert "2 entries" in text and "1 positional" in text
    text = message_of(errors.VmapAxesError, volta.vmap(lambda x: x, in_axes=1), X)
    assert "axis 1 of in_axes is out of range for f32[3]" in text
    text = message_of(errors.VmapAxesError, volta.vmap(lambda x: x, in_axes=None), X)
    assert "axis_size" in text
    text = message_of(errors.VmapAxesError, volta.vmap(lambda x: {"a": x}, out_axes=None), X)
    assert "out_axes is None for output['a']" in text
    text = message_of(errors.VmapAxesError, volta.vmap(lambda x: x, out_axes=3), X)
    assert "out_axes is out of range" in text
    text = message_of(errors.VmapAxesError, volta.vmap(lambda x: x, in_axes=({"a": 0},)), X)
    assert "prefix" in text
    message_of(errors.VmapAxesError, lambda: volta.vmap(lambda x: x, in_axes="0"))


def test_tangents_and_cotangents_must_be_like_the_values() -> None:
    _, pullback = volta.vjp(lambda x: {"y": x * 2}, X)
    assert "structure" in message_of(errors.TreeError, pullback, X)
    assert "f32[2]" in message_of(errors.ShapeError, pullback, {"y": X[:2]})
    assert "f64[3]" in message_of(errors.DTypeError, pullback, {"y": X.astype(np.float64)})
    jvp = lambda t: volta.jvp(lambda x: x, (X,), t)  # noqa: E731
    message_of(errors.TreeError, jvp, (X, X))
    message_of(errors.ShapeError, jvp, (X[:1],))
    message_of(errors.DTypeError, jvp, (X.astype(np.int32),))


def test_functions_are_asked_for() -> None:
    for transform in (volta.jit, volta.grad, volta.vmap, volta.checkpoint, volta.make_jaxpr, volta.jacfwd):
        with pytest.raises(TypeError, match="takes a function, got int"):
            transform(3)


def test_shape_errors_show_the_users_line_inside_jit() -> None:
    def f(x):
        return vnp.dot(x, x[:2])  # wrong shapes

    assert "# wrong shapes" in message_of(errors.ShapeError, volta.jit(f), X)


def test_the_line_in_a_context_is_the_users() -> None:
    with pytest.raises(errors.DeviceError) as caught, volta.default_device("gpu"):  # the user's line
        pass
    assert "# the user's line" in str(caught.value) and "contextlib" not in str(caught.value)


@pytest.mark.turns(6)
def test_the_line_of_a_module_run_by_name_is_its_own(tmp_path) -> None:
    (tmp_path / "program.py").write_text("import volta\nvolta.device_put(1.0, 0)\n")
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}

    def errors_of(*command):
        run = [sys.executable, "-m", *command]
        return subprocess.run(run, env=environment, capture_output=True, text=True, check=False).stderr

    assert "  at " + str(tmp_path / "program.py") + ":2 in <module>" in errors_of("program")
    text = errors_of("volta", "offline", "volta.numpy:add(f32[3], f32[4])")
    assert "do not broadcast" in text and "runpy" not in text, "a command that is all of Volta has no user's line"
