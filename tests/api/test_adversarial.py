"""Requests that break servers: each is answered as it should, and none with a 5xx."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from stand_ins.api_server import NAME

from localllm.params import ALIASES, PARAMETERS

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = {"model": NAME, "messages": [{"role": "user", "content": "say ab"}]}
HEADERS = {"content-type": "application/json"}


def post(http: httpx2.Client, path: str, body: Any) -> httpx2.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = http.post(path, content=data, headers=HEADERS)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert len(answer.content) <= 4096
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return answer


def chat(http: httpx2.Client, **fields: Any) -> httpx2.Response:
    return post(http, CHAT, {**ASK, **fields})


def deep(n: int, of: str = "[]") -> bytes:
    return of[0].encode() * n + of[1].encode() * n


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("grammar", "(" * 60_000), ("json_schema", {"$ref": "#"}),
        ("response_format", {"type": "json_object"}), ("tools", [{"type": "function"}]),
        ("tool_choice", "required"), ("functions", [{}]), ("structured_outputs", {"regex": "a"}),
        ("guided_regex", "(a+)+$"), ("chat_template", "{{ 1 }}"), ("bad_words", ["a"]),
        ("stop_token_ids", [1]), ("min_tokens", 1), ("use_beam_search", True), ("lora", [{}]),
        ("modalities", ["text", "audio"]), ("audio", {"voice": "x"}),
        ("documents", [{"text": "x"}]), ("continue_final_message", True), ("verbosity", "low"),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused(
    http: httpx2.Client, field: str, value: Any
) -> None:
    answer = chat(http, **{field: value})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("tools", []), ("tools", None), ("tool_choice", "auto"), ("response_format", {"type": "text"}),
     ("grammar", ""), ("min_tokens", 0), ("modalities", ["text"]), ("user", "me"),
     ("metadata", {"a": "b"}), ("service_tier", "auto"), ("parallel_tool_calls", True)],
)  # fmt: skip
def test_what_asks_for_nothing_is_fine(http: httpx2.Client, field: str, value: Any) -> None:
    answer = chat(http, **{field: value})
    assert answer.status_code == 200 and "x-localllm-ignored" not in answer.headers


def test_nesting(http: httpx2.Client) -> None:
    head = json.dumps(ASK)[:-1].encode()
    for of in ("[]", '{"', "{}"):
        value = deep(10_000) if of == "[]" else b'{"a":' * 10_000 + b"1" + b"}" * 10_000
        for name in (b"tools", b"unknown", b"messages"):
            answer = post(http, CHAT, head + b', "' + name + b'": ' + value + b"}")
            assert answer.status_code == 400 and len(answer.content) <= 1024
    assert post(http, CHAT, b"[" * 100_000).status_code == 400
    brackets = chat(http, user="[" * 1000 + '\\"' + "{" * 1000)  # in a text they are none
    assert brackets.status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'"a"', b"{", b"{}x", b"\xff\xfe", b'{"prompt": "\xff"}',
     b'{"prompt": "a\x00"}', b'{"prompt": "\\ud800"}', b'{"\\udc00": 1, "prompt": "a"}',
     b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "a", "temperature": NaN}',
     b'{"prompt": "a", "temperature": 1e999}', b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
     b'{"prompt": "a", "temperature": -Infinity}', b"\xef\xbb\xbf{}"],
)  # fmt: skip
def test_bodies_that_are_no_request(http: httpx2.Client, body: bytes) -> None:
    assert post(http, TEXT, body).status_code == 400


def test_characters_that_are_rare_and_right(http: httpx2.Client) -> None:
    body = b'{"prompt": "say \\u0000\\ud83d\\ude00\xe2\x80\xae"}'
    answer = post(http, TEXT, body)
    assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == "\x00😀\u202e"
    cut = post(http, TEXT, {"prompt": "say 😀😀", "max_tokens": 1})
    assert cut.json()["choices"][0]["text"] == "😀"


INTEGERS = [
    name
    for name in [*PARAMETERS, *ALIASES, "n", "priority", "top_logprobs", "n_probs"]
    if name in ("n", "priority", "top_logprobs", "n_probs")
    or PARAMETERS[ALIASES.get(name, name)].kind is int
]
MEANINGS = {  # what a value out of the range means by another server's word
    ("top_k", -1), ("seed", -1), ("n_predict", -1), ("num_predict", -1), ("repeat_last_n", -1),
    ("dry_penalty_last_n", -1), ("priority", -1),
}  # fmt: skip
ZERO = {"n": 400, "dry_allowed_length": 400}


@pytest.mark.parametrize("name", sorted(set(INTEGERS)))
def test_every_integer_at_its_ends(http: httpx2.Client, name: str) -> None:
    path, base = (TEXT, {"prompt": "say ab"}) if name == "logprobs" else (CHAT, dict(ASK))
    base["logprobs" if name == "top_logprobs" else "stream"] = name == "top_logprobs"
    for value in (-1, 0, 2**31, 2**63, 2**64, 1e308, 1.5, "1", True, [], {}, -(2**63)):
        answer = post(http, path, {**base, name: value})
        expected = 400
        if type(value) is int and (name, value) in MEANINGS:
            expected = 200
        elif type(value) is int and value == 0:
            expected = ZERO.get(name, 200)
        elif type(value) is int and name == "seed" and -(2**63) <= value < 2**64:
            expected = 200
        assert answer.status_code == expected, (name, value, answer.text)
        if answer.status_code == 400:
            error = answer.json()["error"]
            assert error["param"] == name and (
                "may be" in error["message"] or "must" in error["message"]
            )
    assert post(http, path, {**base, name: None}).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 1e308), ("temperature", -1), ("temperature", "1"), ("top_p", -1),
     ("top_p", 1.01), ("min_p", True), ("logit_bias", {"999999999": 1}), ("logit_bias", {"a": 1}),
     ("logit_bias", {"1": 1000}), ("logit_bias", "x"), ("logit_bias", [[1]]), ("stop", ""),
     ("stop", ["a"] * 5000), ("stop", [1]), ("stop", ["x" * 2000]), ("stop", {}), ("stream", "yes"),
     ("stream_options", []), ("stream_options", {"include_usage": 1}), ("truncate", "end"),
     ("logprobs", 1), ("cache_salt", ""), ("cache_salt", "x" * 2000), ("model", 1), ("model", ""),
     ("reasoning_effort", "none at all"), ("chat_template_kwargs", []), ("samplers", ["no such"]),
     ("chat_template_kwargs", {"messages": []}), ("chat_template_kwargs", {"go_on": True}),
     ("store", "no")],
)  # fmt: skip
def test_values_out_of_range(http: httpx2.Client, field: str, value: Any) -> None:
    answer = chat(http, **{field: value})
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith(field)


@pytest.mark.parametrize(
    ("body", "said"),
    [({"messages": []}, "an empty list"), ({"messages": {}}, "an empty object"),
     ({"messages": {"a": 1}}, "an object"), ({"messages": None}, "null or missing"),
     ({}, "null or missing")],
)  # fmt: skip
def test_what_is_wrong_is_said(http: httpx2.Client, body: dict[str, Any], said: str) -> None:
    message = http.post("/v1/chat/completions", json=body).json()["error"]["message"]
    assert message == f"messages is {said}; it must be a list of at least one message"


def test_variables_of_any_name(http: httpx2.Client) -> None:
    names = ("self", "cls", "args", "kwargs", "template", "options")
    for name in names:
        assert chat(http, chat_template_kwargs={name: 1}).status_code == 200, name


@pytest.mark.parametrize(
    "messages",
    [[], None, "hi", {}, [1], [[]], [{}], [{"role": "user"}], [{"role": "user", "content": None}],
     [{"role": "user", "content": 1}], [{"role": "user", "content": {}}], [{"content": "a"}],
     [{"role": "banana", "content": "a"}], [{"role": 1, "content": "a"}],
     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
     [{"role": "user", "content": [{"type": "text", "text": 1}]}],
     [{"role": "user", "content": ["a"]}], [{"role": "user", "content": "a", "images": ["/etc"]}],
     [{"role": "assistant", "content": None, "tool_calls": 1}]],
)  # fmt: skip
def test_messages_that_are_none(http: httpx2.Client, messages: Any) -> None:
    assert chat(http, messages=messages).status_code == 400


def test_unusual_conversations(http: httpx2.Client) -> None:
    user, system = {"role": "user", "content": "say a"}, {"role": "system", "content": "s"}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    tool = {"role": "tool", "content": "42", "tool_call_id": "1"}
    for messages in (
        [user, system, user],
        [user, user],
        [user, called, tool, user],
        [system, user],
    ):
        assert chat(http, messages=messages).status_code in (200, 400)
    parts = [{"type": "text", "text": "say "}, {"type": "text", "text": "xy"}]
    answer = chat(http, messages=[{"role": "user", "content": parts}])
    assert answer.json()["choices"][0]["message"]["content"] == "xy"
    marked = chat(http, messages=[{"role": "user", "content": "say <|im_end|>"}])
    assert marked.status_code == 200


@pytest.mark.parametrize(
    "prompt",
    [None, "", [], [[]], {}, 1, [1.5], [-1], [10**9], ["a", 1], [[1], ["a"]], [True], ["a", ""]],
)
def test_prompts_that_are_none(http: httpx2.Client, prompt: Any) -> None:
    answer = post(http, TEXT, {"prompt": prompt})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"


def test_no_tokens_at_all(http: httpx2.Client) -> None:
    answer = chat(http, max_tokens=0).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"] == ""
    assert answer["usage"]["completion_tokens"] == 0 < answer["usage"]["prompt_tokens"]
    full = post(http, TEXT, {"prompt": "a b " * 600, "max_tokens": 0})
    assert full.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "name",
    ["a/b:c", "../x", "sha256:../../", "CON", "a%2f", "e\u0301", "x" * 400, "[/red]", "\x1b]0;x"],
)
def test_names_that_are_none(http: httpx2.Client, name: str) -> None:
    answer = chat(http, model=name)
    assert answer.status_code == 404 and "\x1b" not in answer.text


def test_unknown_fields_are_named(http: httpx2.Client, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        answer = chat(http, no_such_thing=1, **{"a\r\nset-cookie: x": 2})
        assert answer.status_code == 200
        ignored = answer.headers["x-localllm-ignored"]
        assert "no_such_thing" in ignored and "set-cookie" not in answer.headers
    assert sum("no_such_thing" in record.message for record in caplog.records) == 1
    for name in ("", " ", "a,", " a", "\t", "\u00a0", "x" * 59 + " y"):
        assert chat(http, **{name: 1}).headers["x-localllm-ignored"].strip()
    many = chat(http, **{f"field{i}": 1 for i in range(5000)})
    assert many.status_code == 200 and len(many.headers["x-localllm-ignored"]) < 2000


def test_two_names_of_one_thing(http: httpx2.Client) -> None:
    assert chat(http, max_tokens=3, max_completion_tokens=3).status_code == 200
    answer = chat(http, max_tokens=3, max_completion_tokens=4)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "max_completion_tokens"


def test_paths_and_methods_that_are_none(http: httpx2.Client) -> None:
    for method, path in (("GET", CHAT), ("DELETE", "/v1/models"), ("GET", "/v2"), ("PUT", CHAT)):
        answer = http.request(method, path, headers=HEADERS, content=b"{}")
        assert answer.status_code in (404, 405) and answer.json()["error"]["code"]
    assert http.get("/v1/models/..%2f..%2fetc%2fpasswd").status_code == 404


def test_a_path_that_is_none(real_http: httpx2.Client) -> None:
    assert real_http.post("/localllm/session", json={"path": "\0"}).status_code == 404


def test_the_doors(http: httpx2.Client) -> None:
    assert http.get("/").headers["location"] == "/docs"
    assert http.head("/health").status_code == 200


def test_tokens_there_and_back(http: httpx2.Client) -> None:
    tokens = post(http, "/tokenize", {"content": "héllo <|im_end|>"}).json()["tokens"]
    assert post(http, "/detokenize", {"tokens": tokens}).json()["content"] == "héllo <|im_end|>"
    pieces = post(http, "/tokenize", {"content": "é", "with_pieces": True}).json()["tokens"]
    assert all(isinstance(each["piece"], (str, list)) for each in pieces)
    counted = post(http, "/tokenize", {"prompt": "hello", "return_token_strs": True}).json()
    assert counted["count"] == len(counted["tokens"]) == len(counted["token_strs"])
    text = post(http, "/tokenize", {"prompt": "hello", "messages": None}).json()
    assert text["tokens"] == counted["tokens"]
    whole = post(http, "/tokenize", {"messages": ASK["messages"]}).json()
    assert whole["count"] > 3 and whole["max_model_len"] == 512
    counted = post(http, "/tokenize", {"messages": ASK["messages"], "new": 1, "tools": []})
    assert counted.json() == whole and counted.headers["x-localllm-ignored"] == "new"
    variables = {"chat_template_kwargs": {"unused": "x"}}
    assert post(http, "/tokenize", {"messages": ASK["messages"], **variables}).json() == whole
    deep: Any = "x"
    for _ in range(60):
        deep = [deep]
    refused = {"tools": [{"type": "function"}], "continue_final_message": True,
               "add_generation_prompt": False, "chat_template": "{{ x }}",
               "reasoning_effort": "lots", "chat_template_kwargs": {"messages": []}}  # fmt: skip
    for name, value in refused.items():
        error = post(http, "/tokenize", {"messages": ASK["messages"], name: value})
        assert error.status_code == 400 and error.json()["error"]["param"] == name
    for path, body in (
        ("/tokenize", {"messages": [{"role": "user", "content": deep}]}),
        ("/tokenize", {"messages": 1}),
        ("/tokenize", {}), ("/tokenize", {"content": 1}), ("/tokenize", {"messages": [1]}),
        ("/detokenize", {}), ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [2**63]}), ("/detokenize", {"tokens": [True]}),
    ):  # fmt: skip
        assert post(http, path, body).status_code == 400
