"""The models that a user can choose from. Every method blocks: for worker threads.

Nothing here knows Textual.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from localllm import moments
from localllm.errors import FormatError, LocalLLMError
from localllm.paths import Paths
from localllm.plain_text import count_text, size_text
from localllm.store import catalog, inventory, quantization, removal
from localllm.store.catalog import Catalog
from localllm.store.durable import free_disk
from localllm.store.foreign import stores
from localllm.store.index import Store
from localllm.store.ref import parse
from localllm.tui.opening import Opener
from localllm.tui.outlook import Judge, Outlook, read_speed

#: States of a row.
READY, DAMAGED, PARTIAL, DOWNLOADING, AVAILABLE, SERVED = (
    "ready", "damaged", "partial", "downloading", "available", "served",
)  # fmt: skip
_HERE = (READY, DAMAGED, SERVED)


@dataclass(frozen=True)
class ModelRow:
    """A model. Texts are foreign, and to be escaped."""

    name: str
    state: str  # one of the above
    size: int | None = None  # bytes of the file
    quantization: str = ""
    architecture: str = ""
    licence: str = ""
    source: str = ""
    about: str = ""
    path: Path | None = None
    used: str | None = None  # when it was last loaded
    downloaded: int = 0  # bytes, of PARTIAL and DOWNLOADING
    foreign: bool = False  # of another program: never deleted
    recommended: bool = False

    @property
    def is_here(self) -> bool:
        return self.state in _HERE

    @property
    def can_pull(self) -> bool:
        return self.state in (AVAILABLE, PARTIAL, DAMAGED)

    @property
    def can_delete(self) -> bool:
        return self.state in (READY, DAMAGED, PARTIAL) and not self.foreign

    def matches(self, words: Sequence[str]) -> bool:
        """Whether every word (in lower case) occurs in what is shown of the model."""
        texts = (self.name, self.about, self.licence, self.architecture, self.quantization,
                 self.source, self.state)  # fmt: skip
        text = " ".join(texts).lower()
        return all(word in text for word in words)


class Library(Protocol):
    """What the screen of models asks. All raise `LocalLLMError`s."""

    is_local: bool  # models can be pulled and deleted

    def rows(self) -> tuple[list[ModelRow], list[str]]:
        """All models, those that are here first; and notes for the user."""

    def outlook(self, row: ModelRow) -> Outlook:
        """Whether it fits, and how fast it is."""

    def recommended(self) -> set[str]:
        """The names of the rows that suit this machine best."""

    def details(self, row: ModelRow) -> list[tuple[str, str]]:
        """What is known of it, as titles and texts."""

    def deletion(self, name: str) -> tuple[str, int]:
        """What would be deleted with a name, and the bytes that become free."""

    def delete(self, name: str) -> list[str]:
        """Deletes it; returns notes for the user."""


class LocalLibrary:
    """The store of this machine, other programs' stores and the catalogue."""

    is_local = True

    def __init__(self, places: Paths, held_bytes: Callable[[], int] = lambda: 0) -> None:
        """held_bytes: of the open model, which goes before another one comes."""
        self._places, self._held_bytes = places, held_bytes
        self._lock = threading.Lock()
        self._judge: Judge | None = None
        self._read_gb_per_s: float | None = None
        self._known = Catalog(())

    def rows(self) -> tuple[list[ModelRow], list[str]]:
        notes: list[str] = []

        def damaged(e: FormatError) -> None:
            notes.append(f"{e.message}. {e.hint or ''}".rstrip())

        try:
            self._known = catalog.load(damaged=damaged)
        except FormatError as e:
            damaged(e)
        models = Store(self._places.models).list()
        notes += [f"{model.ref}: {model.problem}" for model in models if model.problem]
        with self._lock:
            self._judge = None  # the machine has changed since
        described = {str(each.ref): each.description for each in self._known}
        described |= {str(each.ref): each.description for each in self._known.sizes
                      if str(each.ref) not in described}  # fmt: skip
        found = inventory.rows(models, self._places, lambda: self._known, show_all=True)
        mute = {str(each.ref) for each in self._known.sizes if each.kind == "embedding"}
        rows = [_row(each, described) for each in found if each["name"] not in mute]
        here = sorted((row for row in rows if row.is_here), key=lambda row: row.name)
        here.sort(key=lambda row: row.used or "", reverse=True)
        return here + [row for row in rows if not row.is_here], notes

    def outlook(self, row: ModelRow) -> Outlook:
        judge = self._judged()
        if row.path is not None:
            return judge.of_file(row.path, row.name, row.architecture)
        try:
            ref = parse(row.name)
        except LocalLLMError:  # a label of a download may be anything
            return Outlook()
        entry = next((each for each in self._known if each.ref == ref), None)
        if entry is not None:
            return judge.of_entry(entry)
        request = self._known.request(ref)
        return judge.of_size(request.size) if request else Outlook()

    def recommended(self) -> set[str]:
        """As `localllm recommend` says, each by the size that it is of."""
        disk = free_disk(self._places.models)
        found = self._judged().recommended(lambda each: disk is None or each.weight_bytes <= disk)
        names = set()
        for each in found:
            request = self._known.request(each.ref)
            names.add(str(request.size.ref if request else each.ref))
        return names

    def _judged(self) -> Judge:
        with self._lock:
            if self._judge is None:
                if self._read_gb_per_s is None:  # once: a measurement disturbs an answer
                    self._read_gb_per_s = read_speed(self._places)
                models = Store(self._places.models).list()
                self._judge = Judge(
                    self._places, models, self._known, self._read_gb_per_s, self._held_bytes()
                )
            return self._judge

    def details(self, row: ModelRow) -> list[tuple[str, str]]:
        facts = [("what it is", row.about)]
        if row.path is not None:
            facts += _of_file(row.path, self._template(row))
        elif (request := _request(self._known, row.name)) is not None:
            size = request.size
            draws = size.published or quantization.DEFAULT
            facts += [
                ("parameters", count_text(size.n_params)),
                ("context", f"{size.n_ctx} tokens" if size.n_ctx else ""),
                ("quantization", f"{draws}; for another one pull a name such as {row.name}-q8_0"),
                ("variants", ", ".join(each.name for each in size.variants)),
            ]
        licence = row.licence or next((text for title, text in facts if title == "licence"), "")
        facts = [fact for fact in facts if fact[0] != "licence"]
        facts += [
            ("licence", licence or "not stated"),
            ("source", row.source),
            ("last used", moments.ago(row.used) if row.used else ""),
            ("file", str(row.path) if row.path else ""),
        ]
        return [(title, text) for title, text in facts if text]

    def _template(self, row: ModelRow) -> str:
        """A template that came beside the file."""
        try:
            model = Store(self._places.models).find(parse(row.name))
        except LocalLLMError:
            return ""
        return model.record.settings.template if model and model.record else ""

    def deletion(self, name: str) -> tuple[str, int]:
        going = removal.doomed([name], self._known, self._places)
        return ", ".join(each.label for each in going), sum(each.size for each in going)

    def delete(self, name: str) -> list[str]:
        going = removal.doomed([name], self._known, self._places)
        stays = removal.remove(going, self._places, lambda each: None)
        return [f"Its file stays where it is: {path}" for path in stays]


