"""/v1/completions with echo and logprobs: what tools that score texts read."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from stand_ins.api_server import Running

ASK = {"model": "tiny", "temperature": 0, "seed": 1, "echo": True, "logprobs": 2}
TEXT = "once upon a time there was a kïng 🎈 of ice"


def scored(http: httpx2.Client, **more: Any) -> list[dict[str, Any]]:
    answer = http.post("/v1/completions", json={**ASK, **more})
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


def streamed(http: httpx2.Client, **more: Any) -> dict[str, Any]:
    """The choice that the pieces of a stream make together."""
    text, lists = "", {}
    with http.stream("POST", "/v1/completions", json={**ASK, **more, "stream": True}) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            (choice,) = json.loads(line[6:])["choices"]
            text += choice["text"]
            for name, values in (choice["logprobs"] or {}).items():
                lists[name] = lists.get(name, []) + values
    return {"text": text, "logprobs": lists}


def ids_of(http: httpx2.Client, text: str) -> list[int]:
    ids: list[int] = http.post("/tokenize", json={"content": text, "add_special": True}).json()[
        "tokens"
    ]
    return ids


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_a_prompt_is_scored(real_http: httpx2.Client, max_tokens: int) -> None:
    (choice,) = scored(real_http, prompt=TEXT, max_tokens=max_tokens)
    got, n_prompt = choice["logprobs"], len(ids_of(real_http, TEXT))
    assert choice["text"].startswith(TEXT) and choice["finish_reason"] in ("length", "stop")
    assert len(got["tokens"]) <= n_prompt + max_tokens
    assert {len(values) for values in got.values()} == {len(got["tokens"])}
    assert got["token_logprobs"][0] is None and got["top_logprobs"][0] is None
    assert all(-9999 <= value <= 0 for value in got["token_logprobs"][1:])
    for top, value in zip(got["top_logprobs"][1:n_prompt], got["token_logprobs"][1:], strict=False):
        assert 1 <= len(top) <= 2 and max(top.values()) >= value
    for i, (token, offset) in enumerate(zip(got["tokens"], got["text_offset"], strict=True)):
        if 0 < i < n_prompt and "\ufffd" not in token:
            assert choice["text"][offset : offset + len(token)] in (token, token[1:]), i


def test_a_stream_says_the_same(real_http: httpx2.Client) -> None:
    (whole,) = scored(real_http, prompt=TEXT, max_tokens=4)
    stream = streamed(real_http, prompt=TEXT, max_tokens=4)
    assert stream == {name: whole[name] for name in ("text", "logprobs")}


def test_an_answer_is_scored_as_it_was_sampled(real_http: httpx2.Client) -> None:
    """What was sampled behind a prompt, put into the prompt, gets the same values."""
    ids = ids_of(real_http, TEXT)
    answer = real_http.post(
        "/v1/completions",
        json={**ASK, "prompt": ids, "max_tokens": 6, "return_token_ids": True, "ignore_eos": True},
    ).json()["choices"][0]
    (again,) = scored(real_http, prompt=ids + answer["token_ids"], max_tokens=0)
    assert again["logprobs"]["token_logprobs"] == answer["logprobs"]["token_logprobs"]
    assert again["logprobs"]["top_logprobs"] == answer["logprobs"]["top_logprobs"]


def test_continuations_are_compared(real_http: httpx2.Client) -> None:
    """As a harness for multiple choice does: token ids, one more token, which it takes off the end,
    also where that token ends the answer."""
    context = ids_of(real_http, "once upon a time")
    words = [ids_of(real_http, text)[-1] for text in (" there", " of", " ice")]
    end = 2
    choices = scored(
        real_http,
        prompt=[[*context, word] for word in words],
        max_tokens=1,
        logit_bias={str(end): 100},
    )
    sums = []
    for index, choice in enumerate(choices):
        values = choice["logprobs"]["token_logprobs"]
        assert choice["index"] == index and len(values) == len(context) + 2
        sums.append(sum(values[len(context) : -1]))
    (whole,) = scored(real_http, prompt=context, max_tokens=1, logprobs=20)
    assert len(set(sums)) == 3 and all(value < 0 for value in sums)
    top = whole["logprobs"]["top_logprobs"][-1]
    assert max(sums) <= max(top.values())


def test_each_answer_of_several_begins_with_it(real_http: httpx2.Client) -> None:
    choices = scored(real_http, prompt=["once upon", "a king of ice"], n=2, max_tokens=2)
    starts = [each["text"][:9] for each in choices]
    assert starts == ["once upon"] * 2 + ["a king of"] * 2
    first = [each["logprobs"]["token_logprobs"][:3] for each in choices]
    assert first[0] == first[1] != first[2] == first[3]


def test_a_cut_prompt_is_scored_as_it_is(real_http: httpx2.Client) -> None:
    (choice,) = scored(real_http, prompt=TEXT * 60, max_tokens=2, truncate="start")
    n = len(choice["logprobs"]["tokens"])
    assert 500 <= n <= 512 and len(choice["text"]) < len(TEXT * 60)


def test_the_other_engine_says_that_it_cannot(fake: Running, real_http: httpx2.Client) -> None:
    got = real_http.post("/v1/completions", json={**ASK, "prompt": TEXT, "logprobs": 21})
    assert got.status_code == 400 and got.json()["error"]["param"] == "logprobs"
