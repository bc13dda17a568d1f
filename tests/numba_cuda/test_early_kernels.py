"""Kernels that begin while the one before still runs: all of them wait, and graphs let only such begin early."""

import re
from collections import Counter

import numpy as np
import pytest

import volta
import volta.numpy as vnp
from volta import lax, nn
from volta.numba_cuda import kernels
from volta.numba_cuda.codegen import ptx
from volta.offline import plan_on_cuda
from volta.testing.bits import assert_bits_equal

WEIGHTS = nn.QuantizedArray(np.zeros((40, 144), np.uint8), "Q4_K")


def layers(x):
    """Products, rows, maps, a sort, a sum of columns, one after the other."""
    x = nn.softmax(vnp.sort(x @ x, 0)) - vnp.sum(x, 0)
    return vnp.cumsum(nn.linear(vnp.tile(x[:1], 4), WEIGHTS)[:, :1] + x, 1)


def entries(capability):
    """The PTX of each kernel of `layers`, by its name."""
    plan, _ = plan_on_cuda(volta.make_jaxpr(layers)(np.zeros((64, 64), np.float32)))
    sources = {x.source.name: x.source for x in kernels.launches_of(plan, capability)}
    text = ptx.compile_ptx(sources.values(), capability)
    return dict(zip(sources, re.split(r"\.visible \.entry", text)[1:], strict=True))


@pytest.mark.parametrize("capability", ["9.0", pytest.param("9.0a", marks=pytest.mark.slow)])
def test_every_kernel_waits_before_it_writes(capability):
    found = entries(capability)
    assert len(found) > 5
    for name, text in found.items():
        waits, writes = text.find("griddepcontrol.wait"), re.search(r"\b(st\.global|red\.|atom\.)", text)
        assert 0 < text.find("griddepcontrol.launch_dependents") < waits, name
        assert writes is not None and waits < writes.start(), name


def read_before(text):
    """How many args a kernel reads before it waits; it reads none behind that."""
    before, after = text.split("griddepcontrol.wait")
    (own,) = set(re.findall(r"ld\.global\.\w+\s+%\w+, \[(%\w+)(?:\+\d+)?\]", before))
    args = re.findall(rf"ld\.global\.\w+\s+%\w+, \[{own}(?:\+\d+)?\]", before)
    assert f"[{own}" not in after
    return len(args)


def test_attention_of_one_query_reads_its_args_before_it_waits():
    """All at once: where they are read as they are needed, each is a way to memory."""
    q, k = np.zeros((1, 1, 2, 64), np.float32), np.zeros((1, 128, 2, 64), np.float32)
    plan, _ = plan_on_cuda(volta.make_jaxpr(nn.dot_product_attention)(q, k, k))
    (source,) = (x.source for x in kernels.launches_of(plan, "9.0") if x.source.name.endswith("staged"))
    assert read_before(ptx.compile_ptx([source], "9.0")) > 15


ROW = np.zeros(4096, np.float32)
SMALL = {
    "map": (lambda x, i: nn.silu(x[:40]) * x[40:80], 4),
    "row": (lambda x, i: nn.rms_norm(x, x), 3),
    "scatter": (lambda x, i: x.at[i].set(x[:2], mode="drop"), 8),
}


@pytest.mark.parametrize("name", SMALL)
def test_so_do_small_kernels(name):
    """They stand one behind the other, as a decoder's do, and do nothing but wait for memory."""
    f, least = SMALL[name]
    plan, _ = plan_on_cuda(volta.make_jaxpr(f)(ROW, np.zeros(2, np.int32)))
    sources = [x.source for x in kernels.launches_of(plan, "9.0") if x.source.name.startswith(f"volta_{name}")]
    assert sources
    for source in sources:
        assert read_before(ptx.compile_ptx([source], "9.0")) >= least, source.name


@pytest.mark.slow
def test_older_gpus_know_nothing_of_it():
    assert not any("griddepcontrol" in text for text in entries("8.0").values())


@pytest.mark.parametrize("capability", [pytest.param("8.0", marks=pytest.mark.slow), "9.0"])
def test_a_graph_lets_those_begin_early_that_wait(install, capability):
    fake = install(capability=capability)
    f, x = volta.jit(layers), np.random.default_rng(0).random((64, 64), np.float32)
    before = Counter(fake.log)
    y = f(volta.device_put(x, "cuda"))
    made = Counter(fake.log) - before
    assert_bits_equal(np.asarray(y), np.asarray(volta.jit(layers)(x)))
    assert made["cuGraphAddKernelNode"] > 5
    assert (made["cuGraphAddDependencies"] > 3) == (capability == "9.0")


def test_what_comes_after_a_loop_or_after_several_does_not(install):
    fake = install(capability="9.0")

    def f(x):
        x = lax.fori_loop(0, 3, lambda i, c: c * 2 + 1, x)
        return vnp.sort(x) - vnp.sum(x), vnp.cumsum(x)

    plan, _ = plan_on_cuda(volta.make_jaxpr(f)(np.ones(3000, np.float32)))
    launches = kernels.launches_of(plan)
    early = [x for x in launches if x.early and not x.inside and len(x.after) == 1 and not launches[x.after[0]].inside]
    before = Counter(fake.log)
    volta.jit(f)(volta.device_put(np.ones(3000, np.float32), "cuda"))[0].block_until_ready()
    assert (Counter(fake.log) - before)["cuGraphAddDependencies"] == len(early) < len(launches)
