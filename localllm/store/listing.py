"""The GGUF files of a repository or folder, sorted into the models that they make up: split sets
become one, files that go beside a model (projectors, importance matrices, drafts) are set aside."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from localllm.store.quantization import Quantization, quantization_of
from localllm.store.ref import MAX_FILES, SUFFIX

_SPLIT = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.ASCII | re.IGNORECASE | re.DOTALL)
_WORDS = re.compile(r"[^a-z0-9]+")
#: Words in a file name that say it is no model by itself.
_BESIDE = frozenset(["mmproj", "imatrix", "projector"])
#: Words of models that guess for another one; in a repository of nothing else they are the models.
_DRAFT = frozenset(["draft", "mtp", "dflash", "eagle", "eagle3"])


@dataclass(frozen=True)
class Group:
    """A model of a listing: its files in the order of the split."""

    label: str  # of a split set without the numbers
    files: tuple[str, ...]
    quantization: Quantization | None  # as the names tell it


@dataclass(frozen=True)
class Listing:
    """What a repository or folder holds."""

    models: tuple[Group, ...]  # by label
    incomplete: tuple[str, ...]  # labels of split sets with missing parts
    beside: tuple[str, ...]  # files that belong to a model

    def quantizations(self) -> tuple[Quantization, ...]:
        """Those that the names tell, smallest first."""
        found = {model.quantization for model in self.models if model.quantization}
        return tuple(sorted(found, key=lambda q: (q.bits, str(q))))


def group(names: Iterable[str]) -> Listing:
    """Sorts file paths, with forward slashes, as a source lists them. Others than GGUF files are
    left out."""
    whole: dict[str, tuple[str, ...]] = {}
    split: dict[tuple[str, int], dict[int, str]] = {}
    for name in sorted(set(names)):
        if not name.lower().endswith(SUFFIX):
            continue
        if match := _SPLIT.fullmatch(name):
            split.setdefault((match[1], int(match[3])), {})[int(match[2])] = name
        else:
            whole[name[: -len(SUFFIX)]] = (name,)
    incomplete = []
    for (label, n_files), numbered in split.items():
        wanted = range(1, n_files + 1)
        if 1 <= n_files <= MAX_FILES and sorted(numbered) == list(wanted):
            whole.setdefault(label, tuple(numbered[i] for i in wanted))
        else:
            incomplete.append(label)
    beside = {label for label in whole if _words(label) & _BESIDE}
    drafts = {label for label in whole if _words(label) & _DRAFT} - beside
    if not whole.keys() - beside - drafts:
        drafts = set()
    models = [
        Group(label, files, quantization_of(label))
        for label, files in sorted(whole.items())
        if label not in beside | drafts
    ]
    aside = [file for label in sorted(beside | drafts) for file in whole[label]]
    return Listing(tuple(models), tuple(sorted(incomplete)), tuple(aside))


def _words(label: str) -> set[str]:
    return set(_WORDS.split(label.rpartition("/")[2].lower()))
