"""The model behind what a command was given: a file, a model that is here or elsewhere."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localllm import paths
from localllm.cli import output
from localllm.errors import ArgumentError, FileError, FormatError
from localllm.store import catalog, ref, wanted
from localllm.store.catalog import Catalog, Entry, UnknownModelError
from localllm.store.index import Model, Store
from localllm.store.settings import NOTHING_SET, Settings
from localllm.store.wanted import PathName, PlainName, Wanted

if TYPE_CHECKING:
    from localllm.store.foreign import ForeignModel

_PARTS_MISSING = re.compile(r"[0-9]+ of the [0-9]+ parts")


@dataclass(frozen=True)
class Found:
    """A model that a command was given: a file, a model of the store or of another program, or one
    to be pulled."""

    label: str  # as messages call it
    path: Path
    model: Model | None = None  # in the store
    to_pull: Entry | Wanted | None = None
    foreign: ForeignModel | None = None

    @property
    def digest(self) -> str | None:
        """`sha256:...` where the store knows it."""
        if self.foreign is not None and self.foreign.sha256:
            return f"sha256:{self.foreign.sha256}"
        return self.model.record.digest if self.model and self.model.record else None

    @property
    def settings(self) -> Settings:
        """What comes with the model beside its file."""
        if self.foreign is not None:
            return self.foreign.settings
        record = self.model.record if self.model else None
        return record.settings if record else NOTHING_SET


def sound_catalogue() -> Catalog:
    """The catalogue; a file of the user's that is damaged costs a note, once, and itself."""
    try:
        return catalog.load(damaged=_note_damaged)
    except FormatError as e:  # the shipped part, without which the models here can be used
        output.note(f"{e.message}. {e.hint or ''}".rstrip())
        return Catalog(())


_noted: set[str] = set()


def _note_damaged(e: FormatError) -> None:
    if e.message not in _noted:
        _noted.add(e.message)
        output.note(f"{e.message}. {e.hint or ''}".rstrip())


def _foreign(text: str) -> ForeignModel | None:
    """The model of another program with this name."""
    if "/" not in text:
        return None
    from localllm.store.foreign import stores  # only now: it costs 13 ms

    return stores.find(text)


def find_model(text: str, *, may_pull: bool) -> Found:
    """The model behind a name, an address or a path. Raises `FileError` for a path without a file,
    and `UnknownModelError` with the nearest names."""
    if foreign := _foreign(text):
        return Found(str(foreign.ref), foreign.files[0], foreign=foreign)
    asked = wanted.parse(text)
    if isinstance(asked, PathName):
        return Found(text, existing_file(text))
    from localllm.store.lockfile import Lockfile  # only now: with them come the sources
    from localllm.store.resolve import local_refs

    store = Store(paths.current().models)
    if model := store.find(asked.ref):  # whatever state the catalogue of the user is in
        return Found(str(asked.ref), model.path, model)
    known = sound_catalogue()
    for name in local_refs(asked.ref, known, Lockfile()):
        if model := store.find(name):
            return Found(str(name), model.path, model)
    to_pull: Entry | Wanted = asked
    label = str(asked.ref)
    if isinstance(asked, PlainName):
        entry = known.find(asked.ref)
        if entry is None and known.request(asked.ref) is None:
            raise _unknown(text, asked.ref, store, known)
        if entry is not None:
            to_pull, label = entry, str(entry.ref)
    if may_pull:
        return Found(label, store.path(asked.ref), to_pull=to_pull)
    raise FileError(f"{label} is not on this machine", f"Bring it here with: localllm pull {text}")


@contextlib.contextmanager
def hints(found: Found) -> Iterator[None]:
    """Errors of the engine on a model get the hint that only the command line can give."""
    try:
        yield
    except FormatError as e:
        e.hint = e.hint or _format_hint(found, e.message)
        raise
    except FileError as e:
        if e.hint is None and "the file is empty" in e.message:
            e.hint = _format_hint(found, e.message)
        elif e.hint is None and _PARTS_MISSING.search(e.message):
            e.hint = "All parts of a split model must lie in one folder."
        raise
    except ArgumentError as e:
        if e.hint is None and "instruction set" in e.message:
            e.hint = "localllm doctor shows the instruction sets of this machine."
        raise


def _format_hint(found: Found, message: str) -> str:
    if found.model is not None and sound_catalogue().find(found.model.ref) is not None:
        return f"The file may be incomplete or damaged. Check it with: localllm pull {found.label}"
    if "not a GGUF file" in message:
        return "Name a model in GGUF format. Models that are here: localllm list"
    return "The download may be incomplete, or the file damaged: download it again."


def existing_file(text: str) -> Path:
    """The file of a path that somebody typed. Raises `FileError`."""
    try:
        path = Path(text).expanduser()
        if path.is_file():
            return path
        exists = path.exists()
    except (OSError, ValueError, RuntimeError) as e:  # too long, a NUL, ~ without such a user
        raise FileError(f"cannot open {text[:200]}: {getattr(e, 'strerror', None) or e}") from e
    if path.is_dir():
        raise FileError(f"{text} is a folder, not a GGUF file", "Name a file inside it.")
    if exists:
        raise FileError(f"{text} is not a regular file", "A model is a GGUF file on a disk.")
    hint = "Check the path. Models that are here: localllm list"
    if path.parent.is_dir():
        near = sorted(each.name for each in path.parent.glob("*.gguf"))
        hint = f"GGUF files there: {', '.join(near[:5])}" if near else hint
    if re.fullmatch(r"[\w.-]+/[\w.-]+:[\w.-]+\.gguf", text, re.ASCII | re.IGNORECASE):
        hint = f"A file of a repository of the Hub: hf.co/{text}"
    raise FileError(f"there is no file {text}", hint)


def _unknown(text: str, name: ref.Ref, store: Store, known: Catalog) -> UnknownModelError:
    if Path(text).is_file():
        hint = f"For the file of that name: ./{text}"
    else:
        everything = [*known.names, *(model.ref for model in store.list())]
        hint = catalog.suggestion(name, everything) or "See: localllm list --all"
    return UnknownModelError(f"there is no model called {name}", hint)
