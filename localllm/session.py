"""One conversation with one model: the only interface that the command line and the UI see.

Text goes in, text comes out in chunks, whatever engine runs the tokens. The steps run on their own
thread, so that the caller stays free to show, to stop, or to be interrupted while a long step runs.
The tokens of a conversation stay in the engine: the next turn computes only what is new.
"""

from __future__ import annotations

import dataclasses
import datetime
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from localllm.errors import ArgumentError, CancelledError, UnsupportedError
from localllm.params import GenerateParams, recommended
from localllm.store.answers import Answer, Fingerprint

if TYPE_CHECKING:
    from localllm.engine.machine import MachineFacts, Roofs
    from localllm.engine.open import Parts
    from localllm.engine.sampling import Sampled
    from localllm.text.reasoning import ReasoningFormat

__all__ = ["Chunk", "GenerateParams", "Session", "SessionInfo", "Stats", "TokenLogprobs"]

ENGINES = ("auto", "native", "llama.cpp")
#: A native run of decode steps may keep the caller waiting this long.
RUN_SECONDS = 0.03
MAX_RUN_STEPS = 16


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of the model's raw probabilities: of a token of the answer, and of the
    likeliest ones in its place, best first, as (text, value)."""

    text: str
    value: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Chunk:
    """A piece of the answer, of its reasoning, or of both. finish_reason is set on the last one:
    "stop" (the model ended, or a stop string came), "length" (max_tokens or the context),
    "cancelled"."""

    text: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    reasoning: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token id where params.logprobs asks


@dataclass(frozen=True)
class SessionInfo:
    engine: str  # "native" or "llama.cpp"
    architecture: str
    isa: str
    n_threads: int
    n_ctx: int
    n_params: int
    weight_bytes: int
    kv_bytes: int  # reserved for n_ctx tokens; committed as they are used
    description: str
    can_think: bool  # the model's answers may hold reasoning
    recommended: Mapping[str, Any]  # parameters that the file's maker recommends, by name


@dataclass
class Stats:
    """Counts, and seconds, of the last answer (load_s: of the session).

    prompt_tokens counts the whole prompt, cached_tokens those of it that were kept from before.
    """

    load_s: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_s: float = 0.0
    first_token_s: float = 0.0
    generated_tokens: int = 0
    reasoning_tokens: int = 0
    decode_s: float = 0.0


@dataclass(frozen=True)
class _Question:
    """What is to be answered, as tokens."""

    prompt: list[int]
    params: GenerateParams
    title: str
    reasoning: ReasoningFormat | None = None
    opened: bool = False  # the prompt ends inside a reasoning block
    raw: bool = False
    in_transcript: bool = False


class Session:
    """Use `Session.open`; close it, or use it as a context manager."""

    def __init__(
        self, parts: Parts, load_s: float = 0.0, label: str = "", digest: str | None = None
    ) -> None:
        from localllm.engine.transcript import Transcript

        self._parts, self._engine, self._tokenizer = parts, parts.engine, parts.text.tokenizer
        self.info = SessionInfo(
            engine=parts.engine.name,
            architecture=parts.architecture,
            isa=parts.isa,
            n_threads=parts.n_threads,
            n_ctx=parts.engine.n_ctx,
            n_params=parts.n_params,
            weight_bytes=parts.weight_bytes,
            kv_bytes=parts.engine.kv_bytes,
            description=f"{parts.name} {parts.text.quantization}".strip(),
            can_think=self._reasoning() is not None,
            recommended=recommended(parts.text.metadata),
        )
        self.stats = Stats(load_s=load_s)
        self.notes: tuple[str, ...] = ()
        self.progress_tokens = (0, 0)
        self.answer: Answer | None = None
        self._label, self._digest = label or str(parts.path), digest
        self._transcript = Transcript()
        self._cancelled = threading.Event()
        self._worker: threading.Thread | None = None

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
        progress: Callable[[float], None] | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> Session:
        """Loads a model file.

        engine: "native" (ours), "llama.cpp", or "auto": ours where it can. n_ctx 0: what the model
        was trained on, or what fits into half of the free memory if that is less. digest and label:
        what records of answers call the model. template: a chat template, or the name of a known
        format, in place of the file's. progress is called with 0.0 .. 1.0, notice with plain lines
        on what was chosen. Raises the errors of `Model.load`, and FormatError for a tokenizer or
        template that cannot be used.
        """
        from localllm.engine.open import OpenOptions, open_parts

        if engine not in ENGINES:
            raise ArgumentError(f"engine: {engine[:40]!a} is not one of {', '.join(ENGINES)}")
        started = time.perf_counter()
        options = OpenOptions(engine, n_threads, n_ctx, kv_type, isa, template)
        parts = open_parts(path, options, progress=progress, notice=notice)
        return cls(parts, time.perf_counter() - started, label, digest)

    @property
    def context_used(self) -> int:
        """Tokens that the engine keeps."""
        return self._engine.n_kept

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: GenerateParams,
        *,
        think: bool | str | None = None,
    ) -> Iterator[Chunk]:
        """Answers the last of `messages` ({"role", "content"} each), in the model's template.

        think: True, False or an effort such as "low", for models that can; None is their default.
        """
        self._end_answer()  # one that its caller has not read to the end
        template = self._parts.chat_template
        options, self.notes = self._thinking(think)
        prompt = template.prompt(messages, **options)
        self.notes += prompt.repairs
        yield from self._answer(
            _Question(
                self._transcript.ids_of(prompt),
                params,
                title=_title(messages),
                reasoning=template.reasoning,
                opened=prompt.opens_reasoning,
                in_transcript=True,
            )
        )

    def complete(self, prompt: str, params: GenerateParams) -> Iterator[Chunk]:
        """Continues a text as it is, without a template."""
        self._end_answer()
        self.notes = ()
        ids = self._tokenizer.encode(prompt, add_special=True)
        yield from self._answer(_Question(ids, params, title=_clip(prompt), raw=True))

    def replay(self, answer: Answer) -> Iterator[Chunk]:
        """Gives a recorded answer again: the same prompt and parameters. Raises `ArgumentError`
        when the model, the engine, its arithmetic or the KV type are not those of the record."""
        self._end_answer()
        self.notes = ()
        asked = answer.fingerprint
        here = self._fingerprint(asked.params, asked.prompt_ids)
        for name, value in vars(here).items():
            if value != getattr(asked, name):
                raise ArgumentError(
                    f"the answer {answer.id} was given with the {name.replace('_', ' ')} "
                    f"{getattr(asked, name)}; here it is {value}"
                )
        params = GenerateParams(**asked.params)
        if answer.finish_reason == "cancelled":
            params = dataclasses.replace(params, max_tokens=len(answer.token_ids))
        yield from self._answer(
            _Question(
                list(asked.prompt_ids),
                params,
                title=answer.title,
                reasoning=None if answer.raw else self._reasoning(),
                opened=answer.opened,
                raw=answer.raw,
            )
        )

    def time_prefill(self, n_tokens: int) -> float:
        """See `engine.timing`. Raises `CancelledError`, also when it was cancelled before."""
        from localllm.engine import timing

        self._end_answer()
        return timing.time_prefill(self._engine, self._tokenizer, n_tokens)

    def time_decode(self, depth: int, n_tokens: int) -> Iterator[float]:
        """See `engine.timing`. Raises `CancelledError`, also when it was cancelled before."""
        from localllm.engine import timing

        self._end_answer()
        return timing.time_decode(self._engine, self._tokenizer, depth, n_tokens)

    def forget(self) -> None:
        """Drops the kept tokens: the next prompt is computed from its beginning."""
        from localllm.engine.transcript import Transcript

        self._end_answer()
        self._transcript = Transcript()
        self._engine.forget()

    def cancel(self) -> None:
        """Ends the running answer, or the next one, with finish_reason "cancelled". From any thread
        or signal."""
        self._cancelled.set()
        self._engine.cancel()

    def close(self) -> None:
        """Ends a running answer and frees the memory."""
        self._end_answer()
        self._engine.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _reasoning(self) -> ReasoningFormat | None:
        """How the model's answers mark reasoning, if they may hold any."""
        try:
            return self._parts.chat_template.reasoning
        except UnsupportedError:  # no template: a base model
            return None

    def _thinking(self, think: bool | str | None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The template's variables that switch reasoning, and a note if there are none."""
        if think is None:
            return {}, ()
        from localllm.text.thinking_switch import thinking_options

        options = thinking_options(self._parts.chat_template, think)
        if options is None:
            wish = "leave out its reasoning"
            if think:
                wish = "reason" if think is True else f"reason at the level {think}"
            return {}, (f"this model cannot be told to {wish}",)
        return options, ()

    def _fingerprint(self, params: dict[str, Any], prompt_ids: Sequence[int]) -> Fingerprint:
        parts = self._parts
        return Fingerprint(
            model_digest=self._digest or parts.digest,
            engine=parts.engine_version,
            arithmetic=parts.arithmetic,
            kv_type=parts.options.kv_type,
            params=params,
            prompt_ids=tuple(prompt_ids),
        )

    def _answer(self, question: _Question) -> Iterator[Chunk]:
        prompt, params = question.prompt, question.params
        if not prompt:
            raise ArgumentError("the prompt is empty", hint="give at least one character")
        if len(prompt) >= self.info.n_ctx:
            raise ArgumentError(
                f"the prompt has {len(prompt)} tokens and the context holds {self.info.n_ctx}",
                hint="shorten the prompt or raise the context with --ctx",
            )
        self.answer = None
        self.stats = Stats(load_s=self.stats.load_s, prompt_tokens=len(prompt))
        self.progress_tokens = (0, 0)
        if params.max_tokens == 0:
            yield Chunk("", finish_reason="length")
            return
        chunks: queue.SimpleQueue[Chunk | BaseException] = queue.SimpleQueue()
        worker = self._worker = threading.Thread(
            target=self._work, args=(question, chunks.put), name="generate", daemon=True
        )
        worker.start()
        try:
            while True:
                item = chunks.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
                if item.finish_reason is not None:
                    return
        finally:
            if self._worker is worker:
                self._end_answer()

    def _end_answer(self) -> None:
        """Waits until no step runs, cancelling it. Only here is a cancel taken back: one that comes
        between two answers, or before a first step, is kept for the next."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self.cancel()
            worker.join()
            self._cancelled.clear()
            self._engine.reset_cancel()

    def _work(self, question: _Question, emit: Callable[[Chunk | BaseException], None]) -> None:
        given: list[Chunk] = []
        last: Chunk | BaseException
        try:
            for chunk in self._generate(question):
                given.append(chunk)
                if chunk.finish_reason is None:
                    emit(chunk)
            last = given[-1]
        except CancelledError:
            last = Chunk("", finish_reason="cancelled")
            given.append(last)
        except BaseException as e:  # whatever it is, it must reach the caller, not hang it
            emit(e)
            return
        try:
            self._keep(question, given)
        except BaseException as e:
            last = e
        emit(last)

    def _keep(self, question: _Question, given: list[Chunk]) -> None:
        """Makes the record of an answer, and what the next turn can build on."""
        token_ids = tuple(token for chunk in given for token in chunk.token_ids)
        if question.in_transcript:
            self._transcript.add_answer(token_ids, self._tokenizer)
        self.answer = Answer(
            fingerprint=self._fingerprint(question.params.changed(), question.prompt),
            model=self._label,
            title=question.title,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            token_ids=token_ids,
            text="".join(chunk.text for chunk in given),
            reasoning="".join(chunk.reasoning for chunk in given),
            finish_reason=given[-1].finish_reason or "",
            opened=question.opened,
            raw=question.raw,
        )

    def _generate(self, question: _Question) -> Iterator[Chunk]:
        from localllm.engine.sampling import sampler_of
        from localllm.text.answer_stream import AnswerStream

        prompt, params, stats = question.prompt, question.params, self.stats
        stop_ids = sorted(self._tokenizer.stop_ids)
        sampler = sampler_of(params, self._tokenizer)
        stream = AnswerStream(
            self._tokenizer,
            reasoning=question.reasoning,
            opened=question.opened,
            stop=params.stop,
        )
        started = time.perf_counter()
        stats.cached_tokens = self._engine.begin(prompt)
        new = prompt[stats.cached_tokens :]
        self.progress_tokens = (0, len(new))

        def progress(n_done: int) -> None:
            self.progress_tokens = (n_done, len(new))

        sampler.accept(prompt)
        sampled = [self._engine.prefill(new, sampler, params.logprobs, progress)]
        stats.prompt_s = stats.first_token_s = time.perf_counter() - started
        room = self.info.n_ctx - len(prompt)
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        step_s = RUN_SECONDS
        while True:
            text, reasoning, reason = "", "", None
            for n, each in enumerate(sampled):
                stats.generated_tokens += 1
                if each.token in self._tokenizer.stop_ids:
                    reason = "stop"
                else:
                    delta = stream.feed(each.token)
                    text += delta.text
                    reasoning += delta.reasoning
                    stats.reasoning_tokens += bool(delta.reasoning)
                    reason = "stop" if delta.stopped else None
                if reason is not None:
                    del sampled[n + 1 :]
                    break
            if reason is None and stats.generated_tokens >= limit:
                reason = "length"
            if reason is None and self._cancelled.is_set():
                reason = "cancelled"
            if reason is not None:
                delta = stream.finish()
                text, reasoning = text + delta.text, reasoning + delta.reasoning
                reason = "stop" if delta.stopped else reason
            stats.decode_s = time.perf_counter() - started - stats.prompt_s
            tokens = tuple(each.token for each in sampled)
            yield Chunk(text, tokens, reason, reasoning, self._logprobs(params, sampled))
            if reason is not None:
                return
            k = max(1, min(int(RUN_SECONDS / step_s), MAX_RUN_STEPS))
            k = min(k, limit - stats.generated_tokens)
            began = time.perf_counter()
            sampled = self._engine.decode(sampled[-1].token, k, sampler, stop_ids, params.logprobs)
            step_s = (time.perf_counter() - began) / len(sampled)

    def _logprobs(
        self, params: GenerateParams, sampled: Sequence[Sampled]
    ) -> tuple[TokenLogprobs, ...]:
        if params.logprobs is None:
            return ()
        return tuple(
            TokenLogprobs(
                self._piece(each.token),
                each.logprob if each.logprob is not None else 0.0,
                tuple((self._piece(token), value) for token, value in each.top),
            )
            for each in sampled
        )

    def _piece(self, token: int) -> str:
        piece: bytes = self._tokenizer.token_bytes(token)
        return piece.decode("utf-8", "replace")


def _title(messages: Sequence[Mapping[str, Any]]) -> str:
    """The beginning of the last question."""
    asked = [m.get("content") for m in messages if m.get("role") == "user"]
    return _clip(asked[-1] if asked and isinstance(asked[-1], str) else "")


def _clip(text: str) -> str:
    return " ".join(text[:400].split())[:80]


def machine_facts() -> MachineFacts:
    """What this machine is: instruction sets, threads, memory."""
    from localllm.engine import machine

    return machine.facts()


def machine_roofs() -> Roofs:
    """What this machine can do at most: reading memory, and int8 dot products; takes a second."""
    from localllm.engine import machine

    return machine.measure_roofs()
