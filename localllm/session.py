"""One conversation with one model: the only interface that the command line and the UI see.

Text goes in, text comes out in chunks. The steps run on their own thread, so that the caller stays
free to show, to stop, or to be interrupted while a long step runs.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from localllm.errors import ArgumentError, CancelledError, LocalLLMError

if TYPE_CHECKING:
    from localllm.engine.machine import MachineFacts, Roofs
    from localllm.engine.open import Parts
    from localllm.engine.runner import SequenceState

#: A native run of decode steps may keep the caller waiting this long.
RUN_SECONDS = 0.03
MAX_RUN_STEPS = 16


@dataclass(frozen=True)
class GenerateParams:
    """temperature 0 is greedy. max_tokens None: until the model stops or the context is full.
    The same seed gives the same text."""

    temperature: float = 0.8
    seed: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chunk:
    """A piece of the answer. finish_reason is set on the last one: "stop" (the model ended, or a
    stop string came), "length" (max_tokens or the context), "cancelled"."""

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
    kv_bytes: int  # reserved for n_ctx tokens; committed as they are used
    description: str


@dataclass
class Stats:
    """Counts, and seconds, of the last answer (load_s: of the session)."""

    load_s: float = 0.0
    prompt_tokens: int = 0
    prompt_s: float = 0.0
    first_token_s: float = 0.0
    generated_tokens: int = 0
    decode_s: float = 0.0


class Session:
    """Use `Session.open`; close it, or use it as a context manager."""

    def __init__(self, parts: Parts, load_s: float) -> None:
        self._parts, self._runner, self._tokenizer = parts, parts.runner, parts.tokenizer
        info = parts.model.info
        self.info = SessionInfo(
            architecture=info.architecture,
            isa=info.isa,
            n_threads=info.n_threads,
            n_ctx=parts.n_ctx,
            n_params=info.n_params,
            weight_bytes=info.weight_bytes + info.mapped_bytes,
            kv_bytes=parts.runner.kv_bytes,
            description=f"{parts.name} {parts.quantization}".strip(),
        )
        self.stats = Stats(load_s=load_s)
        self._cancelled = threading.Event()
        self._worker: threading.Thread | None = None

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
        """Loads a model file.

        n_ctx 0: what the model was trained on, or what fits into half of the free memory if that is
        less. progress is called with 0.0 .. 1.0. Raises the errors of `Model.load`, and
        FormatError for a tokenizer or template that cannot be used.
        """
        from localllm.engine.open import open_parts

        started = time.perf_counter()
        parts = open_parts(
            path, n_threads=n_threads, n_ctx=n_ctx, kv_type=kv_type, isa=isa, progress=progress
        )
        return cls(parts, time.perf_counter() - started)

    def chat(
        self, messages: Sequence[Mapping[str, str]], params: GenerateParams
    ) -> Iterator[Chunk]:
        """Answers the last of `messages` ({"role", "content"} each), in the model's template."""
        return self._answer(self._parts.chat_template.prompt(messages).ids(), params)

    def complete(self, prompt: str, params: GenerateParams) -> Iterator[Chunk]:
        """Continues a text as it is, without a template."""
        return self._answer(self._tokenizer.encode(prompt, add_special=True), params)

    def cancel(self) -> None:
        """Ends the running answer, or the next one, with finish_reason "cancelled". From any thread
        or signal."""
        self._cancelled.set()
        self._runner.cancel()

    def close(self) -> None:
        """Ends a running answer and frees the memory."""
        self._end_answer()
        self._runner.close()
        self._parts.model.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, prompt: list[int], params: GenerateParams) -> Iterator[Chunk]:
        if not prompt:
            raise ArgumentError("the prompt is empty", hint="give at least one character")
        if len(prompt) >= self.info.n_ctx:
            raise ArgumentError(
                f"the prompt has {len(prompt)} tokens and the context holds {self.info.n_ctx}",
                hint="shorten the prompt or raise the context with --ctx",
            )
        if params.max_tokens is not None and params.max_tokens < 1:
            yield Chunk("", finish_reason="length")
            return
        if self._worker is not None:
            self._end_answer()  # one that its caller has not read to the end
        chunks: queue.SimpleQueue[Chunk | BaseException] = queue.SimpleQueue()
        worker = self._worker = threading.Thread(
            target=self._work, args=(prompt, params, chunks.put), name="generate", daemon=True
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
            self._runner.reset_cancel()

    def _work(
        self,
        prompt: list[int],
        params: GenerateParams,
        emit: Callable[[Chunk | BaseException], None],
    ) -> None:
        sequence = self._runner.new_sequence()
        try:
            for chunk in self._generate(sequence, prompt, params):
                emit(chunk)
        except CancelledError:
            emit(Chunk("", finish_reason="cancelled"))
        except LocalLLMError as e:
            emit(e)
        except BaseException as e:  # a fault of ours: it must reach the caller, not hang it
            emit(e)
        finally:
            self._runner.free(sequence)

    def _generate(
        self, sequence: SequenceState, prompt: list[int], params: GenerateParams
    ) -> Iterator[Chunk]:
        from localllm.engine.runner import Feed
        from localllm.text.stop import StopStrings
        from localllm.text.stream import StreamDecoder

        stats = self.stats = Stats(load_s=self.stats.load_s, prompt_tokens=len(prompt))
        started = time.perf_counter()
        result = self._runner.prefill(
            Feed(sequence, prompt, temperature=params.temperature, seed=params.seed)
        )
        tokens = [t for t in result.tokens if t is not None]
        stats.prompt_s = stats.first_token_s = time.perf_counter() - started
        room = self.info.n_ctx - len(prompt)
        limit = room if params.max_tokens is None else min(room, params.max_tokens)
        decoder = StreamDecoder(self._tokenizer)
        stops = StopStrings(params.stop)
        step_s = RUN_SECONDS
        while True:
            ended = tokens[-1] in self._tokenizer.stop_ids
            shown = tokens[:-1] if ended else tokens
            stats.generated_tokens += len(tokens)
            text, hit = stops.feed("".join(decoder.feed(t) for t in shown))
            reason = "stop" if ended or hit else None
            if reason is None and stats.generated_tokens >= limit:
                reason = "length"
            if reason is None and self._cancelled.is_set():
                reason = "cancelled"
            if reason is not None and not hit:
                text += stops.finish(decoder.finish())
            stats.decode_s = time.perf_counter() - started - stats.prompt_s
            yield Chunk(text, tuple(tokens), reason)
            if reason is not None:
                return
            k = max(1, min(int(RUN_SECONDS / step_s), MAX_RUN_STEPS))
            k = min(k, limit - stats.generated_tokens)
            began = time.perf_counter()
            feed = Feed(sequence, tokens[-1:], temperature=params.temperature, seed=params.seed)
            tokens = self._runner.decode([feed], k, sorted(self._tokenizer.stop_ids))[0]
            step_s = (time.perf_counter() - began) / len(tokens)


def machine_facts() -> MachineFacts:
    """What this machine is: instruction sets, threads, memory."""
    from localllm.engine import machine

    return machine.facts()


def machine_roofs() -> Roofs:
    """What this machine can do at most: reading memory, and int8 dot products; takes a second."""
    from localllm.engine import machine

    return machine.measure_roofs()
