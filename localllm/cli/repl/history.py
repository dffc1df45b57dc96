"""What was typed before: a file with one JSON string a line, readable only by its owner.

LOCALLLM_NO_HISTORY keeps it from being read or written. Nothing here may stop a conversation: a
file that cannot be read or written is only remarked on.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from localllm import paths
from localllm.errors import LocalLLMError
from localllm.store.durable import replacing

VARIABLE = "LOCALLLM_NO_HISTORY"
MAX_ENTRIES = 1000
MAX_CHARACTERS = 4096  # a longer text is not kept
_SLACK = 2  # the file is shortened when it holds so many times MAX_ENTRIES


def environment_allows() -> bool:
    """Whether what is typed may be kept at all."""
    return not os.environ.get(VARIABLE)


class HistoryFile:
    """The texts of earlier conversations, oldest first; several programs may add at once."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or paths.current().data / "history"
        self.enabled = environment_allows()
        self.problem: str | None = None  # the first thing that the system refused

    def read(self) -> list[str]:
        """The newest MAX_ENTRIES texts. A damaged line is left out."""
        if not self.enabled:
            return []
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as e:
            self._refused(e)
            return []
        texts = [text for text in map(_text, lines) if text]
        if len(lines) > _SLACK * MAX_ENTRIES:
            self._rewrite(texts[-MAX_ENTRIES:])
        return texts[-MAX_ENTRIES:]

    def add(self, text: str) -> None:
        """Appends a text."""
        if not self.enabled or not text.strip() or len(text) > MAX_CHARACTERS:
            return
        try:
            paths.ensure(self.path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            with os.fdopen(os.open(self.path, flags, 0o600), "wb") as file:
                file.write(_line(text))
        except (OSError, LocalLLMError) as e:
            self._refused(e)

    def _rewrite(self, texts: list[str]) -> None:
        try:
            with replacing(self.path, mode=0o600) as file:
                file.writelines(map(_line, texts))
        except OSError as e:
            self._refused(e)

    def _refused(self, e: Exception) -> None:
        reason = getattr(e, "strerror", None) or str(e)
        self.problem = self.problem or f"what is typed is not kept in {self.path}: {reason}"


def _line(text: str) -> bytes:
    return json.dumps(text).encode() + b"\n"


def _text(line: bytes) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    # Characters that no text can hold would come back from a damaged file.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
