"""A server of three models in a budget for two, under clients that do everything wrong, and one
that is killed: it says the same, and it does not grow.

FULL=1: 15 minutes, and 200 kills (bars 11 and 12 of the reliability goals).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psutil
import pytest
from stand_ins.server_process import Served, served

N_CLIENTS = 32
GREEDY = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
ARCHITECTURES = ("llama", "qwen3", "gemma3")
BUDGET = "70MB"  # each holds 30 to 36 MB, and is not loaded into less than 25
KV_DISK = "16MB"  # full in a minute: each page on the disk is known in memory, by about 0.7 kB
N_SEEDS = 20  # answers by chance to each question, so that what is kept of all has an end, too
QUESTIONS = [f"Tell me of {what}, please." * n for what in ("ice", "the sea") for n in (1, 2, 9)]


def chat(text: str, **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], **GREEDY, **more}


@dataclass
class Soak:
    """What clients saw. alone: each model's answer to each question when nobody else asks."""

    url: str
    models: list[str] = field(default_factory=list)
    alone: dict[tuple[str, str], str] = field(default_factory=dict)
    did: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def ask_alone(self, http: httpx2.AsyncClient) -> None:
        self.models += [card["id"] for card in (await http.get("/v1/models")).json()["data"]]
        for model in self.models:
            for question in QUESTIONS:
                body = chat(question, model=model, cache_prompt=False)
                answer = await http.post("/v1/chat/completions", json=body)
                said = answer.json()["choices"][0]["message"]["content"]
                self.alone[model, question] = said

    def pick(self, chance: random.Random) -> tuple[str, str]:
        return chance.choice(self.models), chance.choice(QUESTIONS)

    async def client(self, number: int, http: httpx2.AsyncClient, ends_s: float) -> None:
        chance = random.Random(number)
        deeds = (
            self.whole,
            self.streamed,
            self.leaves,
            self.hot,
            self.giant,
            self.empty,
            self.broken,
        )
        while time.monotonic() < ends_s and not self.wrong:
            deed = chance.choice(deeds)
            try:
                await deed(chance, http)
            except Exception as e:
                self.wrong.append(f"{deed.__name__}: {type(e).__name__}: {e}")
            self.did[deed.__name__] += 1

    async def whole(self, chance: random.Random, http: httpx2.AsyncClient) -> None:
        model, question = self.pick(chance)
        answer = await http.post("/v1/chat/completions", json=chat(question, model=model))
        self.same(model, question, answer.json()["choices"][0]["message"]["content"])

    async def streamed(self, chance: random.Random, http: httpx2.AsyncClient) -> None:
        model, question = self.pick(chance)
        body = chat(question, model=model, stream=True)
        pieces, done = [], False
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                done = done or line == "data: [DONE]"
                if line.startswith("data: {"):
                    pieces.append(json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
        self.same(model, question, "".join(pieces))
        if not done:
            self.wrong.append("a stream ended without [DONE]")

    async def leaves(self, chance: random.Random, http: httpx2.AsyncClient) -> None:
        """While its model is loaded, in the queue, in the prompt or in the answer."""
        model, question = self.pick(chance)
        n = chance.choice((1, 3))
        long = chat(question, model=model, stream=True, max_tokens=400, n=n)
        n_lines = chance.choice((0, 1, 5))

        async def begin() -> None:
            async with http.stream("POST", "/v1/chat/completions", json=long) as answer:
                lines = answer.aiter_lines()
                for _ in range(n_lines):
                    await anext(lines)

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(begin(), chance.choice((0.01, 0.1, 5)))

    async def hot(self, chance: random.Random, http: httpx2.AsyncClient) -> None:
        model, question = self.pick(chance)
        body = chat(question, model=model, temperature=1.5, logprobs=True, top_logprobs=2)
        body["seed"] = chance.randrange(N_SEEDS)
        self.status(200, await http.post("/v1/chat/completions", json=body))

    async def giant(self, chance: random.Random, http: httpx2.AsyncClient) -> None:
        text = "all work and no play " * chance.choice((2_000, 20_000))
        body = chat(text, model=chance.choice(self.models))
        self.status(400, await http.post("/v1/chat/completions", json=body))

    async def empty(self, chance: random.Random, http: httpx2.AsyncClient) -> None:
        model = chance.choice(self.models)
        body = {"model": model, "messages": []}
        self.status(400, await http.post("/v1/chat/completions", json=body))
        body = {"model": model, "prompt": "", **GREEDY}
        answer = await http.post("/v1/completions", json=body)
        if answer.status_code not in (200, 400):
            self.wrong.append(f"an empty prompt: {answer.status_code} {answer.text[:200]}")

    async def broken(self, chance: random.Random, http: httpx2.AsyncClient) -> None:
        data = json.dumps(chat("ice")).encode()[: chance.randrange(60)]
        json_type = {"content-type": "application/json"}
        self.status(400, await http.post("/v1/chat/completions", content=data, headers=json_type))

    def same(self, model: str, question: str, said: str) -> None:
        alone = self.alone[model, question]
        if said != alone:
            self.wrong.append(f"{model}, {question[:20]!r}: {said!r} instead of {alone!r}")

    def status(self, wanted: int, answer: httpx2.Response) -> None:
        if answer.status_code != wanted:
            self.wrong.append(f"{answer.status_code} instead of {wanted}: {answer.text[:200]}")


@dataclass(frozen=True)
class Held:
    """What a process holds at a moment. loaded: models that are."""

    rss: int
    n_handles: int
    n_threads: int
    loaded: frozenset[str] = frozenset()

    @classmethod
    def of(cls, process: psutil.Process, loaded: frozenset[str]) -> Held:
        return cls(process.memory_info().rss, process.num_fds(), process.num_threads(), loaded)


async def watch(process: psutil.Process, http: httpx2.AsyncClient, held: list[Held]) -> None:
    """Also sees to it that the models never have more than their budget."""
    while True:
        page = (await http.get("/localllm/ps")).json()
        assert page["used_bytes"] <= page["budget_bytes"], page
        there = frozenset(row["name"] for row in page["models"] if row["status"] == "loaded")
        held.append(Held.of(process, there))
        await asyncio.sleep(0.2)


def n_loads(held: list[Held]) -> int:
    return sum(len(after.loaded - before.loaded) for before, after in itertools.pairwise(held))


async def at_rest(process: psutil.Process, http: httpx2.AsyncClient, models: list[str]) -> Held:
    """What stays when all clients have gone and nothing is loaded."""
    await quiet(http)
    for model in models:
        await http.post("/localllm/stop", json={"model": model})
    held = []
    for _ in range(20):
        held.append(Held.of(process, frozenset()))
        await asyncio.sleep(0.1)
    return Held(
        min(each.rss for each in held),
        min(each.n_handles for each in held),
        min(each.n_threads for each in held),
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))


