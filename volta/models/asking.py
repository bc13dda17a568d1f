"""What a request for a completion says, as OpenAI's interface has it: read strictly, nothing is silently left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import attrs

from volta.core.errors import ArgumentError
from volta.nn.sampling import Sampling

_IGNORED = ("model", "user", "stream_options")
_ONLY: dict[str, Any] = {
    "n": 1, "best_of": 1, "logprobs": None, "echo": False, "suffix": None, "presence_penalty": 0,
    "frequency_penalty": 0, "logit_bias": None, "stop": None,
}  # fmt: skip
"""What is not there, and the value that asks for nothing."""


@attrs.frozen
class Ask:
    """One request: a prompt of tokens, and how it is continued."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    seed: int
    stop: frozenset[int]
    stream: bool


def read(body: bytes, encode: Callable[[str], list[int]] | None) -> Ask:
    """A request's JSON. ``encode`` makes tokens of text; None where only numbers are prompts.

    Raises:
        ArgumentError: for what is no request, or asks for what is not there.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the request is no JSON: {error!s:.80}") from None
    if not isinstance(given, dict):
        raise ArgumentError("the request must be an object")
    for name, nothing in _ONLY.items():
        if given.pop(name, nothing) not in (nothing, None):
            raise ArgumentError(f"{name} is not there")
    take = _Fields({k: v for k, v in given.items() if k not in _IGNORED})
    asked = Ask(
        prompt=_prompt(take.any("prompt"), encode),
        max_tokens=take.integer("max_tokens", 16, 0),
        sampling=Sampling(
            take.number("temperature", 1.0), take.integer("top_k", 0, 0), take.number("top_p", 1.0),
            take.number("repetition_penalty", 1.0),
        ).checked(),
        seed=take.integer("seed", 0, 0, 2**63 - 1),
        stop=frozenset(_tokens("stop_token_ids", take.any("stop_token_ids", []))),
        stream=take.flag("stream"),
    )  # fmt: skip
    if take.left:
        raise ArgumentError(f"there is no field {next(iter(take.left))!r:.40}")
    return asked


class _Fields:
    def __init__(self, left: dict[str, Any]) -> None:
        self.left = left

    def any(self, name: str, default: Any = None) -> Any:
        found = self.left.pop(name, None)
        return default if found is None else found

    def number(self, name: str, default: float) -> float:
        x = self.any(name, default)
        if type(x) not in (int, float) or not abs(x) <= sys.float_info.max:  # nor NaN
            raise ArgumentError(f"{name} must be a number, got {x!r:.40}")
        return float(x)

    def integer(self, name: str, default: int, low: int, high: int = 2**31 - 1) -> int:
        x = self.any(name, default)
        if type(x) is not int or not low <= x <= high:
            raise ArgumentError(f"{name} must be an integer from {low} to {high}, got {x!r:.40}")
        return x

    def flag(self, name: str) -> bool:
        x = self.any(name, False)
        if type(x) is not bool:
            raise ArgumentError(f"{name} must be true or false, got {x!r:.40}")
        return x


def _tokens(name: str, x: Any) -> list[int]:
    if not isinstance(x, list) or any(type(t) is not int for t in x):
        raise ArgumentError(f"{name} must be a list of tokens, which are integers")
    return x


def _prompt(x: Any, encode: Callable[[str], list[int]] | None) -> tuple[int, ...]:
    if isinstance(x, str):
        if any("\ud800" <= c <= "\udfff" for c in x):  # JSON may escape one
            raise ArgumentError("the prompt is no text: it holds half of a surrogate pair")
        if encode is None:
            raise ArgumentError("the prompt is text, and the model's file has no vocabulary: give a list of tokens")
        return tuple(encode(x))
    return tuple(_tokens("prompt", x))
