"""Text token by token: where it ends, what is refused, that a wish for another setting compiles nothing."""

import functools
import itertools

import numpy as np
import pytest

import volta
from volta import models, nn, random
from volta.core.errors import ArgumentError

CONFIG = models.Config(vocabulary=17, width=16, layers=1, heads=2, key_heads=1, head_size=8, hidden=24, context=32)


@functools.cache
def model():
    return models.random_decoder(CONFIG)


@functools.cache
def one_row():
    return models.Batch(model(), rows=1, length=24)


def test_tokens_are_the_most_probable_ones():
    """Of the whole text, each time anew."""
    text = [3, 1, 4]
    for token in models.generate(model(), text[:3], max_tokens=5):
        found, _ = model()(np.array([text]), model().caches(1, 16), np.array([0]))
        assert token == int(np.argmax(found[0, -1]))
        text.append(token)
    assert len(text) == 8


@pytest.mark.turns(2)
def test_a_text_ends():
    made = list(models.generate(model(), [1, 2], max_tokens=9))
    assert len(made) == 9
    until = list(itertools.takewhile(lambda t: t != made[4], made))
    assert list(models.generate(model(), [1, 2], max_tokens=9, stop={made[4]})) == until
    assert list(models.generate(model(), [1, 2], max_tokens=0)) == []
    assert len(list(models.generate(model(), [1] * 30, max_tokens=9))) == 3  # to the context's end, and the token after
    assert len(list(models.generate(model(), [1] * 32, max_tokens=9))) == 1


def test_tokens_come_as_they_are_made():
    made = models.generate(model(), [1, 2], max_tokens=10**9)
    assert len(list(itertools.islice(made, 3))) == 3
    made.close()


def test_keys_and_penalties_decide():
    hot = nn.Sampling(temperature=2.0)
    texts = [list(models.generate(model(), [1], max_tokens=20, sampling=hot, key=random.key(k))) for k in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    never = nn.Sampling(temperature=0.0, repetition_penalty=1e6)
    text = list(models.generate(model(), [1, 2, 3], max_tokens=3, sampling=never))
    assert len({1, 2, 3, *text}) == 6


def test_other_settings_and_lengths_compile_nothing(caplog):
    list(models.generate(model(), [1, 2, 3], max_tokens=5))
    with volta.log_compiles():
        list(models.generate(model(), [4, 5, 6, 7], max_tokens=4, sampling=nn.Sampling(top_k=3, top_p=0.5)))
    assert not caplog.messages


@pytest.mark.parametrize(
    "prompt, why",
    [([], "the prompt is empty"), ([1, 17], "the prompt holds 17"), ([-1], "holds -1"), ([0] * 33, "has 33 tokens")],
)
def test_prompts_that_are_refused(prompt, why):
    for ask in (lambda: models.generate(model(), prompt, max_tokens=1), lambda: one_row().add(prompt, max_tokens=1)):
        with pytest.raises(ArgumentError, match=why):
            ask()


def test_other_arguments_that_are_refused():
    with pytest.raises(ArgumentError, match="pieces have one token at least"):
        models.generate(model(), [1], max_tokens=1, piece=0)
    with pytest.raises(ArgumentError, match="top_k must be 0 or more"):
        models.generate(model(), [1], max_tokens=1, sampling=nn.Sampling(top_k=-1))
    with pytest.raises(ArgumentError, match="rows must be positive"):
        models.Batch(model(), rows=0)
    with pytest.raises(ArgumentError, match="25 tokens, and the rows of this batch 24"):
        one_row().add([1] * 25, max_tokens=1)
    sizes = {"vocabulary": 1, "width": 8, "layers": 1, "heads": 2, "key_heads": 1, "head_size": 4, "hidden": 8}
    for wrong, why in (({"key_heads": 3}, "do not divide 2 heads"), ({"width": 0}, "width must be positive")):
        with pytest.raises(ArgumentError, match=why):
            models.Config(**{**sizes, **wrong})
    with pytest.raises(ArgumentError, match="kind must be 'llama' or 'gpt2', got 'bert'"):
        models.Config(1, 8, 1, 2, 1, 4, 8, kind="bert")


def test_requests_wait_end_and_are_cancelled():
    batch = models.Batch(model(), rows=1, length=24)
    first, second, third = (batch.add([n], max_tokens=30) for n in (1, 2, 3))
    nothing = batch.add([1], max_tokens=0)
    assert nothing.ended == "length" and not nothing.tokens
    batch.step()
    assert len(first.tokens) == 1 and not second.tokens
    batch.cancel(first)
    batch.cancel(third)
    made = list(batch.run())
    assert {id(request) for request, _ in made} == {id(second)}
    assert (first.ended, second.ended, third.ended) == ("cancelled", "length", "cancelled")
    assert len(second.tokens) == 24 and batch.idle
