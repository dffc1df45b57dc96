"""What a session asks of a `Service`: requests made of messages and texts, and what a session says
of itself. For sessions in this process, and for the server's route for those of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localllm.engine.request import LoadedModel, Request
from localllm.engine.transcripts import Transcribed, Transcripts
from localllm.errors import ArgumentError, UnsupportedError
from localllm.params import GenerateParams
from localllm.server import truncate
from localllm.text.thinking_switch import switched


@dataclass(frozen=True)
class SessionRequest:
    """A request, and what whoever asks is told of its prompt."""

    request: Request
    notes: tuple[str, ...] = ()
    transcribed: Transcribed | None = None


def about(info: LoadedModel) -> dict[str, Any]:
    """The fields of a `SessionInfo`."""
    template = info.chat_template
    return {
        "engine": info.engine,
        "architecture": info.architecture,
        "isa": info.isa,
        "n_threads": info.n_threads,
        "n_ctx": info.n_ctx,
        "n_params": info.n_params,
        "weight_bytes": info.weight_bytes,
        "kv_bytes": info.kv_bytes,
        "description": f"{info.title} {info.quantization}".strip(),
        "template": template.origin if template is not None else None,
        "can_think": template is not None and template.reasoning is not None,
        "recommended": dict(info.recommended),
    }


def to_answer(
    info: LoadedModel,
    messages: Sequence[Mapping[str, Any]],
    params: GenerateParams,
    think: Any,
    salt: bytes,
    transcripts: Transcripts,
    *,
    may_store: bool = True,
    go_on: bool = False,
) -> SessionRequest:
    """Answers the last message, or goes on with it. salt: of the caller. may_store: whether
    anything of it stays once it is answered. Raises `UnsupportedError` where there is no template,
    and the template's errors."""
    template = info.chat_template
    if template is None:
        raise UnsupportedError(info.no_template)
    options, notes = switched(template, think)
    prompt = template.prompt(messages, go_on=go_on, **options)
    truncate.check_length(prompt.text, info.n_ctx)
    transcribed = transcripts.ids_of(
        prompt, info.partition + salt, keep=may_store, model=info.kept_digest
    )
    request = Request(
        _some(transcribed.ids),
        params,
        salt=salt,
        reasoning=template.reasoning,
        opened=prompt.opens_reasoning,
        within=prompt.goes_on,
        may_store=may_store,
    )
    return SessionRequest(request, (*notes, *prompt.repairs), transcribed if may_store else None)


def to_complete(
    info: LoadedModel, prompt: str, params: GenerateParams, salt: bytes, *, may_store: bool = True
) -> SessionRequest:
    """Continues a text as it is."""
    truncate.check_length(prompt, info.n_ctx)
    ids = _some(info.tokenizer.encode(prompt, True))
    return SessionRequest(Request(ids, params, salt=salt, may_store=may_store))


def _some(ids: Sequence[int]) -> tuple[int, ...]:
    if not ids:
        raise ArgumentError("the prompt is empty", "give at least one character")
    return tuple(ids)
