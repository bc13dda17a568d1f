"""Completions over HTTP, with OpenAI's interface: many requests in one batch, each with the bits that it has alone."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import attrs

from volta import random
from volta.core.errors import VoltaError
from volta.models import asking
from volta.models.batching import Batch, Request
from volta.models.decoder import Decoder

MAX_BODY = 16 << 20
"""Bytes of a request."""

_SECONDS = 60.0
"""For a request to be read: who sends no more than its beginning holds no thread for ever."""


class Texts(Protocol):
    """What tokens stand for; :class:`volta.models.Vocabulary` is such."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, with what a text begins with."""

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens."""


@attrs.define(eq=False)
class _Asked:
    """A request on its way: what was asked, and what comes back, tokens and in the end a reason or an error."""

    ask: asking.Ask
    answers: queue.SimpleQueue[Any] = attrs.field(factory=queue.SimpleQueue)
    gone: bool = False
    request: Request | None = None


class Engine:
    """One thread that runs a :class:`volta.models.Batch`; other threads ask it."""

    def __init__(self, model: Decoder, rows: int, length: int | None, stop: frozenset[int] = frozenset()) -> None:
        self._stop = stop
        self._settings = model, rows, length
        self._batch = Batch(*self._settings)
        self._new: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._asked: list[_Asked] = []
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="volta-serve", daemon=True)
        self._thread.start()

    def ask(self, ask: asking.Ask) -> Iterator[int | str]:
        """Tokens as they are made, then "stop" or "length". Whoever stops listening cancels the request.

        Raises:
            VoltaError: the request is refused, or the batch failed.
        """
        asked = _Asked(ask)
        self._new.put(asked)
        try:
            while True:
                found = asked.answers.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
                if isinstance(found, str):
                    return
        finally:
            asked.gone = True

    def close(self) -> None:
        """End, and the requests that run with it."""
        self._new.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            self._take(wait=self._batch.idle)
            try:
                made = self._batch.step()
            except Exception as error:  # all that ran are told; the next ones may do better
                for asked in self._asked:
                    asked.answers.put(error)
                self._asked.clear()
                self._batch = Batch(*self._settings)  # of the old one's caches nobody knows what they hold
                continue
            self._tell(made)
        for asked in self._asked:
            asked.answers.put(VoltaError("the server is ending"))

    def _take(self, wait: bool) -> None:
        """What came meanwhile; where there is nothing to do, what comes next."""
        while wait or not self._new.empty():
            asked, wait = self._new.get(), False
            if asked is None:
                self._ended = True
                return
            try:
                a = asked.ask
                key = random.key(a.seed)
                asked.request = self._batch.add(
                    a.prompt, max_tokens=a.max_tokens, sampling=a.sampling, key=key, stop=a.stop | self._stop
                )
                self._asked.append(asked)
            except VoltaError as error:
                asked.answers.put(error)

    def _tell(self, made: list[tuple[Request, int]]) -> None:
        by_request = {id(x.request): x for x in self._asked}
        for request, token in made:
            by_request[id(request)].answers.put(token)
        for asked in list(self._asked):
            assert asked.request is not None
            if asked.gone:
                self._batch.cancel(asked.request)
            if asked.request.ended is not None:
                asked.answers.put(asked.request.ended)
                self._asked.remove(asked)


def serve(
    model: Decoder, *, host: str = "127.0.0.1", port: int = 8000, rows: int = 8, length: int | None = None,
    name: str = "volta", vocabulary: Texts | None = None, stop: Collection[int] = (),
) -> ThreadingHTTPServer:  # fmt: skip
    """A server, to be run by its ``serve_forever``: ``POST /v1/completions`` and ``GET /v1/models``.

    Requests are continued together, in ``rows`` rows of up to ``length`` tokens. A request with a seed (0 where it has
    none) has the same answer at any time, whoever asks besides. Tokens in ``stop`` end every text. ``server_close``
    ends it.

    >>> from volta import models
    >>> config = models.Config(vocabulary=7, width=8, layers=1, heads=1, key_heads=1, head_size=8, hidden=8)
    >>> server = models.serve(models.random_decoder(config), port=0)  # any port that is free
    >>> server.server_close()
    """
    engine = Engine(model, rows, length, frozenset(stop))
    try:
        return _Server((host, port), engine, name, vocabulary)
    except BaseException:
        engine.close()
        raise


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: tuple[str, int], engine: Engine, name: str, vocabulary: Texts | None) -> None:
        self.engine, self.name, self.vocabulary = engine, name, vocabulary
        super().__init__(place, _Handler)

    def server_close(self) -> None:
        super().server_close()
        self.engine.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who went away, at whatever step, is no error of the server's."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is said of single requests."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            own = {"id": self.server.name, "object": "model", "owned_by": "volta"}
            self._json(200, {"object": "list", "data": [own]})
        else:
            self._error(404, f"there is no {self.path:.80}")

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            return
        if self.path != "/v1/completions":
            return self._error(404, f"there is no {self.path:.80}")
        vocabulary = self.server.vocabulary
        try:
            ask = asking.read(body, None if vocabulary is None else vocabulary.encode)
            answers = self.server.engine.ask(ask)
            first = next(answers)  # a refusal comes before the first token
        except VoltaError as error:
            return self._error(400, str(error).partition("\n")[0])  # the user's line is the server's own
        except Exception as error:
            return self._error(500, f"{type(error).__name__}: {error!s:.400}")
        (self._streamed if ask.stream else self._whole)(ask, first, answers)

    def _body(self) -> bytes | None:
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal():
            self._error(411, "the request does not say how long it is")
        elif int(size) > MAX_BODY:
            self._error(413, f"the request has more than {MAX_BODY} bytes")
        else:
            return self.rfile.read(int(size))
        return None

    def _whole(self, ask: asking.Ask, first: int | str, answers: Iterator[int | str]) -> None:
        tokens: list[int] = []
        ended = first
        try:
            while not isinstance(ended, str):
                tokens.append(ended)
                ended = next(answers)
        except Exception as error:
            return self._error(500, f"{type(error).__name__}: {error!s:.400}")
        usage = {"prompt_tokens": len(ask.prompt), "completion_tokens": len(tokens)}
        usage["total_tokens"] = sum(usage.values())
        self._json(200, self._choice(self._text(tokens), tokens, ended) | {"usage": usage})

    def _streamed(self, ask: asking.Ask, first: int | str, answers: Iterator[int | str]) -> None:
        """Events, one a token. A text of which a token is a part of a character comes with the character's end."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        tokens, said = [], 0
        try:
            made = first
            while not isinstance(made, str):
                tokens.append(made)
                text = self._text(tokens)
                whole = len(text) if not text.endswith("\N{REPLACEMENT CHARACTER}") else said
                self._event(self._choice(text[said:whole], [made], None))
                said = max(said, whole)
                made = next(answers)
            self._event(self._choice(self._text(tokens)[said:], [], made))
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            answers.close()  # type: ignore[attr-defined]  # nobody listens any more
        except Exception as error:
            self._event({"error": {"message": f"{error!s:.400}", "type": "server_error"}})

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def _text(self, tokens: list[int]) -> str:
        vocabulary = self.server.vocabulary
        return "" if vocabulary is None else vocabulary.decode(tokens)

    def _choice(self, text: str, tokens: list[int], ended: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "tokens": tokens, "finish_reason": ended, "logprobs": None}
        about = {"id": f"cmpl-{id(self):x}", "object": "text_completion", "created": int(time.time())}
        return about | {"model": self.server.name, "choices": [choice]}

    def _json(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: int, message: str) -> None:
        self.close_connection = True
        kind = "server_error" if status == 500 else "invalid_request_error"
        self._json(status, {"error": {"message": message, "type": kind}})
