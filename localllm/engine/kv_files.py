"""The format of a page on the disk: one file a page, private to its user.

    magic 8 | version u32 | groups u32 | tokens u32 | depth u32 | key 32 | name 32 | parent 32
    | token ids u32 [32] | per group: bytes u64, blake2b-256 of them | blake2b-256 of all above
    | contents, group after group

Little-endian. A group that is not there has 0 bytes. The file's name is the page's, in hexadecimal.
Nothing of a file is used that does not match its checksums, the key of what it is read for, and the
name that parent and tokens have.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from localllm.engine.blocks import BLOCK_TOKENS
from localllm.engine.kv_pages import Page, page_name
from localllm.store.durable import is_stale
from localllm.store.transfer.lease import started

VERSION = 1
FILE_MODE, FOLDER_MODE = 0o600, 0o700

_MAGIC = b"LLLMKVPG"
_HEAD = struct.Struct("<8sIIII32s32s32s")
_TOKENS = struct.Struct(f"<{BLOCK_TOKENS}I")
_GROUP = struct.Struct("<Q32s")
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_READ |= getattr(os, "O_NONBLOCK", 0)  # a pipe in the place of a file is not waited for
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_CREATE |= getattr(os, "O_NOFOLLOW", 0)


class DamagedPageError(Exception):
    """A file is not what its name says."""


@dataclass(frozen=True)
class Shape:
    """What all pages of a folder have in common. key [32]: hash of all that contents depend on
    besides tokens. block_bytes [n_groups]: of a whole block."""

    key: bytes
    block_bytes: tuple[int, ...]

    @property
    def header_bytes(self) -> int:
        return _HEAD.size + _TOKENS.size + _GROUP.size * len(self.block_bytes) + 32


@dataclass(frozen=True)
class Header:
    page: Page
    sizes: tuple[int, ...]  # of each group, 0: not there
    checksums: tuple[bytes, ...]


def write(path: Path, temporary: Path, shape: Shape, page: Page, contents: Sequence[bytes]) -> None:
    """Puts a page in its place; see `put`. Raises `OSError`."""
    head = _HEAD.pack(
        _MAGIC, VERSION, len(contents), len(page.tokens), page.depth,
        shape.key, page.name, page.parent,
    )  # fmt: skip
    head += _TOKENS.pack(*page.tokens, *(0 for _ in range(BLOCK_TOKENS - len(page.tokens))))
    for content in contents:
        head += _GROUP.pack(len(content), checksum(content))
    put(path, temporary, (head + checksum(head), *contents))


def put(path: Path, temporary: Path, parts: Sequence[bytes]) -> None:
    """Makes a private file, whole or not at all. Raises `OSError`."""
    descriptor = os.open(temporary, _CREATE, FILE_MODE)
    try:
        try:
            for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_header(path: Path, shape: Shape) -> Header:
    """Raises `DamagedPageError`, `FileNotFoundError` and other `OSError`."""
    descriptor = opened(path)
    try:
        return _header(descriptor, path, shape)
    finally:
        os.close(descriptor)


def read_page(path: Path) -> Page:
    """The page in a file of any shape, without a look at its contents. Raises what `read_header`
    does."""
    descriptor = opened(path)
    try:
        raw = read(descriptor, 0, _HEAD.size + _TOKENS.size)
    finally:
        os.close(descriptor)
    if len(raw) < _HEAD.size + _TOKENS.size:
        raise DamagedPageError("it is too short")
    magic, version, _, n_tokens, depth, _, name, parent = _HEAD.unpack_from(raw)
    if magic != _MAGIC or version != VERSION or not 1 <= n_tokens <= BLOCK_TOKENS:
        raise DamagedPageError("it is of another version, or of another program")
    tokens = _TOKENS.unpack_from(raw, _HEAD.size)[:n_tokens]
    if name.hex() != path.name or name != page_name(parent, tokens):
        raise DamagedPageError("its name is not that of its tokens")
    return Page(name, parent, tokens, depth)


def read_groups(path: Path, shape: Shape, page: Page, groups: Sequence[int]) -> dict[int, bytes]:
    """Contents of groups of a page, checked. Raises what `read_header` does."""
    descriptor = opened(path)
    try:
        header = _header(descriptor, path, shape)
        if header.page != page:
            raise DamagedPageError("it holds another page")
        found = {}
        for group in groups:
            begin = shape.header_bytes + sum(header.sizes[:group])
            content = read(descriptor, begin, header.sizes[group])
            if not content or checksum(content) != header.checksums[group]:
                raise DamagedPageError(f"the checksum of group {group} is wrong")
            found[group] = content
        return found
    finally:
        os.close(descriptor)


def opened(path: Path) -> int:
    """Of a regular file that nobody else can have written."""
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        raise
    except OSError as e:
        if path.is_symlink():
            raise DamagedPageError("it is a link") from e
        if path.exists() and not os.access(path, os.R_OK):
            raise DamagedPageError("it cannot be read") from e
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise DamagedPageError("it is no file of its own")
        if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o077):
            raise DamagedPageError(f"others have access (mode {found.st_mode & 0o777:o})")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _header(descriptor: int, path: Path, shape: Shape) -> Header:
    raw = read(descriptor, 0, shape.header_bytes)
    if len(raw) < shape.header_bytes:
        raise DamagedPageError("it is too short")
    magic, version, n_groups, n_tokens, depth, key, name, parent = _HEAD.unpack_from(raw)
    if magic != _MAGIC or version != VERSION:
        raise DamagedPageError("it is of another version, or of another program")
    if checksum(raw[:-32]) != raw[-32:]:
        raise DamagedPageError("the checksum of its header is wrong")
    if key != shape.key or n_groups != len(shape.block_bytes):
        raise DamagedPageError("it belongs to another model")
    if not 1 <= n_tokens <= BLOCK_TOKENS:
        raise DamagedPageError(f"it has {n_tokens} tokens")
    tokens = _TOKENS.unpack_from(raw, _HEAD.size)[:n_tokens]
    if name.hex() != path.name or name != page_name(parent, tokens):
        raise DamagedPageError("its name is not that of its tokens")
    at = _HEAD.size + _TOKENS.size
    groups = [_GROUP.unpack_from(raw, at + _GROUP.size * g) for g in range(n_groups)]
    sizes = tuple(size for size, _ in groups)
    if any(size not in (0, whole) for size, whole in zip(sizes, shape.block_bytes, strict=True)):
        raise DamagedPageError(f"its groups have {sizes} bytes")
    if os.fstat(descriptor).st_size != shape.header_bytes + sum(sizes):
        raise DamagedPageError("it is cut short, or too long")
    return Header(Page(name, parent, tokens, depth), sizes, tuple(sum_ for _, sum_ in groups))


def read(descriptor: int, begin: int, n_bytes: int) -> bytes:
    os.lseek(descriptor, begin, os.SEEK_SET)
    parts = []
    while n_bytes > 0 and (part := os.read(descriptor, n_bytes)):
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)


def checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=32).digest()


def clear_temporary(path: Path) -> None:
    """Deletes what a process that has gone left half written. Raises `OSError`."""
    number = path.name.split(".")[-2]
    alive = number.isascii() and number.isdigit() and len(number) < 18
    pid = int(number) if alive else -1
    if is_stale(path, {pid} if alive and started(pid) is not None else set()):
        path.unlink(missing_ok=True)


def private_folder(folder: Path) -> None:
    """Makes a folder that only its owner enters. Raises `OSError` if it is a link, or another
    user's."""
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(0, "it is a link, or no folder", str(folder))
    if hasattr(os, "getuid"):
        if found.st_uid != os.getuid():
            raise PermissionError(0, "it belongs to another user", str(folder))
        if found.st_mode & 0o077:
            folder.chmod(FOLDER_MODE)
