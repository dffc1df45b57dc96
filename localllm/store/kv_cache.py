"""Where pages of the KV cache lie on the disk: `<cache>/kv/<model>/<key>/<page>`.

A model's folder is named by a hash of its digest; `key` stands for all else that pages depend on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from localllm.errors import FileError
from localllm.store.digest import sampled_digest
from localllm.store.index import Model


def model_folder(root: Path, digest: str) -> Path:
    """root: `Paths.kv`. digest: anything."""
    return root / blake2b(digest.encode(), digest_size=16).hexdigest()


def digest_of(model: Model) -> str:
    """As the engine knows it. Raises `FileError` if a file without a record cannot be read."""
    known = model.record.digest if model.record else None
    return known or sampled_digest(model.path)


def known_digests(models: Iterable[Model]) -> set[str]:
    """Those of all that can be read."""
    found = set()
    for model in models:
        try:
            found.add(digest_of(model))
        except FileError:
            continue
    return found


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


def forget_unused(root: Path, digests: Iterable[str], models: Iterable[Model]) -> None:
    """Deletes the pages of models that have gone, unless one of those that stay is the same."""
    gone = set(digests)
    if gone:
        for digest in gone - known_digests(models):
            forget(model_folder(root, digest))
