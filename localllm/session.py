"""One conversation with one model: the only interface that the command line and the UI see.

Text goes in, text comes out in chunks, whatever engine runs the tokens. The steps run on their own
thread, so that the caller stays free to show, to stop, or to be interrupted while a long step runs.
The tokens of a conversation stay in the engine: the next turn computes only what is new.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from localllm import moments
from localllm.engine.exchange import Chunk, Question, Stats, TokenLogprobs
from localllm.errors import ArgumentError, CancelledError, ContextFullError, UnsupportedError
from localllm.params import GenerateParams, recommended
from localllm.store.answers import Answer, Fingerprint

if TYPE_CHECKING:
    from localllm.engine.generate import Generation
    from localllm.engine.machine import MachineFacts, Roofs
    from localllm.engine.open import Parts
    from localllm.store.catalog import Attention, Entry
    from localllm.text.reasoning import ReasoningFormat

__all__ = ["Chunk", "GenerateParams", "Session", "SessionInfo", "Stats", "TokenLogprobs"]

ENGINES = ("auto", "native", "llama.cpp")


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
    template: str | None  # "file", "argument" or "fallback:<family>"; None: it only continues texts
    can_think: bool  # the model's answers may hold reasoning
    recommended: Mapping[str, Any]  # parameters that the file's maker recommends, by name


class Session:
    """Use `Session.open`; close it, or use it as a context manager."""

    def __init__(
        self, parts: Parts, load_s: float = 0.0, label: str = "", digest: str | None = None
    ) -> None:
        from localllm.engine.transcripts import Transcripts

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
            template=self._template_origin(),
            can_think=self._reasoning() is not None,
            recommended=recommended(parts.text.metadata),
        )
        self.stats = Stats(load_s=load_s)
        self.notes: tuple[str, ...] = ()
        self.is_lost = False
        self.answer: Answer | None = None
        self.conversation = ""  # nothing of it is kept on the disk
        self._label, self._digest = label or str(parts.path), digest
        self._transcripts = Transcripts()
        self._cancelled = threading.Event()
        self._worker: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        path: Path | str,
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
        """Loads a model file.

        engine: "native" (ours), "llama.cpp", or "auto": ours where it can. n_ctx 0: what the model
        was trained on, or what fits into half of the free memory if that is less. digest and label:
        what records of answers call the model. template: a chat template, or the name of a known
        format, in place of the file's. beside: a template that came with the model, of a Modelfile
        or a registry, which counts if no other one is asked for (`text.beside_template`). mmap:
        compute from the mapped file, also where it is larger than the memory. progress is called
        with 0.0 .. 1.0, notice with plain lines on what was chosen. Raises the errors of
        `Model.load`, and FormatError for a tokenizer or template that cannot be used.
        """
        from localllm.engine.open import OpenOptions, beside_template, open_parts

        if engine not in ENGINES:
            raise ArgumentError(f"engine: {engine[:40]!a} is not one of {', '.join(ENGINES)}")
        started = time.perf_counter()
        if template is None and beside:
            choice = beside_template(Path(path), beside)
            template = choice.template
            if choice.note and notice is not None:
                notice(choice.note)
        options = OpenOptions(engine, n_threads, n_ctx, kv_type, isa, template, mmap)
        parts = open_parts(
            Path(path), options, progress=progress, notice=notice, digest=digest or ""
        )
        return cls(parts, time.perf_counter() - started, label, digest)

    @property
    def progress_tokens(self) -> tuple[int, int]:
        """How many tokens of the running prompt are computed, and how many are to be."""
        return self.stats.computed_tokens, self.stats.prompt_tokens - self.stats.cached_tokens

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
        go_on: bool = False,
    ) -> Iterator[Chunk]:
        """Answers the last of `messages` ({"role", "content"} each), in the model's template.

        think: True, False or an effort such as "low", for models that can; None is their default.
        go_on: the last message is an answer that was cut, and what comes is its rest.
        """
        from localllm.engine.pictures import take_pictures, with_pictures

        self._end_answer()  # one that its caller has not read to the end
        template = self._parts.chat_template
        options, self.notes = self._thinking(think)
        marked, pictures = take_pictures(messages, self._engine)
        prompt = with_pictures(template.prompt(marked, go_on=go_on, **options), pictures)
        self.notes += prompt.repairs
        transcribed = self._transcripts.ids_of(prompt)
        yield from self._answer(
            Question(
                transcribed.ids,
                params,
                title=title_of(messages),
                reasoning=template.reasoning,
                opened=prompt.opens_reasoning,
                within=prompt.goes_on,
                transcribed=transcribed,
            )
        )

    def complete(self, prompt: str, params: GenerateParams) -> Iterator[Chunk]:
        """Continues a text as it is, without a template."""
        self._end_answer()
        self.notes = ()
        ids = self._tokenizer.encode(prompt, add_special=True)
        yield from self._answer(Question(ids, params, title=clip(prompt), raw=True))

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
        # Where it was cancelled, or its context was full, is no part of the fingerprint.
        params = dataclasses.replace(
            GenerateParams(**asked.params), max_tokens=len(answer.token_ids)
        )
        yield from self._answer(
            Question(
                list(asked.prompt_ids),
                params,
                title=answer.title,
                reasoning=None if answer.raw else self._reasoning(),
                opened=answer.opened,
                raw=answer.raw,
            )
        )

    def time_prefill(self, n_tokens: int) -> float:
        """Seconds from an empty context to the first token after a prompt of n made-up tokens.
        Raises `CancelledError` after `cancel`. What was kept is forgotten."""
        from localllm.engine import timing

        with self._timing():
            return timing.time_prefill(self._engine, self._tokenizer.n_vocab, n_tokens)

    def time_decode(self, depth: int, n_tokens: int) -> Iterator[float]:
        """Fills an empty context with `depth` made-up tokens, at least one, then yields the seconds
        of n_tokens further greedy steps, again and again until the context is full. Raises
        `CancelledError` after `cancel`. What was kept is forgotten."""
        from localllm.engine import timing

        with self._timing():
            yield from timing.time_decode(self._engine, self._tokenizer.n_vocab, depth, n_tokens)

    @contextlib.contextmanager
    def _timing(self) -> Iterator[None]:
        """A cancel is taken back only once it has been seen: see `_end_answer`."""
        self._end_answer()
        try:
            yield
        except CancelledError:
            self._cancelled.clear()
            self._engine.reset_cancel()
            raise

    def forget(self) -> None:
        """Drops the kept tokens: the next prompt is computed from its beginning."""
        self._end_answer()
        self._transcripts.clear()
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

    def _template_origin(self) -> str | None:
        try:
            return self._parts.chat_template.origin
        except UnsupportedError:
            return None

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
        from localllm.text.thinking_switch import switched

        return switched(self._parts.chat_template, think)

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

    def _answer(self, question: Question) -> Iterator[Chunk]:
        prompt, params = question.prompt, question.params
        if not prompt:
            raise ArgumentError("the prompt is empty", hint="give at least one character")
        if len(prompt) >= self.info.n_ctx:
            hint = "shorten the prompt or raise the context with --ctx"
            raise ContextFullError.of(len(prompt), self.info.n_ctx, hint)
        self.answer = None
        self.stats = Stats(load_s=self.stats.load_s, prompt_tokens=len(prompt))
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

    def _work(self, question: Question, emit: Callable[[Chunk | BaseException], None]) -> None:
        given: list[Chunk] = []
        last: Chunk | BaseException
        try:
            for chunk in self._generation(question).chunks(self._cancelled):
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

    def _generation(self, question: Question) -> Generation:
        from localllm.engine.generate import Generation

        return Generation(self._engine, self._tokenizer, question, self.stats)

    def _keep(self, question: Question, given: list[Chunk]) -> None:
        """Makes the record of an answer, and what the next turn can build on."""
        token_ids = tuple(token for chunk in given for token in chunk.token_ids)
        if question.transcribed is not None:
            self._transcripts.add_answer(question.transcribed, token_ids)
        self.answer = Answer(
            fingerprint=self._fingerprint(question.params.changed(), question.prompt),
            model=self._label,
            title=question.title,
            created=moments.iso(),
            token_ids=token_ids,
            text="".join(chunk.text for chunk in given),
            reasoning="".join(chunk.reasoning for chunk in given),
            finish_reason=given[-1].finish_reason or "",
            opened=question.opened,
            raw=question.raw,
        )


def title_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The beginning of the last question."""
    asked = [m.get("content") for m in messages if m.get("role") == "user"]
    return clip(asked[-1] if asked and isinstance(asked[-1], str) else "")


