"""NumPy's elementwise functions of arrays are Volta's, traced or not: inside of the contract, or they say why not."""

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.errors import DTypeError

X = np.float32([0.5, -1.25, 2.0])
N = np.int32([3, -2, 7])
UFUNCS = sorted({f.__name__ for name in dir(np) if isinstance(f := getattr(np, name), np.ufunc)} - {"isnat"})


def same(got, want):
    got, want = (x if isinstance(x, tuple) else (x,) for x in (got, want))
    for a, b in zip(got, want, strict=True):
        assert isinstance(a, volta.Array) and a.dtype == b.dtype and a.weak_type == b.weak_type
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("name", UFUNCS)
def test_each_ufunc_is_the_function_of_its_name(name):
    ufunc, function = getattr(np, name), getattr(vnp, name)
    data = (
        np.abs(N) % 2 if name in ("invert", "left_shift", "right_shift", "gcd", "lcm") or "bit" in name else abs(X) / 4
    )
    args = [vnp.asarray(np.stack([data] * 3) if name in ("matmul", "vecmat", "matvec") else data)] * ufunc.nin
    if name == "ldexp":
        args[1] = vnp.asarray(N)
    if name in ("matvec", "vecmat"):
        args[name == "matvec"] = vnp.asarray(data)
    same(ufunc(*args), function(*args))
    if ufunc.nin == 2 and name not in ("ldexp", "matvec", "vecmat"):
        host = np.asarray(args[0])
        same(ufunc(host, args[1]), function(host, args[1]))
        same(ufunc(args[0], host), function(args[0], host))


def test_in_traced_functions():
    f = lambda np, x: np.tanh(x) * np.maximum(x, 0.1) + np.float32(2) * x  # noqa: E731
    same(volta.jit(lambda x: f(np, x))(X), volta.jit(lambda x: f(vnp, x))(X))
    same(volta.vmap(lambda x: f(np, x))(X), volta.vmap(lambda x: f(vnp, x))(X))
    same(volta.grad(lambda x: f(np, x).sum())(X), volta.grad(lambda x: f(vnp, x).sum())(X))
    program = volta.make_jaxpr(lambda x: np.sin(x))(X)
    assert "sin" in str(program) and program.eqns[0].source.file == __file__


def test_operators_of_numpys_arrays():
    x = vnp.asarray(X)
    for host in (X, X.astype(np.float64), np.float64(2), np.int8(3)):
        same(host * x, vnp.multiply(host, x))
        same(host - x, vnp.subtract(host, x))
        same(host < x, vnp.less(host, x))
    host = np.zeros(3)
    before = host
    host += x
    assert host is before and host.tolist() == X.tolist()
    with pytest.raises(TypeError, match="[Cc]annot cast"):
        np.zeros(3, np.int32).__iadd__(x)


def test_out_and_methods():
    x = vnp.asarray(X)
    out = np.zeros(3, np.float64)
    assert np.multiply(x, 2, out=out) is out and out.tolist() == (X * 2).tolist()
    whole, part = np.zeros(3), np.zeros(3)
    assert np.modf(x, out=(whole, part))[0] is whole and part.tolist() == np.modf(X)[1].tolist()
    same(np.add.reduce(x), vnp.add.reduce(x))
    same(np.multiply.accumulate(x), vnp.multiply.accumulate(x))
    same(np.subtract.outer(x, X), vnp.subtract.outer(x, X))
    same(np.add.reduce(vnp.ones((2, 3)), axis=1, keepdims=True), vnp.sum(vnp.ones((2, 3)), axis=1, keepdims=True))


def test_ufuncs_of_scipy():
    special = pytest.importorskip("scipy.special")
    same(special.erf(vnp.asarray(X)), volta.scipy.special.erf(X))
    with pytest.raises(TypeError, match=r"^airy has no counterpart in Volta: convert first, with numpy.asarray\(x\)"):
        special.airy(vnp.asarray(X))


def test_what_has_no_counterpart_says_so():
    x = vnp.asarray(X)
    for call, said in {
        lambda: np.isnat(x): "isnat has no counterpart in Volta",
        lambda: np.frompyfunc(lambda a: a, 1, 1)(x): "has no counterpart in Volta",
        lambda: np.less(x, x, dtype="f8"): "less of a volta.Array gives no float64 where dtype= asks for it",
        lambda: np.sin(x, dtype="f8", order="C"): "sin of a volta.Array takes no order=",
        lambda: np.add(x, x, where=X > 0): "add of a volta.Array takes no where=",
        lambda: np.add(x, x, out=x): "add: arrays are immutable, so there is no out=",
    }.items():
        with pytest.raises(TypeError, match=said) as caught:
            call()
        assert "test_vnp_dispatch.py" in str(caught.value)
    with pytest.raises(DTypeError, match="Convert it first"):
        np.add(x, [1, 2, 3])


