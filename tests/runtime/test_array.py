"""volta.Array: immutable, exact in every conversion, honest about what it cannot do."""

import copy
import gc
import pickle
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given

import volta
import volta.numpy as vnp
from volta.core import dtypes
from volta.core.errors import DonatedBufferError, VoltaError
from volta.testing import assert_bits_equal, fill
from volta.testing.strategies import arrays

F = np.float32


@given(arrays())
def test_numpy_and_back(x) -> None:
    a = vnp.asarray(x)
    assert (a.shape, a.dtype, a.ndim, a.size, a.nbytes) == (x.shape, x.dtype, x.ndim, x.size, x.nbytes)
    assert np.asarray(a).tobytes() == x.tobytes() == a.tobytes()
    assert vnp.asarray(a) is a
    assert_bits_equal(pickle.loads(pickle.dumps(a)), x)
    assert_bits_equal(copy.deepcopy(a), x)


@pytest.mark.parametrize("dtype", [d.name for d in dtypes.ALL])
def test_every_dtype_pickles_and_copies(dtype) -> None:
    x = fill("specials", (2, 3), dtypes.canonicalize(vnp.dtype(dtype)))
    a = vnp.asarray(x)
    again = pickle.loads(pickle.dumps(a))
    assert type(again) is type(a) and again.dtype == x.dtype and again.tobytes() == x.tobytes()


def test_an_array_is_a_copy_of_what_it_was_made_from() -> None:
    x = np.arange(3, dtype=F)
    a = vnp.asarray(x)
    x[0] = 99
    assert a.tolist() == [0, 1, 2]


def test_layouts_of_numpy_arrays_do_not_matter() -> None:
    x = np.arange(24, dtype=F).reshape(2, 3, 4)
    for y in (x.T, x[:, ::-1], x[..., 1], np.broadcast_to(x, (2, 2, 3, 4)), np.asfortranarray(x), x.astype(">f4")):
        assert_bits_equal(vnp.asarray(y), np.ascontiguousarray(y.astype(F)))


def test_the_numpy_view_is_read_only_and_shares_memory() -> None:
    a = vnp.arange(3)
    view = np.asarray(a)
    assert np.shares_memory(view, a.numpy())
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    assert np.array(a, copy=True).flags.writeable
    with pytest.raises(ValueError, match="copy"):
        np.asarray(a, dtype=np.float64, copy=False)
    assert np.asarray(a, dtype=np.float64).dtype == np.float64


def test_a_view_keeps_the_memory_alive() -> None:
    a = vnp.arange(10000)
    view, gone = np.asarray(a), weakref.ref(a)
    del a
    gc.collect()
    vnp.zeros(10000)  # would reuse the block
    assert view[-1] == 9999
    assert gone() is None or sys.version_info >= (3, 12)  # where NumPy asks for a buffer, the array itself is kept


def test_arrays_cannot_be_changed() -> None:
    a = vnp.arange(3)
    with pytest.raises(TypeError, match="at"):
        a[0] = 1
    with pytest.raises(AttributeError):
        a.shape = (1, 3)
    b = a
    b += 1
    assert a.tolist() == [0, 1, 2] and b.tolist() == [1, 2, 3]


def test_repr_and_text() -> None:
    assert repr(vnp.arange(3)) == "Array([0, 1, 2], dtype=int32)"
    assert repr(vnp.zeros((2, 0))) == "Array([], shape=(2, 0), dtype=float32)"
    assert repr(vnp.asarray(1.5)).startswith("Array(1.5, dtype=float32")
    assert repr(vnp.ones((2, 2), vnp.bfloat16)).endswith("dtype=bfloat16)")
    assert str(vnp.arange(3)) == "[0 1 2]"
    assert f"{vnp.asarray(F(1.23456)):.2f}" == "1.23"
    assert "volta" in type(vnp.zeros(1)).__module__


def test_scalars_convert() -> None:
    assert float(vnp.asarray(F(1.5))) == 1.5 and int(vnp.asarray(np.int8(-3))) == -3 and complex(vnp.asarray(F(2))) == 2
    assert bool(vnp.asarray(True)) and not vnp.zeros((1, 1))
    assert range(5)[vnp.asarray(2)] == 2 and [1, 2, 3][vnp.asarray(np.uint8(1))] == 2
    assert vnp.asarray(F(1.5)).item() == 1.5 and vnp.arange(4).reshape(2, 2).tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("convert", "value", "error"),
    [
        (bool, [1, 2], ValueError), (bool, [], ValueError), (int, [1, 2], TypeError), (float, [1.0], TypeError),
        (lambda a: [1, 2][a], 1.0, TypeError), (hash, [1], TypeError), (lambda a: {a}, 1, TypeError),
    ],
)  # fmt: skip
def test_what_does_not_convert_says_so(convert, value, error) -> None:
    with pytest.raises(error) as raised:
        convert(vnp.asarray(np.asarray(value, F)))
    if convert is not hash:
        assert str(raised.value)


def test_the_message_about_hashing_shows_the_way_out() -> None:
    with pytest.raises(TypeError, match="tobytes"):
        hash(vnp.zeros(2))


def test_iteration_and_length() -> None:
    a = vnp.arange(6).reshape(3, 2)
    assert len(a) == 3 and [row.tolist() for row in a] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(TypeError):
        len(vnp.asarray(1))
    with pytest.raises(TypeError):
        list(vnp.asarray(1))


