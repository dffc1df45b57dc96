"""The texts that a model has along: its licence, its chat template, and itself as a Modelfile.
They are exact: whoever shows them escapes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localllm.cli.finding import Found
from localllm.errors import ArgumentError, LocalLLMError
from localllm.store import modelfile

FALLBACK = "fallback:"  # before a family's name


def text_of(found: Found, what: str, template: str | None = None) -> str:
    """One of `slash.OF_MODEL`. template: the one that was given in place of the model's own.
    Raises `ArgumentError` where the model has none."""
    if what == "modelfile":
        return modelfile_of(found)
    if what == "template" and template:
        from localllm import session

        used = session.used_template(found.path, template)  # it may be the name of a family
        return used[1] if used else template
    from localllm.store.inspect import GgufFile  # numpy and the native reader

    with GgufFile(found.path, header_only=True) as file:
        if what == "license":
            return licence_of(found, file.metadata)
        source, remark = template_of(found, file.metadata)
        return f"{source}\n\n{remark[:1].upper()}{remark[1:]}." if remark else source


def modelfile_of(found: Found) -> str:
    """Reads back to the same model with the same settings."""
    return modelfile.render(str(found.path.absolute()), found.settings)


def licence_of(found: Found, metadata: Mapping[str, Any]) -> str:
    """The whole text where it came along, else the name. Raises `ArgumentError`."""
    text = found.settings.licence or licence_name(found, metadata)
    if not text:
        raise ArgumentError(f"{found.label} names no licence")
    return text


def licence_name(found: Found, metadata: Mapping[str, Any]) -> str:
    """As its source or its file calls it, "" if neither does."""
    record = found.model.record if found.model else None
    value = metadata.get("general.license")
    return (record.licence if record else "") or (value if isinstance(value, str) else "")


def template_of(found: Found, metadata: Mapping[str, Any]) -> tuple[str, str]:
    """The template's source, and a remark where it is not simply that of the file. Raises
    `ArgumentError`."""
    used = used_template(found, metadata)
    if used is None:
        raise ArgumentError(
            f"{found.label} has no chat template", "It is a base model: localllm run --raw ..."
        )
    origin, source = used
    if origin.startswith(FALLBACK):
        family = origin.removeprefix(FALLBACK)
        return source, f"the file has no template; that of the {family} family is used"
    if origin == "go":
        return source, "it is in Go and of no known family: run needs --template FAMILY|FILE"
    return source, ""


def used_template(found: Found, metadata: Mapping[str, Any]) -> tuple[str, str] | None:
    """The template that `run` takes, and where it is from; see `session.used_template`."""
    own = metadata.get("tokenizer.chat_template")
    if isinstance(own, str) and not found.settings.template:
        return "file", own  # also where the tokenizer is damaged
    from localllm import session

    try:
        return session.used_template(found.path, found.settings.template)
    except LocalLLMError:
        return None  # no tokenizer that could tell: `run` says what is wrong
