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
from volta.interop import bridge
from volta.interop.jax_names import finder, gradients, internals, own
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
    assert module("jax").jit is volta.jit and module("jax.lax").scan is volta.lax.scan
    assert module("jax.numpy").sin is vnp.sin and module("jax.scipy.stats.norm").pdf is not None
    assert not {"jax.optim", "jax.io", "jax.train"} & ANSWERS.keys()


def test_what_is_missing_says_so_by_name_and_with_the_way_out() -> None:
    with pytest.raises(AttributeError, match="'jax.numpy' has no 'trapz' under volta.as_jax: it is volta.numpy.trapez"):
        module("jax.numpy").trapz  # noqa: B018 - it is asked for
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


def test_types_and_kinds_of_dtypes() -> None:
    kind = own.typeof(vnp.ones((2, 3)))
    assert (kind.shape, kind.dtype, kind.ndim, kind.size, str(kind)) == ((2, 3), np.float32, 2, 6, "float32[2,3]")
    assert not own.issubdtype(np.uint32, own.prng_key) and own.issubdtype(SCALARS["bfloat16"], np.floating)
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
    assert mine.def_impl(len) is len and not isinstance(3, ad.JVPTracer) and repr(module("jax.lax").add_p) == "add"
    with pytest.raises(volta.errors.UnsupportedOperationError, match="the primitive 'mine' is one of JAX's internals"):
        mine.bind(1)
    with pytest.raises(volta.errors.UnsupportedOperationError, match=r"jax.interpreters.ad.backward_pass is one of"):
        ad.backward_pass(1)
    with pytest.raises(volta.errors.UnsupportedOperationError, match=r"jax._src.core.Trace is one of JAX's internals"):
        module("jax._src").core.Trace()
    assert internals.accepted(len) is len


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


def test_a_program_runs_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    done = answered("run", str(program), "3", arguments=("-m", "volta"))
    assert done.stdout.splitlines()[0] == "jax True True __main__", done.stderr
    assert "'jax.experimental' has no 'pallas' under volta.as_jax" in done.stdout


EQUINOX = """
import volta.as_jax
import equinox as eqx, jax, jax.numpy as jnp, optax
model = eqx.nn.MLP(2, 3, 8, 2, key=jax.random.PRNGKey(1))
x, y = jax.random.normal(jax.random.key(2), (16, 2)), jnp.zeros((16, 3))
optimizer = optax.adam(1e-2)
state = optimizer.init(eqx.filter(model, eqx.is_array))

@eqx.filter_jit
def step(model, state):
    loss = lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2)
    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates, state = optimizer.update(grads, state, model)
    return eqx.apply_updates(model, updates), state, value

losses = []
for _ in range(20):
    model, state, value = step(model, state)
    losses.append(float(value))
print(losses[-1] < 0.5 * losses[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["equinox", "optax"])
def test_equinox_and_optax_train(library: str) -> None:
    for needed in ("equinox", "optax"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed (pip install {needed})")
    done = answered(EQUINOX if library == "equinox" else OPTAX)
    assert done.stdout == "True\n", done.stderr


OPTAX = """
import volta.as_jax
import optax, jax, jax.numpy as jnp
x = jax.random.normal(jax.random.key(0), (16, 4))
ok = []
for make in (optax.adam, optax.adamw, optax.sgd, optax.lamb, optax.lion, optax.adafactor, optax.rmsprop, optax.nadam):
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), make(optax.cosine_decay_schedule(1e-1, 50)))
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    loss = lambda p: optax.squared_error(x @ p["w"] + p["b"], jnp.ones((16, 2))).mean()
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    first = loss(params)
    for _ in range(30):
        params, state = step(params, state)
    ok.append(bool(loss(params) < 0.8 * first))
print(all(ok))
"""
