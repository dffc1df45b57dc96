"""The parameters of an answer, from the fields of a request."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from localllm.errors import ArgumentError
from localllm.params import ALIASES, PARAMETERS, GenerateParams
from localllm.server.errors import RequestError
from localllm.server.schema import values

MAX_TOP_LOGPROBS = 20


def read_params(
    body: Mapping[str, Any],
    defaults: Mapping[str, Any],
    n_vocab: int,
    *,
    logprobs: int | None,
    max_tokens: int | None = None,
) -> GenerateParams:
    """The parameters that a request asks for, over the model's defaults. max_tokens: the route's
    default. Without a seed one is drawn. Raises `RequestError` naming the field."""
    chosen = {**defaults}
    chosen.setdefault("max_tokens", max_tokens)
    origin: dict[str, str] = {}
    for field, value in body.items():
        name = ALIASES.get(field, field)
        if name not in PARAMETERS or name == "logprobs" or value is None:
            continue
        value = _MEANINGS[field](value) if field in _MEANINGS else value
        value = _checked(name, field, value)
        if name in origin and chosen[name] != value:
            raise RequestError(
                f"{origin[name]} and {field} are two names of one thing and differ", param=field
            )
        chosen[name], origin[name] = value, field
    for token, _ in chosen.get("logit_bias", ()):
        if token >= n_vocab:
            raise values.wrong("logit_bias", token, f"token ids from 0 to {n_vocab - 1}")
    if chosen.get("seed") is None:
        chosen["seed"] = secrets.randbits(63)
    return GenerateParams(**{**chosen, "logprobs": logprobs})


def chat_logprobs(body: Mapping[str, Any]) -> int | None:
    """How many likeliest tokens /v1/chat/completions shows; None: no log probabilities."""
    wanted = values.flag(body, "logprobs", False)
    n_probs = values.integer(body, "n_probs", 0, 0, MAX_TOP_LOGPROBS)
    top = values.integer(body, "top_logprobs", n_probs, 0, MAX_TOP_LOGPROBS)
    if top and not wanted and not n_probs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return top if wanted or n_probs else None


def completion_logprobs(body: Mapping[str, Any]) -> int | None:
    """The same for /v1/completions, where logprobs is the number; false is none."""
    if body.get("logprobs") is None or body["logprobs"] is False:
        return values.integer(body, "n_probs", 0, 0, MAX_TOP_LOGPROBS) or None
    return values.integer(body, "logprobs", 0, 0, MAX_TOP_LOGPROBS)


def prompt_logprobs(body: Mapping[str, Any]) -> int | None:
    """How many likeliest tokens are told in the place of each of the prompt's; None: nothing of
    them. Raises `RequestError`, also where the answer is a stream, which has no place for it."""
    if body.get("prompt_logprobs") is None or body["prompt_logprobs"] is False:
        return None
    wanted = values.integer(body, "prompt_logprobs", 0, 0, MAX_TOP_LOGPROBS)
    if body.get("stream"):
        raise RequestError("prompt_logprobs comes in no stream", param="prompt_logprobs")
    return wanted


def _checked(name: str, field: str, value: Any) -> Any:
    """The value in its own type, or None for "no limit"."""
    if value is None:
        return None
    try:
        return PARAMETERS[name].checked(value)
    except ArgumentError as e:
        message = e.message.removeprefix(name)
        raise RequestError(f"{field}{message}", e.hint, param=field) from None


def _all_at_minus_one(value: Any) -> Any:
    return 0 if _is_minus_one(value) else value


def _none_at_minus_one(value: Any) -> Any:
    return None if _is_minus_one(value) else value


def _seed(value: Any) -> Any:
    """OpenAI's is a signed number of 64 bits, llama-server draws one at -1."""
    if type(value) is int and -(2**63) <= value < -1:
        return value + 2**64
    return _none_at_minus_one(value)


def _bias(value: Any) -> Any:
    """llama-server also takes pairs, in which false bans the token."""
    if isinstance(value, list):
        return [[pair[0], -math.inf] if _bans(pair) else pair for pair in value]
    return value


def _bans(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and pair[1] is False  # 0 is no bias


def _is_minus_one(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and value == -1


#: Fields whose values other servers give a further meaning.
_MEANINGS: dict[str, Callable[[Any], Any]] = {
    "top_k": _all_at_minus_one,  # vLLM: all tokens
    "n_predict": _none_at_minus_one,  # llama-server: no limit
    "num_predict": _none_at_minus_one,
    "seed": _seed,
    "logit_bias": _bias,
}