def test_soak(tiny: Callable[[str, str], Path], full: bool, figures: Callable[[str], None]) -> None:
    minutes = 15 if full else 0.4
    held: list[Held] = []

    async def run(server: Served) -> tuple[Soak, Held, Held]:
        soak = Soak(server.url)
        limits = httpx2.Limits(max_connections=N_CLIENTS)
        process = psutil.Process(server.process.pid)
        rests = []
        async with httpx2.AsyncClient(base_url=server.url, timeout=120) as other:
            await soak.ask_alone(other)
            watcher = asyncio.create_task(watch(process, other, held))
            for share in (1 / 3, 2 / 3):
                ends_s = time.monotonic() + 60 * minutes * share
                async with httpx2.AsyncClient(
                    base_url=server.url, timeout=120, limits=limits
                ) as http:
                    await asyncio.gather(*(soak.client(i, http, ends_s) for i in range(N_CLIENTS)))
                rests.append(await at_rest(process, other, soak.models))
            assert watcher.cancel(), watcher.exception()
            health = await other.get("/health")
            assert health.status_code == 200
        return soak, *rests

    first, *more = (tiny(arch, "F32") for arch in ARCHITECTURES)
    args = (*map(str, more), "--memory", BUDGET, "--ctx", "1024", "--kv-disk", KV_DISK)
    with served(first, *args) as server:
        soak, early, late = asyncio.run(run(server))
    assert not soak.wrong, soak.wrong[0]
    assert min(soak.did.values()) >= 5 and len(soak.did) == 7, soak.did
    assert all(len(each.loaded) < 3 for each in held)
    assert n_loads(held) > 3
    figures(
        f"soak of {minutes} min, {sum(soak.did.values())} requests, {n_loads(held)} loads: "
        f"{early.rss / 2**20:.1f} MiB after a third, {late.rss / 2**20:.1f} at the end; "
        f"handles {early.n_handles}, {late.n_handles}"
    )
    # The short form ends before the caches have their size.
    assert late.rss <= (early.rss * 1.02 if full else early.rss + (64 << 20))
    assert late.n_handles <= early.n_handles + 2 and late.n_threads <= early.n_threads + 2


async def quiet(http: httpx2.AsyncClient) -> None:
    """Nobody holds blocks once all have gone."""
    for _ in range(200):
        page = (await http.get("/metrics")).text
        held = [line for line in page.splitlines() if line.startswith("localllm_kv_blocks_used")]
        if held and all(line.endswith(" 0") for line in held):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(held)


def test_kills(
    tiny: Callable[[str, str], Path], full: bool, figures: Callable[[str], None]
) -> None:
    """kill -9 in the middle of answers: the port is free, nothing is locked, the next serves."""
    path, port, waits = tiny("llama", "F32"), "0", []
    said = set()
    for i in range(200 if full else 4):
        began_s = time.monotonic()
        with served(path, "--port", port) as server:
            waits.append(time.monotonic() - began_s)
            port = server.url.rsplit(":", 1)[1]
            with httpx2.Client(base_url=server.url, timeout=30) as http:
                answer = http.post("/v1/chat/completions", json=chat(QUESTIONS[0]))
                said.add(answer.json()["choices"][0]["message"]["content"])
                long = chat(QUESTIONS[1], max_tokens=1000, stream=True)
                with http.stream("POST", "/v1/chat/completions", json=long) as stream:
                    lines = stream.iter_lines()
                    for _ in range(i % 5):
                        next(lines)
                    server.process.kill()
                    server.process.wait()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(port))) != 0
    assert len(said) == 1
    waits.sort()
    figures(f"a server is ready {waits[len(waits) // 2]:.2f} s after its start (tiny model)")
    assert waits[len(waits) // 2] < 15
