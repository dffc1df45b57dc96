"""Models of a few kilobytes, the wheels that carry them, and a catalogue that names them."""

from __future__ import annotations

import hashlib
import random
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from localllm.store.catalog import Catalog, load


def gguf(
    *,
    architecture: str = "llama",
    title: str = "Made Up",
    template: str | None = "{{ messages }}",
    licence: str = "CC0",
    n_floats: int = 64,
    n_parts: int = 1,
) -> bytes:
    """A valid GGUF file (version 3) with metadata and one F32 tensor [n_floats]; of a split set the
    first part."""
    values: list[tuple[str, str | int]] = [
        ("general.architecture", architecture),
        ("general.name", title),
        ("general.license", licence),
        ("general.file_type", 0),
        (f"{architecture}.context_length", 2048),
        (f"{architecture}.block_count", 3),
        (f"{architecture}.embedding_length", 64),
        (f"{architecture}.attention.head_count", 4),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
    ]
    if template is not None:
        values.append(("tokenizer.chat_template", template))
    if n_parts > 1:
        values += [("split.no", 0), ("split.count", n_parts), ("split.tensors.count", n_parts)]
    out = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(values))
    for key, value in values:
        out += _string(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + _string(value)
        else:
            out += struct.pack("<II", 4, value)
    out += _string("output_norm.weight") + struct.pack("<IQIQ", 1, n_floats, 0, 0)
    out += bytes(-len(out) % 32)
    return out + bytes(4 * n_floats) + bytes(-4 * n_floats % 32)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


@dataclass(frozen=True)
class MadeUp:
    """A model cut into wheels, and the catalogue folder that names them."""

    name: str  # name:tag
    content: bytes
    wheels: list[Path]
    catalog_folder: Path

    @property
    def catalog(self) -> Catalog:
        return load(self.catalog_folder)

    @property
    def file_name(self) -> str:
        return self.name.replace(":", "@") + ".gguf"


def make(
    folder: Path,
    *,
    name: str = "madeup",
    tag: str = "1k",
    content: bytes | None = None,
    n_parts: int = 1,
    stored: bool = False,
    chat: bool = True,
) -> MadeUp:
    """Writes wheels to folder/wheels and the catalogue to folder/catalog. `stored`: uncompressed,
    so that the download is as long as the content."""
    content = gguf() if content is None else content
    wheels_folder, catalog_folder = folder / "wheels", folder / "catalog"
    wheels_folder.mkdir(parents=True, exist_ok=True)
    catalog_folder.mkdir(exist_ok=True)
    step = -(-len(content) // n_parts)
    text = (
        f'name = "{name}"\n[[tag]]\ntag = "{tag}"\ndefault = true\ndescription = "made up"\n'
        f'architecture = "llama"\nquantization = "F32"\nparameters = 64\ncontext = 2048\n'
        f'chat = {str(chat).lower()}\nlicence = "CC0"\nsize = {len(content)}\n'
        f'sha256 = "{hashlib.sha256(content).hexdigest()}"\n'
    )
    wheels = []
    for i in range(n_parts):
        piece = content[i * step : (i + 1) * step]
        package, member = f"{name}-part{i}", f"{name}_part{i}/model.part{i}"
        wheel = wheels_folder / f"{name}_part{i}-1.0-py3-none-any.whl"
        write_wheel(wheel, package, {member: piece}, stored=stored)
        wheels.append(wheel)
        text += (
            f'[[tag.part]]\npackage = "{package}"\nversion = "1.0"\nwheel = "{wheel.name}"\n'
            f"wheel_size = {wheel.stat().st_size}\n"
            f'wheel_sha256 = "{hashlib.sha256(wheel.read_bytes()).hexdigest()}"\n'
            f'member = "{member}"\nsize = {len(piece)}\n'
        )
    (catalog_folder / f"{name}.toml").write_text(text)
    return MadeUp(f"{name}:{tag}", content, wheels, catalog_folder)


def write_wheel(
    path: Path, package: str, members: dict[str, bytes], *, stored: bool = False
) -> None:
    """A wheel as pip accepts it for a download."""
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    info = f"{package.replace('-', '_')}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", method) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def noise(n_bytes: int, seed: int = 1) -> bytes:
    """Bytes that do not compress."""
    return random.Random(seed).randbytes(n_bytes)
