"""What the Python array API asks of a namespace beside functions of numbers: inspection, devices, versions, indices."""

import copy
import pickle

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta.core.errors import ConcretizationTypeError, DeviceError, DTypeError, ShapeError

INFO = vnp.__array_namespace_info__()


def test_inspection():
    assert vnp.ones(2).__array_namespace__(api_version=vnp.__array_api_version__) is vnp
    assert vnp.ones(2).device == INFO.default_device() in INFO.devices()
    assert INFO.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}
    defaults = INFO.default_dtypes(device="cpu")
    for kind, number in {"real floating": 1.0, "complex floating": 1j, "integral": 1}.items():
        assert defaults[kind] == vnp.asarray(number).dtype
    assert defaults["indexing"] == vnp.argsort(vnp.ones(2)).dtype
    assert {name: d.name for name, d in INFO.dtypes().items()} == {name: name for name in INFO.dtypes()}
    assert [*INFO.dtypes(kind=("bool", "unsigned integer"))] == ["bool", "uint8", "uint16", "uint32", "uint64"]
    assert [*INFO.dtypes(kind="real floating")] == ["float32", "float64"]
    with pytest.raises(ValueError, match="unknown kind 'whole'"):
        INFO.dtypes(kind="whole")
    with pytest.raises(ValueError, match=r"no version '2020\.12' of the array API"):
        vnp.ones(2).__array_namespace__(api_version="2020.12")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_limits_of_floats(dtype):
    want = np.finfo(dtype)
    for got in (vnp.finfo(dtype), vnp.finfo(vnp.ones(1, dtype))):
        for name in ("bits", "eps", "epsneg", "max", "min", "tiny", "smallest_subnormal", "nmant", "maxexp", "minexp"):
            value = getattr(got, name)
            assert value == getattr(want, name) and type(value) in (int, float)
        assert got.dtype == dtype and got.smallest_normal == got.tiny
    assert (vnp.ones(1, "bfloat16") * vnp.finfo("bfloat16").eps).dtype == "bfloat16"


def test_limits_of_integers():
    assert (vnp.iinfo(vnp.ones(1, "int8")).min, vnp.iinfo("uint64").max, vnp.iinfo(int).bits) == (-128, 2**64 - 1, 32)
    with pytest.raises(DTypeError, match="is not a dtype"):
        vnp.iinfo("number")


MAKING = {
    "arange": (3,), "array": ([1.0],), "asarray": ([1.0],), "empty": (2,), "empty_like": (np.ones(2),), "eye": (2,),
    "full": (2, 1.0), "full_like": (np.ones(2), 3), "linspace": (0, 1, 3), "ones": (2,), "ones_like": (np.ones(2),),
    "zeros": (2,), "zeros_like": (np.ones(2),), "astype": (np.ones(2), "int8"), "from_dlpack": (np.ones(2),),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKING)
def test_where_made_arrays_lie(name):
    f, args = getattr(vnp, name), MAKING[name]
    assert f(*args, device="cpu").device == f(*args, device=None).device == "cpu:0"
    assert f(*args, device="cpu:0").tobytes() == f(*args).tobytes()
    with pytest.raises(DeviceError, match="no device 'moon'"):
        f(*args, device="moon")


def test_to_device():
    x = vnp.arange(3)
    assert x.to_device("cpu").tolist() == x.tolist()
    assert volta.jit(lambda x: x.to_device("cpu") * 2)(x).tolist() == [0, 2, 4]
    with pytest.raises(DeviceError, match="no device 'moon'"):
        x.to_device("moon")
    with pytest.raises(ValueError, match="no streams to give"):
        x.to_device("cpu", stream=1)


@pytest.mark.parametrize(
    "index",
    [True, False, (slice(None), True), (..., False), (0, True, slice(1, None)), (True, True, 1), (None, False, ..., 0)],
    ids=str,
)
def test_truths_as_indices(index):
    want = np.arange(6).reshape(2, 3)[index]
    arrays = tuple(vnp.asarray(i) if isinstance(i, bool) else i for i in (index if type(index) is tuple else (index,)))
    for got in (vnp.arange(6).reshape(2, 3)[index], volta.jit(lambda x: x[index])(vnp.arange(6).reshape(2, 3))):
        assert got.tolist() == want.tolist() and got.shape == want.shape
    assert vnp.arange(6).reshape(2, 3)[arrays].shape == want.shape


def test_truths_as_indices_that_are_refused():
    with pytest.raises(ConcretizationTypeError, match="a traced boolean mask cannot index"):
        volta.jit(lambda x: x[x[0] > 1])(vnp.ones(2))
    with pytest.raises(DTypeError, match="indices of updates by themselves only"):
        vnp.ones(2).at[True, 0].set(0.0)
    with pytest.raises(ShapeError, match="values of shape .3,. do not broadcast"):
        vnp.ones(2).at[True].set(np.ones(3, np.float32))


@pytest.mark.parametrize("truth", [True, False, np.bool_(True), np.array(False)])
def test_truths_as_indices_of_updates(truth):
    for x in (np.float32(3), np.arange(3, dtype=np.float32), np.ones((2, 3), np.float32)):
        for value in (7.0, np.float32([9, 8, 7]) if x.ndim else 9.0):
            want = np.asarray(x).copy()
            want[()] = np.where(truth, value, want)
            for f in (lambda t: vnp.asarray(x).at[t].set(value), volta.jit(lambda t: vnp.asarray(x).at[t].set(value))):  # noqa: B023
                assert f(truth).tolist() == f(vnp.asarray(truth)).tolist() == want.tolist()
    if not truth:
        assert vnp.ones(2).at[truth].set(np.ones((0, 2), np.float32)).tolist() == [1, 1]
    assert vnp.ones(2).at[truth].add(1.0).tolist() == [1.0 + bool(truth)] * 2


