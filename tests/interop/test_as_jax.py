"""``volta.as_jax``: JAX's module names answered by Volta. The finder itself is tried in processes of their own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import errors
from volta.interop import bridge
from volta.interop.jax_names import finder, gradients, internals, own, partial, primitives, shapes
from volta.interop.jax_names.finder import Finder
from volta.interop.jax_names.modules import ANSWERS
from volta.interop.jax_names.scalars import SCALARS
from volta.interop.jax_names.settings import Config, switch

ROOT = Path(__file__).resolve().parents[2]


def module(name: str) -> Any:
    """A module as the finder makes it; it is not put in place."""
    spec = Finder.find_spec(name)
    assert spec is not None
    made = Finder.create_module(spec)
    Finder.exec_module(made)
    return made


def answered(*code: str, arguments: tuple[str, ...] = ("-c",)) -> subprocess.CompletedProcess[str]:
    """What a program prints in a process of its own."""
    command = [sys.executable, *arguments, *code]
    return subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, timeout=600)


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_name_of_every_module_is_there() -> None:
    assert len(ANSWERS) > 60
    for name, answer in ANSWERS.items():
        made = module(name)
        absent = [
            public for public in answer.public() if f"{name}.{public}" not in ANSWERS and not hasattr(made, public)
        ]
        assert not absent and set(made.__all__) <= set(dir(made)), name


def test_modules_are_voltas_namespaces() -> None:
    assert module("jax").jit is volta.jit and module("jax.lax").cond is volta.lax.cond
    assert module("jax.experimental.array_api").sin is vnp.sin  # array_api_compat asks for it
    assert module("jax.numpy").sin is vnp.sin and module("jax.scipy.stats.norm").pdf is not None
    assert module("jax.experimental.jet").jet is volta.experimental.jet.jet
    assert not {"jax.optim", "jax.io", "jax.train"} & ANSWERS.keys()


def test_names_that_volta_has_elsewhere() -> None:
    x = vnp.linspace(0.1, 0.9, 4)
    lax, special = module("jax.lax"), volta.scipy.special
    for name, same in (("igamma", special.gammainc), ("igammac", special.gammaincc), ("zeta", special.zeta)):
        assert getattr(lax, name)(x + 2, x).tolist() == same(x + 2, x).tolist()
    assert lax.bessel_i0e(x).tolist() == special.i0e(x).tolist()
    np.testing.assert_allclose(lax.cumlogsumexp(x), np.logaddexp.accumulate(np.asarray(x)), rtol=1e-6)
    np.testing.assert_allclose(
        lax.cumlogsumexp(x, reverse=True), np.logaddexp.accumulate(np.asarray(x)[::-1])[::-1], rtol=1e-6
    )
    assert module("jax.ops").segment_sum(x, np.array([0, 0, 1, 1]), 2).tolist() == (x[::2] + x[1::2]).tolist()
    assert lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x).tolist() == (x + 1).tolist()
    assert lax.platform_dependent(x, tpu=lambda x: x + 1, default=lambda x: x).tolist() == x.tolist()
    with pytest.raises(errors.ArgumentError, match="platform_dependent: there is no function for 'cpu'"):
        lax.platform_dependent(x, cuda=lambda x: x)
    with module("jax").transfer_guard("allow"):
        assert module("jax").default_backend() == "cpu" == module("jax").devices()[0].platform
    with pytest.raises(errors.ArgumentError, match="copies between devices are not watched"):
        module("jax").transfer_guard("disallow")


def test_what_is_missing_says_so_by_name_and_with_the_way_out() -> None:
    with pytest.raises(AttributeError, match="'jax.numpy' has no 'trapz' under volta.as_jax: it is volta.numpy.trapez"):
        module("jax.numpy").trapz  # noqa: B018 - it is asked for
    with pytest.raises(ModuleNotFoundError, match="has no 'compilation_cache' under volta.as_jax: .* settings"):
        Finder.find_spec("jax.experimental.compilation_cache")
    with pytest.raises(ModuleNotFoundError, match="'jax.experimental' has no 'pallas' under volta.as_jax") as error:
        Finder.find_spec("jax.experimental.pallas")
    assert error.value.name is None  # or Python would pass over it
    assert Finder.find_spec("numpy") is None


# -- what stands in no namespace of Volta's ----------------------------------------------------------------------------


def test_scalar_types_convert_and_are_dtypes() -> None:
    f32 = SCALARS["float32"]
    assert f32(3).dtype == np.float32 == f32 and f32 == np.dtype("float32") and hash(f32) == hash(np.float32)
    assert vnp.zeros(2, f32).dtype == f32 and vnp.asarray(1, SCALARS["bfloat16"]).dtype.name == "bfloat16"
    assert isinstance(np.float32(1), f32) and not isinstance(1.0, f32) and f32 != SCALARS["float64"]
    assert volta.jit(lambda x: SCALARS["int8"](x))(3.7).dtype == np.int8
    assert repr(f32) == "<class 'jax.numpy.float32'>" and vnp.issubdtype(f32, np.floating)


def test_settings_are_accepted_where_volta_is_as_they_say() -> None:
    config = Config()
    assert config.jax_enable_x64 is False
    config.update("jax_enable_x64", True)
    assert config.jax_enable_x64 is True and config.read("jax_threefry_partitionable") is True
    with pytest.raises(volta.errors.ArgumentError, match="jax_debug_nans is False.*with jax.debug_nans"):
        config.update("jax_debug_nans", True)
    with pytest.raises(volta.errors.ArgumentError, match="jax.config has no 'jax_cats' here; it has jax_check"):
        config.update("jax_cats", True)
    with pytest.raises(AttributeError, match="has no 'jax_cats'"):
        config.jax_cats  # noqa: B018
    with switch("jax_enable_x64")(True):
        assert own.config.jax_enable_x64 is True
    assert own.config.jax_enable_x64 is False


def test_attention_is_voltas_whatever_implementation_is_named() -> None:
    x = np.ones((1, 4, 2, 8), np.float32)
    want = volta.nn.dot_product_attention(x, x, x, is_causal=True)
    for name in (None, "xla", "cudnn"):
        found = own.NN["dot_product_attention"](x, x, x, is_causal=True, implementation=name)
        assert np.asarray(found).tobytes() == np.asarray(want).tobytes()
    with pytest.raises(volta.errors.ArgumentError, match="there is no implementation 'triton'"):
        own.NN["dot_product_attention"](x, x, x, implementation="triton")


def test_functions_of_shapes() -> None:
    layout = ("NHWC", "HWIO", "NHWC")
    shape = shapes.conv_general_shape_tuple((2, 8, 8, 3), (3, 3, 3, 5), (2, 2), "VALID", layout)
    assert shape == (2, 3, 3, 5)
    shape = shapes.conv_transpose_shape_tuple((2, 4, 4, 3), (3, 3, 3, 5), (2, 2), "SAME", layout)
    assert shape == (2, 8, 8, 5)
    assert shapes.reduce_window_shape_tuple((2, 8), (1, 3), (1, 2), ((0, 0), (1, 0))) == (2, 4)
    assert [round(float(shapes.fact(n)), 3) for n in (0, 3, 5)] == [1, 6, 120]


def test_reductions_of_segments_take_jaxs_hints() -> None:
    rows, ids = np.float32([1, 2, 4]), np.int32([0, 2, 0])
    hints = {"indices_are_sorted": False, "unique_indices": False, "bucket_size": 2, "mode": "drop"}
    assert own.OPS["segment_sum"](rows, ids, 3, **hints).tolist() == [5, 0, 2]
    assert own.OPS["segment_max"](rows, ids, num_segments=1).tolist() == [4]
    with pytest.raises(volta.errors.ArgumentError, match="segment_min: numbers out of bounds are left out, not 'clip'"):
        own.OPS["segment_min"](rows, ids, 3, mode="clip")


def test_the_generator_of_keys_may_be_set() -> None:
    made = [own.RANDOM["key"], own.RANDOM["PRNGKey"], lambda seed: own.RANDOM["wrap_key_data"](np.zeros(4, np.uint32))]
    before = own.config.jax_default_prng_impl
    try:
        own.config.update("jax_default_prng_impl", "rbg")
        assert [volta.random.key_impl(make(3)) for make in made] == ["rbg"] * 3
        assert volta.random.key_impl(own.RANDOM["key"](3, impl="threefry2x32")) == "threefry2x32"
        assert volta.random.key_impl(own.RANDOM["key"](3, dtype=volta.random.key_dtype())) == "threefry2x32"
        with pytest.raises(volta.errors.ArgumentError, match="cannot be 'philox4x32'"):
            own.config.update("jax_default_prng_impl", "philox4x32")
    finally:
        own.config.update("jax_default_prng_impl", before)
    assert volta.random.key_impl(own.RANDOM["key"](3)) == "threefry2x32"


def test_types_and_kinds_of_dtypes() -> None:
    kind = own.typeof(vnp.ones((2, 3)))
    assert (kind.shape, kind.dtype, kind.ndim, kind.size, str(kind)) == ((2, 3), np.float32, 2, 6, "float32[2,3]")
    assert not own.DTYPES["issubdtype"](np.uint32, own.DTYPES["prng_key"])
    assert own.DTYPES["issubdtype"](SCALARS["bfloat16"], np.floating)
    assert own.canonicalize_dtype("float64") == np.float64 and own.scalar_type_of(1.0) is float
    assert [own.scalar_type_of(x) for x in (True, 1, 1j)] == [bool, int, complex]
    assert own.NUMPY["tensordot"](vnp.ones(2), vnp.ones(2), 1, out_sharding=None) == 2.0


def test_pmap_is_over_the_one_device() -> None:
    double = own.pmap(lambda x: x * volta.lax.psum(x, "i"), "i")
    assert double(np.float32([[3]])).tolist() == [[9.0]]
    with pytest.raises(volta.errors.DeviceError, match="an axis of 2: there is 1 device"):
        double(np.float32([1, 2]))
    with pytest.raises(volta.errors.ArgumentError, match="static_broadcasted_argnums are not there"):
        own.pmap(lambda x: x, static_broadcasted_argnums=1)


def test_internals_are_stand_ins_that_say_so_where_they_are_used() -> None:
    ad, mlir, core = (module(f"jax.{name}") for name in ("interpreters.ad", "interpreters.mlir", "extend.core"))
    mine = core.Primitive("mine")
    ad.primitive_jvps[mine] = lambda *args: args
    mlir.register_lowering(mine, lambda *args: args)
    assert core.Primitive("other").def_impl(len) is len and repr(module("jax.lax").add_p) == "add"
    assert not isinstance(3, ad.JVPTracer)
    with pytest.raises(volta.errors.UnsupportedOperationError, match="the primitive 'mine' is one of JAX's internals"):
        mine.bind(1)
    with pytest.raises(volta.errors.UnsupportedOperationError, match=r"jax.interpreters.ad.backward_pass is one of"):
        ad.backward_pass(1)
    with pytest.raises(volta.errors.UnsupportedOperationError, match=r"jax._src.core.Trace is one of JAX's internals"):
        module("jax._src").core.Trace()
    assert internals.accepted(len) is len


def test_classes_derived_from_internals_have_instances() -> None:
    base = module("jax._src.dtypes").ExtendedDType
    mine = type("Mine", (base,), {"bits": 8})
    assert mine().bits == 8 and isinstance(mine(), base)
    with pytest.raises(volta.errors.UnsupportedOperationError, match=r"jax._src.dtypes.ExtendedDType is one of JAX's"):
        base()


def test_narrow_dtypes_have_names_and_no_arrays() -> None:
    narrow = module("jax.numpy").float8_e4m3fn
    assert np.dtype(narrow.dtype).itemsize == 1
    for use in (lambda: narrow(3), lambda: vnp.zeros(2, narrow)):
        with pytest.raises(volta.errors.DTypeError, match="float8_e4m3fn is not supported"):
            use()


def test_products_are_those_of_dot_general() -> None:
    x, einsum = np.ones((2, 2), np.float32), own.NUMPY["einsum"]
    assert einsum("ij,jk->ik", x, x, _dot_general=volta.lax.dot_general).tolist() == [[2, 2], [2, 2]]
    with pytest.raises(volta.errors.ArgumentError, match="einsum: products are lax.dot_general's, not those of"):
        einsum("ij,jk->ik", x, x, _dot_general=lambda *args: None)


def test_what_is_at_work_can_be_compared() -> None:
    seen = []
    volta.jit(lambda x: seen.append(own.get_opaque_trace_state()) or x)(1.0)
    assert own.get_opaque_trace_state("flax") == own.get_opaque_trace_state() != seen[0]


def test_types_of_jaxs_name_are_voltas() -> None:
    shaped = own.CORE["ShapedArray"]((2, 3), "float32", sharding=None)
    assert isinstance(shaped, own.CORE["AbstractValue"]) and shaped == vnp.ones((2, 3)).aval and shaped.sharding is None


# -- partial evaluation ------------------------------------------------------------------------------------------------


def test_what_is_known_is_computed_and_the_rest_is_recorded() -> None:
    f = partial.wrap_init(lambda known, unknown: {"k": vnp.sin(known), "u": known * unknown})
    structure = volta.tree.structure((0, 0))
    flat, out_tree = partial.flatten_fun_nokwargs(f, structure)
    aval = own.CORE["ShapedArray"]((3,), np.float32)
    given = [partial.PartialVal.known(vnp.float32(2)), partial.PartialVal.unknown(aval)]
    program, outs, consts = partial.trace_to_jaxpr_nounits(flat, given)
    assert [p.is_known() for p in outs] == [True, False] and outs[1].pv == aval
    assert outs[0].const == vnp.sin(vnp.float32(2)) and out_tree() == volta.tree.structure({"k": 0, "u": 0})
    (doubled,) = own.CORE["eval_jaxpr"](program, consts, np.float32([1, 2, 3]))
    assert doubled.tolist() == [2, 4, 6]
    named, _ = partial.flatten_fun(partial.wrap_init(lambda x, *, y: x - y), volta.tree.structure(((0,), {"y": 0})))
    assert named.call_wrapped(5, 3) == [2]


def test_transformations_of_a_librarys_own_are_refused_where_they_are_used() -> None:
    mine = module("jax.extend.linear_util").transformation(lambda x: (yield x))
    with pytest.raises(volta.errors.UnsupportedOperationError, match="the transformation .* of jax.extend.linear_util"):
        mine(1)


# -- primitives of a library's own -------------------------------------------------------------------------------------


def test_a_primitive_is_its_function_with_the_rules_that_are_given() -> None:
    any_p = primitives.Primitive("any_of_all")
    any_p.def_impl(lambda x, *, scale: scale * vnp.sum(x))
    assert any_p.bind(np.float32([1, 2]), scale=2) == 6.0
    x = np.ones((4, 3), np.float32)
    mapped = volta.vmap(lambda x: any_p.bind(x, scale=1))
    assert mapped(x).tolist() == [3, 3, 3, 3]
    primitives.BATCHERS[any_p] = lambda args, dims, scale: (any_p.bind(*args, scale=scale), None)
    assert mapped(x).tolist() == [12, 12, 12, 12]
    assert volta.grad(lambda x: any_p.bind(x, scale=2))(x[0]).tolist() == [2, 2, 2]
    primitives.standard_jvp(any_p, lambda t, x, scale: 10 * vnp.sum(t))
    assert volta.jit(volta.grad(lambda x: any_p.bind(x, scale=2)))(x[0]).tolist() == [10, 10, 10]


def test_a_primitive_of_several_results_and_of_a_named_axis() -> None:
    two_p = primitives.Primitive("two")
    two_p.multiple_results = True
    two_p.def_impl(lambda x: [x, -x])
    primitives.NAMED_BATCHERS[two_p] = lambda size, name, trace, args, dims: (
        [vnp.moveaxis(args[0], 0, -1) * size, vnp.sum(args[0], 0)],
        [1, None],
    )
    first, second = volta.vmap(lambda x: two_p.bind(x))(np.float32([[1, 2], [3, 4], [5, 6]]))
    assert first.tolist() == [[3, 6], [9, 12], [15, 18]] and second.tolist() == [[9, 12]] * 3


def test_check_grads_finds_wrong_derivatives() -> None:
    @volta.custom_jvp
    def wrong(x):
        return x * x

    wrong.defjvp(lambda primals, tangents: (wrong(*primals), 3 * primals[0] * tangents[0]))
    gradients.check_grads(lambda x: vnp.sum(vnp.sin(x) ** 2), (np.float32([1, 2]),), order=2)
    gradients.check_grads(lambda x: vnp.sum(vnp.sin(x) ** 2), (np.float64([1, 2]),), order=1)
    for modes in (("fwd",), ("rev",)):
        with pytest.raises(AssertionError):
            gradients.check_grads(wrong, (np.float64([1.0, 2.0]),), order=1, modes=modes)


@pytest.mark.parametrize("mode", gradients.MODES)
def test_check_grads_refuses_what_has_no_real_differences(mode: str) -> None:
    for x, f in ((np.complex64([1j]), vnp.abs), (np.int32([1]), vnp.sin), (np.float32([1]), lambda x: x * 1j)):
        with pytest.raises(volta.errors.DTypeError, match="arguments and results must be floats, got (complex|int)"):
            gradients.check_grads(f, (x,), order=1, modes=(mode,), eps=1e-2)


def test_trees_that_do_not_fit_are_the_errors_that_jax_has() -> None:
    for kind in (TypeError, ValueError):
        with pytest.raises(kind):
            volta.tree.map(lambda a, b: a, {"w": 1.0}, {"b": 2.0})


# -- in place ----------------------------------------------------------------------------------------------------------


def test_it_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", np)
    with pytest.raises(ImportError, match="JAX itself is imported in this process"):
        finder.install()
    assert not finder.installed()


def test_from_jax_wants_jax_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="from_jax needs JAX itself.*volta.as_jax"):
        bridge.from_jax(lambda x: x)


PROGRAM = """
import sys
import jax
import jax.numpy as jnp
from jax import grad, jit, lax, random
from jax.scipy.special import logsumexp
from jax.tree_util import tree_map

