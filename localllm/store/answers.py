"""Records of answers, so that each can be given again, byte for byte.

A record holds all that decides an answer: the model's digest, the engine and its arithmetic, the
parameters with the seed, and the prompt as token ids. Its id is a hash of these, so the same
question asked in the same way has the same id, on any machine. Records hold what people wrote:
they are readable only by their owner, and the oldest go when there are more than MAX_RECORDS or
they take more than MAX_BYTES.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from localllm.errors import ArgumentError, FileError, FormatError, LocalLLMError
from localllm.params import GenerateParams
from localllm.paths import ensure
from localllm.store.durable import TEMPORARY, disk_error, replacing

MAX_BYTES = 64 << 20
MAX_RECORDS = 2000
ID_CHARACTERS = 12
VERSION = 1
NO_RECORDS_VARIABLE = "LOCALLLM_NO_RECORDS"
_ID = re.compile(r"[0-9a-f]{12}")
_PREFIX = re.compile(r"[0-9a-f]{4,12}")
#: A temporary file of this age was left behind by a process that died.
_ABANDONED_S = 3600

T = TypeVar("T")


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
        """Writes a record, in place of one with the same id, and drops the oldest beyond the
        limits. An answer that was cancelled does not replace the same one that went on for longer.
        Raises `FileError`; then the records are what they were."""
        path = self.folder / f"{answer.id}.json"
        try:
            _make_private(self.folder)
            if answer.finish_reason == "cancelled" and self._has_more(path, answer):
                path.touch()
            else:
                with replacing(path, mode=0o600) as file:
                    file.write(json.dumps({"version": VERSION, **asdict(answer)}).encode())
        except OSError as e:
            error = disk_error("write the record", path, e)
            error.hint = f"Without records, set {NO_RECORDS_VARIABLE}=1. {error.hint or ''}".strip()
            raise error from e
        self._trim(keep=path)
        return path

    def find(self, prefix: str) -> Answer:
        """The record whose id begins so. Raises `ArgumentError` if there is none, or more than
        one, `FormatError` for a damaged file."""
        return _read(self._locate(prefix))

    def newest(
        self,
        limit: int | None = None,
        on_problem: Callable[[LocalLLMError], None] = lambda error: None,
    ) -> list[Answer]:
        """The records that can be read, newest first, at most `limit`. `on_problem` is told of the
        others."""
        found: list[Answer] = []
        for path in self._files():
            if limit is not None and len(found) >= limit:
                break
            try:
                found.append(_read(path))
            except (FormatError, FileError) as e:
                on_problem(e)
        return found

    def delete(self, prefix: str) -> str:
        """Deletes the record whose id begins so, also a damaged one; returns the id. Raises the
        errors of `find`, and `FileError`."""
        path = self._locate(prefix)
        _unlink(path)
        return path.stem

    def delete_all(self) -> int:
        """Deletes every record, and what writers that died left behind; returns how many records
        there were. Raises `FileError`."""
        paths = self._files()
        for path in [*paths, *self._abandoned(0)]:
            _unlink(path)
        return len(paths)

    def _locate(self, prefix: str) -> Path:
        wanted = prefix.strip().lower()
        if not _PREFIX.fullmatch(wanted):
            raise ArgumentError(
                f"{prefix[:40]!a} is no id of an answer",
                "An id is 4 to 12 of the digits 0 to 9 and a to f. See: localllm replay --list",
            )
        files = self._files()
        paths = [path for path in files if path.stem.startswith(wanted)]
        if len(paths) == 1:
            return paths[0]
        if paths:
            shown = ", ".join(sorted(path.stem for path in paths)[:5])
            raise ArgumentError(
                f"{len(paths)} answers begin with {wanted}: {shown}", "Give more digits of the id."
            )
        raise ArgumentError(
            f"there is no answer {wanted} on this machine",
            "See: localllm replay --list"
            if files
            else f"No answer is recorded yet. `localllm run` does it unless {NO_RECORDS_VARIABLE} "
            "is set.",
        )

    def _files(self) -> list[Path]:
        """Records, newest first; the name decides between files of one moment."""
        dated = []
        try:
            for entry in os.scandir(self.folder):
                path = Path(entry.path)
                if path.suffix == ".json" and _ID.fullmatch(path.stem):
                    with contextlib.suppress(OSError):  # deleted meanwhile
                        dated.append((entry.stat().st_mtime_ns, path.name, path))
        except FileNotFoundError:
            return []
        except OSError as e:
            raise disk_error("read the records in", self.folder, e) from e
        return [path for _, _, path in sorted(dated, reverse=True)]

    def _abandoned(self, seconds: float) -> list[Path]:
        """Temporary files that nobody has written to for so long."""
        found = []
        for path in self.folder.glob(f".*{TEMPORARY}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime >= seconds:
                    found.append(path)
        return found

    def _trim(self, keep: Path) -> None:
        total = 0
        for n, path in enumerate(self._files(), 1):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
                if (total > MAX_BYTES or n > MAX_RECORDS) and path != keep:
                    path.unlink()
        for path in self._abandoned(_ABANDONED_S):
            with contextlib.suppress(OSError):
                path.unlink()

    @staticmethod
    def _has_more(path: Path, answer: Answer) -> bool:
        try:
            there = _read(path).token_ids
        except (FileError, FormatError):
            return False
        n = len(answer.token_ids)
        return len(there) > n and there[:n] == answer.token_ids


def environment_allows() -> bool:
    """Whether records are kept at all: LOCALLLM_NO_RECORDS turns them off."""
    return not os.environ.get(NO_RECORDS_VARIABLE)


def _make_private(folder: Path) -> None:
    """Makes the folder so that others could not look into it at any moment."""
    ensure(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if os.name == "posix" and stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.chmod(0o700)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as e:
        raise disk_error("delete", path, e) from e


def _read(path: Path) -> Answer:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"the record {path} is not a regular file")
        if status.st_size > MAX_BYTES:
            raise FormatError(
                f"the record {path} has {status.st_size} bytes, at most {MAX_BYTES} are read"
            )
        data = path.read_bytes()
    except OSError as e:
        raise FileError(f"cannot read the record {path}: {e.strerror or e}") from e
    try:
        answer = _parse(json.loads(data))
        if answer.id != path.stem:
            raise ValueError(f"what it holds has the id {answer.id}")
    except (ValueError, TypeError, RecursionError, ArgumentError) as e:
        reason = f"{e}"[:200] or type(e).__name__
        raise FormatError(
            f"the record {path} is damaged: {reason}",
            f"Delete it with: localllm replay --delete {path.stem}",
        ) from e
    return answer


def _parse(document: Any) -> Answer:
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    if document.get("version") != VERSION:
        raise ValueError(f"its version is {document.get('version')!r:.40}, expected {VERSION}")
    fingerprint = _typed(Fingerprint, document.get("fingerprint"))
    GenerateParams(**fingerprint.params)  # the error of a bad one
    return _typed(Answer, {**document, "fingerprint": fingerprint})


#: By a field's annotation: whether a value from JSON is of that kind.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: type(value) is str,
    "int": lambda value: type(value) is int,
    "bool": lambda value: type(value) is bool,
    "dict[str, Any]": lambda value: type(value) is dict,
    "tuple[int, ...]": lambda value: (
        type(value) is list and all(type(n) is int and 0 <= n < 2**31 for n in value)
    ),
    "Fingerprint": lambda value: isinstance(value, Fingerprint),
}


def _typed(kind: type[T], document: Any) -> T:
    """A dataclass from a JSON object. Raises ValueError naming the field."""
    if not isinstance(document, dict):
        raise ValueError(f"its {kind.__name__.lower()} is not a JSON object")
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = document.get(field.name)
        if not _KINDS[str(field.type)](value):
            raise ValueError(f"{field.name} is {value!r:.40}, expected {field.type}")
        values[field.name] = tuple(value) if type(value) is list else value
    return kind(**values)
