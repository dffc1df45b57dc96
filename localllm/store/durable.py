"""Files that are either whole or not there: written under a temporary name, flushed to the disk,
then renamed. And the plain words for what a disk refuses."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from localllm.errors import FileError

TEMPORARY = ".tmp"  # suffix of files that a crash may leave behind

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
_WRITE |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FULL = {errno.ENOSPC, errno.EFBIG} | {getattr(errno, "EDQUOT", errno.ENOSPC)}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}


def disk_error(
    action: str, path: Path, error: OSError, *, kept: str = "", movable: bool = True
) -> FileError:
    """The error for a system call on `path` that was refused, with what to do about it.

    kept: a sentence on what a full disk has not cost. movable: `path` lies where LOCALLLM_HOME
    says; else the user named it.
    """
    reason = error.strerror or str(error)
    hint = None
    if error.errno in _FULL:
        move = ", or move it with LOCALLLM_HOME" if movable else ""
        hint = f"Free some space where {path.parent} lies{move}. {kept}".rstrip()
    elif error.errno in _DENIED:
        other = "or set LOCALLLM_HOME to a folder that you can write to."
        hint = f"Check who may write to {path.parent}, "
        hint += other if movable else "or choose another folder."
    return FileError(f"cannot {action} {path}: {reason}", hint)


@contextlib.contextmanager
def replacing(final: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `final` when the block ends without an exception.

    The temporary name holds the thread and the process, so no two of them write the same file. It
    has `mode` (less the umask) from its first moment.
    """
    temporary = final.with_name(f".{final.name}.{threading.get_ident()}.{os.getpid()}{TEMPORARY}")
    try:
        with os.fdopen(os.open(temporary, _WRITE, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(final)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_folder(final.parent)


def existing(folder: Path) -> Path:
    """The folder itself, or its nearest parent that exists."""
    return next((each for each in (folder, *folder.parents) if each.exists()), Path(folder.anchor))


def free_disk(folder: Path) -> int | None:
    """Bytes that are free where a folder lies or will lie; None where the system does not say."""
    try:
        return shutil.disk_usage(existing(folder)).free
    except OSError:
        return None


def fsync_folder(folder: Path) -> None:
    """Makes a rename in `folder` survive a power cut, where the system offers that."""
    if os.name == "nt":
        return  # Windows opens no folders; its journal orders the rename itself
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as e:
        # Some network file systems refuse it; then the rename is as durable as they make it.
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def is_stale(temporary: Path, alive: set[int]) -> bool:
    """Whether a file or folder with a name of the form `...<process id>.tmp` was left behind."""
    pieces = temporary.name.split(".")
    return (
        len(pieces) >= 2
        and f".{pieces[-1]}" == TEMPORARY
        and pieces[-2].isdigit()
        and int(pieces[-2]) not in alive
    )
