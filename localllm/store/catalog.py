"""The catalogue: the models that `localllm pull` knows by name, one TOML file for each family.

The files lie in `models/catalog/` of the repository and in `localllm/catalog/` of an installed
package; files of the user's own, in `catalog/` of the configuration folder, add to them and take
the place of what has the same name. A name is `family:size[-variant][-quantization]`, in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from localllm import paths
from localllm.errors import FormatError, LocalLLMError
from localllm.store import quantization
from localllm.store.catalog_file import Attention, Entry, Part, Size, Variant, read
from localllm.store.quantization import Quantization
from localllm.store.ref import DEFAULT_TAG, Ref

__all__ = ["Attention", "Catalog", "Entry", "Part", "Request", "Size", "UnknownModelError",
           "Variant", "folder", "load", "suggestion"]  # fmt: skip

#: What people call the variant that answers questions.
_ANSWERS = frozenset(["instruct", "chat", "it"])
_SHOWN = 8  # names in a hint


class UnknownModelError(LocalLLMError):
    """A name that neither this machine nor the catalogue knows."""


@dataclass(frozen=True)
class Request:
    """What a catalogue name asks for."""

    size: Size
    variant: Variant
    quantization: Quantization | None  # None: not said

    @property
    def ref(self) -> Ref:
        """The name without a quantization, such as `qwen3:30b-thinking`."""
        is_default = self.variant == self.size.variants[0]
        tag = self.size.size if is_default else f"{self.size.size}-{self.variant.name}"
        return Ref(self.size.family, tag)

    def ref_as(self, quantization: Quantization | None) -> Ref:
        """The name in the store of a file of that quantization."""
        ref = self.ref
        return Ref(ref.name, f"{ref.tag}-{quantization.tag}") if quantization else ref


class Catalog:
    """Iterates over the entries of the package index; `sizes` are those of the Hub."""

    def __init__(self, entries: Iterable[Entry], sizes: Iterable[Size] = ()) -> None:
        self._entries = {entry.ref: entry for entry in entries}
        self._sizes = {size.ref: size for size in sizes}

    def __iter__(self) -> Iterator[Entry]:
        return iter(sorted(self._entries.values(), key=lambda e: e.ref))

    @property
    def sizes(self) -> tuple[Size, ...]:
        """By family, the smallest first."""
        return tuple(sorted(self._sizes.values(), key=lambda s: (s.family, s.n_params, s.size)))

    @property
    def names(self) -> tuple[Ref, ...]:
        """All names without variant and quantization, sorted."""
        return tuple(sorted({*self._entries, *self._sizes}))

    def canonical(self, ref: Ref) -> Ref:
        """The name in the package index of a bare one (`smollm2` is `smollm2:135m`), or of one that
        says what is so anyway (`smollm2:135m-instruct-q4_1`); else `ref` itself."""
        if ref in self._entries:
            return ref
        if ref.tag == DEFAULT_TAG:
            for entry in self._entries.values():
                if entry.ref.name == ref.name and entry.default:
                    return entry.ref
        request = self.request(ref)
        packaged = self._entries.get(request.size.ref) if request else None
        if request is None or packaged is None or request.variant != request.size.variants[0]:
            return ref
        same = (None, quantization.find(packaged.quantization))
        return packaged.ref if request.quantization in same else ref

    def find(self, ref: Ref) -> Entry | None:
        """The entry of the package index of a name, bare or full; None if there is none."""
        return self._entries.get(self.canonical(ref))

    def request(self, ref: Ref) -> Request | None:
        """What a name asks of the Hub: `family`, `family:size`, each with a variant and a
        quantization or without; None if the catalogue has no such size or variant."""
        rest, quant = quantization.at_end_of("" if ref.tag == DEFAULT_TAG else ref.tag)
        sizes = [size for size in self._sizes.values() if size.family == ref.name]
        # The longest size first: of `30b-a3b` and `30b` the former means more of the tag.
        for size in sorted(sizes, key=lambda s: -len(s.size)):
            if rest == size.size or rest.startswith(f"{size.size}-"):
                variant = _variant(size, rest[len(size.size) + 1 :])
                return Request(size, variant, quant) if variant else None
        for size in sizes:
            if size.default and (variant := _variant(size, rest)):
                return Request(size, variant, quant)
        return None

    def get(self, ref: Ref, also_known: Iterable[Ref] = ()) -> Entry:
        """Like `find`, but raises `UnknownModelError` with the nearest names, which may also be
        found among `also_known`."""
        if entry := self.find(ref):
            return entry
        if request := self.request(ref):
            raise UnknownModelError(
                f"{ref} is not in the package index",
                f"The Hub has it as {request.variant.repositories[0]}.",
            )
        raise self.unknown(ref, also_known)

    def unknown(self, ref: Ref, also_known: Iterable[Ref] = ()) -> UnknownModelError:
        """The error for a name that the catalogue does not have."""
        families = sorted({name.name for name in self.names})
        shown = ", ".join(families[:_SHOWN]) + (", ..." if len(families) > _SHOWN else "")
        return UnknownModelError(
            f"no model is called {ref} in the catalogue",
            suggestion(ref, [*self.names, *also_known])
            or f"The catalogue has: {shown}. See: localllm search",
        )


def _variant(size: Size, name: str) -> Variant | None:
    """The variant of that name, the default one for none. All words for answering mean the same."""
    if not name:
        return size.variants[0]
    words = _ANSWERS if name in _ANSWERS else {name}
    return next((variant for variant in size.variants if variant.name in words), None)


def suggestion(ref: Ref, known: Iterable[Ref]) -> str | None:
    """A hint that names the known models nearest to `ref`, if any is near."""
    import difflib

    names = sorted({str(each) for each in known})
    near = [name for name in names if name.split(":")[0] == ref.name]
    if len(near) > _SHOWN:
        near = difflib.get_close_matches(str(ref), near, n=_SHOWN, cutoff=0)
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


def user_folder() -> Path:
    """The folder of the user's own catalogue files; it need not exist."""
    return paths.current().config / "catalog"


