"""Choosing a token: what may be chosen, how often, and that a row draws as it would alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta
import volta.numpy as vnp
from volta import nn, random
from volta.core.errors import ArgumentError, ShapeError
from volta.nn.sampling import penalized, sample_tokens
from volta.testing import assert_bits_equal

LOGITS = np.log(np.float32([0.05, 0.4, 0.05, 0.3, 0.2]))
KEYS = random.split(random.key(0), 3000)


def drawn(sampling, logits=LOGITS, seen=None):
    """How often each token comes."""
    found = volta.jit(volta.vmap(lambda key: nn.sample_token(key, logits, sampling, seen)))(KEYS)
    return np.bincount(found, minlength=len(logits)) / len(KEYS)


@pytest.mark.parametrize(
    "sampling, wanted",
    [
        (nn.Sampling(), [0.05, 0.4, 0.05, 0.3, 0.2]),
        (nn.Sampling(temperature=0.5), np.float64([0.05, 0.4, 0.05, 0.3, 0.2]) ** 2 / 0.295),
        (nn.Sampling(top_k=2), [0, 4 / 7, 0, 3 / 7, 0]),
        (nn.Sampling(top_p=0.75), [0, 4 / 9, 0, 3 / 9, 2 / 9]),
        (nn.Sampling(top_p=0.69), [0, 4 / 7, 0, 3 / 7, 0]),
        (nn.Sampling(top_p=1e-9), [0, 1, 0, 0, 0]),
        (nn.Sampling(top_k=3, top_p=0.5), [0, 4 / 7, 0, 3 / 7, 0]),
        (nn.GREEDY, [0, 1, 0, 0, 0]),
    ],
    ids=str,
)
@pytest.mark.turns(4)
def test_tokens_come_as_often_as_they_should(sampling, wanted):
    np.testing.assert_allclose(drawn(sampling), wanted, atol=0.035)
    assert not drawn(sampling)[np.asarray(wanted) == 0].any()


def test_the_first_of_equal_tokens_is_the_more_probable_one():
    equal = np.float32([1, 2, 2, 2])
    assert drawn(nn.Sampling(top_k=1), equal).tolist() == [0, 1, 0, 0]
    assert not drawn(nn.Sampling(top_k=2), equal)[[0, 3]].any()


def test_repetition_is_penalized():
    x, seen = np.float32([2, -2, 4, -4]), np.array([True, True, False, False])
    assert penalized(x, seen, 2.0).tolist() == [1, -4, 4, -4]
    assert drawn(nn.Sampling(temperature=0, repetition_penalty=3.0), np.float32([3, 2, 1]), np.array([1, 0, 0]))[1] == 1


@given(st.integers(0, 99), st.integers(1, 5))
@settings(max_examples=10)
@pytest.mark.turns(2)
def test_a_row_draws_as_it_does_alone(seed, rows):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, 50)).astype(np.float32)
    settings_ = nn.Sampling(
        rng.choice([0, 0.5, 1], rows).astype(np.float32), rng.integers(0, 9, rows).astype(np.int32),
        rng.uniform(0.1, 1, rows).astype(np.float32), rng.uniform(0.5, 2, rows).astype(np.float32),
    )  # fmt: skip
    seen, keys = rng.integers(0, 2, (rows, 50)) > 0, random.split(random.key(seed), rows)
    together = volta.vmap(nn.sample_token)(keys, logits, settings_, seen)
    for i in range(rows):
        own = volta.tree.map(lambda x, i=i: x[i], settings_)
        assert_bits_equal(nn.sample_token(keys[i], logits[i], own, seen[i]), together[i])


@given(st.integers(0, 99), st.booleans())
@settings(max_examples=6)
def test_rows_that_want_the_most_probable_token_alone_or_not(seed, mixed):
    rng = np.random.default_rng(seed)
    logits = vnp.asarray(rng.integers(0, 4, (3, 9)).astype(np.float32))  # with equal ones
    cold = np.float32([0, 0, 1 if mixed else 0])
    s = nn.Sampling(cold, np.int32([0, 2, 3]), np.float32([1, 0.5, 1]), np.float32([1, 2, 1.5]))
    seen, keys = vnp.asarray(rng.integers(0, 2, (3, 9)) > 0), random.split(random.key(seed), 3)
    assert_bits_equal(sample_tokens(keys, logits, s, seen), volta.vmap(nn.sample_token)(keys, logits, s, seen))


def test_infinite_logits():
    assert int(nn.sample_token(KEYS[0], np.float32([-np.inf, 0, -np.inf]), nn.Sampling())) == 1


def test_what_is_refused():
    for wrong in ({"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"repetition_penalty": 0.0}, {"top_p": np.nan}):
        with pytest.raises(ArgumentError, match=f"{next(iter(wrong))} must be"):
            nn.Sampling(**wrong).checked()
    with pytest.raises(ShapeError, match=r"logits \(2, 3\)"):
        nn.sample_token(KEYS[0], vnp.ones((2, 3)))
