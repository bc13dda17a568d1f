"""Typed keys: what moves, chooses, carries or compares keys does so with arrays of them; anything else is refused."""

import copy
import pickle

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import dtypes, io, lax, random
from volta.core.errors import DTypeError, FormatError, ShapeError
from volta.testing import assert_bits_equal
from volta.testing.bits import differing

pytestmark = pytest.mark.turns(4)

KEY = random.key(3)
KEYS = random.split(KEY, 6)
FRY = KEY.dtype
INDEX = np.array([4, 0, 4])

# Functions of an array of six keys, and of their words with the axes that these have before the last one.
MOVES = {
    "index": lambda k: k[2],
    "slice": lambda k: k[4:1:-2],
    "new axis": lambda k: k[None, :, None],
    "array index": lambda k: k[INDEX],
    "mask": lambda k: k[np.arange(6) % 3 == 0],
    "take": lambda k: vnp.take(k, INDEX, axis=0),
    "dynamic index": lambda k: lax.dynamic_index_in_dim(k, np.int32(3), 0),
    "dynamic slice": lambda k: lax.dynamic_slice_in_dim(k, np.int32(2), 3, 0),
    "update": lambda k: k.at[INDEX].set(k[1]),
    "dynamic update": lambda k: lax.dynamic_update_slice_in_dim(k, k[:2], np.int32(3), 0),
    "concatenate": lambda k: vnp.concatenate([k[3:], k]),
    "stack": lambda k: vnp.stack([k, k[::-1]]),
    "split": lambda k: vnp.split(k, 3)[1],
    "roll": lambda k: vnp.roll(k, 2, axis=0),
    "repeat": lambda k: vnp.repeat(k, 2, axis=0),
    "where": lambda k: lax.select_n(_spread(np.arange(6) % 2 == 0, k), k, k[::-1]),
    "barrier": lambda k: lax.optimization_barrier(k)[0],
    "stop_gradient": lax.stop_gradient,
    "scan": lambda k: lax.scan(lambda carry, x: (x, carry), k[0], k),
    "while": lambda k: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, vnp.roll(s[1], 1, axis=0)), (0, k))[1],
    "cond": lambda k: [lax.cond(p, lambda k: k[::-1], lambda k: k, k) for p in (np.bool_(True), np.bool_(False))],
    "jit": volta.jit(lambda k: k[1:]),
    "checkpoint": volta.checkpoint(lambda k: k[1:]),
    "vmap": volta.vmap(lambda x: x[None], out_axes=1),
}


def _spread(mask, like):
    return mask if like.ndim == 1 else np.broadcast_to(mask[:, None], like.shape)


def both(move):
    """What ``move`` makes of keys, as words, and of words."""
    return volta.tree.map(random.key_data, move(KEYS)), move(random.key_data(KEYS))


@pytest.mark.parametrize("name", MOVES)
def test_keys_move_as_their_words_do(name):
    keys, words = both(MOVES[name])
    assert_bits_equal(keys, words)
    assert_bits_equal(volta.jit(MOVES[name])(KEYS), MOVES[name](KEYS))


def test_shapes_are_those_of_the_keys_alone():
    assert (KEY.shape, KEY.ndim, KEY.size, KEY.nbytes, KEY.itemsize) == ((), 0, 1, 8, 8)
    assert KEYS.reshape(2, 3).T.shape == (3, 2) and len(KEYS) == 6 and KEYS.ravel().shape == (6,)
    assert_bits_equal(KEYS.reshape(3, 2).transpose()[1, 2], KEYS[5])
    assert_bits_equal(vnp.broadcast_to(KEY, (2, 3))[1, 2], KEY)
    assert [vnp.where(mask, KEY, KEYS).shape for mask in (True, np.ones((4, 1), bool))] == [(6,), (4, 6)]
    assert_bits_equal(list(KEYS), [KEYS[i] for i in range(6)])
    assert_bits_equal(vnp.zeros_like(KEYS), random.wrap_key_data(np.zeros((6, 2), np.uint32)))


