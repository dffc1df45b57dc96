"""Modelfiles: a model made of another one and settings of one's own.

Format: https://github.com/ollama/ollama/blob/main/docs/modelfile.md. An instruction is a word and
a value on one line, or a value in triple quotes on several. Words are in any case; lines that
begin with # are comments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from localllm.errors import ArgumentError, FormatError, UnsupportedError
from localllm.params import PARAMETERS
from localllm.store.settings import (
    MAX_MESSAGES,
    MAX_TEXT,
    ROLES,
    WITHOUT_EFFECT,
    Settings,
    parameter,
)

MAX_BYTES = 4 << 20
_LINE = re.compile(r"[ \t]*([A-Za-z]+)(?:[ \t]+(.*))?", re.DOTALL)
_TRIPLE = '"""'
INSTRUCTIONS = (
    "FROM",
    "PARAMETER",
    "TEMPLATE",
    "SYSTEM",
    "LICENSE",
    "MESSAGE",
    "ADAPTER",
    "REQUIRES",
    "RENDERER",
    "PARSER",
)
#: Words of Ollama that change nothing here, and what they are.
_WITHOUT_EFFECT = {
    "REQUIRES": "a version of Ollama",
    "RENDERER": "a format that is part of Ollama's code: the model's own template is used",
    "PARSER": "a format that is part of Ollama's code: the model's own template is used",
}
#: Values by which Ollama says "as without this line".
_DEFAULTS = {("num_predict", "-1"), ("num_predict", "-2"), ("seed", "-1")}


@dataclass(frozen=True)
class Modelfile:
    """base: what FROM names: a model or a path. notes: a line for each word without effect."""

    base: str
    settings: Settings
    notes: tuple[str, ...] = ()


def parse(text: str) -> Modelfile:
    """Reads a Modelfile. Raises `FormatError` with the line, `ArgumentError` for a parameter that
    is unknown or out of range, `UnsupportedError` for ADAPTER."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise FormatError(f"the Modelfile is longer than {MAX_BYTES:,} bytes")
    reader = _Reader(text)
    base, settings, notes = "", Settings(), []
    while instruction := reader.next():
        line, word, value = instruction
        try:
            if word == "FROM":
                if base:
                    raise FormatError("FROM is there twice", "A model has one base.")
                base = _unquoted(value)
            elif word in _WITHOUT_EFFECT:
                notes.append(f"{word} {value[:40]}: without effect, {_WITHOUT_EFFECT[word]}")
            elif word == "PARAMETER":
                name, rest = _first_word(value)
                if name.lower() in WITHOUT_EFFECT:
                    notes.append(
                        f"PARAMETER {name}: without effect, {WITHOUT_EFFECT[name.lower()]}"
                    )
                elif (name.lower(), rest.strip()) not in _DEFAULTS:
                    settings = _with_parameter(settings, name, _unquoted(rest.strip()))
            else:
                settings = _SETTERS[word](settings, value)
        except (FormatError, ArgumentError, UnsupportedError) as e:
            raise type(e)(f"Modelfile line {line}: {e.message}", e.hint) from None
    if not base:
        raise FormatError(
            "the Modelfile has no FROM", "FROM names the model or file it is based on."
        )
    return Modelfile(base, settings, tuple(notes))


def render(base: str, settings: Settings) -> str:
    """A Modelfile that `parse` reads back to the same settings."""
    lines = [f"FROM {base}"]
    for name, value in settings.parameters.items():
        lines += [f"PARAMETER {name} {shown}" for shown in _shown(name, value)]
    for word, text in (("TEMPLATE", settings.template), ("SYSTEM", settings.system)):
        if text:
            lines.append(f"{word} {_quoted(text)}")
    lines += [f"MESSAGE {role} {_quoted(content)}" for role, content in settings.messages]
    if settings.licence:
        lines.append(f"LICENSE {_quoted(settings.licence)}")
    return "\n".join(lines) + "\n"


def _shown(name: str, value: Any) -> list[str]:
    """The values of a parameter's lines: texts have one each."""
    kind = PARAMETERS[name].kind if name in PARAMETERS else int
    if kind == "strings":
        return [_quoted(text) for text in value]
    if kind == "bias":
        return [",".join(f"{token}:{bias}" for token, bias in value)]
    if kind == "order":
        return [",".join(value)]
    return [str(value).lower()]


