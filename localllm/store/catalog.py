"""The catalogue: the models that `localllm pull` knows by name, one TOML file for each family.

The files lie in `models/catalog/` of the repository and in `localllm/catalog/` of an installed
package. Each says where the parts of a model come from and the hash of every one of them.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from localllm.errors import FormatError, LocalLLMError
from localllm.store.ref import DEFAULT_TAG, Ref, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T", str, int, bool)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_WHEEL = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-py3-none-any\.whl")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class UnknownModelError(LocalLLMError):
    """A name that neither this machine nor the catalogue knows."""


@dataclass(frozen=True)
class Part:
    """One piece of a model file: a member of a wheel in the package index."""

    package: str
    version: str
    wheel: str  # the wheel's file name
    wheel_size: int  # bytes
    wheel_sha256: str
    member: str  # path inside the wheel
    size: int  # bytes of the member


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue."""

    ref: Ref
    default: bool  # what the bare name means
    description: str
    architecture: str
    quantization: str
    n_params: int
    n_ctx: int  # tokens
    chat: bool  # False: a base model without a chat template
    licence: str
    size: int  # bytes of the model file
    sha256: str
    parts: tuple[Part, ...]

    @property
    def download_size(self) -> int:
        """Bytes that travel over the network."""
        return sum(part.wheel_size for part in self.parts)


class Catalog:
    """The entries by name."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.ref: entry for entry in entries}

    def __iter__(self) -> Iterator[Entry]:
        return iter(sorted(self._entries.values(), key=lambda e: e.ref))

    def canonical(self, ref: Ref) -> Ref:
        """The full name behind a bare one (`smollm2` is `smollm2:135m`), else `ref` itself."""
        if ref.tag == DEFAULT_TAG and ref not in self._entries:
            for entry in self._entries.values():
                if entry.ref.name == ref.name and entry.default:
                    return entry.ref
        return ref

    def find(self, ref: Ref) -> Entry | None:
        """The entry of a name, bare or full; None if there is none."""
        return self._entries.get(self.canonical(ref))

    def get(self, ref: Ref, also_known: Iterable[Ref] = ()) -> Entry:
        """Like `find`, but raises `UnknownModelError` with the nearest names, which may also be
        found among `also_known`."""
        if entry := self.find(ref):
            return entry
        raise UnknownModelError(
            f"no model is called {ref} in the catalogue",
            suggestion(ref, [*self._entries, *also_known])
            or f"The catalogue has: {', '.join(map(str, sorted(self._entries)))}.",
        )


def suggestion(ref: Ref, known: Iterable[Ref]) -> str | None:
    """A hint that names the known models nearest to `ref`, if any is near."""
    names = sorted({str(each) for each in known})
    near = [name for name in names if name.split(":")[0] == ref.name]
    near = near or difflib.get_close_matches(str(ref), names, n=2, cutoff=0.5)
    if not near:
        heads = {name.split(":")[0]: name for name in names}
        near = [heads[head] for head in difflib.get_close_matches(ref.name, heads, n=2, cutoff=0.5)]
    return f"Did you mean {' or '.join(near)}?" if near else None


def folder() -> Path:
    """The folder of the shipped catalogue."""
    package = Path(__file__).parents[1]
    installed = package / "catalog"
    # A checkout, and an editable install, keep it where people edit it.
    return installed if installed.is_dir() else package.parent / "models" / "catalog"


def load(source: Path | None = None) -> Catalog:
    """Reads every file of a catalogue folder (by default the shipped one). Raises `FormatError`
    naming the file and the field."""
    source = source or folder()
    if not source.is_dir():
        raise FormatError(
            f"the model catalogue is missing: there is no folder {source}",
            "Reinstall localllm: this installation is incomplete.",
        )
    entries: dict[Ref, Entry] = {}
    for path in sorted(source.glob("*.toml")):
        for entry in _read(path):
            if entry.ref in entries:
                raise FormatError(f"{path.name}: {entry.ref} is in the catalogue twice")
            entries[entry.ref] = entry
    return Catalog(entries.values())


def _read(path: Path) -> list[Entry]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise FormatError(f"cannot read the catalogue file {path}: {e}") from e
    name = _field(path.name, document, "name", str)
    tags = _tables(path.name, document, "tag")
    return [_entry(f"{path.name}: {name}", name, tag) for tag in tags]


def _entry(where: str, name: str, table: Mapping[str, Any]) -> Entry:
    tag = _field(where, table, "tag", str)
    where = f"{where}:{tag}"
    parts = tuple(_part(where, part) for part in _tables(where, table, "part"))
    size = _positive(where, table, "size")
    if size != (total := sum(part.size for part in parts)):
        raise FormatError(f"{where}: size is {size}, but its parts add up to {total}")
    return Entry(
        ref=parse(f"{name}:{tag}"),
        default=_field(where, table, "default", bool) if "default" in table else False,
        description=_field(where, table, "description", str),
        architecture=_field(where, table, "architecture", str),
        quantization=_field(where, table, "quantization", str),
        n_params=_positive(where, table, "parameters"),
        n_ctx=_positive(where, table, "context"),
        chat=_field(where, table, "chat", bool),
        licence=_field(where, table, "licence", str),
        size=size,
        sha256=_matching(where, table, "sha256", _SHA256),
        parts=parts,
    )


def _part(where: str, table: Mapping[str, Any]) -> Part:
    return Part(
        package=_matching(where, table, "package", _PACKAGE),
        version=_matching(where, table, "version", _PACKAGE),
        wheel=_matching(where, table, "wheel", _WHEEL),
        wheel_size=_positive(where, table, "wheel_size"),
        wheel_sha256=_matching(where, table, "wheel_sha256", _SHA256),
        member=_field(where, table, "member", str),
        size=_positive(where, table, "size"),
    )


def _tables(where: str, table: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = table.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(v, dict) for v in value):
        raise FormatError(f"{where}: [[{key}]] is missing")
    return value


def _field(where: str, table: Mapping[str, Any], key: str, kind: type[T]) -> T:
    value = table.get(key)
    if type(value) is not kind:
        raise FormatError(f"{where}: {key} must be of type {kind.__name__}, not {value!r}")
    return value


def _positive(where: str, table: Mapping[str, Any], key: str) -> int:
    value = _field(where, table, key, int)
    if value <= 0:
        raise FormatError(f"{where}: {key} must be above 0, not {value}")
    return value


def _matching(where: str, table: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = _field(where, table, key, str)
    if not pattern.fullmatch(value):
        raise FormatError(f"{where}: {key} has a wrong form: {value!r}")
    return value
