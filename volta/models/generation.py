"""Text token by token: a prompt is taken in pieces, then each token gives the next one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

import volta.numpy as vnp
from volta import random, tree
from volta.api.devices import device_put
from volta.api.jit import jit
from volta.api.vmap import vmap
from volta.core.array import Array
from volta.core.errors import ArgumentError
from volta.core.source import at_user_line
from volta.models.decoder import Caches, Config, Decoder, Params, apply
from volta.nn.sampling import GREEDY, Sampling, sample_tokens

PIECE = 256
"""Tokens of a prompt that are taken at once, at most."""


def generate(
    model: Decoder, prompt: Sequence[int], *, max_tokens: int, sampling: Sampling = GREEDY, key: Any = None,
    stop: Collection[int] = (), piece: int = PIECE,
) -> Iterator[int]:  # fmt: skip
    """The tokens that follow a prompt, as they are made.

    The same model, prompt, sampling and key give the same tokens, whatever ``piece`` is, and beside any other requests
    (:class:`volta.models.batching.Batch`).

    Args:
        model: see :func:`volta.models.load`.
        prompt: tokens, one at least.
        max_tokens: how many are made at most; fewer where the model's context ends.
        sampling: how tokens are chosen; the most probable one where not given.
        key: for the choice by chance; ``random.key(0)`` where not given.
        stop: tokens that end the text. They are not given themselves.
        piece: how many tokens of the prompt are taken at once, at most.

    Raises:
        ArgumentError: for a prompt that is empty, longer than the context, or holds what is no token.

    >>> from volta import models
    >>> config = models.Config(vocabulary=7, width=8, layers=1, heads=1, key_heads=1, head_size=8, hidden=8)
    >>> model = models.random_decoder(config)
    >>> at_once, in_pieces = (list(models.generate(model, [1, 2, 3], max_tokens=3, piece=n)) for n in (256, 1))
    >>> at_once == in_pieces
    True
    """
    checked_prompt("generate", model.config, prompt)
    sampling.checked()
    if piece < 1:
        raise ArgumentError(at_user_line(f"generate: pieces have one token at least, got {piece}"))
    key = random.PRNGKey(0) if key is None else random.key_data(key)
    return _generated(model, list(prompt), max_tokens, sampling, key, frozenset(stop), piece)


def _generated(
    model: Decoder, prompt: list[int], count: int, sampling: Sampling, key: Any, stop: frozenset[int], piece: int
) -> Iterator[int]:
    config, params = model.config, model.params
    count = min(count, config.context - len(prompt) + 1)
    caches: Caches = model.caches(1, rounded(min(len(prompt) + count, config.context)))
    seen: Any = vnp.asarray(seen_of(config, prompt))[None]
    rest, at = (vnp.asarray(key)[None], batched([sampling])), 0
    drawn: Any = None
    for tokens in pieces(prompt, piece):
        at += len(tokens)
        given = (padded(tokens), caches, ints(at - len(tokens)), ints(len(tokens)), np.array([at == len(prompt)]))
        drawn, caches, seen = step(config, params, *given, *rest, seen)
    kept: tuple[Any, ...] = (ints(1), np.array([True]), *rest)
    ahead = on_gpu(drawn)
    if ahead:  # what no step changes is there for all of them
        kept = tree.map(lambda x: device_put(x, drawn.device), kept)

    def following() -> None:
        nonlocal drawn, caches, seen, at
        one, yes, keys, settings = kept
        drawn, caches, seen = step(config, params, drawn, caches, ints(at), one, yes, keys, settings, seen)
        at += 1

    for made in range(count):
        found, more = drawn, made + 1 < count
        if ahead and more:  # so that the GPU has work while this token is read, and whoever asked for it has it
            found.copy_to_host_async()
            following()
        token = int(np.asarray(found)[0])
        if token in stop:
            return
        yield token
        if more and not ahead:
            following()


def draw(
    config: Config, params: Params, tokens: Any, caches: Caches, start: Any, count: Any, draws: Any, keys: Any,
    sampling: Sampling, seen: Any,
) -> tuple[Array, Caches, Array]:  # fmt: skip
    """Take ``count`` (B,) of ``tokens`` (B, T) and draw the next one of each row: tokens (B,), caches, what was seen.
    One token of each row may be (B,) as well, as they were drawn.

    Where ``draws`` (B,) is False the text goes on, and what was drawn is not seen. The key that a token is drawn by is
    the row's, folded with the token's position: what was drawn before is not asked.
    """
    tokens = vnp.asarray(tokens)
    logits, caches = apply(config, params, tokens.reshape(tokens.shape[0], -1), caches, start, count - 1)
    drawn = sample_tokens(vmap(random.fold_in)(keys, start + count), logits, sampling, seen)
    new = vnp.arange(config.vocabulary) == drawn[:, None]
    return drawn, caches, seen | (new & draws[:, None])


step = jit(draw, static_argnums=0, donate_argnums=(3,))
"""`draw`, compiled for each number of rows and of tokens; the caches are updated in place."""


def on_gpu(x: Array) -> bool:
    """Whether a step's results are computed while the host goes on, so that the next step can be begun."""
    return isinstance(x.device, str) and x.device.startswith("cuda")


def pieces(prompt: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """A prompt in order, so many tokens at a time."""
    for first in range(0, len(prompt), size):
        yield prompt[first : first + size]


def padded(tokens: Sequence[int]) -> np.ndarray:
    """Tokens as one row (1, T) of a rounded length."""
    row = np.zeros((1, rounded(len(tokens))), np.int32)
    row[0, : len(tokens)] = tokens
    return row


def ints(*numbers: int) -> np.ndarray:
    """Numbers as steps take them."""
    return np.array(numbers, np.int32)


def rounded(size: int) -> int:
    """The next power of two, so that few sizes are compiled; what is behind a text's end changes no bit."""
    return 1 << max(0, size - 1).bit_length()


def batched(settings: Sequence[Sampling]) -> Sampling:
    """The settings of rows as arrays, one number each."""
    each = lambda name, dtype: np.array([getattr(s, name) for s in settings], dtype)  # noqa: E731
    return Sampling(
        each("temperature", np.float32), each("top_k", np.int32), each("top_p", np.float32),
        each("repetition_penalty", np.float32),
    )  # fmt: skip


def seen_of(config: Config, prompt: Sequence[int]) -> np.ndarray:
    """Which tokens a prompt holds."""
    seen = np.zeros(config.vocabulary, bool)
    seen[list(prompt)] = True
    return seen


def checked_prompt(name: str, config: Config, prompt: Sequence[int]) -> None:
    """Refuse what cannot be continued."""
    wrong = [t for t in prompt if not 0 <= t < config.vocabulary]
    if wrong:
        text = f"{name}: the prompt holds {wrong[0]}, and the vocabulary has the tokens 0 to {config.vocabulary - 1}"
    elif not len(prompt):
        text = f"{name}: the prompt is empty; begin with the model's token for the beginning of a text"
    elif len(prompt) > config.context:
        text = f"{name}: the prompt has {len(prompt)} tokens, and the model's context {config.context}"
    else:
        return
    raise ArgumentError(at_user_line(text))
