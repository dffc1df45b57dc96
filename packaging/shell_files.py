"""Writes what a system package installs for shells and man, as the program itself makes it.

python packaging/shell_files.py PREFIX writes below PREFIX/share the completion scripts of bash, zsh
and fish where these look for those of packages, and man/man1/localllm.1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from localllm.cli.completion import PROGRAM, SHELLS, script
from localllm.cli.main import LazyGroup, cli
from localllm.cli.manual import page


def write(prefix: Path) -> list[Path]:
    """Writes all files and returns their paths."""
    assert isinstance(cli, LazyGroup)
    share = prefix / "share"
    texts = {share / row.package_file: script(cli, shell) for shell, row in SHELLS.items()}
    texts[share / "man" / "man1" / f"{PROGRAM}.1"] = page(cli)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8", newline="\n")
    return list(texts)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} PREFIX")
    for written in write(Path(sys.argv[1])):
        print(written)
