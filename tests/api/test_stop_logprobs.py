"""Log probabilities of answers that a stop string ends: as many as the text has tokens; the one
that the cut goes through is the last."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import httpx2
import pytest

COMMON = {"model": "tiny", "temperature": 1.0, "seed": 5, "max_tokens": 24, "ignore_eos": True}
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a tale"}],
        "logprobs": True, "top_logprobs": 1})  # fmt: skip
TEXT = ("/v1/completions", {"prompt": "a tale", "logprobs": 1})
N = 3
WORDS = "once upon a time there was a king of ice"

Told = tuple[str, list[str], list[float], str]  # text, tokens, values, finish reason


def entries(logprobs: dict[str, Any]) -> list[tuple[str, float]]:
    if "content" in logprobs:
        return [(each["token"], each["logprob"]) for each in logprobs["content"]]
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True))


def asked(http: httpx2.Client, route: tuple[str, dict[str, Any]], **more: Any) -> list[Told]:
    """The choices, by index."""
    path, fields = route
    words = http.post("/tokenize", json={"content": WORDS}).json()["tokens"]
    bias = dict.fromkeys(map(str, words), 80)  # a random model says bytes otherwise
    body = {**COMMON, **fields, "n": N, "logit_bias": bias, **more}
    if not body.get("stream"):
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        choices = answer.json()["choices"]
    else:
        with http.stream("POST", path, json=body) as answer:
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
        choices = [json.loads(line)["choices"][0] for line in lines]
    texts: defaultdict[int, str] = defaultdict(str)
    told: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
    reasons: dict[int, str] = {}
    for choice in choices:
        i = choice["index"]
        said = choice.get("message") or choice.get("delta") or {}
        texts[i] += choice.get("text", "") + (said.get("content") or "")
        told[i] += entries(choice["logprobs"]) if choice["logprobs"] else []
        reasons[i] = choice["finish_reason"] or ""
        sure = "".join(token for token, _ in told[i][:-1])
        assert len(sure.lstrip()) <= len(texts[i]), "tokens came before their text was sure"
    return [
        (texts[i], [token for token, _ in told[i]], [value for _, value in told[i]], reasons[i])
        for i in range(N)
    ]


@pytest.mark.parametrize("route", [CHAT, TEXT], ids=["chat", "text"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("within", [False, True], ids=["between tokens", "within a token"])
def test_a_cut_text(
    real_http: httpx2.Client, route: tuple[str, dict[str, Any]], stream: bool, within: bool
) -> None:
    free = asked(real_http, route, stream=stream)
    for at in range(N):
        tokens = free[at][1]
        assert len(tokens) == COMMON["max_tokens"] and free[at][3] == "length"
        stop = "".join(tokens[6:9])[within:]
        got = asked(real_http, route, stream=stream, stop=stop)
        assert got[at][3] == "stop"
        for cut, (whole, all_tokens, all_values, _) in zip(got, free, strict=True):
            text = whole.partition(stop)[0]
            lead = len("".join(all_tokens)) - len(whole)  # a first space that the text lacks
            n = sum(len("".join(all_tokens[:i])) - lead < len(text) for i in range(len(all_tokens)))
            reason = "stop" if stop in whole else "length"
            assert cut == (text, all_tokens[:n], all_values[:n], reason)
