"""Conversations on the disk: JSON that can be loaded again, or Markdown to read.

They hold what people wrote: their folder and the files are readable only by their owner.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localllm import moments, paths
from localllm.errors import ArgumentError, FileError, FormatError
from localllm.params import GenerateParams
from localllm.store.durable import disk_error, replacing

if TYPE_CHECKING:
    from localllm.cli.repl.chat import Message

VERSION = 1
MAX_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Windows reserves these in every folder, whatever follows the first dot.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_ROLES = ("user", "assistant")
_TEXTS = ("content", "reasoning_content", "id", "finish_reason")


@dataclass
class Saved:
    """A conversation as a file holds it."""

    model: str
    digest: str | None
    system: str | None
    think: bool | str | None
    params: dict[str, Any]
    messages: list[Message]


def folder() -> Path:
    """Where conversations lie that have a name."""
    return paths.current().data / "conversations"


def names() -> list[str]:
    """The conversations that have a name."""
    return sorted(path.stem for path in folder().glob("*.json"))


def is_path(text: str) -> bool:
    """Whether the user means a file of their own."""
    return "/" in text or os.sep in text or text.startswith("~")


def path_of(text: str) -> Path:
    """The file of a name, or of a path with a slash. Raises `ArgumentError` for a name that would
    not be a plain file in the folder, and for a path that names no file."""
    if is_path(text):
        return _path_of_user(text)
    if not _NAME.fullmatch(text) or _DEVICES.fullmatch(text):
        raise ArgumentError(
            f"{text[:80]!a} cannot be the name of a conversation",
            "At most 64 letters, digits, dots, _ and -, or a path with a slash: ./name.json",
        )
    return folder() / (text if text.endswith((".json", ".md")) else f"{text}.json")


def _path_of_user(text: str) -> Path:
    try:
        path = Path(text).expanduser()
    except RuntimeError as e:  # ~ without such a user
        raise ArgumentError(f"{text[:80]!a} names no folder: {e}") from e
    if "\0" in text:
        raise ArgumentError(f"{text[:80]!a} holds a NUL, which no file name can")
    if text.endswith(("/", os.sep)) or path.name in ("", "..") or text == "~":
        raise ArgumentError(f"{text[:80]!a} names a folder", "Name a file in it: ./name.json")
    return path if path.suffix in (".json", ".md") else path.with_name(path.name + ".json")


def exists(path: Path) -> bool:
    """Whether something of that name is there. Raises `FileError` where it cannot be told."""
    try:
        return path.exists() or path.is_symlink()
    except OSError as e:
        raise _refused("look at", path, e) from e


def save(path: Path, saved: Saved) -> None:
    """Writes a file, whole or not at all. Raises `FileError`."""
    text = _markdown(saved) if path.suffix == ".md" else _json(saved)
    try:
        if path.parent == folder():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path, mode=0o600) as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as e:
        raise _refused("write", path, e) from e


def load(path: Path) -> Saved:
    """Reads a file that `save` wrote. Raises `FileError`, and `FormatError` for any other."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as e:
        raise FileError(f"cannot read {path}: {e.strerror or e}") from e
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is longer than {MAX_BYTES:,} bytes")
        return _checked(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArgumentError) as e:
        reason = f"{type(e).__name__} {e}"[:120]
        raise FormatError(f"{path} is not a conversation, or damaged: {reason}") from e


def _refused(action: str, path: Path, error: OSError) -> FileError:
    kept = "The conversation is still here: /save it again."
    return disk_error(action, path, error, kept=kept, movable=path.parent == folder())


def _json(saved: Saved) -> str:
    now = moments.iso()
    return json.dumps({"version": VERSION, "saved": now, **vars(saved)}, indent=1) + "\n"


def _checked(data: dict[str, Any]) -> Saved:
    if data["version"] != VERSION:
        raise ValueError(f"its version is {data['version']!r:.20}")
    if not isinstance(data["messages"], list):
        raise TypeError("its messages are no list")
    messages: list[Message] = []
    for given in data["messages"]:
        if given["role"] not in _ROLES:
            raise ValueError(f"a role is {given['role']!r:.20}")
        message = {"role": given["role"], "content": _text(given["content"])}
        message |= {key: _text(given[key]) for key in _TEXTS if key in given}
        if "images" in given:
            message["images"] = [_text(image) for image in given["images"]]
        messages.append(message)
    think = data["think"]
    if think not in (None, True, False, "low", "medium", "high"):
        raise ValueError(f"think is {think!r:.20}")
    params = GenerateParams(**data["params"]).changed()
    return Saved(
        model=_text(data["model"]),
        digest=None if data["digest"] is None else _text(data["digest"]),
        system=None if data["system"] is None else _text(data["system"]),
        think=think,
        params={name: params.get(name, data["params"][name]) for name in data["params"]},
        messages=messages,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is {type(value).__name__}")
    value.encode("utf-8")  # no lone surrogates
    return value


def _markdown(saved: Saved) -> str:
    parts = [f"# A conversation with {saved.model}"]
    if saved.system is not None:
        parts += ["## System", saved.system]
    for message in saved.messages:
        parts.append("## Question" if message["role"] == "user" else "## Answer")
        if reasoning := message.get("reasoning_content"):
            quoted = "\n".join(f"> {line}".rstrip() for line in reasoning.splitlines())
            parts += ["> *Reasoning*\n>\n" + quoted]
        parts.append(message["content"])
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"
