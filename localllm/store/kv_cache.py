"""Where pages of the KV cache lie on the disk: `<cache>/kv/<model>/<key>/<page>`.

A model's folder is named by a hash of its digest; `key` stands for all else that pages depend on.
"""

from __future__ import annotations

import os
import shutil
from hashlib import blake2b
from pathlib import Path

from localllm.errors import FileError


def model_folder(root: Path, digest: str) -> Path:
    """root: `Paths.kv`. digest: anything."""
    return root / blake2b(digest.encode(), digest_size=16).hexdigest()


def folders(root: Path) -> list[Path]:
    """Those of all models, none behind a link."""
    try:
        with os.scandir(root) as entries:
            found = [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise FileError(f"cannot read {root}: {e.strerror or e}") from e
    return sorted(found)


def folder_bytes(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(base, name).lstat().st_size
            except OSError:
                continue  # a server made room for others
    return total


def forget(folder: Path) -> None:
    """Deletes a model's pages. A server that runs loses no answer: it computes again. Raises
    `FileError`."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise FileError(f"cannot delete {folder}: {e.strerror or e}") from e
