"""A session that answers without a model, with the interface of `localllm.session`.

What it does is told by the prompt, so that a test steers it from outside the process. `say TEXT`
answers TEXT, in which \\xHH and \\uHHHH stand for characters; `reason TEXT|TEXT` reasons, then
answers. `count N` answers N numbers in 2N ms, `think N` reasons as long and answers `done`,
`lines N` answers N lines at once, `wide N` one line of N characters. `block S` holds the thread for
S seconds in one call that a signal does not end, as a native prefill does; `prefill S` computes a
prompt for S seconds with progress, and can be cancelled; both, and a load that is held up, make a
file, `busy`, in the home when they begin. `note TEXT` answers with a note, `digest
TEXT` with its length and SHA-256; `full` fills the context. `fail`, `crash`, `refuse` and `no
template` raise. Anything else is repeated as JSON, with what else was given. A model file whose
name begins with `slow` holds the load up, as `block 30` does, `gradual` loads for 30 s with
progress, `broken` cannot be loaded, and `base` has no template.

Tokens are characters, and the prompt of a conversation is all of its text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localllm.engine.machine import MachineFacts, Roofs
    from localllm.engine.memory_plan import Room

from localllm.errors import (
    ArgumentError,
    ChatTemplateError,
    ContextFullError,
    FileError,
    LocalLLMError,
    UnsupportedError,
)
from localllm.params import GenerateParams
from localllm.store.answers import Answer, Fingerprint
from localllm.store.catalog import Attention, Entry

ENGINES = ("auto", "native", "llama.cpp")


@dataclass(frozen=True)
class TokenLogprobs:
    token: int
    text: str
    value: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Chunk:
    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    reasoning: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class SessionInfo:
    engine: str
    architecture: str
    isa: str
    n_threads: int
    n_ctx: int
    n_params: int
    weight_bytes: int
    kv_bytes: int
    description: str
    template: str | None
    can_think: bool
    recommended: Mapping[str, Any]


@dataclass
class Stats:
    load_s: float = 0.25
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_s: float = 0.5
    first_token_s: float = 0.5
    generated_tokens: int = 0
    reasoning_tokens: int = 0
    decode_s: float = 2.0


class Session:
    def __init__(self, path: Path, info: SessionInfo, kv_type: str, given: dict[str, Any]) -> None:
        self.path, self.info, self.kv_type, self.given = path, info, kv_type, given
        self.stats = Stats()
        self.notes: tuple[str, ...] = ()
        self.progress_tokens = (0, 0)
        self.answer: Answer | None = None
        self._kept, self._closed = "", False
        self._cancelled = threading.Event()

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        engine: str = "auto",
        n_threads: int = 0,
        n_ctx: int = 0,
        kv_type: str = "f16",
        isa: str | None = None,
        digest: str | None = None,
        label: str = "",
        template: str | None = None,
        beside: str = "",
        mmap: bool = False,
        progress: Callable[[float], None] | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> Session:
        if not path.exists():
            raise FileError(f"cannot open {path}: No such file or directory")
        if isa == "neon":
            raise ArgumentError("the instruction set neon is not usable on this machine")
        for permille in (0, 250, 500):
            if progress is not None:
                progress(permille / 1000)
        if path.name.startswith("slow"):
            _hold(30)
        for _ in range(1000 * path.name.startswith("gradual")):
            time.sleep(0.03)
            if progress is not None:
                progress(0.6)
        if path.name.startswith("broken"):
            raise LocalLLMError("the model cannot be loaded")
        if notice is not None and (line := os.environ.get("TEST_NOTICE")):
            notice(line)
        info = SessionInfo(
            engine="native" if engine == "auto" else engine,
            architecture="llama",
            isa=isa or "avx2",
            n_threads=n_threads or 2,
            n_ctx=n_ctx or 2048,
            n_params=64,
            weight_bytes=1000,
            kv_bytes=2000,
            description=os.environ.get("TEST_DESCRIPTION", "Fake F32"),
            template=None if path.name.startswith("base") else "file",
            can_think=True,
            recommended=json.loads(os.environ.get("TEST_RECOMMENDED", "{}")),
        )
        given = {"label": label, "digest": digest or "sha256:" + "0" * 64}
        given |= {k: v for k, v in {"template": template, "beside": beside}.items() if v}
        return cls(path, info, kv_type, given)

    @property
    def context_used(self) -> int:
        return len(self._kept)

    def chat(
        self,
        messages: list[dict[str, Any]],
        params: GenerateParams,
        *,
        think: bool | str | None = None,
    ) -> Iterator[Chunk]:
        if self._closed:
            raise TypeError("a session that was closed")
        question = messages[-1]["content"]
        if question == "no template" or self.path.name.startswith("base"):
            raise UnsupportedError("the file has no template\x1b")
        if question == "refuse":
            raise ChatTemplateError("the template refused the messages: \x1b[2J\u202e")
        if self.info.engine == "native" and any("images" in m for m in messages):
            raise UnsupportedError("a picture, which the native engine cannot look at")
        given: dict[str, Any] = {"messages": messages}
        if think is not None:
            given["think"] = think
        prompt = "".join(str(m["content"]) for m in messages)
        yield from self._answer(question, prompt, given, params, raw=False)

    def complete(self, prompt: str, params: GenerateParams) -> Iterator[Chunk]:
        yield from self._answer(prompt, prompt, {"raw": prompt}, params, raw=True)

    def forget(self) -> None:
        self._kept = ""

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self.cancel()
        self._closed = True

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _answer(
        self,
        question: str,
        prompt: str,
        given: dict[str, Any],
        params: GenerateParams,
        *,
        raw: bool,
    ) -> Iterator[Chunk]:
        if len(prompt) >= self.info.n_ctx and self.info.n_ctx < 2048:
            raise ContextFullError(
                f"the prompt has {len(prompt)} tokens and the context holds {self.info.n_ctx}",
                "shorten the prompt or raise the context with --ctx",
            )
        self.answer, self.notes = None, ()
        kept = _common(self._kept, prompt)
        self.stats = Stats(prompt_tokens=len(prompt), cached_tokens=min(kept, len(prompt) - 1))
        self._kept = prompt
        chunks: list[Chunk] = []
        try:
            for chunk in self._limited(self._pieces(question, given, params), params):
                if chunk.finish_reason is not None:
                    self._record([*chunks, chunk], question, prompt, params, raw)
                    self._kept += "".join(c.text for c in chunks)
                chunks.append(chunk)
                self.stats.generated_tokens += len(chunk.token_ids)
                self.stats.reasoning_tokens += len(chunk.token_ids) if chunk.reasoning else 0
                yield chunk
        finally:
            self._cancelled.clear()

    def _limited(self, pieces: Iterator[Chunk], params: GenerateParams) -> Iterator[Chunk]:
        for n, chunk in enumerate(pieces):
            if self._cancelled.is_set() or n == params.max_tokens or chunk.finish_reason:
                break
            logprobs: tuple[TokenLogprobs, ...] = ()
            if params.logprobs is not None:
                top = ((chunk.text, -0.5), ("\x1b", -1.5))[: params.logprobs]
                logprobs = (TokenLogprobs(n, chunk.text, -0.5, top),)
            yield dataclasses.replace(chunk, token_ids=(n,), logprobs=logprobs)
        else:
            chunk = Chunk("", finish_reason="stop")
        if self._cancelled.is_set():
            chunk = Chunk("", finish_reason="cancelled")
        elif chunk.finish_reason is None:
            chunk = Chunk("", finish_reason="length")
        yield chunk

    def _pieces(
        self, question: str, given: dict[str, Any], params: GenerateParams
    ) -> Iterator[Chunk]:
        verb, _, rest = question.partition(" ")
        if verb == "fail":
            raise LocalLLMError("the fake failed", "Do not ask it to.")
        if verb == "crash":
            raise RuntimeError("a fault of ours")
        if verb == "block":
            _hold(float(rest))
        elif verb == "prefill":
            self._prefill(float(rest))
            yield Chunk("computed")
        elif verb == "count":
            for i in range(int(rest)):
                yield Chunk(f"{i} ")
                time.sleep(0.002)
        elif verb == "think":
            for i in range(int(rest)):
                yield Chunk("", reasoning=f"thought{i} ")
                time.sleep(0.002)
            yield Chunk("done")
        elif verb == "lines":
            for i in range(int(rest)):
                yield Chunk(f"line {i}\n")
        elif verb == "wide":
            for _ in range(int(rest) // 1000):
                yield Chunk("x" * 1000)
        elif verb == "say":
            yield Chunk(_decoded(rest))
        elif verb == "chars":  # one chunk a character
            for character in _decoded(rest):
                yield Chunk(character)
        elif verb == "reason":
            reasoning, _, text = _decoded(rest).partition("|")
            yield Chunk("", reasoning=reasoning)
            yield Chunk(text)
        elif verb == "note":
            self.notes = (_decoded(rest),)
            yield Chunk("noted")
        elif verb == "digest":
            yield Chunk(f"{len(rest)} {hashlib.sha256(rest.encode()).hexdigest()}")
        elif verb == "full":
            yield Chunk("as far as it goes")
            yield Chunk("", finish_reason="length")
        else:
            settings: dict[str, Any] = {"temperature": params.temperature, "seed": params.seed}
            settings |= {"max_tokens": params.max_tokens, "kv_type": self.kv_type}
            settings |= {"params": params.changed(), "opened": self.given}
            yield Chunk(json.dumps({**given, **settings}))

    def _prefill(self, seconds: float) -> None:
        _say_busy()
        for done in range(100):
            self.progress_tokens = (done * 10, 1000)
            if self._cancelled.wait(seconds / 100):
                return

    def _record(
        self, chunks: list[Chunk], question: str, prompt: str, params: GenerateParams, raw: bool
    ) -> None:
        fingerprint = Fingerprint(
            model_digest=self.given["digest"],
            engine=self.info.engine,
            arithmetic=1,
            kv_type=self.kv_type,
            params=params.changed(),
            prompt_ids=tuple(ord(c) for c in prompt[:100]),
        )
        self.answer = Answer(
            fingerprint=fingerprint,
            model=self.given["label"],
            title=question[:60],
            created="2026-11-29T12:00:00+00:00",
            token_ids=tuple(t for c in chunks for t in c.token_ids),
            text="".join(c.text for c in chunks),
            reasoning="".join(c.reasoning for c in chunks),
            finish_reason=chunks[-1].finish_reason or "",
            opened=False,
            raw=raw,
        )


def _common(a: str, b: str) -> int:
    """Length of the longest common beginning."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))