def test_keys_are_compared_by_their_words():
    again = random.split(random.key(3), 6)
    assert (KEYS == again).tolist() == [True] * 6 and not vnp.any(KEYS != again)
    assert (KEYS == KEYS[2]).tolist() == [i == 2 for i in range(6)]
    one_word = random.wrap_key_data(np.array([[1, 2], [1, 3], [2, 2]], np.uint32))
    assert (one_word == one_word[0]).tolist() == [True, False, False]
    assert volta.jit(lambda a, b: a == b)(KEY, random.key(3)) and vnp.array_equal(KEYS, again)


@pytest.mark.parametrize(
    "draw",
    [
        lambda k: random.bits(k, (5,)),
        lambda k: random.uniform(k, (5,)),
        lambda k: random.normal(k, (2, 3)),
        lambda k: random.gamma(k, 2.0, (4,)),
        lambda k: random.permutation(k, 7),
        lambda k: random.categorical(k, np.float32([0, 1, 2])),
        lambda k: random.orthogonal(k, 3),
        lambda k: random.choice(k, 9, (4,), replace=False),
        lambda k: random.key_data(random.split(k, (2, 2))),
        lambda k: random.key_data(random.fold_in(k, 5)),
        lambda k: random.key_data(random.clone(k)),
    ],
)
def test_a_typed_and_a_raw_key_give_the_same_numbers(draw):
    assert_bits_equal(draw(random.key(11)), draw(random.PRNGKey(11)))
    assert_bits_equal(volta.jit(draw)(random.key(11)), draw(random.PRNGKey(11)))


def test_what_makes_keys_keeps_their_form():
    raw = random.PRNGKey(5)
    for make in (random.split, lambda k: random.fold_in(k, 1), random.clone):
        assert make(random.key(5)).dtype == FRY and make(raw).dtype == np.uint32
        assert_bits_equal(random.key_data(make(random.key(5))), make(raw))
    assert_bits_equal(random.wrap_key_data(raw), random.key(5))
    assert random.key_impl(KEYS) == random.key_impl(raw) == "threefry2x32"
    for impl in ("threefry2x32", FRY, random.key_impl(KEY)):
        assert_bits_equal(random.key(5, impl=impl), random.key(5))
        assert_bits_equal(random.PRNGKey(5, impl=impl), raw)
    assert_bits_equal(random.key(True), random.key(1))
    assert_bits_equal(volta.vmap(random.key)(np.arange(3)), vnp.stack([random.key(i) for i in range(3)]))
    assert volta.vmap(random.normal)(KEYS).tolist() == [random.normal(k).item() for k in KEYS]
    assert lax.map(random.normal, KEYS).tolist() == [random.normal(k).item() for k in KEYS]


def test_kinds_of_dtypes():
    assert vnp.issubdtype(FRY, dtypes.prng_key) and vnp.issubdtype(FRY, dtypes.extended)
    assert vnp.issubdtype(FRY, np.generic) and vnp.issubdtype(dtypes.prng_key, dtypes.extended)
    for other in (np.integer, np.floating, np.number, np.uint32, "float32"):
        assert not vnp.issubdtype(FRY, other) and not vnp.issubdtype(other, dtypes.prng_key)
    assert (str(FRY), FRY.name, FRY.itemsize, FRY.type) == ("key<fry>", "key<fry>", 8, dtypes.prng_key)
    assert FRY != np.uint32 and np.dtype("uint64") != FRY and FRY == random.key(9).dtype and hash(FRY) == hash(FRY)
    assert pickle.loads(pickle.dumps(FRY)) == FRY
    assert vnp.result_type(KEY, KEYS) == FRY
    assert not vnp.isdtype(FRY, "numeric")


