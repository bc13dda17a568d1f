"""``volta.from_jax`` beside JAX: programs of every kind, what is refused, arguments and results."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from tests.sampling import sampled
from volta.testing.bits import digest

jax = pytest.importorskip("jax", reason="JAX is not installed (pip install 'volta[oracle]')")
jnp = jax.numpy

from tests.interop import jax_programs  # noqa: E402
from volta.interop.jaxprs.table import REFUSED, RULES  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jax.md"
QUICK = "activations taken scans samples".split()


def plain(x: Any) -> np.ndarray:
    """A leaf of a result as NumPy's array; keys as their words, the narrow floats as float32."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if isinstance(x, volta.Array) and volta.numpy.issubdtype(x.dtype, volta.dtypes.prng_key):
        x = volta.random.key_data(x)
    array = np.asarray(x)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def close(got: Any, want: Any, tolerance: float = 2e-5) -> None:
    found, wanted = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(found) == len(wanted)
    for x, y in zip(map(plain, found), map(plain, wanted), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@sampled("name", list(jax_programs.FOUND), QUICK, str)
@pytest.mark.turns(6)
def test_programs_have_jaxs_values(name: str) -> None:
    function, args = jax_programs.FOUND[name]
    close(volta.from_jax(function)(*args), jax.jit(function)(*args), 2e-3 if "gradient" in name else 2e-5)


@sampled("name", [n for n in jax_programs.FOUND if n not in ("callbacks", "keys")], ["samples"], str)
@pytest.mark.turns(2)
def test_jitted_again_and_eagerly_they_have_the_same_bits(name: str) -> None:
    function, args = jax_programs.FOUND[name]
    if any(isinstance(x, jax.Array) for x in args):
        args = tuple(volta.random.wrap_key_data(np.asarray(jax.random.key_data(x))) for x in args)
    translated = volta.from_jax(function)
    once = jax.tree.leaves(translated(*args))
    again = jax.tree.leaves(volta.jit(lambda *xs: translated(*xs))(*args))
    with volta.disable_jit():
        eagerly = jax.tree.leaves(translated(*args))
    for x, y, z in zip(once, again, eagerly, strict=True):
        assert digest(plain(x)) == digest(plain(y)) == digest(plain(z))


# -- the table ---------------------------------------------------------------------------------------------------------


def primitives() -> list[str]:
    """Every primitive that JAX has, of what it imports itself."""
    own = [module for name, module in list(sys.modules.items()) if name.startswith("jax") and module is not None]
    places = [jax.extend.core.primitives, jax.lax, *own]
    values = [value for place in places for name, value in list(vars(place).items()) if name.endswith("_p")]
    return sorted({value.name for value in values if isinstance(value, jax.extend.core.Primitive)})


def test_each_of_jaxs_primitives_is_translated_or_refused_by_name() -> None:
    importlib.import_module("jax.experimental.multihost_utils")  # has some, and is imported by none of the others
    found = primitives()
    unknown = [name for name in found if name not in RULES and name not in REFUSED]
    assert not unknown and len(found) >= 200
    assert len(RULES) >= 185 and not RULES.keys() & REFUSED.keys()


NEWER = "log2 one_minus_square program_order relayout unreduced_pmax unreduced_pmin with_memory_space_constraint"


def test_primitives_that_a_newer_jax_has_besides() -> None:
    """Those of JAX 0.11; the one that is installed may not have them."""
    assert all(name in RULES or name in REFUSED for name in NEWER.split())


def newer(name: str) -> Any:
    """A function that binds a primitive which a newer JAX has, of one operand and with its type."""
    primitive = jax.extend.core.Primitive(name)
    primitive.def_abstract_eval(lambda aval, **params: jax.core.ShapedArray(aval.shape, aval.dtype))
    return lambda x, **params: primitive.bind(x, **params)


def test_one_minus_square_keeps_its_digits_near_1_and_those_of_its_derivative_near_0() -> None:
    f = volta.from_jax(newer("one_minus_square"))
    x = np.float32([0.5, -2.0, 1 - 2.0**-20, 1e-30, 0.0])
    np.testing.assert_array_equal(f(x), np.float32((1 + np.float64(x)) * (1 - np.float64(x))))
    slope = volta.grad(lambda x: vnp.sum(f(x)))
    assert digest(slope(x)) == digest(-2 * x)
    assert digest(volta.grad(lambda x: vnp.sum(slope(x)))(x)) == digest(np.full(5, -2, np.float32))
    assert digest(volta.vmap(f)(x)) == digest(f(x)) == digest(volta.jit(f)(x))
    assert f(np.int32([3, -4])).tolist() == [-8, -15]
    np.testing.assert_array_equal(f(np.complex64([1 + 1j])), np.complex64([1 - 2j]))
    np.testing.assert_allclose(volta.from_jax(newer("log2"))(np.float32([8, 0.5])), [3, -1])


def test_upper_halves_of_products_of_64_bits() -> None:
    edges = [0, 1, -1, 2**63 - 1, -(2**63), 12345678901234567, -98765432109876543]
    x, y = np.int64(edges), np.int64(edges[::-1])
    rule, equation = RULES["mulhi"], SimpleNamespace(outs=[vnp.asarray(x).aval])
    want = [(int(a) * int(b)) >> 64 for a, b in zip(x, y, strict=True)]
    assert rule(equation, x, y).tolist() == want
    unsigned = [(a % 2**64 * (b % 2**64)) >> 64 for a, b in zip(edges, edges[::-1], strict=True)]
    assert rule(equation, x.astype(np.uint64), y.astype(np.uint64)).tolist() == unsigned


def test_what_is_refused_is_named_with_its_line_and_the_way_out() -> None:
    def draw(low):
        return jax.lax.rng_uniform(low, 2.0, (3,))

    with pytest.raises(
        volta.errors.UnsupportedOperationError, match=r"rng_uniform\(float32\[\], ~float32\[\]\): bits come"
    ) as e:
        volta.from_jax(draw)(np.float32(1))
    assert "draw" in str(e.value) and "rng_uniform(low, 2.0, (3,))" in str(e.value)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_of_other_generators_go_in_and_come_out(impl) -> None:
    def f(seed, key, state):
        words = jax.random.key_data(jax.random.fold_in(jax.random.key(seed, impl=impl), 3))
        own = jax.random.wrap_key_data(words, impl=impl)
        after, bits = jax.lax.rng_bit_generator(state, (3,), np.uint8)
        return jax.random.split(own, 2), jax.random.uniform(own, (5,)), jax.random.fold_in(key, 1), after, bits

    key, state = jax.random.key(9, impl=impl), np.uint32([1, 2, 3, 4])
    keys, drawn, new, *rest = volta.from_jax(f)(7, key, state)
    keys_of_jax, drawn_of_jax, new_of_jax, *rest_of_jax = f(7, key, state)
    assert volta.random.key_impl(keys) == volta.random.key_impl(new) == impl and keys.shape == (2,)
    for x, y in ((keys, keys_of_jax), (new, new_of_jax)):
        np.testing.assert_array_equal(volta.random.key_data(x), jax.random.key_data(y))
    for x, y in zip([drawn, *rest], [drawn_of_jax, *rest_of_jax], strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
    again = volta.to_jax(lambda k: volta.random.split(k, 3))(key)
    assert again.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(jax.random.split(key, 3)))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: jax.lax.reduce_precision(x, 4, 3), r"reduce_precision.*to \(4, 3\) bits"),
        (lambda x: jax.lax.reduce_window(x, 0.0, lambda a, b: a - b, (2,), (1,), "VALID"), "function of its own"),
        (lambda x: jax.random.key(1, impl="philox4x32"), "no keys of philox4x32; there are key<fry>, key<rbg>"),
        (lambda x: x.astype("float8_e5m2"), "there are no such dtypes"),
    ],
)
def test_parts_of_operations_that_are_refused(function, says) -> None:
    with pytest.raises(volta.errors.UnsupportedOperationError, match=says):
        volta.from_jax(function)(np.float32([1, 2]))