def clip(text: str) -> str:
    return " ".join(text[:400].split())[:80]


def used_template(path: Path, beside: str = "") -> tuple[str, str] | None:
    """The chat template that a session takes, as where it is from ("file", "argument" for one that
    lies beside the file, "fallback:<family>") and its source. For a Go template of no known family
    ("go", that); None if there is none and nothing tells the family. Raises FormatError for a
    damaged file."""
    from localllm.engine.open import read_text_side
    from localllm.text.beside_template import choose
    from localllm.text.chat_template import ChatTemplate

    text = read_text_side(path)
    try:
        chosen = choose(text.metadata, beside).template
    except UnsupportedError:
        return "go", beside
    try:
        template = ChatTemplate.from_metadata(text.metadata, text.tokenizer, chosen)
    except UnsupportedError:
        return None
    return template.origin, template.source


def refused_template(path: Path, beside: str) -> UnsupportedError | None:
    """Why the template that lies beside a file cannot be used, if it cannot."""
    from localllm.engine.open import beside_template

    try:
        beside_template(path, beside)
    except UnsupportedError as e:
        return e
    return None


def machine_facts() -> MachineFacts:
    """What this machine is: instruction sets, threads, memory."""
    from localllm.engine import machine

    return machine.facts()


def machine_roofs() -> Roofs:
    """What this machine can do at most: reading memory, and int8 dot products; takes a second."""
    from localllm.engine import machine

    return machine.measure_roofs()


