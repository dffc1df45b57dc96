"""The lock file: for each name that was pulled, where it came from and every hash, so that the same
name brings the same bytes next time, on this machine or on another one that the file is copied to.

`models.lock.json` in the configuration folder is meant to be read and kept under version control.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localllm import paths
from localllm.errors import ArgumentError, FileError, FormatError
from localllm.store.durable import disk_error, replacing
from localllm.store.identifiers import SHA256
from localllm.store.ref import Ref, parse

if TYPE_CHECKING:
    from localllm.store.offer import Offer

NAME = "models.lock.json"
VERSION = 1
MAX_BYTES = 16 << 20
_WAIT_S = 10.0  # for another process to finish a write of some milliseconds


@dataclass(frozen=True)
class PinnedFile:
    """A file as it was when it was pulled."""

    name: str  # as the source calls it
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Pin:
    """Where a model came from."""

    source: str  # a key of store/sources
    repository: str
    revision: str
    quantization: str  # "" where the source did not say
    files: tuple[PinnedFile, ...]


class Lockfile:
    """The lock file at `path`, which need not exist. Every call reads it anew: other processes may
    have written to it."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or paths.current().config / NAME

    def canonical(self, ref: Ref) -> Ref:
        """The name in the store that `ref` led to when it was pulled, else `ref` itself."""
        names, _ = self._read()
        return names.get(ref, ref)

    def find(self, ref: Ref) -> Pin | None:
        """The pin of a name, as asked for or as it is called in the store. Raises `FormatError` for
        a damaged file."""
        names, pins = self._read()
        return pins.get(names.get(ref, ref))

    def all(self) -> dict[Ref, Pin]:
        """Every pin by its name in the store."""
        return self._read()[1]

    def pin(self, asked: Ref, offer: Offer, hashes: Mapping[str, tuple[int, str]]) -> None:
        """Writes down what was pulled for `asked`. hashes: the verified (size, sha256) of every
        file of the offer, by name. Raises `FileError`."""
        files = []
        for file in offer.files:
            size, sha256 = hashes[file.name]
            files.append(PinnedFile(file.name, size, sha256))
        pin = Pin(offer.source, offer.repository, offer.revision, offer.quantization, tuple(files))
        with self._alone():
            names, pins = self._read()
            pins[offer.ref] = pin
            if asked != offer.ref:
                names[asked] = offer.ref
            self._write(names, pins)

    def _write(self, names: Mapping[Ref, Ref], pins: Mapping[Ref, Pin]) -> None:
        document = {
            "version": VERSION,
            "names": {str(asked): str(ref) for asked, ref in sorted(names.items())},
            "models": {str(ref): asdict(pin) for ref, pin in sorted(pins.items())},
        }
        try:
            with replacing(self.path) as file:
                file.write(json.dumps(document, indent=1).encode() + b"\n")
        except OSError as e:
            raise disk_error("write", self.path, e) from e

    def _read(self) -> tuple[dict[Ref, Ref], dict[Ref, Pin]]:
        try:
            if self.path.stat().st_size > MAX_BYTES:
                raise FormatError(f"{self.path} has more than {MAX_BYTES} bytes", self._hint())
            data = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return {}, {}
        except OSError as e:
            raise disk_error("read", self.path, e) from e
        try:
            return _parse(json.loads(data))
        except (ValueError, TypeError, RecursionError, ArgumentError) as e:
            raise FormatError(f"{self.path} is damaged: {str(e)[:200]}", self._hint()) from e

    def _hint(self) -> str:
        return f"Repair it, or delete it: then the next pulls take what is there. ({self.path})"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps two processes from each writing what it read before the other one wrote."""
        paths.ensure(self.path.parent)
        guard = self.path.with_name(f".{NAME}.busy")
        until = time.monotonic() + _WAIT_S
        while True:
            try:
                os.close(os.open(guard, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
                break
            except FileExistsError:
                _clear_if_old(guard)
                if time.monotonic() > until:
                    raise FileError(
                        f"another process has been writing {self.path} for {_WAIT_S:.0f} s",
                        f"If there is none, delete {guard}",
                    ) from None
                time.sleep(0.01)
            except OSError as e:
                raise disk_error("write", guard, e) from e
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                guard.unlink()


def outdated(pin: Pin, offer: Offer) -> str:
    """What a source offers otherwise than it was pulled, in a few words; "" if the files are the
    same, whatever the revision."""
    there = [(file.name, file.size, file.sha256) for file in offer.files]
    if len(there) != len(pin.files):
        return f"{len(there)} files instead of {len(pin.files)}"
    changed = 0
    for (_, size, sha256), file in zip(there, pin.files, strict=True):
        same_size = size is None or size == file.size
        changed += not (same_size and (sha256 is None or sha256 == file.sha256))
    if not changed:
        return ""
    what = "another file" if len(there) == 1 else f"{changed} of {len(there)} files differ"
    return f"{what} at {offer.revision[:12]}, pulled at {pin.revision[:12]}"


def _clear_if_old(guard: Path) -> None:
    """Takes away a guard whose process has died; a living one holds it for milliseconds."""
    with contextlib.suppress(OSError):
        if time.time() - guard.stat().st_mtime > _WAIT_S / 2:
            guard.unlink()


def _parse(document: Any) -> tuple[dict[Ref, Ref], dict[Ref, Pin]]:
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"it is no JSON object of version {VERSION}")
    names = {parse(a): parse(_text(b)) for a, b in _object(document, "names").items()}
    pins = {parse(name): _pin(pin) for name, pin in _object(document, "models").items()}
    return names, pins


def _object(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} is no JSON object")
    return value


def _pin(document: Any) -> Pin:
    if not isinstance(document, dict) or not isinstance(document.get("files"), list):
        raise ValueError("a model in it has no list of files")
    files = tuple(_file(file) for file in document["files"])
    if not files:
        raise ValueError("a model in it has no file")
    source, repository, revision, quantization = (
        _text(document.get(key)) for key in ("source", "repository", "revision", "quantization")
    )
    return Pin(source, repository, revision, quantization, files)


def _file(document: Any) -> PinnedFile:
    if not isinstance(document, dict):
        raise ValueError("a file in it is no JSON object")
    size, sha256 = document.get("size"), document.get("sha256")
    if type(size) is not int or size < 0:
        raise ValueError(f"the size {size!r:.40} is no number of bytes")
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256!r:.80} is no sha256")
    return PinnedFile(_text(document.get("name")), size, sha256)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{value!r:.40} is no text of one line")
    return value
