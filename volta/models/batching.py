"""Continuous batching: requests come and go, each in a row of its own, and none changes another's bits."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

import volta.numpy as vnp
from volta import lax, random
from volta.api.jit import jit
from volta.core import pytrees
from volta.core.array import Array
from volta.core.errors import ArgumentError
from volta.core.source import at_user_line
from volta.models.decoder import Caches, Config, Decoder, Params
from volta.models.generation import (
    PIECE,
    batched,
    checked_prompt,
    draw,
    ints,
    on_gpu,
    padded,
    pieces,
    rounded,
    seen_of,
    step,
)
from volta.nn.sampling import GREEDY, Sampling


@attrs.define(eq=False)
class Request:
    """A text that is continued: what was asked for, and ``tokens``, what was made so far.

    ``ended`` is None until it is over: then "stop" (a token that ends the text came), "length" or "cancelled".
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    key: Any
    stop: frozenset[int]
    tokens: list[int] = attrs.field(factory=list)
    ended: str | None = None


@attrs.frozen(eq=False)
class _Step:
    """A step that was begun: the requests of its rows, and what it draws for each."""

    requests: tuple[Request | None, ...]
    drawn: Array


class Batch:
    """Rows in which requests are continued together, a token each at a step.

    A request gives the tokens of :func:`volta.generate`, whatever runs beside it and whenever it came. Not to be used
    by several threads at once.

    Args:
        model: the decoder.
        rows: how many requests run at once; further ones wait.
        length: the longest text, its prompt included (the model's context where not given).

    >>> from volta import models
    >>> config = models.Config(vocabulary=7, width=8, layers=1, heads=1, key_heads=1, head_size=8, hidden=8)
    >>> batch = models.Batch(models.random_decoder(config), rows=2)
    >>> requests = [batch.add([1, n], max_tokens=2 + n) for n in range(3)]
    >>> for made in batch.run():
    ...     pass  # pairs of a request and its next token, as they are made
    >>> [len(r.tokens) for r in requests]
    [2, 3, 4]
    """

    def __init__(self, model: Decoder, rows: int = 8, length: int | None = None) -> None:
        if rows < 1:
            raise ArgumentError(at_user_line(f"Batch: rows must be positive, got {rows}"))
        self.model, self.length = model, min(length or model.config.context, model.config.context)
        self.waiting: deque[Request] = deque()
        self.rows: list[Request | None] = [None] * rows
        self._caches: Caches = model.caches(rows, rounded(self.length))
        self._at = np.zeros(rows, np.int32)  # tokens that a row's cache holds
        self._token = np.zeros(rows, np.int32)
        self._keys = np.tile(np.asarray(random.PRNGKey(0)), (rows, 1))
        self._seen: Any = vnp.zeros((rows, model.config.vocabulary), bool)
        self._begun: _Step | None = None

    def add(
        self, prompt: Sequence[int], *, max_tokens: int, sampling: Sampling = GREEDY, key: Any = None,
        stop: Collection[int] = (),
    ) -> Request:  # fmt: skip
        """Ask for what follows a prompt; arguments as of :func:`volta.generate`.

        Raises:
            ArgumentError: for a prompt that cannot be continued.
        """
        checked_prompt("Batch.add", self.model.config, prompt)
        if len(prompt) > self.length:
            text = f"Batch.add: the prompt has {len(prompt)} tokens, and the rows of this batch {self.length}"
            raise ArgumentError(at_user_line(text))
        key = random.PRNGKey(0) if key is None else random.key_data(key)
        count = min(max_tokens, self.length - len(prompt) + 1)
        request = Request(tuple(prompt), count, sampling.checked(), key, frozenset(stop))
        if count < 1:
            request.ended = "length"
        else:
            self.waiting.append(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a request where it is."""
        if request.ended is None:
            request.ended = "cancelled"
            if request in self.waiting:
                self.waiting.remove(request)
            self.rows = [None if r is request else r for r in self.rows]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not any(self.rows)

    def run(self) -> Iterator[tuple[Request, int]]:
        """Steps until nothing is left to do."""
        while not self.idle:
            yield from self.step()

    def step(self) -> list[tuple[Request, int]]:
        """Begin what waits where a row is free, then one token for each request; what was made, row by row.

        On a GPU the next step may have been begun, and what begins meanwhile takes part in the one after it.
        """
        made: list[tuple[Request, int]] = []
        if any(self.rows):
            now, self._begun = self._begun, None
            if now is None or not any(x is y is not None for x, y in zip(now.requests, self.rows, strict=True)):
                now = self._advance(self._token.copy())
            if self._goes_on(now):  # so that the GPU has work while these tokens are read, and given to who waits
                now.drawn.copy_to_host_async()
                self._begun = self._advance(now.drawn)
            tokens = np.asarray(now.drawn)
            for row, request in enumerate(now.requests):
                if request is not None and self.rows[row] is request:
                    made += self._kept(row, int(tokens[row]))
        for row, request in enumerate(self.rows):
            if request is None and self.waiting:
                made += self._begin(row, self.waiting.popleft())
        return made

    def _goes_on(self, now: _Step) -> bool:
        """Whether the next step is begun before this one's tokens are read: each row has the request that it had, and
        some have more to come. What a row draws that turns out to be at its end, nobody looks at."""
        requests = [r for r in now.requests if r is not None]
        more = any(len(r.tokens) + 1 < r.max_tokens for r in requests)
        return on_gpu(now.drawn) and more and all(x is y for x, y in zip(now.requests, self.rows, strict=True))

    def _advance(self, tokens: Any) -> _Step:
        """Begin a step that takes a token of each row."""
        busy = np.array([r is not None for r in self.rows])
        settings = batched([GREEDY if r is None else r.sampling for r in self.rows])
        given = (tokens, self._caches, self._at.copy(), np.ones_like(self._at), busy)
        found, self._caches, self._seen = step(
            self.model.config, self.model.params, *given, self._keys.copy(), settings, self._seen
        )
        self._at += busy
        return _Step(tuple(self.rows), found)

    def _begin(self, row: int, request: Request) -> list[tuple[Request, int]]:
        """Take a prompt into a row, in pieces, and its first token."""
        config, at, token = self.model.config, 0, 0
        self._seen = self._seen.at[row].set(seen_of(config, request.prompt))
        for tokens in pieces(request.prompt, PIECE):
            at += len(tokens)
            given = (np.int32(row), padded(tokens), self._caches, ints(at - len(tokens)), ints(len(tokens)))
            rest = (np.array([at == len(request.prompt)]), vnp.asarray(request.key)[None], batched([request.sampling]))
            drawn, self._caches, self._seen = _step_of_row(config, self.model.params, *given, *rest, self._seen)
            token = int(drawn[0])
        self.rows[row], self._at[row], self._keys[row] = request, at, np.asarray(request.key)
        return self._kept(row, token)

    def _kept(self, row: int, token: int) -> list[tuple[Request, int]]:
        """A request's next token, or its end."""
        request = self.rows[row]
        assert request is not None
        self._token[row] = token
        if token in request.stop:
            request.ended = "stop"
        else:
            request.tokens.append(token)
            if len(request.tokens) == request.max_tokens:
                request.ended = "length"
        if request.ended is not None:
            self.rows[row] = None
            self._at[row] = 0
        return [] if request.ended == "stop" else [(request, token)]


@partial(jit, static_argnums=0, donate_argnums=(4,))
def _step_of_row(
    config: Config, params: Params, row: Any, tokens: Any, caches: Caches, start: Any, count: Any, draws: Any,
    key: Any, sampling: Sampling, seen: Any,
) -> Any:  # fmt: skip
    """`step` of one row of the caches."""
    own = pytrees.map(lambda x: lax.dynamic_slice_in_dim(x, row, 1, 0), (caches, seen))
    drawn, *changed = draw(config, params, tokens, own[0], start, count, draws, key, sampling, own[1])
    put = lambda x, new: lax.dynamic_update_slice_in_dim(x, new, row, 0)  # noqa: E731
    return drawn, *pytrees.map(put, (caches, seen), tuple(changed))
