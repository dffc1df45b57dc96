"""A session whose replays and timed runs are told by the environment; see run_cli.py.

TEST_REPLAY says how a replay goes: `same`, `token N` and `text N` change the N-th token or
character, `long` adds a token, `short` leaves the last one out, `finish` ends it for another
reason, `slow` takes 20 ms a token, `refuse` raises. A token is one character, first of the
reasoning, then of the text. Timed runs take what TIMES says; the one after TEST_BENCH_RUNS waits
until it is cancelled, and makes a file, `waiting`, in the home.
TEST_ENGINES lists the engines that can be opened.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from localllm.errors import ArgumentError, CancelledError, UnsupportedError
from localllm.store.answers import Answer
from stand_ins.fake_session import machine_facts, machine_roofs

__all__ = ["Session", "machine_facts", "machine_roofs"]

#: Seconds per token of (prefill, decode).
TIMES = {"native": (0.001, 0.01), "llama.cpp": (0.002, 0.0125)}


@dataclass(frozen=True)
class Chunk:
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    reasoning: str = ""


class Session:
    def __init__(self, engine: str, isa: str, n_ctx: int, given: dict[str, object]) -> None:
        self.info = SimpleNamespace(
            engine=engine, architecture="llama", isa=isa, n_threads=2, n_ctx=n_ctx,
            n_params=64, weight_bytes=1000, kv_bytes=10 * n_ctx, description="Fake F32",
        )  # fmt: skip
        self.stats = SimpleNamespace(load_s=0.25)
        self.given = given
        self._cancelled = threading.Event()
        self._n_runs = 0

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        engine: str = "auto",
        n_ctx: int = 0,
        isa: str | None = None,
        progress: Callable[[float], None] | None = None,
        notice: Callable[[str], None] | None = None,
        **given: object,
    ) -> Session:
        name = "native" if engine == "auto" else engine
        if name not in os.environ.get("TEST_ENGINES", "native llama.cpp").split():
            raise UnsupportedError(
                "llama-cpp-python is not installed", "pip install 'localllm[compat]'"
            )
        if progress is not None:
            progress(0.5)
        if notice is not None and engine == "auto":
            notice("chosen \x1b[31mby hand")
        return cls(name, isa or "avx2", n_ctx or 2048, {**given, "path": path})

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self.cancel()

    def replay(self, answer: Answer) -> Iterator[Chunk]:
        how, _, at = os.environ.get("TEST_REPLAY", "same").partition(" ")
        if how == "refuse":
            raise ArgumentError("the answer was given with engine llama.cpp 1, this is 2")
        asked = answer.fingerprint
        assert self.given["digest"] == asked.model_digest and self.given["kv_type"] == asked.kv_type
        tokens, letters = list(answer.token_ids), [*answer.reasoning, *answer.text]
        assert len(tokens) == len(letters)
        if how == "token":
            tokens[int(at) - 1] += 1
        elif how == "text":
            letters[int(at) - 1] = "\x1b"
        elif how == "long":
            tokens, letters = [*tokens, 77], [*letters, "!"]
        elif how == "short":
            tokens, letters = tokens[:-1], letters[:-1]
        for n, (token, letter) in enumerate(zip(tokens, letters, strict=True)):
            if self._cancelled.is_set():
                yield Chunk("", (), "cancelled")
                return
            time.sleep(0.02 if how == "slow" else 0)
            thought = n < len(answer.reasoning)
            yield Chunk(
                "" if thought else letter, (token,), None, reasoning=letter if thought else ""
            )
        ended = "length" if answer.finish_reason == "cancelled" else answer.finish_reason
        yield Chunk("", (), "length" if how == "finish" else ended)

    def time_prefill(self, n_tokens: int) -> float:
        return self._run(n_tokens, 0)

    def time_decode(self, depth: int, n_tokens: int) -> Iterator[float]:
        used = max(depth, 1)
        while used + n_tokens <= self.info.n_ctx:
            used += n_tokens
            yield self._run(n_tokens, 1)

    def _run(self, n_tokens: int, kind: int) -> float:
        if self._n_runs == int(os.environ.get("TEST_BENCH_RUNS", "-1")):
            Path(os.environ["LOCALLLM_HOME"], "waiting").touch()
            self._cancelled.wait()
        if self._cancelled.is_set():
            raise CancelledError("the work was stopped")
        self._n_runs += 1
        return n_tokens * TIMES[self.info.engine][kind] * (1 + 0.01 * (self._n_runs % 3))
