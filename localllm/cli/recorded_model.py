"""The model that gave a recorded answer: found by its name, by its digest, or where it is said to
be; and proven to be the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from localllm import paths
from localllm.cli.finding import Found, find_model, sound_catalogue
from localllm.errors import ArgumentError, FileError, LocalLLMError
from localllm.store.answers import Answer
from localllm.store.digest import digest_like
from localllm.store.index import Store

Progress = Callable[[str, float], None]  # told which file is read, and how much of it


def find_recorded(answer: Answer, given: str | None, progress: Progress) -> Found:
    """The model of an answer. `given` is the name or path that the user wants instead of the
    recorded one. Raises `FileError` if the model is gone, `ArgumentError` if it has changed."""
    if given is not None:
        found = find_model(given, may_pull=False)
        digest = _digest(found, answer, progress)
        if digest != answer.fingerprint.model_digest:
            raise _changed(answer, found, digest)
        return found
    changed: LocalLLMError | None = None
    for found in _candidates(answer):
        digest = _digest(found, answer, progress)
        if digest == answer.fingerprint.model_digest:
            return found
        if found.label == answer.model:
            changed = _changed(answer, found, digest)
    raise changed or _gone(answer)


def _candidates(answer: Answer) -> Iterator[Found]:
    """The model of the recorded name, then all others of the store."""
    path = None
    try:
        named = find_model(answer.model, may_pull=False)
        path = named.path
        yield Found(answer.model, named.path, named.model, foreign=named.foreign)
    except LocalLLMError:
        pass  # it is gone, or the name was one of another machine
    for model in Store(paths.current().models).list():
        if model.path != path:
            yield Found(str(model.ref), model.path, model)


def _digest(found: Found, answer: Answer, progress: Progress) -> str:
    """The digest of a model, of the kind that is on record. Only a file that the store knows
    nothing about is read."""
    wanted = answer.fingerprint.model_digest
    if found.digest is not None and wanted.startswith("sha256:"):
        return found.digest
    return digest_like(found.path, wanted, lambda share: progress(found.label, share))


def _changed(answer: Answer, found: Found, digest: str) -> ArgumentError:
    return ArgumentError(
        f"{found.label} is not the model that gave the answer {answer.id}: its digest is {digest}, "
        f"on record is {answer.fingerprint.model_digest}",
        "Name the right file with --model, if you still have it.",
    )


def _gone(answer: Answer) -> FileError:
    wanted = answer.fingerprint.model_digest
    hint = "Name its file with --model."
    for entry in sound_catalogue():
        if wanted == f"sha256:{entry.sha256}":
            hint = f"Bring it here with: localllm pull {entry.ref}"
    return FileError(
        f"the model that gave the answer {answer.id} is not on this machine: {answer.model}, "
        f"{wanted}",
        hint,
    )
