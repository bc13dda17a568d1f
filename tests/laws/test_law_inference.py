"""A text taken at once, in pieces or token by token, alone or beside strangers, has the same bits."""

import functools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta
from tests.block_weights import random_blocks
from volta import models, nn, random, tree
from volta.core.block_formats import FORMATS
from volta.models import batching
from volta.models.decoder import apply
from volta.testing import assert_bits_equal
from volta.testing.host_grid import check_on_host

pytestmark = pytest.mark.turns(6)

VOCABULARY, CONTEXT = 61, 160
SHAPES = {
    "llama": models.Config(VOCABULARY, 64, 2, 4, 2, 16, 96, CONTEXT),
    "window": models.Config(VOCABULARY, 64, 1, 4, 1, 16, 96, CONTEXT, window=5),
    "gpt2": models.Config(VOCABULARY, 64, 2, 4, 4, 16, 96, CONTEXT, kind="gpt2"),
}
NAMES = (*SHAPES, "blocks")


def quantized(x):
    """Weights of the shape of others, in blocks."""
    if getattr(x, "ndim", 0) != 2 or x.shape[1] % 32:
        return x
    return nn.QuantizedArray(random_blocks("Q4_1", x.shape[0], x.shape[1] // FORMATS["Q4_1"].elements), "Q4_1")


@functools.cache
def model_of(name):
    if name == "blocks":
        return models.Decoder(SHAPES["llama"], tree.map(quantized, model_of("llama").params))
    return models.random_decoder(SHAPES[name])


TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, 150)
run = volta.jit(apply, static_argnums=0)


def at_once(model, n):
    found, _ = run(model.config, model.params, TOKENS[None, :n], model.caches(1, CONTEXT), np.array([0]))
    return np.asarray(found)[0]


@functools.cache
def whole(name):
    """Logits after each of all tokens; whoever takes fewer of them has the first ones (tested below)."""
    return at_once(model_of(name), len(TOKENS))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMES)
@given(st.data())
@settings(max_examples=4)
def test_pieces_beside_strangers_have_the_bits_of_all_at_once(name, data):
    """Rows of other texts, at other positions, in a cache of another size that held other things; sizes are padded."""
    model = model_of(name)
    rows, n = data.draw(st.integers(1, 3), "rows"), data.draw(st.integers(1, 70), "tokens")
    place = data.draw(st.integers(0, rows - 1), "row")
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    caches = model.caches(rows, data.draw(st.sampled_from([80, 100, CONTEXT]), "cache"))
    caches = tree.map(lambda x: x + rng.standard_normal(x.shape).astype(np.float32), caches)
    at = rng.integers(0, 9, rows)
    at[place] = 0
    while at[place] < n:
        size = data.draw(st.sampled_from([1, 1, 2, 7, 64]), "piece")
        count = min(size, n - at[place])
        tokens = rng.integers(0, VOCABULARY, (rows, size))
        tokens[place, :count] = TOKENS[at[place] : at[place] + count]
        found, caches = run(model.config, model.params, tokens, caches, at.copy())
        assert_bits_equal(found[place, :count], whole(name)[at[place] : at[place] + count])
        at += count


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_later_tokens_change_nothing_before_them(name):
    for n in (1, 64, 65, 129):
        assert_bits_equal(at_once(model_of(name), n), whole(name)[:n])


REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20),
        "max_tokens": st.integers(0, 9),
        "sampling": st.builds(
            nn.Sampling, st.sampled_from([0.0, 0.7, 1.0]), st.integers(0, 9), st.floats(0.1, 1), st.floats(0.8, 1.5)
        ),
        "seed": st.integers(0, 9),
        "stop": st.sets(st.integers(0, VOCABULARY - 1), max_size=9),
    }
)


def arguments(request):
    return {k: v for k, v in request.items() if k != "seed"} | {"key": random.key(request["seed"])}


def check_batch(model, requests, rows, steps, ahead=False):
    """``ahead``: a step is begun before the last one's tokens are read, as on a GPU."""
    batch, added = models.Batch(model, rows), []
    with mock.patch.object(batching, "on_gpu", lambda x: ahead):
        for request, pause in zip(requests, steps, strict=False):
            added.append(batch.add(**arguments(request)))
            for _ in range(pause):
                batch.step()
        assert sum(1 for _ in batch.run()) <= sum(len(r.tokens) for r in added)
    for request, found in zip(requests, added, strict=True):
        assert found.tokens == list(models.generate(model, **arguments(request)))


@pytest.mark.parametrize("ahead", [False, True])
@given(st.lists(REQUESTS, min_size=1, max_size=6), st.integers(1, 3), st.lists(st.integers(0, 3), min_size=6))
@settings(max_examples=2)
def test_a_request_is_continued_as_it_is_alone(ahead, requests, rows, steps):
    check_batch(model_of("blocks"), requests, rows, steps, ahead)


@pytest.mark.slow
@given(st.lists(REQUESTS, min_size=64, max_size=64))
@settings(max_examples=2)
def test_sixty_four_requests_are_continued_as_they_are_alone(requests):
    check_batch(model_of("llama"), requests, 16, [i % 2 for i in range(64)], ahead=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_kernels_for_gpus_have_the_bits(name):
    model = model_of(name)

    def f(tokens, start):
        found, caches = model(tokens, model.caches(2, 80), start)
        return found, model(tokens[:, :1], caches, start + 2)[0]

    check_on_host(f, TOKENS[:4].reshape(2, 2), np.array([0, 70]), orders=("shuffled",))