def test_jaxs_own_errors_pass() -> None:
    with pytest.raises(TypeError, match="contracting dimensions"):
        volta.from_jax(lambda x: jnp.dot(x, jnp.ones(5)))(np.ones(3, np.float32))


def test_old_random_numbers_are_refused() -> None:
    with jax.threefry_partitionable(False), pytest.raises(volta.errors.UnsupportedOperationError, match="old way"):
        volta.from_jax(lambda: jax.random.uniform(jax.random.key(0)))()


# -- arguments and results ---------------------------------------------------------------------------------------------


def test_arguments_of_volta_numpy_and_jax_are_one() -> None:
    f = volta.from_jax(lambda x: jnp.sin(x))
    x = np.float32([1, 2])
    assert isinstance(f(x), volta.Array)
    assert f(x).tolist() == f(vnp.asarray(x)).tolist() == f(jnp.asarray(x)).tolist()


def test_dtypes_are_jaxs() -> None:
    f = volta.from_jax(lambda x: x + 1)
    assert (f(np.float64([1])).dtype, f(1).dtype, f(1.0).dtype, f(True).dtype) == (
        "float32",
        "int32",
        "float32",
        "int32",
    )
    with jax.enable_x64(True):
        assert volta.from_jax(lambda x: x + 1)(np.float64([1])).dtype == "float64"