def test_types_and_programs_say_that_they_are_keys():
    assert volta.eval_shape(random.split, KEY) == volta.ShapeDtypeStruct((2,), FRY)
    assert volta.eval_shape(random.key, 0) == volta.ShapeDtypeStruct((), FRY)
    text = str(volta.make_jaxpr(lambda k: (KEYS[0] == k, k[None]))(volta.ShapeDtypeStruct((), FRY)))
    assert "b:key<fry>[]" in text and "key<fry>[6]" in text and "uint64" not in text and "u64" not in text
    assert_bits_equal(volta.jit(lambda: (KEY, KEYS[1:]))(), (KEY, KEYS[1:]))  # constants of a program


def test_texts_are_jaxs():
    assert repr(KEY) == str(KEY) == f"{KEY}" == "Array((), dtype=key<fry>) overlaying:\n[0 3]"
    assert repr(random.split(random.key(0))) == (
        "Array((2,), dtype=key<fry>) overlaying:\n[[1797259609 2579123966]\n [ 928981903 3453687069]]"
    )
    gone = random.key(1)
    volta.jit(lambda k: random.split(k, 1)[0], donate_argnums=0)(gone)
    assert repr(gone) == "Array(<donated>, shape=(), dtype=key<fry>)"


def test_copies_files_and_pickles_are_keys_again(tmp_path):
    tree = {"key": KEY, "keys": KEYS.reshape(2, 3), "w": vnp.ones(2)}
    for copied in (copy.copy(tree), copy.deepcopy(tree), pickle.loads(pickle.dumps(tree)), volta.device_get(KEYS)):
        assert_bits_equal(copied, tree if isinstance(copied, dict) else KEYS)
    path = str(tmp_path / "state")
    io.save(path, tree)
    for loaded in (io.load(path), io.load(path, like=volta.eval_shape(lambda: tree)), io.load(path, mmap=True)):
        assert_bits_equal(loaded, tree)
    io.save(path, {**tree, "key": random.PRNGKey(3)})
    with pytest.raises(FormatError, match=r"it has uint32\[2\], like= has key<fry>\[\]"):
        io.load(path, like=tree)


def test_programs_that_travel_take_and_give_keys(tmp_path):
    def f(key, x):
        return random.split(key), random.normal(key, (3,)) * x, KEYS[:2]

    program = volta.export(f, KEY, np.float32(2))
    program.save(str(tmp_path / "program"))
    assert_bits_equal(volta.load_program(str(tmp_path / "program"))(KEY, np.float32(2)), f(KEY, np.float32(2)))
    text = program.mlir_module()
    assert "main(%0: tensor<2xui32>, %1: tensor<f32>) -> (tensor<2x2xui32>, tensor<3xf32>, tensor<2x2xui32>)" in text


def test_derivatives_pass_keys_by():
    def f(x, key):
        return x * random.normal(key), random.split(key)

    none = np.zeros((), dtypes.float0)
    want = random.normal(KEY).item()
    (_, keys), (slope, of_keys) = volta.jvp(f, (np.float32(2), KEY), (np.float32(1), none))
    assert slope.item() == want and keys.dtype == FRY
    assert of_keys.dtype == dtypes.float0 and of_keys.shape == (2,)
    _, pull = volta.vjp(f, np.float32(2), KEY)
    x_ct, key_ct = pull((np.float32(1), np.zeros((2,), dtypes.float0)))
    assert x_ct.item() == want and key_ct.dtype == dtypes.float0 and key_ct.shape == ()
    assert volta.grad(lambda k, x: f(x, k)[0], allow_int=True)(KEY, 2.0).dtype == dtypes.float0
    with pytest.raises(TypeError, match=r"argument 0, which is key<fry>\[\]"):
        volta.grad(lambda k, x: f(x, k)[0])(KEY, 2.0)

    def loss(x, key):  # keys among the residuals of a loop
        def body(total, key):
            return total * vnp.sin(random.normal(key) + x), None

        return lax.scan(body, x, random.split(key, 4))[0]

    raw = volta.grad(loss)(np.float32(0.3), random.PRNGKey(3))
    assert_bits_equal(volta.grad(loss)(np.float32(0.3), KEY), raw)
    assert_bits_equal(volta.jit(volta.grad(volta.checkpoint(loss)))(np.float32(0.3), KEY), raw)
    assert_bits_equal(volta.vmap(volta.grad(loss), (None, 0))(np.float32(0.3), KEYS[:2])[1],
                      volta.grad(loss)(np.float32(0.3), KEYS[1]))  # fmt: skip


