"""Random requests: whatever a field holds, no answer is a fault of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stand_ins.api_server import FakeService, running

from localllm.engine.open import read_text_side
from localllm.engine.request import LoadedModel
from localllm.server.schema import fields
from localllm.text.chat_template import ChatTemplate

EXAMPLES = 150

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-1, 0, 1, 2, 20, 2**31, 2**63, 0.5, 1.0]),
)
texts = st.one_of(
    st.text(max_size=20), st.sampled_from(["", "user", "say a", "\x00", "<|im_end|>"])
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool", "x"]), "content": values},
        optional={"tool_calls": values, "name": values, "reasoning_content": values},
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def client(tiny: Callable[[str, str], Path]) -> Iterator[httpx2.Client]:
    text = read_text_side(tiny("llama", "F32"))
    template = ChatTemplate.from_metadata(text.metadata, text.tokenizer)
    service = FakeService(LoadedModel("fake:1b", 512, text.tokenizer, template))
    with running(service) as server, httpx2.Client(base_url=server.url, timeout=20) as client:
        yield client


def check(client: httpx2.Client, path: str, body: bytes) -> None:
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 404, 429), (body, answer.text)
    if answer.status_code != 200:
        assert len(answer.content) <= 4096 and answer.json()["error"]["message"]


def written(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


relaxed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@relaxed
@given(
    given_fields=st.dictionaries(st.sampled_from(sorted(fields.CHAT)), values, max_size=3),
    said=st.one_of(st.just([{"role": "user", "content": "say ab"}]), messages),
)
def test_chat(client: httpx2.Client, given_fields: dict[str, Any], said: Any) -> None:
    check(client, "/v1/chat/completions", written({"messages": said, **given_fields}))


@relaxed
@given(
    given_fields=st.dictionaries(st.sampled_from(sorted(fields.COMPLETIONS)), values, max_size=3),
    prompt=st.one_of(st.just("say ab"), values),
)
def test_completions(client: httpx2.Client, given_fields: dict[str, Any], prompt: Any) -> None:
    check(client, "/v1/completions", written({"prompt": prompt, **given_fields}))


@relaxed
@given(body=st.binary(max_size=60), path=st.sampled_from(["/tokenize", "/detokenize"]))
def test_bytes(client: httpx2.Client, body: bytes, path: str) -> None:
    check(client, path, body)


@relaxed
@given(body=st.dictionaries(st.sampled_from(["content", "prompt", "messages", "tokens", "model",
       "add_special", "with_pieces", "parse_special"]), values, max_size=4),
       path=st.sampled_from(["/tokenize", "/detokenize"]))  # fmt: skip
def test_tokens(client: httpx2.Client, body: dict[str, Any], path: str) -> None:
    check(client, path, written(body))