def test_classes_with_rules_of_their_own_are_asked():
    class Table:
        def __array_ufunc__(self, ufunc, method, *inputs, **settings):
            return "its own"

    assert np.add(vnp.asarray(X), Table()) == "its own" == np.add(Table(), vnp.asarray(X))


def test_formats_of_arrays():
    x = vnp.asarray(np.float32([[1.234567, -20.5], [0, 3]]))
    assert f"{x:.2f}" == "[[1.23 -20.50]\n [0.00 3.00]]"
    assert f"{x:8.1e}" == "[[ 1.2e+00 -2.0e+01]\n [ 0.0e+00  3.0e+00]]"
    assert f"{x}" == str(x) and f"{vnp.arange(3):03d}" == "[000 001 002]"
    assert f"{vnp.ones(2, 'bfloat16'):.3f}" == "[1.000 1.000]" and f"{vnp.float32(1.5) + x[0, 0]:.1f}" == "2.7"
    assert f"{vnp.zeros((0, 2)):.1f}" == "[]"
    with pytest.raises(ValueError):
        f"{x:nonsense}"
    with volta.disable_jit():
        volta.grad(lambda x: [f"{x:.1f}", x.sum()][1])(x)


def test_dtype_says_what_is_computed_in():
    x = vnp.asarray(X)
    same(np.subtract(x, X, dtype=np.float64), vnp.subtract(x.astype("f8"), X.astype("f8")))
    same(np.sin(x, dtype="f8"), vnp.sin(x.astype("f8")))
    same(np.true_divide(N, vnp.asarray(N), dtype=np.float64), vnp.true_divide(N.astype("f8"), N.astype("f8")))
    same(volta.jit(lambda x: np.add(x, 1, dtype="i8"))(N), vnp.add(N.astype("i8"), np.int64(1)))


@pytest.mark.parametrize("name", ["subtract", "logaddexp", "logical_xor", "bitwise_and", "hypot", "multiply"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_methods_of_functions_of_two_arrays(name, axis):
    theirs, ours = getattr(np, name), getattr(vnp, name)
    data = np.array([[3.0, -1, 2], [0.5, 2, -2]]) if "bit" not in name else np.array([[3, -1, 2], [5, 2, -2]])
    mask = np.array([[True, False, True], [True, True, False]])
    close = lambda a, b: np.testing.assert_allclose(np.asarray(a), b, rtol=1e-12)  # noqa: E731
    assert isinstance(ours, vnp.ufunc) and ours.identity == theirs.identity and (ours.nin, ours.nout) == (2, 1)
    close(ours.reduce(data, axis), theirs.reduce(data, axis))
    close(ours.accumulate(data, axis), theirs.accumulate(data, axis))
    close(ours.reduce(data, axis, initial=data.dtype.type(2)), theirs.reduce(data, axis, initial=data.dtype.type(2)))
    if theirs.identity is None:
        with pytest.raises(ValueError, match=f"{name}.reduce: where= needs initial=, as there is no identity"):
            ours.reduce(data, axis, where=mask)
    else:
        close(ours.reduce(data, axis, where=mask), theirs.reduce(data, axis, where=mask))
        assert np.asarray(ours.reduce(data[:0])).tolist() == theirs.reduce(data[:0]).tolist()
    want = data[0].copy().astype(theirs(data, data).dtype)
    theirs.at(want, [1, 1, 2], data[1])
    close(ours.at(vnp.asarray(data[0]).astype(want.dtype), np.array([1, 1, 2]), data[1], inplace=False), want)
    close(volta.jit(lambda x: ours.reduceat(x, np.array([1, 0]), axis))(data), theirs.reduceat(data, [1, 0], axis))


def test_methods_of_complex_numbers_and_of_one_array():
    z = np.array([1 + 2j, -3j, 2], np.complex64)
    want = z.copy()
    np.multiply.at(want, [0, 0, 2], z)
    assert vnp.multiply.at(z, np.array([0, 0, 2]), z, inplace=False).tolist() == want.tolist()
    with pytest.raises(DTypeError, match="complex"):
        vnp.maximum.accumulate(z)
    assert vnp.negative.nin == 1 and vnp.negative.at(z, 1, inplace=False).tolist() == [1 + 2j, 3j, 2]
