"""Names that are not there say what to write instead, wherever people ask for them."""

import importlib
import operator
import re
import subprocess
import sys

import pytest

import volta
from volta.core.absent import way
from volta.core.hints import HINTS, KEYWORDS

EXACT = [(module, name) for module, ways in HINTS.items() for name in ways if re.fullmatch(r"\w+", name)]
EVERY_WAY = {way for table in (HINTS, KEYWORDS) for ways in table.values() for way in ways.values()}


@pytest.mark.parametrize(("module", "name"), EXACT, ids=lambda text: text)
def test_names_that_are_not_there_say_what_to_write(module, name):
    namespace = importlib.import_module(module)
    assert name not in vars(namespace), "it is there now: take it out of HINTS"
    assert not hasattr(namespace, name)
    with pytest.raises(AttributeError) as caught:
        getattr(namespace, name)
    assert str(caught.value) == f"module {module!r} has no attribute {name!r}: {HINTS[module][name]}"
    said = re.escape(f"{module!r} has no {name!r}: {HINTS[module][name]}")
    for statement in (f"from {module} import {name}", f"import {module}.{name}"):
        with pytest.raises(ImportError, match=f"^{said}$"):
            exec(statement)


@pytest.mark.parametrize("module", HINTS)
def test_other_names_fail_as_everywhere(module):
    namespace = importlib.import_module(module)
    with pytest.raises(AttributeError, match=f"^module {module!r} has no attribute 'misspelt'$") as caught:
        _ = namespace.misspelt
    assert (caught.value.name, caught.value.obj) == ("misspelt", namespace)  # for Python's "Did you mean"
    with pytest.raises(ImportError, match="^cannot import name 'misspelt' from"):
        exec(f"from {module} import misspelt")
    with pytest.raises(ModuleNotFoundError, match="^No module named") as missing:
        importlib.import_module(f"{module}.misspelt")
    assert missing.value.name == f"{module}.misspelt"


def test_misspelt_modules_and_names_say_what_may_be_meant():
    for statement, said in {
        "import volta.scipy.linalgx": "'volta.scipy' has no 'linalgx': did you mean volta.scipy.linalg?",
        "import volta.nunpy": "'volta' has no 'nunpy': did you mean volta.numpy?",
        "import volta.numpy.linalgs": "'volta.numpy' has no 'linalgs': did you mean volta.numpy.linalg?",
        "from volta.scipy import specal": "'volta.scipy' has no 'specal': did you mean volta.scipy.special?",
        "from volta.scipy.fft import dctt": "'volta.scipy.fft' has no 'dctt': did you mean volta.scipy.fft.dct?",
        "import volta.numpy.linalg.norm2": "'volta.numpy.linalg' has no 'norm2': did you mean volta.numpy.linalg.norm?",
        "import volta.flax.linen": f"'volta' has no 'flax': {HINTS['volta']['flax']}",
    }.items():
        with pytest.raises(ModuleNotFoundError, match=f"^{re.escape(said)}$"):
            exec(statement)


def test_names_that_are_elsewhere_and_names_of_families():
    for asked, said in {
        "volta.sin": "it is volta.numpy.sin",
        "volta.nn.einsum": "it is volta.numpy.einsum",
        "volta.numpy.softmax": "it is volta.nn.softmax",
        "volta.numpy.norm": "it is volta.numpy.linalg.norm",
        "volta.scan": "it is volta.lax.scan",
        "volta.lax.add_p": HINTS["volta.lax"]["*_p"],
        "volta.optim.warmup_constant_schedule": HINTS["volta.optim"]["warmup_*"],
    }.items():
        module, _, name = asked.rpartition(".")
        with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}: {said}")):
            operator.attrgetter(asked[len("volta.") :])(volta)
        with pytest.raises(ImportError, match=re.escape(said)):
            exec(f"from {module} import {name}")


def test_what_the_ways_name_is_there():
    for text in EVERY_WAY:
        for path in re.findall(r"volta((?:\.\w+)+)", re.sub(r"\(.*?\)", " ", text)):
            operator.attrgetter(path[1:])(volta)


NAMESPACES = (
    "numpy lax nn nn.initializers random scipy scipy.special scipy.linalg scipy.fft numpy.linalg numpy.fft lax.linalg "
    "tree tree_util image dtypes dlpack scipy.signal scipy.optimize scipy.integrate scipy.interpolate scipy.ndimage "
    "scipy.cluster.vq scipy.sparse.linalg"
)
INTERNALS_OF_JAX = "Format|TransferGuard.*|.*Numbers|.*Mode"


@pytest.mark.parametrize("name", ["", *NAMESPACES.split()])
def test_each_name_of_jax_is_there_or_explained(name):
    pytest.importorskip("jax")
    theirs, own = importlib.import_module(f"jax.{name}".rstrip(".")), f"volta.{name}".rstrip(".")
    there = vars(importlib.import_module(own))
    public = [n for n in dir(theirs) if not n.startswith("_") and n not in there]
    assert not [n for n in public if way(own, n) is None and not re.fullmatch(INTERNALS_OF_JAX, n)]


def test_completion_shows_what_is_public():
    """Modules and arrays, traced ones too: no internals among the names."""
    for module in (volta, volta.numpy, volta.lax, volta.nn, volta.random, volta.optim, volta.scipy, volta.tree):
        assert [n for n in dir(module) if not n.startswith("_")] == sorted(set(module.__all__) - {"__version__"})
    seen = []
    volta.jit(lambda x: seen.append(dir(x)))(1.0)
    of_array = dir(volta.numpy.ones(2))
    assert {"shape", "sum", "at", "T", "device", "numpy"} <= set(of_array)
    assert {"shape", "sum", "at", "T"} <= set(seen[0])
    internal = {"aval", "address", "buffer", "share", "donate", "give_back", "variable", "source", "origin", "doing"}
    assert internal.isdisjoint(of_array) and internal.isdisjoint(seen[0])
    assert not [n for n in (*of_array, *seen[0]) if n.startswith("_") and not n.startswith("__")]


@pytest.mark.turns(6)
def test_the_finder_answers_for_public_namespaces_only():
    """And does not stand in the way of modules that others would find later."""
    code = "import volta, importlib.util as u\nprint(u.find_spec('volta_of_others'), u.find_spec('volta.core.nothing'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None None\n"