@pytest.mark.parametrize("name", ["var", "std"])
def test_correction_and_known_means(name):
    x = np.float32([[1, 2, 4], [0, 5, 1]])
    ours, theirs = getattr(vnp, name), getattr(np, name)
    for kw in ({"correction": 1}, {"correction": 0.5}, {"ddof": 1.5}, {"mean": x.mean(1, keepdims=True)}):
        numpy_kw = {"ddof": kw["correction"]} if "correction" in kw else kw
        np.testing.assert_allclose(ours(x, 1, **kw), theirs(x, 1, **numpy_kw), rtol=1e-6)
    mask = x > 0
    got = volta.jit(lambda m: ours(x, 1, correction=0.5, where=m))(mask)
    np.testing.assert_allclose(got, theirs(x, 1, ddof=0.5, where=mask), rtol=1e-6)
    with pytest.raises(ValueError, match="two names for one number"):
        ours(x, ddof=1, correction=1)


@pytest.mark.parametrize("name, total", [("cumulative_sum", 600), ("cumulative_prod", 8000000)])
@pytest.mark.parametrize("dtype, wide", [("uint8", "uint32"), ("int16", "int32"), ("int64", "int64")])
def test_cumulative_functions_of_small_integers(name, total, dtype, wide):
    got = getattr(vnp, name)(np.full(3, 200, dtype))
    assert got.dtype == wide and got[-1] == total
    assert getattr(vnp, name)(np.full(3, 1, dtype), dtype="uint8").dtype == "uint8"


def test_the_sign_of_a_zero_is_zero():
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        x = vnp.asarray([-0.0, 0.0, -2.0, vnp.nan], dtype)
        for got in (vnp.sign(x), volta.jit(vnp.sign)(x)):
            assert np.signbit(np.asarray(got.astype("float32"))).tolist()[:3] == [False, False, True]
            assert got.dtype == dtype and np.isnan(got[3])
    assert vnp.sign(vnp.asarray([-3, 0])).tolist() == [-1, 0] and volta.grad(vnp.sign)(0.0) == 0.0
    assert str(vnp.sign(vnp.asarray(complex(-0.0, -0.0))).item()) == "0j"


def test_axes_that_are_not_there_are_index_errors():
    for call in (lambda: vnp.expand_dims(vnp.ones((2, 3)), 3), lambda: vnp.sum(vnp.ones(2), 1)):
        with pytest.raises(IndexError, match="axis . does not exist"):
            call()


@pytest.mark.parametrize("k", [2**31, -(2**40), 3, -2, 1, 0])
def test_diagonals_far_out(k):
    for f in (vnp.eye, vnp.tri):
        assert f(2, 3, k).tolist() == getattr(np, f.__name__)(2, 3, k).tolist()
    for f in (vnp.tril, vnp.triu):
        assert f(vnp.ones((2, 3)), k).tolist() == getattr(np, f.__name__)(np.ones((2, 3)), k).tolist()


def test_numbers_among_wide_integers_and_empty_masks():
    assert vnp.isin(np.uint32([2**31, 1]), 2**31).tolist() == [True, False]
    assert vnp.isin(2**31, np.uint32([2**31])).item() is True
    assert vnp.ones((3, 2))[np.zeros(0, bool)].shape == (0, 2) and vnp.ones((3, 2))[np.zeros((3, 0), bool)].shape == (
        0,
    )


def test_several_results_are_tuples():
    assert type(vnp.broadcast_arrays(1.0, vnp.ones(2))) is type(vnp.meshgrid(vnp.ones(2))) is tuple


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "bfloat16", "float64"])
def test_copies_and_pickles(dtype):
    x = vnp.asarray([[0, 1], [1, 1]], dtype)
    for again in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), vnp.copy(x, order="C")):
        assert isinstance(again, volta.Array) and again.dtype == x.dtype and again.tobytes() == x.tobytes()


def test_libraries_of_the_array_api_know_us():
    compat = pytest.importorskip("array_api_compat")
    x = vnp.ones(2)
    assert compat.is_array_api_obj(x) and compat.array_namespace(x, vnp.zeros(2)) is vnp
    assert compat.device(x) == "cpu:0" and compat.to_device(x, "cpu").tolist() == [1.0, 1.0]
    assert compat.size(x) == 2


def test_einops():
    einops = pytest.importorskip("einops.array_api")
    x = vnp.arange(12.0).reshape(2, 6)
    for f in (lambda x: einops.rearrange(x, "a (b c) -> c a b", c=2), lambda x: einops.reduce(x, "a b -> b", "mean")):
        want = f(np.asarray(x))
        assert all(y.tolist() == want.tolist() and y.dtype == x.dtype for y in (f(x), volta.jit(f)(x)))


def test_functions_of_array_api_extra():
    extra = pytest.importorskip("array_api_extra")
    x = vnp.asarray([[1.0, 2.0, 4.0], [0.0, 5.0, 1.0]])
    np.testing.assert_allclose(extra.cov(x), np.cov(np.asarray(x)), rtol=1e-6)
    assert extra.atleast_nd(x, ndim=3).shape == (1, 2, 3) and extra.nunique(x) == 5
