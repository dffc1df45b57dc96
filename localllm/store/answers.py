"""Records of answers, so that each can be given again, byte for byte.

A record holds all that decides an answer: the model's digest, the engine and its arithmetic, the
parameters with the seed, and the prompt as token ids. Its id is a hash of these, so the same
question asked in the same way has the same id, on any machine. Records hold what people wrote:
they are readable only by their owner, and the oldest go when they take more than MAX_BYTES.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localllm.errors import ArgumentError, FileError, FormatError
from localllm.paths import ensure
from localllm.store.durable import disk_error, replacing

MAX_BYTES = 64 << 20
ID_CHARACTERS = 12
VERSION = 1
_ID = re.compile(r"[0-9a-f]{4,64}")


@dataclass(frozen=True)
class Fingerprint:
    """What decides an answer."""

    model_digest: str  # as store/digest.py gives it
    engine: str  # "native", or "llama.cpp" with its version
    arithmetic: int  # LLM_ARITHMETIC_VERSION; 0 where an engine promises nothing
    kv_type: str
    params: dict[str, Any]  # GenerateParams.changed()
    prompt_ids: tuple[int, ...]

    @property
    def id(self) -> str:
        text = json.dumps([VERSION, asdict(self)], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:ID_CHARACTERS]


@dataclass(frozen=True)
class Answer:
    """An answer with all that is needed to give it again."""

    fingerprint: Fingerprint
    model: str  # the name or path it was asked for by
    title: str  # the beginning of the question
    created: str  # ISO 8601, UTC
    token_ids: tuple[int, ...]
    text: str  # without the reasoning
    reasoning: str
    finish_reason: str
    opened: bool  # the prompt ended inside a reasoning block
    raw: bool  # a continuation, without a template: nothing in it is reasoning

    @property
    def id(self) -> str:
        return self.fingerprint.id


class Answers:
    """The records in a folder, one JSON file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, answer: Answer) -> Path:
        """Writes a record, in place of one with the same id, and drops the oldest beyond
        MAX_BYTES. Raises `FileError`."""
        ensure(self.folder)
        path = self.folder / f"{answer.id}.json"
        try:
            self.folder.chmod(0o700)
            with replacing(path) as file:
                path_of_file = Path(file.name)
                path_of_file.chmod(0o600)
                file.write(json.dumps({"version": VERSION, **asdict(answer)}).encode())
        except OSError as e:
            raise disk_error("write", path, e) from e
        self._trim(keep=path)
        return path

    def find(self, prefix: str) -> Answer:
        """The record whose id begins so. Raises `ArgumentError` if there is none, or more than
        one, `FormatError` for a damaged file."""
        prefix = prefix.strip().lower()
        if not _ID.fullmatch(prefix):
            raise ArgumentError(
                f"{prefix[:40]!a} is no id of an answer",
                "An id is 4 or more of the digits 0 to 9 and a to f: localllm replay --list",
            )
        paths = [path for path in self._files() if path.stem.startswith(prefix)]
        if len(paths) == 1:
            return _read(paths[0])
        if paths:
            shown = ", ".join(sorted(path.stem for path in paths)[:5])
            raise ArgumentError(f"{len(paths)} answers begin with {prefix}: {shown}")
        raise ArgumentError(
            f"there is no answer {prefix} on this machine", "See: localllm replay --list"
        )

    def newest(self) -> list[Answer]:
        """All records that can be read, newest first."""
        found = []
        for path in self._files():
            with contextlib.suppress(FormatError, FileError):
                found.append(_read(path))
        return found

    def delete_all(self) -> int:
        """Deletes every record; returns how many there were."""
        paths = self._files()
        for path in paths:
            path.unlink(missing_ok=True)
        return len(paths)

    def _files(self) -> list[Path]:
        """Newest first; the name decides between files of one moment."""
        dated = []
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(OSError):  # deleted meanwhile
                dated.append((path.stat().st_mtime_ns, path.name, path))
        return [path for _, _, path in sorted(dated, reverse=True)]

    def _trim(self, keep: Path) -> None:
        total = 0
        for path in self._files():
            with contextlib.suppress(OSError):
                total += path.stat().st_size
                if total > MAX_BYTES and path != keep:
                    path.unlink()


def _read(path: Path) -> Answer:
    try:
        data = json.loads(path.read_bytes())
        if data.pop("version") != VERSION:
            raise FormatError(f"{path} was written by another version of localllm")
        fingerprint = data.pop("fingerprint")
        fingerprint["prompt_ids"] = tuple(map(int, fingerprint["prompt_ids"]))
        data["token_ids"] = tuple(map(int, data["token_ids"]))
        return Answer(Fingerprint(**fingerprint), **data)
    except OSError as e:
        raise FileError(f"cannot read {path}: {e.strerror or e}") from e
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise FormatError(f"the record {path} is damaged: {e!r:.200}") from e


def environment_allows() -> bool:
    """Whether records are kept at all: LOCALLLM_NO_RECORDS turns them off."""
    return not os.environ.get("LOCALLLM_NO_RECORDS")
