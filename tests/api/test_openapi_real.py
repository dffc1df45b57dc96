"""Requests drawn from our OpenAPI description, for a real model: answers in their shape or errors
of the client, and the model answers as before."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import Phase
from stand_ins.api_server import running

from localllm.server.opening import ModelFile, OpenOptions, open_service

pytest.importorskip("schemathesis")
from stand_ins.drawn_requests import draw, with_model

N_EXAMPLES = 300 if os.environ.get("FULL") == "1" else 12
ROUTES = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
ASK = {"model": "real", "prompt": "The sea is", "max_tokens": 6, "temperature": 0, "seed": 1}
#: Other names of the most tokens of an answer, which is short here.
LENGTHS = ("max_completion_tokens", "n_predict", "num_predict")


def shortened(body: Any) -> Any:
    """A request whose answers take no time."""
    if not isinstance(body, dict):
        return body
    short = {key: value for key, value in body.items() if key not in LENGTHS}
    if type(short.get("n")) is int:
        short["n"] = min(short["n"], 2)
    return {**with_model(short, "real"), "max_tokens": 2}


def test_no_request_is_a_fault_of_ours(real_model: Callable[[str], Path]) -> None:
    options = OpenOptions(engine="native", n_ctx=512)
    service = open_service(
        ModelFile(real_model("smollm2:135m"), "real"), options, max_queue=8, n_sequences=2
    )
    with (
        running(service, names=("real",)) as server,
        httpx2.Client(base_url=server.url, timeout=60) as http,
    ):
        before = http.post("/v1/completions", json=ASK).json()["choices"]
        statuses: Counter[tuple[str, int]] = Counter()
        description = http.get("/openapi.json").json()
        description["paths"] = {route: description["paths"][route] for route in ROUTES}

        def ask(case: Any) -> None:
            answer = http.post(case.operation.path, json=shortened(case.body))
            statuses[case.operation.path, answer.status_code] += 1
            if answer.status_code != 200:
                assert json.loads(answer.content)["error"]["message"]
            elif answer.headers["content-type"].startswith("text/event-stream"):
                assert answer.text.endswith("data: [DONE]\n\n")
            else:
                assert isinstance(answer.json(), dict)

        draw(description, N_EXAMPLES, ask, phases=[Phase.generate])
        assert all(status in (200, 400, 404) for _, status in statuses), statuses
        good = {route: statuses[route, 200] for route in ROUTES}
        assert sum(statuses.values()) >= len(ROUTES) * N_EXAMPLES / 2
        assert sum(map(bool, good.values())) >= 2, statuses
        assert http.post("/v1/completions", json=ASK).json()["choices"] == before
        assert http.get("/health").status_code == 200
        state = service.state()
        assert (state.running, state.waiting) == (0, 0)
