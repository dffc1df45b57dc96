"""Requests drawn from our OpenAPI description, valid ones and broken ones: none gets a 5xx."""

from __future__ import annotations

import json
import os

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from stand_ins.api_server import Running

schemathesis = pytest.importorskip("schemathesis")

N_EXAMPLES = 1000 if os.environ.get("FULL") == "1" else 25  # of a route; some have but one
ROUTES = {
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}", "/tokenize",
    "/detokenize", "/health", "/metrics", "/localllm/ps", "/localllm/stop",
}  # fmt: skip


def test_no_request_is_a_fault_of_ours(fake: Running) -> None:
    description = httpx2.get(f"{fake.url}/openapi.json").json()
    assert set(description["paths"]) == ROUTES
    n_good = n_asked = 0
    for result in schemathesis.openapi.from_dict(description).get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=N_EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        def ask(case: object) -> None:
            nonlocal n_good, n_asked
            n_asked += 1
            answer = case.call(base_url=fake.url, timeout=20)  # type: ignore[attr-defined]
            assert answer.status_code < 500, answer.text
            n_good += answer.status_code == 200
            if answer.status_code >= 400:
                assert json.loads(answer.content)["error"]["message"]

        ask()
    assert n_good >= 10 and n_asked >= 4 * N_EXAMPLES, (n_good, n_asked)
