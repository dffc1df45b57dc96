"""The `openai` package against the server: what it reads is what was said."""

from __future__ import annotations

import math
from typing import Any

import httpx2
import openai
import pytest
from stand_ins.api_server import NAME, FakeService, Running


@pytest.fixture
def client(fake: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{fake.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def tiny_client(real: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0)


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=NAME, messages=ask("say héllo"))  # type: ignore[arg-type]
    (choice,) = answer.choices
    assert choice.message.content == "héllo" and choice.finish_reason == "stop"
    assert answer.usage is not None and answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 7
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")


def test_a_stream_with_its_counts(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=NAME,
        messages=ask("say abc"),  # type: ignore[arg-type]
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces = list(stream)
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == "abc"
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-2].choices[0].finish_reason == "stop"
    assert pieces[-1].choices == [] and pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == 3
    assert all(p.usage is None for p in pieces[:-1]) and len({p.id for p in pieces}) == 1


def test_log_probabilities_of_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME,
        messages=ask("say é"),  # type: ignore[arg-type]
        logprobs=True,
        top_logprobs=2,
    )
    assert answer.choices[0].logprobs is not None
    (entry,) = answer.choices[0].logprobs.content or []
    assert entry.token == "é" and entry.logprob == -0.5
    assert [(top.token, top.logprob) for top in entry.top_logprobs] == [("é", -0.5), ("�", -1.5)]
    assert entry.top_logprobs[0].bytes == list("é".encode())
    assert entry.top_logprobs[1].bytes is None  # its bytes are not known


def test_log_probabilities_of_a_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt="say abc", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens == ["a", "b", "c"]
    assert logprobs.text_offset == [0, 1, 2] and logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.top_logprobs == [{"a": -0.5}, {"b": -0.5}, {"c": -0.5}]


def test_several_answers_and_prompts(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=NAME, prompt=["say a", "say b"], n=2, echo=True)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert [c.text for c in answer.choices] == ["say aa", "say aa", "say bb", "say bb"]


def test_errors_are_raised_by_class(client: openai.OpenAI) -> None:
    def fails(text: str, **more: object) -> openai.APIStatusError:
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(
                **{"model": NAME, "messages": ask(text), **more}  # type: ignore[call-overload]
            )
        return caught.value

    wrong = fails("say a", temperature=9)
    assert isinstance(wrong, openai.BadRequestError) and wrong.param == "temperature"
    missing = fails("say a", model="nobody")
    assert isinstance(missing, openai.NotFoundError) and missing.code == "model_not_found"
    busy = fails("busy")
    assert isinstance(busy, openai.RateLimitError) and busy.response.headers["retry-after"] == "3"
    assert isinstance(fails("fault"), openai.InternalServerError)
    assert "secret" not in str(fails("fault"))
    long = fails("say " + "a b " * 600)
    assert long.code == "context_length_exceeded" and long.type == "invalid_request_error"
    assert "This model's maximum context length is 512 tokens" in long.message


def test_an_error_in_the_middle_of_a_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=NAME,
        messages=ask("break"),  # type: ignore[arg-type]
        stream=True,
    )
    shown = ""
    with pytest.raises(openai.APIError, match="no number"):
        for piece in stream:
            shown += piece.choices[0].delta.content or ""
    assert shown == "ab"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "localllm"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("../../etc/passwd")


def test_parameters_arrive(fake: Running, client: openai.OpenAI) -> None:
    client.chat.completions.create(
        model=NAME,
        messages=ask("say a"),  # type: ignore[arg-type]
        temperature=0.5,
        top_p=0.25,
        seed=42,
        stop=["x", "y"],
        presence_penalty=0.5,
        logit_bias={"7": -100},
        max_completion_tokens=3,
        n=2,
        store=False,
        extra_body={"top_k": -1, "min_p": 0.5, "repetition_penalty": 1.5, "priority": -3},
    )
    service = fake.service
    assert isinstance(service, FakeService)
    request = service.tickets[-1].request
    params = request.params
    assert (params.temperature, params.top_p, params.seed) == (0.5, 0.25, 42)
    assert params.stop == ("x", "y") and params.presence_penalty == 0.5
    assert params.logit_bias == ((7, -100.0),) and params.max_tokens == 3
    assert (params.top_k, params.min_p, params.repeat_penalty) == (0, 0.5, 1.5)
    assert (request.n, request.may_store, request.priority) == (2, False, 3)