@pytest.mark.turns(2)
def test_keys_go_in_and_come_out() -> None:
    step = volta.from_jax(lambda key: (jax.random.split(key)[0], jax.random.normal(key)))
    key = jax.random.key(0)
    after, x = step(key)
    again, y = step(after)
    want, _ = jax.random.split(key)
    assert again.shape == () and volta.random.key_impl(again) == "threefry2x32"
    assert volta.random.key_data(again).tolist() == jax.random.key_data(jax.random.split(want)[0]).tolist()
    np.testing.assert_allclose([x, y], [jax.random.normal(key), jax.random.normal(want)], rtol=1e-6)


def test_keys_of_jaxs_become_voltas_by_their_words() -> None:
    key = volta.random.wrap_key_data(jax.random.key_data(jax.random.key(7)))
    assert key == volta.random.key(7)
    assert volta.jit(volta.from_jax(jax.random.bits))(key) == volta.random.bits(key)
    with pytest.raises(TypeError, match="key_data"):
        volta.random.wrap_key_data(jax.random.key(7))


def test_what_moves_or_compares_keys_does_so_with_voltas() -> None:
    def function(key):
        keys = jax.random.split(key, 4).reshape(2, 2)
        chosen = jnp.where(jnp.array([True, False]), keys[0], keys[1][::-1])
        return chosen, keys == key, jax.lax.scan(lambda k, x: (x, k), key, keys.ravel()), jnp.stack([key, keys[1, 1]])

    key = jax.random.key(5)
    close(volta.from_jax(function)(key), jax.jit(function)(key))


class Pair:
    """A class that only JAX knows."""

    def __init__(self, left: Any, right: Any, name: str):
        self.left, self.right, self.name = left, right, name


jax.tree_util.register_pytree_node(Pair, lambda p: ((p.left, p.right), p.name), lambda n, c: Pair(*c, n))


def test_classes_that_jax_knows_are_pytrees_of_volta_then() -> None:
    f = volta.from_jax(lambda p: Pair(p.left * 2, {"sum": p.left + p.right}, p.name + "!"))
    out = volta.jit(lambda p: f(p))(Pair(np.float32(1), np.float32(2), "a"))
    assert isinstance(out, Pair) and out.name == "a!" and float(out.right["sum"]) == 3.0 and float(out.left) == 2.0
    grad = volta.grad(lambda p: f(p).right["sum"])(Pair(vnp.float32(1), vnp.float32(2), "a"))
    assert (float(grad.left), float(grad.right)) == (1.0, 1.0)


def test_static_arguments() -> None:
    power = volta.from_jax(lambda x, n, how="up": x**n if how == "up" else x, static_argnums=1, static_argnames="how")
    assert power(np.float32([2, 3]), 3).tolist() == [8.0, 27.0]
    assert power(np.float32([2, 3]), 3, how="down").tolist() == [2.0, 3.0]


def test_a_program_is_traced_once_for_each_kind_of_arguments() -> None:
    traced = []
    f = volta.from_jax(lambda x: traced.append(x.shape) or x * 2)
    for shape in ((2,), (2,), (3,), (2,)):
        f(np.zeros(shape, np.float32))
    assert traced == [(2,), (3,)]


def test_equations_carry_the_lines_of_the_function() -> None:
    def far(x):
        return jnp.log(x)  # this line

    f = volta.from_jax(far)
    with volta.debug_nans(), pytest.raises(FloatingPointError, match="this line"):
        f(np.float32([1, -1]))


def test_prints_and_callbacks(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def f(x):
        jax.debug.print("x = {x}", x=x)
        jax.debug.callback(lambda x: seen.append(float(x)), x)
        return x * 2

    assert float(volta.from_jax(f)(np.float32(3))) == 6.0
    assert seen == [3.0] and capsys.readouterr().out == "x = 3.0\n"


def test_examples_of_the_docstrings_run() -> None:
    assert doctest.testmod(importlib.import_module("volta.interop.bridge")).failed == 0


def test_examples_of_the_page_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = {"__name__": "page"}
    for code in re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        exec(compile(code, "jax.md", "exec"), names)


def test_without_jax_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ModuleNotFoundError, match="from_jax needs JAX.*pip install jax"):
        volta.from_jax(lambda x: x)
