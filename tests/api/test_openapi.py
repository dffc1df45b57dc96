"""Requests drawn from our OpenAPI description, valid ones and broken ones: none gets a 5xx."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import httpx2
import pytest
from stand_ins.api_server import NAME, FakeService, NoLoader, item_of, serving

from localllm.engine.request import LoadedModel, Service
from localllm.server.manager import Manager
from localllm.server.shelf import Shelf

pytest.importorskip("schemathesis")
from stand_ins.drawn_requests import draw, with_model

FULL = os.environ.get("FULL") == "1"
N_EXAMPLES = 900 if FULL else 50  # an operation; some have fewer
ROUTES = {
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}", "/tokenize",
    "/detokenize", "/health", "/metrics", "/localllm/ps", "/localllm/stop",
}  # fmt: skip


class Loader(NoLoader):
    """Requests may end the model: it comes back."""

    def __init__(self, info: LoadedModel) -> None:
        self._info = info

    def open(self, *args: object) -> Service:
        return FakeService(self._info)


def test_no_request_is_a_fault_of_ours(fake_info: LoadedModel) -> None:
    with serving(Manager(Shelf([item_of(NAME)]), Loader(fake_info))) as port:
        ask_all(f"http://127.0.0.1:{port}")


def ask_all(url: str) -> None:
    description = httpx2.get(f"{url}/openapi.json").json()
    assert set(description["paths"]) == ROUTES
    statuses: Counter[int] = Counter()

    def ask(case: Any) -> None:
        case.body = with_model(case.body, NAME)
        answer = case.call(base_url=url, timeout=20)
        assert answer.status_code < 500, answer.text
        statuses[answer.status_code] += 1
        if answer.status_code >= 400:
            assert json.loads(answer.content)["error"]["message"]

    draw(description, N_EXAMPLES, ask)
    assert statuses.total() >= (5000 if FULL else 250)
    assert statuses[200] > N_EXAMPLES / 2