def test_a_real_model_repeats_itself_with_a_seed(tiny_client: openai.OpenAI) -> None:
    def answer(stream: bool) -> str:
        made = tiny_client.chat.completions.create(
            model="tiny",
            messages=ask("What is ice?"),  # type: ignore[arg-type]
            seed=7,
            max_tokens=12,
            stream=stream,  # type: ignore[call-overload]
        )
        if not stream:
            return str(made.choices[0].message.content)
        return "".join(piece.choices[0].delta.content or "" for piece in made)

    first = answer(False)
    assert first and answer(True) == first


def test_a_real_model_counts_and_keeps_its_prompt(tiny_client: openai.OpenAI) -> None:
    def used(prompt: str) -> openai.types.CompletionUsage:
        answer = tiny_client.completions.create(
            model="tiny", prompt=prompt, max_tokens=4, temperature=0, logprobs=2
        )
        assert answer.usage is not None and answer.choices[0].logprobs is not None
        values = answer.choices[0].logprobs.token_logprobs or []
        assert values and all(-math.inf < value <= 0 for value in values)
        return answer.usage

    used("once upon a time there was a king")
    again = used("once upon a time there was a king")
    assert again.prompt_tokens_details is not None
    assert again.prompt_tokens_details.cached_tokens == again.prompt_tokens - 1
    assert again.total_tokens == again.prompt_tokens + again.completion_tokens


def _completed(http: httpx2.Client, **more: Any) -> tuple[list[int], list[int]]:
    """The token ids of the prompt and of the answer."""
    body = {"prompt": "a b c", "max_tokens": 4, "temperature": 0, "return_token_ids": True}
    answer = http.post("/v1/completions", json={**body, **more})
    assert answer.status_code == 200, answer.text
    document = answer.json()
    choice = document["choices"][0]
    return document["prompt_token_ids"][0], choice["token_ids"]


def test_a_bias_of_0_is_none_and_false_is_a_ban(real_http: httpx2.Client) -> None:
    _, plain = _completed(real_http)
    for none in (0, 0.0):
        assert _completed(real_http, logit_bias=[[plain[0], none]])[1] == plain
    assert _completed(real_http, logit_bias=[[plain[0], False]])[1][0] != plain[0]


def test_raw_prompts_may_hold_control_tokens(real_http: httpx2.Client) -> None:
    """As in vLLM and llama-server; in a message they are text."""
    prompt = "a<|im_end|>"

    def tokenized(**body: Any) -> list[int]:
        return list(real_http.post("/tokenize", json=body).json()["tokens"])

    (token,) = tokenized(content="<|im_end|>")
    ids = [*tokenized(content="a"), token]
    assert tokenized(prompt=prompt, add_special_tokens=False) == ids
    assert _completed(real_http, prompt=prompt)[0][-len(ids) :] == ids
    assert token not in _completed(real_http, prompt=prompt, parse_special=False)[0]
    assert token not in tokenized(prompt=prompt, parse_special=False)


def test_an_answer_that_comes_back_is_not_computed_again(real_http: httpx2.Client) -> None:
    """Its tokens are not what its text encodes to: letters one by one, where whole words are."""
    letters = {}
    for letter in "thea ":
        ids = real_http.post("/tokenize", json={"prompt": letter, "add_special_tokens": False})
        letters |= {str(token): 50.0 for token in ids.json()["tokens"]}

    def asked(*turns: str) -> tuple[dict[str, Any], httpx2.Headers]:
        roles = ["user", "assistant"] * len(turns)
        messages = [{"role": r, "content": t} for r, t in zip(roles, turns, strict=False)]
        body = {"messages": messages, "max_tokens": 24, "seed": 3}
        body |= {"logit_bias": letters, "temperature": 2.0, "return_token_ids": True}
        answer = real_http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json(), answer.headers

    first, headers = asked("Tell me of the sea.")
    assert "x-localllm-changed-at" not in headers
    said, prompt = first["choices"][0], first["prompt_token_ids"]
    text = said["message"]["content"]
    encoded = real_http.post("/tokenize", json={"prompt": text, "add_special_tokens": False})
    assert encoded.json()["tokens"] != said["token_ids"], text
    known = [*prompt, *said["token_ids"]]
    second, headers = asked("Tell me of the sea.", text, "And then?")
    assert second["prompt_token_ids"][: len(known) - 1] == known[:-1]
    # The last token was given, but never computed.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(known) - 2
    assert "x-localllm-changed-at" not in headers
    changed, headers = asked("Tell me of the sea.", "Something else.", "And then?")
    n_same = int(headers["x-localllm-changed-at"])
    assert 0 < n_same < len(prompt)
    assert changed["prompt_token_ids"][:n_same] == prompt[:n_same]
