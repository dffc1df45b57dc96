"""The log: a line a request, and never what was asked, answered or sent as a key."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from stand_ins.api_server import NAME, FakeService, Running, running
from stand_ins.server_process import served

from localllm.engine.request import LoadedModel
from localllm.server import request_log
from localllm.server.security import Access

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KEYS = ("key-of-anna-1", "key-of-bert-2")
WORD = "Xylophon"
SECRETS = (*KEYS, WORD, "key-of-nobody")


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[tuple[str, io.StringIO]]:
    """The format, and what is written in it."""
    out = io.StringIO()
    logger = logging.getLogger("localllm")
    level = logger.level
    handler = request_log.install(request.param, out)
    yield request.param, out
    logging.getLogger().removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def locked(fake_info: LoadedModel) -> Iterator[Running]:
    access = Access(keys=KEYS)
    with running(FakeService(fake_info), access) as server:
        yield server


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def request_rows(read: Callable[[], str], n: int) -> list[dict[str, Any]]:
    """The lines of n requests: one is written once its answer has left."""
    ends_s = time.monotonic() + 20
    while True:
        whole = read().rpartition("\n")[0]
        found = [row for row in rows(whole) if "id" in row]
        if len(found) >= n or time.monotonic() > ends_s:
            assert len(found) == n, found
            return found
        time.sleep(0.01)


def test_nothing_of_a_request_is_in_the_log(locked: Running, log: tuple[str, io.StringIO]) -> None:
    log_format, out = log
    client = httpx2.Client(base_url=locked.url)

    def ask(text: str, **more: Any) -> None:
        for path, body in (
            (CHAT, {"messages": [{"role": "user", "content": f"{text} {WORD}"}]}),
            (TEXT, {"prompt": f"{text} {WORD}"}),
        ):
            with client.stream("POST", path, json={**body, **more}, headers=headers):
                pass  # some are left in the middle

    for key in (*KEYS, "key-of-nobody"):
        headers = {"authorization": f"Bearer {key}", "x-custom": WORD}
        for verb in ("say", "break", "fault", "busy", "drip", "hang"):
            ask(verb, stream=True)
        for verb in ("say", "break", "fault", "busy"):
            ask(verb)
        ask("say", model=WORD)
        ask("say", temperature=WORD)
        ask("say", **{WORD: 1})
        ask("say", stop=WORD, response_format={"type": WORD})
        client.get(f"/v1/{WORD}?q={WORD}", headers=headers)
        client.get("/", headers={**headers, "origin": f"https://{WORD}.example"})
        client.post(CHAT, content=f'{{"{WORD}', headers=headers)
        kind = {"content-type": "application/json"}
        client.post(CHAT, content=f'{{"{WORD}', headers={**headers, **kind})
    written = out.getvalue()
    # The name of an unknown field is told, once: it is the program's, not its user's.
    written = written.replace(f"the field {WORD} of a request is unknown", "", 1)
    assert not [secret for secret in SECRETS if secret.lower() in written.lower()], written
    assert "RuntimeError" in written and "stand_ins/api_server.py" in written  # where a fault was
    if log_format == "json":
        routes = [row["route"] for row in rows(written) if "route" in row]
        assert len(routes) >= 3 * (6 + 4 + 4) * 2 and set(routes) == {CHAT, TEXT, "other", "/"}
    else:
        assert '"route"' not in written


@pytest.mark.parametrize("log", ["json"], indirect=True)
def test_a_line_of_a_request(locked: Running, log: tuple[str, io.StringIO]) -> None:
    headers = {"authorization": f"Bearer {KEYS[1]}"}
    body = {"messages": [{"role": "user", "content": "say abc"}]}
    answer = httpx2.post(locked.url + CHAT, json=body, headers=headers)
    used = answer.json()["usage"]
    for text in ("break", "busy"):
        body = {"messages": [{"role": "user", "content": text}], "stream": True}
        httpx2.post(locked.url + CHAT, json=body, headers=headers)
    httpx2.get(f"{locked.url}/health")
    httpx2.get(f"{locked.url}/v1/models")
    whole, broken, busy, health, models = request_rows(log[1].getvalue, 5)
    assert whole["id"] == answer.headers["x-request-id"] and whole["level"] == "info"
    assert (whole["status"], whole["model"], whole["key"]) == (200, NAME, "key 2")
    assert whole["prompt_tokens"] == used["prompt_tokens"] > 0
    assert whole["cached_tokens"] == 7 and whole["generated_tokens"] == 3
    assert 0 < whole["first_s"] < whole["total_s"] < 20 and whole["queued_s"] >= 0
    assert (broken["status"], broken["error"]) == (200, "internal_error")
    assert broken["generated_tokens"] == 2
    assert (busy["status"], busy["error"], busy["model"]) == (429, "queue_full", NAME)
    assert busy["first_s"] is None
    assert (health["route"], health["key"], health["model"]) == ("/health", None, None)
    assert (models["route"], models["status"], models["key"]) == ("/v1/models", 401, None)


def test_a_server_with_such_a_log(tiny: Callable[[str, str], Path], tmp_path: Path) -> None:
    out = tmp_path / "log"
    key, keys = "a-key-of-mine", tmp_path / "keys"
    keys.write_text(f"# of this house\nkey-without-a-name\nalice@desk {key}\n")
    flags = ["--log-format", "json", "--api-key-file", str(keys), "--name", "m", "--no-kv-disk"]
    with out.open("w") as file, served(tiny("llama", "F32"), *flags, stdout=file) as server:
        body = {"prompt": WORD, "max_tokens": 3, "ignore_eos": True}
        headers = {"authorization": f"Bearer {key}"}
        answer = httpx2.post(server.url + TEXT, json=body, headers=headers, timeout=30)
        assert answer.is_success
        (row,) = request_rows(lambda: out.read_text(encoding="utf-8"), 1)
        httpx2.post(
            server.url + TEXT, json=body, headers={"x-api-key": "key-without-a-name"}, timeout=30
        )
        page = httpx2.get(server.url + "/metrics", headers=headers).text
    assert 'localllm_key_tokens_total{key="alice@desk",kind="generated"} 3' in page
    assert 'localllm_key_tokens_total{key="key 1",kind="cached"} 0' in page  # each has its own
    assert key not in page and "key-without-a-name" not in page
    assert row["route"] == TEXT and row["key"] == "alice@desk" and row["generated_tokens"] == 3
    assert WORD not in str(row) and key not in str(row)


def test_a_fault_that_comes_again_and_again_is_written_down_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop, faults = asyncio.new_event_loop(), request_log.LoopFaults()
    try:
        for i in range(1000):
            faults(loop, {"message": "socket.accept() out of system resource", "socket": i})
            faults(loop, {"message": "another", "exception": ValueError("words")})
    finally:
        loop.close()
    assert [record.message[:6] for record in caplog.records] == ["socket", "anothe"]