def load(
    source: Path | None = None, damaged: Callable[[FormatError], None] | None = None
) -> Catalog:
    """Reads every file of a catalogue folder; by default the shipped one, and then the user's.
    Raises `FormatError` naming the file and the field; where `damaged` is given, it is told what is
    wrong with a file of the user's, which then is left out."""
    shipped = source or folder()
    if not shipped.is_dir():
        raise FormatError(
            f"the model catalogue is missing: there is no folder {shipped}",
            "Reinstall localllm: this installation is incomplete.",
        )
    entries: dict[Ref, Entry] = {}
    sizes: dict[Ref, Size] = {}
    for each in [shipped] if source else [shipped, user_folder()]:
        try:
            own_entries, own_sizes = _load(each, None if each == shipped else damaged)
        except FormatError as e:
            mend = "reinstall localllm" if each == shipped else "correct it, or move it away"
            e.hint = e.hint or f"The file is in the folder {each}: {mend}."
            raise
        # A user's size hides a shipped file of that name, and the other way round.
        entries = {ref: e for ref, e in entries.items() if ref not in own_sizes} | own_entries
        sizes = {ref: s for ref, s in sizes.items() if ref not in own_entries} | own_sizes
    return Catalog(entries.values(), sizes.values())


def _load(
    source: Path, damaged: Callable[[FormatError], None] | None
) -> tuple[dict[Ref, Entry], dict[Ref, Size]]:
    entries: dict[Ref, Entry] = {}
    sizes: dict[Ref, Size] = {}
    for path in sorted(source.glob("*.toml")):
        try:
            family = read(path)
            own_entries = _once(path, (e.ref for e in family.entries), entries)
            own_sizes = _once(path, (s.ref for s in family.sizes), sizes)
        except FormatError as e:
            if damaged is None:
                raise
            e.hint = e.hint or f"The file is in the folder {source}: correct it, or move it away."
            damaged(e)
            continue
        entries |= zip(own_entries, family.entries, strict=True)
        sizes |= zip(own_sizes, family.sizes, strict=True)
    return entries, sizes


def _once(path: Path, refs: Iterable[Ref], before: Iterable[Ref]) -> list[Ref]:
    """The names of a file. Raises `FormatError` for one that is in the folder twice."""
    seen, own = set(before), []
    for ref in refs:
        if ref in seen:
            raise FormatError(f"{path.name}: {ref} is in the catalogue twice")
        seen.add(ref)
        own.append(ref)
    return own
