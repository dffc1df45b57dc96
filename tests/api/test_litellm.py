"""The `litellm` package against the server: whole answers, streams, errors."""

from __future__ import annotations

import os
from typing import Any

import pytest
from stand_ins.api_server import NAME, Running

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would fetch prices
litellm = pytest.importorskip("litellm")


def ask(fake: Running, text: str, **more: Any) -> Any:
    return litellm.completion(
        model=f"openai/{NAME}",
        api_base=f"{fake.url}/v1",
        api_key="none",
        messages=[{"role": "user", "content": text}],
        max_retries=0,
        **more,
    )


def test_answers(fake: Running) -> None:
    answer = ask(fake, "say héllo", temperature=0)
    assert answer.choices[0].message.content == "héllo"
    assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens == 5
    pieces = list(ask(fake, "say abc", stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == "abc"
    text = litellm.text_completion(
        model=f"text-completion-openai/{NAME}",
        api_base=f"{fake.url}/v1",
        api_key="none",
        prompt="say xy",
    )
    assert text.choices[0].text == "xy"


def test_errors(fake: Running) -> None:
    for more in ({}, {"stream": True}, {"extra_body": {"truncate": "start"}}):
        with pytest.raises(litellm.ContextWindowExceededError):
            list(ask(fake, "x" * 5000, **more))
    with pytest.raises(litellm.RateLimitError):
        ask(fake, "busy")
    with pytest.raises(litellm.BadRequestError):
        ask(fake, "say a", response_format={"type": "json_object"})
