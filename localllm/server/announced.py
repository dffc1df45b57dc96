"""The servers of this user that run on this machine: each writes down where it listens, and
programs of the same user find it there.

The file lies in the cache folder, for its owner alone. Where a server asks for keys, the file holds
one of its own making, so `ps`, `stop` and `run` need no other.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from localllm import __version__
from localllm.store.durable import replacing

SAME_S = 2.0
"""So much the clock may have been set while a server ran."""


@dataclass(frozen=True)
class Announced:
    """A server that runs, or did. certificate: of https, a file in PEM format. started_s: when its
    process began, of the epoch; after it has ended, its number may be somebody else's."""

    url: str  # without a path
    pid: int
    version: str = __version__
    key: str = ""
    certificate: str = ""
    started_s: float = 0.0  # `announcing` fills it in


@contextlib.contextmanager
def announcing(folder: Path, server: Announced) -> Iterator[None]:
    """The server can be found while the block runs. A disk that refuses costs only that."""
    path = folder / f"{server.pid}.json"
    server = replace(server, started_s=_started_s(server.pid))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        with replacing(path, 0o600) as file:
            file.write(json.dumps(asdict(server)).encode())
    except OSError:
        pass
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def found(folder: Path) -> list[Announced]:
    """Those whose process is there, the newest first. What others left behind goes."""
    servers = []
    for path in reversed(_files(folder)):
        try:
            document = json.loads(path.read_bytes())
            server = Announced(**{name: document[name] for name in _NAMES})
            good = all(type(getattr(server, each.name)) is _KINDS[each.name] for each in _FIELDS)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            continue
        if good and abs(_started_s(server.pid) - server.started_s) < SAME_S:
            servers.append(server)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return servers


_FIELDS = fields(Announced)
_NAMES = [each.name for each in _FIELDS]
_KINDS = {
    "url": str,
    "pid": int,
    "version": str,
    "key": str,
    "certificate": str,
    "started_s": float,
}


def _files(folder: Path) -> list[Path]:
    """By their age; only files of this user, whose keys are sent to where they say."""
    try:
        paths = [path for path in folder.glob("*.json") if path.is_file()]
        own = [path for path in paths if _is_own(path)]
        return [path for _, path in sorted((path.stat().st_mtime, path) for path in own)]
    except OSError:
        return []


def _is_own(path: Path) -> bool:
    return not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()


def _started_s(pid: int) -> float:
    """When a process began; -infinity if there is none, or none of this user."""
    import psutil  # only now: 20 ms

    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError, OverflowError):
        return -math.inf