def loss(w, x, y):
    logits = jnp.tanh(x @ w["a"]) @ w["b"]
    return jnp.mean(logsumexp(logits, -1) - jnp.take_along_axis(logits, y[:, None], -1)[:, 0])

key = random.PRNGKey(int(sys.argv[1]))
w = {"a": random.normal(key, (4, 8)), "b": jnp.zeros((8, 3), jnp.float32)}
x, y = random.normal(key, (16, 4)), random.randint(key, (16,), 0, 3)
step = jit(lambda w: tree_map(lambda p, g: p - jnp.float32(0.5) * g, w, grad(loss)(w, x, y)))
first = loss(w, x, y)
w = lax.fori_loop(0, 20, lambda i, w: step(w), w)
print(jax.__name__, "volta" in repr(type(w["a"])), bool(loss(w, x, y) < 0.7 * first), __name__)
try:
    from jax.experimental import pallas
except ImportError as error:
    print(error)
"""


@pytest.mark.turns(2)
def test_a_program_runs_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = answered("run", str(program), "3", arguments=("-m", "volta"))
    assert done.stdout.splitlines()[0] == "jax True True __main__", done.stderr
    assert "'jax.experimental' has no 'pallas' under volta.as_jax" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "library"),
    [("arrays_scipy", "scipy"), ("arrays_extra", "array_api_extra"), ("arrays_einops", "einops")],
)
def test_libraries_of_the_array_api_take_arrays(program: str, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed (pip install {library})")
    done = answered(program, arguments=("-m", "tests.interop.jax_libraries"))
    assert done.stdout == f"{program} True\n", done.stderr


LIBRARIES = (
    "optax_optimizers flax_mlp flax_cnn flax_transformer flax_scan flax_recurrent haiku_cnn haiku_transformer "
    "haiku_recurrent haiku_stacked equinox_mlp equinox_cnn equinox_rnn equinox_filters"
).split()


@pytest.mark.slow
@pytest.mark.parametrize("program", LIBRARIES)
def test_libraries_train_as_they_are(program: str) -> None:
    library = program.partition("_")[0]
    for needed in ("optax", library):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed (pip install {'dm-' * (needed == 'haiku')}{needed})")
    done = answered(program, arguments=("-m", "tests.interop.jax_libraries"))
    assert done.stdout == f"{program} True\n", done.stderr
