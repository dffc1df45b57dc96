"""A session that answers without a model, with the interface of `localllm.session`.

What it does is told by the prompt, so that a test steers it from outside the process. `say TEXT`
answers TEXT, in which \\xHH and \\uHHHH stand for characters. `count N` answers N numbers in 2N ms.
`block S` holds the thread for S seconds in one call that a signal does not end, as a native prefill
does. `fail`, `crash` and `no template` raise. Anything else is repeated as JSON, with what else was
given. A model file whose name begins with `slow` holds the load up, as `block 30` does.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localllm.engine.machine import MachineFacts, Roofs

from localllm.errors import ArgumentError, LocalLLMError, UnsupportedError


@dataclass(frozen=True)
class GenerateParams:
    temperature: float = 0.8
    seed: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chunk:
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True)
class SessionInfo:
    architecture: str
    isa: str
    n_threads: int
    n_ctx: int
    n_params: int
    weight_bytes: int
    kv_bytes: int
    description: str


@dataclass
class Stats:
    load_s: float = 0.25
    prompt_tokens: int = 0
    prompt_s: float = 0.5
    first_token_s: float = 0.5
    generated_tokens: int = 0
    decode_s: float = 2.0


class Session:
    def __init__(self, info: SessionInfo, kv_type: str) -> None:
        self.info, self.stats, self.kv_type = info, Stats(), kv_type
        self._cancelled = threading.Event()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        n_threads: int = 0,
        n_ctx: int = 0,
        kv_type: str = "f16",
        isa: str | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Session:
        if isa == "neon":
            raise ArgumentError("the instruction set neon is not usable on this machine")
        for permille in (0, 250, 500):
            if progress is not None:
                progress(permille / 1000)
        if path.name.startswith("slow"):
            _hold(30)
        info = SessionInfo(
            "llama", isa or "avx2", n_threads or 2, n_ctx or 2048, 64, 1000, 2000, "Fake F32"
        )
        return cls(info, kv_type)

    def chat(self, messages: list[dict[str, str]], params: GenerateParams) -> Iterator[Chunk]:
        if messages[-1]["content"] == "no template":
            raise UnsupportedError("the file has no template\x1b")
        return self._answer(messages[-1]["content"], {"messages": messages}, params)

    def complete(self, prompt: str, params: GenerateParams) -> Iterator[Chunk]:
        return self._answer(prompt, {"raw": prompt}, params)

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self.cancel()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answer(
        self, text: str, given: dict[str, object], params: GenerateParams
    ) -> Iterator[Chunk]:
        self.stats.prompt_tokens = len(text)
        verb, _, rest = text.partition(" ")
        if verb == "fail":
            raise LocalLLMError("the fake failed", "Do not ask it to.")
        if verb == "crash":
            raise RuntimeError("a fault of ours")
        if verb == "block":
            _hold(float(rest))
            pieces = []
        elif verb == "count":
            pieces = [f"{i} " for i in range(int(rest))]
        elif verb == "say":
            pieces = [rest.encode("ascii").decode("unicode_escape")]
        else:
            settings = {"temperature": params.temperature, "seed": params.seed}
            settings |= {"max_tokens": params.max_tokens, "kv_type": self.kv_type}
            pieces = [json.dumps({**given, **settings})]
        for n, piece in enumerate(pieces):
            if self._cancelled.is_set():
                yield Chunk("", (), "cancelled")
                return
            if n == params.max_tokens:
                yield Chunk("", (), "length")
                return
            if verb == "count":
                time.sleep(0.002)
            self.stats.generated_tokens += 1
            yield Chunk(piece, (n,))
        yield Chunk("", (), "cancelled" if self._cancelled.is_set() else "stop")


def _hold(seconds: float) -> None:
    """One long C call: like native code, it lets no signal handler of Python run before it ends."""
    probe = 20_000
    began = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"", b"", probe)
    rate = probe / (time.perf_counter() - began)
    hashlib.pbkdf2_hmac("sha256", b"", b"", max(1, int(rate * seconds)))


def machine_facts() -> MachineFacts:
    from localllm.engine.machine import MachineFacts

    return MachineFacts(
        isa="avx2",
        isas=("scalar", "avx2"),
        features="avx2 fma",
        n_cpus=4,
        cpu_quota=2.5,
        n_threads=2,
        memory_bytes=8 << 30,
        free_bytes=4 << 30,
        arithmetic_version=1,
        block_tokens=32,
    )


def machine_roofs() -> Roofs:
    from localllm.engine.machine import Roofs

    return Roofs(n_threads=2, n_bytes=256 << 20, read_gb_per_s=12.5, int8_gop_per_s=345.6)
