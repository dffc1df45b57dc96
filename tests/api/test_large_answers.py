"""Large answers: the server goes on while they are written."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import httpx2
import pytest
from starlette.types import Message

from localllm.engine.exchange import Chunk, TokenLogprobs
from localllm.engine.request import Finished, LoadedModel, Piece, Timings, Usage
from localllm.server import request_group
from localllm.server.metrics import Metrics
from localllm.server.request_group import RequestGroup
from localllm.server.request_log import Tally
from localllm.server.shapes import ChatShape, Frame, Wishes
from localllm.server.sse import MANY_LOGPROBS, HttpAnswer

N = 3


class Group:
    """Three answers of as many tokens as an answer has that takes long to write."""

    tally = Tally()

    def __init__(self, n_tokens: int) -> None:
        self._entries = (TokenLogprobs(5, "a", -1.0, (("a", -1.0),)),) * n_tokens

    async def events(self) -> AsyncIterator[tuple[int, Piece | Finished]]:
        for index in range(N):
            text = f'"choices": [] {index}'
            yield 0, Piece(index, Chunk(text, finish_reason="stop", logprobs=self._entries))
        yield 0, Finished(Usage(1, 0, N, 0), Timings())


class Waiting(ChatShape):
    """Writes a choice only once the loop has turned meanwhile."""

    def __init__(self, wishes: Wishes, turn: asyncio.AbstractEventLoop) -> None:
        super().__init__(wishes)
        self._turn, self.n_turned = turn, 0

    def whole(self, index: int, chunks: Sequence[Chunk]) -> dict[str, Any]:
        turned = threading.Event()
        self._turn.call_soon_threadsafe(turned.set)
        self.n_turned += turned.wait(5)
        return super().whole(index, chunks)


async def _answered(info: LoadedModel, n_tokens: int, shape: type[ChatShape]) -> Any:
    loop, sent = asyncio.get_running_loop(), []
    wishes = Wishes(info.tokenizer, logprobs=1)
    made = Waiting(wishes, loop) if shape is Waiting else ChatShape(wishes)

    async def send(message: Message) -> None:
        sent.append(message)

    answer = HttpAnswer(
        cast(RequestGroup, Group(n_tokens)), Frame(made, '"choices": []'), Metrics(), lambda: None,
        n=N, n_requests=1, headers={}, stream=False,
    )  # fmt: skip
    await answer.work(send)
    return made, sent[0], json.loads(sent[1]["body"])


def test_the_loop_turns_while_log_probabilities_are_written(fake_info: LoadedModel) -> None:
    shape, _, _ = asyncio.run(_answered(fake_info, MANY_LOGPROBS, Waiting))
    assert shape.n_turned == N


@pytest.mark.parametrize("n_tokens", [1, MANY_LOGPROBS])
def test_choices_stand_in_their_frame(fake_info: LoadedModel, n_tokens: int) -> None:
    _, start, document = asyncio.run(_answered(fake_info, n_tokens, ChatShape))
    assert start["status"] == 200
    assert document["model"] == '"choices": []'
    assert [each["index"] for each in document["choices"]] == [*range(N)]
    for index, each in enumerate(document["choices"]):
        assert each["message"]["content"] == f'"choices": [] {index}'
        assert len(each["logprobs"]["content"]) == n_tokens
    assert document["usage"]["completion_tokens"] == N


def test_an_answer_with_too_many_is_an_error(
    fake_info: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_group, "MAX_HELD_LOGPROBS", 2 * 2 * N - 1)
    _, start, document = asyncio.run(_answered(fake_info, 2, ChatShape))
    assert start["status"] == 400
    assert document["error"]["message"].startswith("log probabilities of the answer are 12 or more")
    assert "stream: true" in document["error"]["message"]


def test_what_would_take_too_much_memory_is_refused(http: httpx2.Client) -> None:
    body = {"prompt": "a", "n": 64, "max_tokens": 800, "logprobs": 20, "ignore_eos": True}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "are 1,075,200 or more, the limit is 1,048,576" in answer.json()["error"]["message"]
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as sent:
        assert sent.status_code == 200