def test_numpy_leaves_operators_to_us() -> None:
    out = np.ones(3, F) + vnp.ones(3)
    assert isinstance(out, volta.Array)
    assert isinstance(np.float32(2) * vnp.ones(3), volta.Array)


def test_donated_arrays_are_gone() -> None:
    f = volta.jit(lambda x: x + 1, donate_argnums=0)
    a = vnp.zeros(3)
    assert f(a).tolist() == [1, 1, 1] and a.is_deleted()
    assert "donated" in repr(a) and str(a) == "<donated>" and a.shape == (3,)
    for use in (lambda: a + 1, lambda: np.asarray(a), lambda: f(a), lambda: a.tolist(), lambda: float(a.sum()),
                lambda: a.block_until_ready(), lambda: pickle.dumps(a)):  # fmt: skip
        with pytest.raises(DonatedBufferError, match="donated"):
            use()


def test_the_same_array_is_not_donated_twice() -> None:
    f = volta.jit(lambda x, y: x + y, donate_argnums=(0, 1))
    a = vnp.ones(3)
    with pytest.raises(DonatedBufferError, match="same array"):
        f(a, a)
    assert not a.is_deleted()
    with pytest.raises(DonatedBufferError, match="same array"):
        volta.jit(lambda x, y: x + y, donate_argnums=0)(a, a)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 129, 130, 4095, 4097])
def test_results_that_share_a_block_lie_apart(n) -> None:
    compiled = volta.jit(lambda x: (x + 1, x + 2, x + 3, x[:1] + 4)).lower(vnp.zeros(n, "uint8")).compile()
    for k, x in enumerate(compiled(vnp.zeros(n, "uint8"))):
        assert x.tolist() == [k + 1] * x.size
    assert all(at % 64 == 0 for _, at in compiled.executable._layout if at >= 0)


def test_of_two_that_take_an_array_one_is_refused() -> None:
    a = vnp.ones(3)
    take = volta.jit(lambda x: x + 1, donate_argnums=0)
    assert take(a).tolist() == [2, 2, 2]
    with pytest.raises(DonatedBufferError, match="was donated"):
        take(a)


returns_first = volta.jit(lambda x, y: (x, y + 1), donate_argnums=1)
SHARING = {
    "a result that is the argument": lambda a: volta.jit(lambda x: x)(a),
    "a result that is the argument in another shape": lambda a: volta.jit(lambda x: vnp.reshape(x, (2, -1)))(a),
    "an eager reshape": lambda a: vnp.reshape(a, (-1, 4)),
    "a NumPy view": lambda a: np.asarray(a),
    "a DLPack view": lambda a: np.from_dlpack(a),
    "a donating call that returns what it does not take": lambda a: returns_first(a, vnp.ones(1))[0],
}


@pytest.mark.parametrize("n", [8, 4000])
@pytest.mark.parametrize("name", SHARING)
def test_donation_never_changes_what_shares_the_memory(name, n) -> None:
    a = vnp.arange(n, dtype=F) + 0
    other = SHARING[name](a)
    out = volta.jit(lambda x: x + 1, donate_argnums=0)(a)
    assert a.is_deleted()
    assert_bits_equal(other, np.arange(n, dtype=F).reshape(np.shape(other)))
    assert_bits_equal(out, np.arange(1, n + 1, dtype=F))


def test_donating_one_of_two_equal_results() -> None:
    add = volta.jit(lambda x: x + 1, donate_argnums=0)
    first, second = volta.jit(lambda x: (x + 1, x + 1))(vnp.zeros(3000))
    assert add(first)[0] == 2 and second[0] == 1
    first, second = volta.jit(lambda x: (x, x), donate_argnums=0)(vnp.zeros(3000) + 5)
    assert add(first)[0] == 6 and second[0] == 5


def test_donating_a_constant_of_a_program() -> None:
    c = np.arange(3000, dtype=F)
    f = volta.jit(lambda: vnp.asarray(c))
    volta.jit(lambda x: x + 1, donate_argnums=0)(f())
    assert_bits_equal(f(), c)


def test_donated_memory_is_reused_where_nobody_else_reads_it() -> None:
    step = volta.jit(lambda x: x + 1, donate_argnums=0)
    a = step(vnp.zeros(3000))
    where = a.address
    for _ in range(3):
        a = step(a)
    assert a.address == where and a[0] == 4


@pytest.mark.parametrize("value", [[1, 2], "text", None, object()])
def test_what_is_no_operand(value) -> None:
    with pytest.raises((VoltaError, TypeError)):
        volta.lax.add(value, 1)


def test_an_array_is_a_read_only_buffer() -> None:
    """From Python 3.12 on; before, classes written in Python cannot be buffers, and NumPy's view is one."""
    x = vnp.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    view = memoryview(x) if sys.version_info >= (3, 12) else x.__buffer__(0)
    assert view.readonly and view.format == "f" and view.shape == (2, 3) and view.tobytes() == x.tobytes()
    with pytest.raises(BufferError, match="immutable"):
        x.__buffer__(1)
    with pytest.raises(BufferError, match="bfloat16"):
        x.astype("bfloat16").__buffer__(0)
    donated = volta.jit(lambda x: x + 1, donate_argnums=0)(x)  # what is looked at is not written over
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]] and donated.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert memoryview(np.asarray(donated)).readonly