class _Reader:
    """Instructions one after another, with the line each begins on."""

    def __init__(self, text: str) -> None:
        self._lines = text.replace("\r\n", "\n").removeprefix("\ufeff").split("\n")
        self._at = 0

    def next(self) -> tuple[int, str, str] | None:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            number = self._at
            match = _LINE.fullmatch(line)
            word = match[1].upper() if match else ""
            if match is None or word not in INSTRUCTIONS:
                raise FormatError(
                    f"Modelfile line {number}: {line.strip()[:60]!a} is no instruction",
                    f"There are {', '.join(INSTRUCTIONS)}.",
                )
            value = self._value((match[2] or "").lstrip(), number)
            if not value.strip():
                raise FormatError(f"Modelfile line {number}: {word} has no value")
            if len(value) > MAX_TEXT:
                raise FormatError(
                    f"Modelfile line {number}: {word} has {len(value):,} characters, at most "
                    f"{MAX_TEXT:,} are allowed"
                )
            return number, word, value
        return None

    def _value(self, text: str, number: int) -> str:
        """The value, over more lines where triple quotes open and do not close, or where a text of
        several lines begins with a plain one and a later line ends with it."""
        opening = text.find(_TRIPLE)
        if opening < 0:
            return self._plainly_quoted(text.strip())
        before, rest = text[:opening], text[opening + 3 :]
        pieces = [rest]
        while _TRIPLE not in pieces[-1]:
            if self._at >= len(self._lines):
                raise FormatError(f'Modelfile line {number}: """ is never closed')
            pieces.append(self._lines[self._at])
            self._at += 1
        inside, _, after = "\n".join(pieces).partition(_TRIPLE)
        if after.strip():
            raise FormatError(
                f'Modelfile line {self._at}: {after.strip()[:40]!a} stands behind """'
            )
        return f"{before}{_TRIPLE}{inside}{_TRIPLE}"

    def _plainly_quoted(self, text: str) -> str:
        """`text`, and the lines up to the next quote if it has only one, at its beginning. Without
        such a line, or where an instruction comes before it, the quote is a part of the text."""
        if text.count('"') != 1 or not text.startswith('"'):
            return text
        pieces = [text]
        for line in self._lines[self._at :]:
            word = line.split(None, 1)[:1]
            if word and word[0].upper() in INSTRUCTIONS:
                return text
            pieces.append(line)
            if '"' in line:
                break
        if len(pieces) == 1 or not pieces[-1].rstrip().endswith('"') or pieces[-1].count('"') != 1:
            return text
        self._at += len(pieces) - 1
        return "\n".join(pieces).rstrip()


def _first_word(value: str) -> tuple[str, str]:
    """A word, and what stands behind the blanks or tabs that follow it."""
    word, *rest = value.split(None, 1)
    return word, rest[0] if rest else ""


def _unquoted(value: str) -> str:
    """A value without its quotes, triple or plain ones."""
    for quote in (_TRIPLE, '"'):
        if len(value) >= 2 * len(quote) and value.startswith(quote) and value.endswith(quote):
            return value[len(quote) : -len(quote)]
    return value


def _quoted(text: str) -> str:
    return f'"{text}"' if _plain(text) else f"{_TRIPLE}{text}{_TRIPLE}"


def _plain(text: str) -> bool:
    return "\n" not in text and '"' not in text and text == text.strip() and text != ""


def _with_parameter(settings: Settings, name: str, value: str) -> Settings:
    key, checked = parameter(name.lower(), value)
    if key in PARAMETERS and PARAMETERS[key].kind == "strings":  # every line adds one
        checked = parameter(key, [*settings.parameters.get(key, ()), *checked])[1]
    return replace(settings, parameters={**settings.parameters, key: checked})


def _with_message(settings: Settings, value: str) -> Settings:
    role, content = _first_word(value)
    role, content = role.lower(), _unquoted(content.strip())
    if role not in ROLES:
        raise FormatError(f"a message of {role[:40]!a}", f"It may be of {', '.join(ROLES)}.")
    if len(settings.messages) == MAX_MESSAGES:
        raise FormatError(f"there are more than {MAX_MESSAGES} messages")
    return replace(settings, messages=(*settings.messages, (role, content)))


def _refuse_adapter(settings: Settings, value: str) -> Settings:
    raise UnsupportedError(
        f"ADAPTER {value[:80]}: adapters are not supported yet",
        "Merge the adapter into the model with its own tools, and use the merged GGUF file.",
    )


_SETTERS: dict[str, Any] = {
    "TEMPLATE": lambda settings, value: replace(settings, template=_unquoted(value)),
    "SYSTEM": lambda settings, value: replace(settings, system=_unquoted(value)),
    "LICENSE": lambda settings, value: replace(
        settings, licence="\n\n".join(filter(None, (settings.licence, _unquoted(value))))
    ),
    "MESSAGE": _with_message,
    "ADAPTER": _refuse_adapter,
}