def remembered_roofs(folder: Path, *, anew: bool = False) -> Roofs:
    """The roofs as the best of several measurements on this machine, kept in a folder; `anew`
    begins again."""
    from localllm.engine import roofs

    return roofs.remembered(folder, anew=anew)


def memory_plans(
    path: Path,
    *,
    n_ctx: int = 0,
    n_threads: int = 0,
    isa: str | None = None,
    freed_bytes: int = 0,
) -> dict[str, Any]:
    """See `engine.memory_plan.survey`; of a file that only llama.cpp can run, an estimate.
    freed_bytes: what an open model holds that will be closed before."""
    from localllm.engine import memory_estimate
    from localllm.engine.memory_plan import Room, survey

    try:
        return survey(path, n_ctx=n_ctx, n_threads=n_threads, isa=isa, freed_bytes=freed_bytes)
    except UnsupportedError:
        room = Room.here(freed_bytes)
        return memory_estimate.survey(memory_estimate.of_file(path), n_ctx=n_ctx, room=room)


def catalogue_plans(
    entry: Entry, attention: Attention | None, *, n_ctx: int = 0, freed_bytes: int = 0
) -> dict[str, Any]:
    """Plans of a model of the catalogue that is not here, estimated from what the catalogue says;
    without its attention the cache is a share of its parameters."""
    from localllm.engine import memory_estimate
    from localllm.engine.memory_plan import Room

    figures = memory_estimate.of_catalogue(entry, attention)
    return memory_estimate.survey(figures, n_ctx=n_ctx, room=Room.here(freed_bytes))


def knows_architecture(architecture: str) -> bool | None:
    """Whether llama.cpp, as it is installed here, knows an architecture; None where it is not
    installed."""
    from localllm.engine import llama_library

    return llama_library.knows(architecture)