def test_loops_and_choices_under_vmap():
    keys, steps = KEYS[:3], np.array([0, 2, 1])

    def walked(n, key):
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, random.split(s[1])[0]), (0, key))[1]

    def chosen(n, key):
        return lax.switch(n, [lambda k: k, random.clone, lambda k: random.fold_in(k, 1)], key)

    for f in (walked, chosen):
        alone = [f(int(n), k) for n, k in zip(steps, keys, strict=True)]
        assert_bits_equal(volta.vmap(f)(steps, keys), vnp.stack(alone))


def test_functions_on_the_host_get_keys(capsys):
    @volta.jit
    def f(keys):
        def body(total, key):
            volta.debug.print("{}", key)
            like = volta.ShapeDtypeStruct((), "float32")
            return total + volta.pure_callback(lambda k: np.asarray(random.uniform(k)), like, key), key

        return lax.scan(body, np.float32(0), keys)

    total, seen = f(KEYS[:2])
    assert total.item() == (random.uniform(KEYS[0]) + random.uniform(KEYS[1])).item()
    assert_bits_equal(seen, KEYS[:2])
    assert capsys.readouterr().out == f"{KEYS[0]}\n{KEYS[1]}\n"
    with pytest.raises(DTypeError, match=r"gives no key<fry>\[\].*key_data"):
        volta.pure_callback(lambda k: k, volta.ShapeDtypeStruct((), FRY), KEY)
    with volta.debug_nans(), pytest.raises(FloatingPointError, match="`log` made the first NaN"):
        volta.jit(lambda k, x: (vnp.log(x) + random.normal(k), k))(KEY, -1.0)


NUMBERS_ONLY = {
    "add": lambda: KEY + 1,
    "add two": lambda: KEY + KEY,
    "radd": lambda: np.uint32(1) + KEY,
    "neg": lambda: -KEY,
    "lt": lambda: KEY < KEY,
    "xor": lambda: KEY ^ KEY,
    "equal": lambda: KEY == 1,
    "equal words": lambda: KEY == random.key_data(KEY),
    "sin": lambda: vnp.sin(KEY),
    "floor": lambda: vnp.floor(KEY),
    "round": lambda: vnp.round(KEY),
    "signbit": lambda: vnp.signbit(KEY),
    "sum": lambda: vnp.sum(KEYS),
    "max": lambda: vnp.max(KEYS),
    "argmax": lambda: vnp.argmax(KEYS),
    "sort": lambda: vnp.sort(KEYS),
    "cumsum": lambda: vnp.cumsum(KEYS),
    "dot": lambda: vnp.dot(KEYS, KEYS),
    "where": lambda: vnp.where(True, KEY, 0),
    "concatenate": lambda: vnp.concatenate([KEYS, random.key_data(KEY)]),
    "at add": lambda: KEYS.at[0].add(KEY),
    "astype": lambda: KEY.astype("uint32"),
    "to key": lambda: vnp.ones(2).astype(FRY),
    "view": lambda: KEY.view("uint64"),
    "real": lambda: KEY.real,
    "imag": lambda: KEY.imag,
    "arange": lambda: vnp.arange(3, dtype=FRY),
    "any": lambda: vnp.any(KEYS),
    "pad": lambda: vnp.pad(KEYS, 1),
    "promote": lambda: vnp.promote_types(FRY, np.float32),
    "asarray": lambda: np.asarray(KEY),
    "item": lambda: KEY.item(),
    "tolist": lambda: KEYS.tolist(),
    "tobytes": lambda: KEYS.tobytes(),
    "bool": lambda: bool(KEY),
    "int": lambda: int(KEY),
    "format": lambda: f"{KEY:.2f}",
    "dlpack": lambda: np.from_dlpack(KEYS),
    "numpy": lambda: np.add(KEY, 1),
    "psum": lambda: volta.vmap(lambda k: lax.psum(k, "i"), axis_name="i")(KEYS),
}


