"""What a model carries beside its weights: a template, instructions, parameters, a licence, the
first messages of a conversation. They come from a Modelfile or from a registry, and lie in the
model's record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from localllm.errors import ArgumentError, FormatError
from localllm.params import PARAMETERS, find

MAX_TEXT = 1 << 20  # characters of a template, of instructions, of a licence
MAX_MESSAGES = 256
ROLES = ("system", "user", "assistant")

#: Parameters of a load, which `run` has options for: name -> (least, most).
AT_LOAD = {"num_ctx": (1, 2**24), "num_thread": (0, 1024)}
#: Ollama's parameters that mean nothing here, and why.
WITHOUT_EFFECT = {
    "num_gpu": "layers are not split between devices",
    "main_gpu": "layers are not split between devices",
    "num_batch": "the engine chooses its batches",
    "num_keep": "a context is never cut silently",
    "use_mmap": "weights are read once and packed",
    "use_mlock": "memory is not locked",
    "numa": "memory is not bound to nodes",
    "low_vram": "layers are not split between devices",
    "draft_num_predict": "there are no draft models yet",
    "penalize_newline": "a line end counts as any token",
    "tfs_z": "this sampler is no longer anywhere",
}


@dataclass(frozen=True)
class Settings:
    """Texts are empty where nothing is set."""

    template: str = ""  # Jinja, or the Go of Ollama's registry
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of params.py, and of AT_LOAD
    messages: tuple[tuple[str, str], ...] = ()  # (role, content)
    licence: str = ""  # the whole text

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))

    @property
    def sampling(self) -> dict[str, Any]:
        """The parameters of answers."""
        return {name: value for name, value in self.parameters.items() if name in PARAMETERS}

    def at_load(self, name: str) -> int:
        """A parameter of AT_LOAD, 0 if it is not set."""
        return int(self.parameters.get(name, 0))

    def document(self) -> dict[str, Any]:
        """As JSON holds it: only what is set."""
        return {name: value for name, value in asdict(self).items() if value}


NOTHING_SET = Settings()


def from_document(document: Any) -> Settings:
    """The settings in a record, every field checked. Raises `ValueError` naming the field."""
    if not isinstance(document, Mapping):
        raise ValueError("settings is not a JSON object")
    texts: dict[str, str] = {}
    for name in ("template", "system", "licence"):
        value = document.get(name, "")
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise ValueError(f"settings.{name} is no text of at most {MAX_TEXT} characters")
        texts[name] = value
    parameters = document.get("parameters", {})
    messages = document.get("messages", [])
    if not isinstance(parameters, Mapping) or not isinstance(messages, list):
        raise ValueError("settings.parameters or settings.messages has a wrong form")
    try:
        checked = dict(parameter(str(name), value) for name, value in parameters.items())
        said = tuple(_message(each) for each in messages[: MAX_MESSAGES + 1])
    except (ArgumentError, FormatError) as e:
        raise ValueError(f"settings: {e.message}") from e
    if len(said) > MAX_MESSAGES:
        raise ValueError(f"settings.messages has more than {MAX_MESSAGES}")
    return Settings(parameters=checked, messages=said, **texts)


def parameter(name: str, value: Any) -> tuple[str, Any]:
    """The name in our words, and the checked value (of a text as people type it, or of JSON).
    Raises `ArgumentError` for a name that nobody knows and for a value out of range."""
    if name in AT_LOAD:
        low, high = AT_LOAD[name]
        try:
            number = int(str(value)[:40])
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise ArgumentError(
                f"{name}: {str(value)[:80]!a} is out of range", f"It may be from {low} to {high}."
            )
        return name, number
    row = find(name)
    if isinstance(value, str) and row.kind != "strings":
        return row.name, row.parse(value)
    return row.name, row.checked(value)


def _message(value: Any) -> tuple[str, str]:
    if isinstance(value, Mapping):
        value = (value.get("role"), value.get("content"))
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise FormatError("a message is not a role with a content")
    role, content = value
    if role not in ROLES or not isinstance(content, str) or len(content) > MAX_TEXT:
        raise FormatError(
            f"a message has the role {str(role)[:40]!a}: it may be {', '.join(ROLES)}"
        )
    return role, content