def _decoded(text: str) -> str:
    return text.encode("ascii").decode("unicode_escape")


def _say_busy() -> None:
    if home := os.environ.get("LOCALLLM_HOME"):
        Path(home, "busy").touch()


def _hold(seconds: float) -> None:
    """One long C call: like native code, it lets no signal handler of Python run before it ends."""
    _say_busy()
    probe = 20_000
    began = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"", b"", probe)
    rate = probe / (time.perf_counter() - began)
    hashlib.pbkdf2_hmac("sha256", b"", b"", max(1, int(rate * seconds)))


def used_template(path: Path, beside: str = "") -> tuple[str, str] | None:
    from localllm.store.inspect import GgufFile

    with GgufFile(path) as file:
        own = file.metadata.get("tokenizer.chat_template")
    if beside:
        return ("go", beside) if "{{ ." in beside else ("argument", beside)
    return ("file", own) if isinstance(own, str) else None


def refused_template(path: Path, beside: str) -> UnsupportedError | None:
    from localllm.engine.open import beside_template

    try:
        beside_template(path, beside)
    except UnsupportedError as e:
        return e
    return None


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
        source="abc1234",
        arithmetic_version=1,
        block_tokens=32,
    )


def machine_roofs() -> Roofs:
    from localllm.engine.machine import Roofs

    return Roofs(n_threads=2, n_bytes=256 << 20, read_gb_per_s=12.5, int8_gop_per_s=345.6)


def remembered_roofs(folder: Path, *, anew: bool = False) -> Roofs:
    return machine_roofs()


def memory_plans(
    path: Path, *, n_ctx: int = 0, n_threads: int = 0, isa: str | None = None
) -> dict[str, Any]:
    from localllm.engine.memory_estimate import of_file, survey

    return survey(of_file(path), n_ctx=n_ctx, room=_room())


def catalogue_plans(entry: Entry, attention: Attention | None, *, n_ctx: int = 0) -> dict[str, Any]:
    from localllm.engine.memory_estimate import of_catalogue, survey

    return survey(of_catalogue(entry, attention), n_ctx=n_ctx, room=_room())


def knows_architecture(architecture: str) -> bool | None:
    return architecture != "alienarch"


def _room() -> Room:
    from localllm.engine.memory_plan import Room

    machine = machine_facts()
    return Room(machine.memory_bytes, machine.free_bytes)