@pytest.mark.parametrize("name", NUMBERS_ONLY)
def test_keys_are_no_numbers(name):
    with pytest.raises(TypeError, match=r"(?s)key<fry>.*random\.(key_data|wrap_key_data)"):
        NUMBERS_ONLY[name]()


@pytest.mark.parametrize("name", ["add", "sin", "sum", "sort", "where", "astype", "concatenate"])
def test_errors_name_the_operation(name):
    """As it is called in the program, or in what the user wrote; and the user's line."""
    called = {"sum": "reduce_sum", "astype": "convert_element_type"}.get(name, name)
    with pytest.raises(DTypeError, match=rf"(?s)^{called}.*test_keys\.py"):
        NUMBERS_ONLY[name]()
    with pytest.raises(DTypeError, match=rf"(?s)^{called}"):
        volta.jit(NUMBERS_ONLY[name])()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: random.uniform(1), DTypeError, r"random.uniform: the key must be one of random.key\(seed\)"),
        (lambda: random.uniform("a"), DTypeError, "random.uniform: a key is made by random.key"),
        (lambda: random.uniform(np.zeros(2)), DTypeError, r"got f64\[2\]"),
        (lambda: random.normal(KEYS), ShapeError, r"random.normal: takes one key, got an array of them, key<fry>\[6\]"),
        (lambda: random.split(random.key_data(KEYS)), ShapeError, r"got an array of them, u32\[6,2\]; use vmap"),
        (lambda: random.key(KEY), DTypeError, r"the seed must be an integer, got key<fry>\[\]"),
        (lambda: random.fold_in(KEY, KEY), DTypeError, "data must be an integer scalar"),
        (lambda: random.wrap_key_data(KEY), DTypeError, r"random.wrap_key_data: words of keys are uint32"),
        (lambda: random.wrap_key_data(np.zeros(3, "u4")), DTypeError, r"got u32\[3\]"),
        (lambda: random.key_impl(np.zeros(2)), DTypeError, "random.key_data: words"),
        (lambda: random.wrap_key_data(np.zeros(2, "u4"), impl="rbg"), DTypeError, r"of shape \(..., 4\), got u32\[2\]"),
        (lambda: random.wrap_key_data(np.zeros(4, "u4")), DTypeError, r"of shape \(..., 2\), got u32\[4\]"),
        (lambda: random.key(0, impl="foo"), ValueError, "impl='foo': there is no such generator; there are"),
        (lambda: vnp.result_type(KEY, 1), DTypeError, "^result_type: key<fry> and int"),
        (lambda: lax.add(KEY, 1), DTypeError, "key<fry>"),
        (lambda: lax.cond(True, lambda k: k, random.key_data, KEY), ShapeError, "cond: the branches must agree"),
        (lambda: lax.cond(True, lambda k: k, lambda k: 1, KEY), DTypeError, "cond: the branches must agree"),
        (lambda: lax.scan(lambda c, _: (1, None), KEY, None, 2), DTypeError, "goes in as key<fry>"),
        (lambda: lax.scan(lambda c, _: (random.key_data(c), None), KEY, None, 2), ShapeError, "goes in as key<fry>"),
    ],
)
def test_wrong_keys(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_comparing_bits_tells_keys_from_numbers():
    assert differing(KEYS, KEYS.at[1].set(KEY)).tolist() == [2, 3]
    with pytest.raises(AssertionError, match=r"leaf 0 is key<fry>\[\], expected uint32\[2\]"):
        assert_bits_equal(KEY, random.key_data(KEY))


@pytest.mark.parametrize("kind", ["python", "njit"])
@pytest.mark.slow
def test_other_kernels_know_no_keys_either(kind):
    def f(key):
        return random.split(key, 3), key == KEYS, random.bits(key, (4,))

    want = f(KEY)
    with volta.execution_context(kernels=kind):
        assert_bits_equal(volta.jit(f)(KEY), want)
