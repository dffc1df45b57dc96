"""Lists the project's own files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path


def source_files(root: Path) -> Iterator[Path]:
    """Files that git tracks or would track under `root`, as paths relative to it, sorted."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        stdout=subprocess.PIPE,
        check=True,
    )
    for name in sorted(set(listed.stdout.decode("utf-8").split("\0"))):
        if name and (root / name).is_file():
            yield Path(name)
