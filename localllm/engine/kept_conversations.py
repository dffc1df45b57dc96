"""Which of the pages and tokens on the disk were computed for which conversation, so that they can
be deleted with it: one file a conversation, `<cache>/conversations/<hash of its id>`.

A line of JSON is added when a prompt is known and when its answer ends. It has the folder of the
pages, where their chain begins, and all tokens, but for those that are the same as in the line
before. A last line that a kill cut short counts as not there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from localllm.engine import kv_files, transcript_files
from localllm.engine.blocks import BLOCK_TOKENS
from localllm.engine.kv_files import DamagedPageError
from localllm.engine.kv_pages import Page, n_common, page_name

log = logging.getLogger("localllm.engine")


@dataclass(frozen=True)
class KeptAt:
    """Where a caller's pages lie. folder: below `Paths.kv`, with slashes. start: the name that its
    first pages have as their parent."""

    folder: str
    start: str

    @staticmethod
    def of(document: object) -> KeptAt | None:
        """From what another process said; None: it keeps nothing, or says no such thing."""
        if not isinstance(document, dict):
            return None
        folder, start = document.get("folder"), document.get("start")
        if not isinstance(folder, str) or not isinstance(start, str) or not _is_inside(folder):
            return None
        return KeptAt(folder, start)


@dataclass
class _Kept:
    at: KeptAt
    tokens: list[int] = field(default_factory=list)


class KeptConversations:
    """kv: `Paths.kv`; folder: `Paths.kept_conversations`. A disk that refuses costs the note."""

    def __init__(self, kv: Path, folder: Path) -> None:
        self._kv, self._folder = kv, folder
        self._last: dict[str, _Kept] = {}  # of conversations that were noted here

    def note(self, conversation: str, at: KeptAt, tokens: Sequence[int]) -> None:
        """These tokens are computed for a conversation."""
        path = self._path(conversation)
        last = self._last.get(conversation)
        if last is None or not path.exists():
            last = (self._read(path) or [_Kept(at)])[-1]
        same = n_common(last.tokens, tokens) if last.at == at else 0
        if same == len(tokens):
            return
        line = {
            "folder": at.folder,
            "start": at.start,
            "same": same,
            "tokens": list(tokens[same:]),
        }
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            kv_files.private_folder(self._folder)
            _append(path, json.dumps(line).encode())
        except OSError as e:
            log.warning("what is kept of a conversation is not noted: %s", e.strerror or e)
            return
        self._last[conversation] = _Kept(at, list(tokens))

    def forget(self, conversation: str) -> int:
        """Deletes what was kept for a conversation, but for pages that what is left goes on from.
        Returns the bytes."""
        path = self._path(conversation)
        kept = self._read(path)
        freed = 0
        for at in {each.at for each in kept}:
            sequences = [each.tokens for each in kept if each.at == at]
            folder = self._kv / at.folder
            freed += _forget_pages(folder, bytes.fromhex(at.start), sequences)
            freed += _forget_tokens(folder.parent / "transcripts", sequences)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        self._last.pop(conversation, None)
        return freed

    def _path(self, conversation: str) -> Path:
        name = blake2b(conversation.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return self._folder / name

    def _read(self, path: Path) -> list[_Kept]:
        """The whole lines of a file, each with all its tokens."""
        found: list[_Kept] = []
        try:
            descriptor = kv_files.opened(path)
            try:
                raw = kv_files.read(descriptor, 0, os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)
        except (OSError, DamagedPageError):
            return []
        for line in raw.splitlines():
            try:
                document = json.loads(line)
                at, same = KeptAt.of(document), int(document["same"])
                tokens = [int(token) for token in document["tokens"]]
                bytes.fromhex(document["start"])
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue
            if at is not None:
                before = found[-1].tokens[:same] if found else []
                found.append(_Kept(at, before + tokens))
        return found


def _append(path: Path, line: bytes) -> None:
    """A line that was cut short before stays on its own."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, kv_files.FILE_MODE)
    try:
        size = os.fstat(descriptor).st_size
        torn = size and kv_files.read(descriptor, size - 1, 1) != b"\n"
        os.write(descriptor, b"\n" * bool(torn) + line + b"\n")
    finally:
        os.close(descriptor)


def _is_inside(folder: str) -> bool:
    """Whether a folder is <model>/<key>, as the disk tier names them."""
    parts = folder.split("/")
    return len(parts) == 2 and all(p.isascii() and p.isalnum() for p in parts)


def _forget_pages(folder: Path, start: bytes, sequences: Iterable[Sequence[int]]) -> int:
    children: dict[bytes, list[Page]] = {}
    for page in _pages(folder):
        children.setdefault(page.parent, []).append(page)
    own: dict[bytes, Page] = {}
    for tokens in sequences:
        for page in _pages_of(tokens, start, children):
            own[page.name] = page
    freed = 0
    for page in sorted(own.values(), key=lambda page: -page.depth):
        if children.get(page.name):
            continue  # of others, or could not be deleted
        n_bytes = _delete(folder / page.name.hex())
        if n_bytes:
            children[page.parent].remove(page)
            freed += n_bytes
    return freed


def _pages_of(
    tokens: Sequence[int], start: bytes, children: dict[bytes, list[Page]]
) -> Iterator[Page]:
    """Those that hold these tokens, and those that go on from the last of them: nobody was told of
    all that was computed."""
    name = start
    for begin in range(0, len(tokens) + 1, BLOCK_TOKENS):
        part = tuple(tokens[begin : begin + BLOCK_TOKENS])
        for page in children.get(name, ()):
            shared = n_common(page.tokens, part)
            if shared == len(page.tokens):
                yield page  # of these tokens alone
            elif shared == len(part):
                yield page
                yield from _descendants(page, children)
        name = page_name(name, part)


def _descendants(page: Page, children: dict[bytes, list[Page]]) -> Iterator[Page]:
    for child in children.get(page.name, ()):
        yield child
        yield from _descendants(child, children)


def _pages(folder: Path) -> Iterator[Page]:
    for path in _files(folder):
        with contextlib.suppress(OSError, DamagedPageError):
            yield kv_files.read_page(path)


def _forget_tokens(folder: Path, sequences: Sequence[Sequence[int]]) -> int:
    freed = 0
    for path in _files(folder):
        with contextlib.suppress(OSError, DamagedPageError):
            ids = transcript_files.read_ids(path)
            if any(n_common(ids, tokens) == len(ids) for tokens in sequences):
                freed += _delete(path)
    return freed


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _delete(path: Path) -> int:
    """The bytes that were freed; 0: it was not there, or cannot be deleted."""
    try:
        size = path.lstat().st_size
        path.unlink()
    except OSError:
        return 0
    return size
