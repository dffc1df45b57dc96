"""`prompt_logprobs`, vLLM's way to the log probabilities of a prompt: the numbers are those of echo
with logprobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from reference.engine import load_logits

from localllm.engine.request import LoadedModel
from localllm.engine.sampling import Sampled
from localllm.server.shapes import Wishes, of_prompt

COMMON = {"model": "tiny", "temperature": 0, "seed": 1}
TEXT = "once upon a time there was a king"
CHAT = {"messages": [{"role": "user", "content": TEXT}], "max_completion_tokens": 1}


def posted(http: httpx2.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(path, json={**COMMON, **body})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def echoed(http: httpx2.Client, prompt: Any, n_top: int) -> list[tuple[float, set[float]]]:
    """Of each token but the first: its value, and those of the likeliest."""
    (choice,) = posted(
        http, "/v1/completions", prompt=prompt, max_tokens=0, echo=True, logprobs=n_top
    )["choices"]
    lists = choice["logprobs"]
    tops = lists["top_logprobs"] or [None] * len(lists["tokens"])
    return [
        (value, set((top or {}).values()))
        for value, top in zip(lists["token_logprobs"][1:], tops[1:], strict=True)
    ]


def check(http: httpx2.Client, found: list[dict[str, Any] | None], ids: list[int], n: int) -> None:
    assert found[0] is None and len(found) == len(ids)
    expected = echoed(http, ids, n)
    for token, entries, (value, top) in zip(ids[1:], found[1:], expected, strict=True):
        assert entries is not None and entries[str(token)]["logprob"] == value
        ranked = {each["rank"]: each["logprob"] for each in entries.values()}
        assert len(ranked) == len(entries)
        assert set(ranked) == {entries[str(token)]["rank"], *range(1, n + 1)}
        assert [ranked[i] for i in sorted(ranked)] == sorted(ranked.values(), reverse=True)
        assert top <= set(ranked.values())


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("max_tokens", [0, 2])
def test_completions(real_http: httpx2.Client, n: int, max_tokens: int) -> None:
    prompts = [TEXT, "a king of ice"]
    answer = posted(
        real_http, "/v1/completions", prompt=prompts, n=2, max_tokens=max_tokens,
        prompt_logprobs=n, return_token_ids=True,
    )  # fmt: skip
    assert len(answer["choices"]) == 4
    for choice in answer["choices"]:
        assert choice["logprobs"] is None
        ids = answer["prompt_token_ids"][choice["index"] // 2]
        check(real_http, choice["prompt_logprobs"], ids, n)


def test_chat(real_http: httpx2.Client) -> None:
    answer = posted(
        real_http, "/v1/chat/completions", **CHAT, prompt_logprobs=2, return_token_ids=True
    )
    check(real_http, answer["prompt_logprobs"], answer["prompt_token_ids"], 2)
    assert "prompt_logprobs" not in answer["choices"][0]
    assert "prompt_logprobs" not in posted(real_http, "/v1/chat/completions", **CHAT)


@pytest.mark.parametrize("n", [0, 2])
def test_ranks_are_those_among_all_tokens(
    real_http: httpx2.Client, tiny: Callable[[str, str], Path], n: int
) -> None:
    answer = posted(
        real_http, "/v1/completions", prompt=TEXT, max_tokens=0, prompt_logprobs=n,
        return_token_ids=True,
    )  # fmt: skip
    (choice,) = answer["choices"]
    (ids,) = answer["prompt_token_ids"]
    found = [
        entries[str(token)]["rank"]
        for token, entries in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True)
    ]
    logits = load_logits(tiny("llama", "F32"), ids)
    assert found == [
        int((row >= row[token]).sum()) for token, row in zip(ids[1:], logits, strict=False)
    ]
    assert max(found) > 20


def test_equal_ones_have_the_last_place_beyond_the_likeliest(fake_info: LoadedModel) -> None:
    row = Sampled(7, -2.0, ((5, -1.0), (6, -2.0), (7, -2.0)), rank=4)
    for n, ranks in enumerate([{"7": 4}, {"7": 4, "5": 1}, {"7": 4, "5": 1, "6": 2},
                               {"7": 3, "5": 1, "6": 2}]):  # fmt: skip
        wishes = Wishes(fake_info.tokenizer, prompt_logprobs=n)
        _, entries = of_prompt(wishes, [row])["prompt_logprobs"]
        assert {token: each["rank"] for token, each in entries.items()} == ranks


def test_beside_echo_each_has_its_own_number(real_http: httpx2.Client) -> None:
    body = {"prompt": TEXT, "max_tokens": 1, "echo": True}
    alone = posted(real_http, "/v1/completions", **body, logprobs=1)["choices"][0]
    for n in (0, 3):
        both = posted(real_http, "/v1/completions", **body, logprobs=1, prompt_logprobs=n)
        (choice,) = both["choices"]
        (other,) = posted(real_http, "/v1/completions", **body, prompt_logprobs=n)["choices"]
        assert choice["logprobs"] == alone["logprobs"]
        assert choice["prompt_logprobs"] == other["prompt_logprobs"]
        assert len(choice["prompt_logprobs"]) == len(alone["logprobs"]["tokens"]) - 1


@pytest.mark.parametrize(
    "more",
    [{"prompt_logprobs": 21}, {"prompt_logprobs": -1}, {"prompt_logprobs": 0.5},
     {"prompt_logprobs": 1, "stream": True}],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_cannot_be_had_is_refused(
    real_http: httpx2.Client, path: str, more: dict[str, Any]
) -> None:
    fields = CHAT if "chat" in path else {"prompt": TEXT}
    answer = real_http.post(path, json={**COMMON, **fields, **more})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt_logprobs"


def test_what_would_take_too_much_memory_is_refused(real_http: httpx2.Client) -> None:
    """Each log probability is held until the answer is sent."""
    ids = [1] * 200
    for more in ({"prompt_logprobs": 20}, {"echo": True, "logprobs": 20}):
        body = {**COMMON, "prompt": [ids] * 32, "max_tokens": 0, **more}
        answer = real_http.post("/v1/completions", json=body)
        assert answer.status_code == 400
        assert "would be 134,400, the limit is 131,072" in answer.json()["error"]["message"]
    posted(real_http, "/v1/completions", prompt=[ids[:4]] * 2, max_tokens=0, prompt_logprobs=20)