class ServedLibrary:
    """The models of a server that was named with --url: to choose from, and no more."""

    is_local = False

    def __init__(self, opener: Opener, where: str = "the server") -> None:
        self._opener, self._where = opener, where

    def rows(self) -> tuple[list[ModelRow], list[str]]:
        return [ModelRow(name, SERVED, source=self._where) for name in self._opener.names()], []

    def outlook(self, row: ModelRow) -> Outlook:
        return Outlook(why="It runs where the server runs.")

    def recommended(self) -> set[str]:
        return set()

    def details(self, row: ModelRow) -> list[tuple[str, str]]:
        found = self._opener.describe(row.name)
        facts = [("name", found.label), ("instructions", found.system), ("source", self._where)]
        return [(title, text) for title, text in facts if text]

    def deletion(self, name: str) -> tuple[str, int]:
        raise LocalLLMError(f"{name} is the server's", "Delete it where it lies.")

    def delete(self, name: str) -> list[str]:
        self.deletion(name)
        return []


def row_of_file(name: str) -> ModelRow | None:
    """The row of a model that was opened by its path: no store knows it."""
    path = Path(name)
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        return None
    return ModelRow(name, READY, size, source="opened by its path", path=path, foreign=True)


def _row(found: dict[str, Any], described: dict[str, str]) -> ModelRow:
    name = str(found["name"])
    family_size = name.rpartition("-")[0]
    return ModelRow(
        name=name,
        state=str(found["state"]),
        size=found["size"],
        quantization=found["quantization"] or "",
        architecture=found["architecture"] or "",
        licence=found["licence"] or "",
        source=found["source"] or "",
        about=described.get(name) or described.get(family_size, ""),
        path=Path(found["path"]) if found.get("path") else None,
        used=found["used"],
        downloaded=found.get("downloaded", 0),
        foreign=bool(found.get("elsewhere")) and found["source"] in stores.PROGRAMS,
    )


def _request(known: Catalog, name: str) -> catalog.Request | None:
    try:
        return known.request(parse(name))
    except LocalLLMError:
        return None


def _of_file(path: Path, beside: str) -> list[tuple[str, str]]:
    """From a model's header. A file that cannot be read is told as such."""
    from localllm.session import used_template
    from localllm.store.inspect import GgufFile

    try:
        with GgufFile(path, header_only=True) as file:
            context = file.metadata.get(f"{file.architecture}.context_length")
            licence = file.metadata.get("general.license")
            facts = [
                ("title", str(file.metadata.get("general.name") or "")),
                ("architecture", file.architecture),
                ("parameters", count_text(file.n_params)),
                ("quantization", file.quantization),
                ("size", size_text(path.stat().st_size)),
                ("context", f"{context} tokens" if isinstance(context, int) else ""),
                ("licence", licence if isinstance(licence, str) else ""),
            ]
        found = used_template(path, beside)
    except (LocalLLMError, OSError) as e:
        return [("problem", e.message if isinstance(e, LocalLLMError) else str(e))]
    return [*facts, ("template", _template_words(found[0] if found else ""))]


def _template_words(origin: str) -> str:
    if origin.startswith("fallback:"):
        return f"none in the file: that of the {origin.partition(':')[2]} family is used"
    words = {
        "file": "in the file",
        "argument": "came beside the file",
        "go": "in Go, of no known family: it cannot be used",
        "": "none: it continues texts, and cannot chat",
    }
    return words.get(origin, origin)
