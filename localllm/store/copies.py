"""Models under names of the user's own: another name for the same files, a model with settings
of a Modelfile, a file brought into the store.

Files are shared by hard links where the disk has them; else a record refers to where they lie.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localllm import moments
from localllm.errors import ArgumentError, FileError
from localllm.paths import ensure
from localllm.store import wanted
from localllm.store.durable import disk_error, fsync_folder, replacing
from localllm.store.index import Model, Store
from localllm.store.record import FileRecord, Record
from localllm.store.ref import Ref
from localllm.store.settings import NOTHING_SET, Settings
from localllm.store.wanted import PlainName

KIND = "local"
_CHUNK = 1 << 22

Progress = Callable[[int, int], None]  # bytes copied, bytes in all


@dataclass(frozen=True)
class Origin:
    """What a new name is made of. Texts are empty where nobody knows."""

    label: str  # as messages and the record call it
    files: tuple[Path, ...]  # in the order of the split
    owned: bool  # by the store: else they are only referred to
    sha256: tuple[str, ...]  # of each file
    architecture: str = ""
    quantization: str = ""
    licence: str = ""
    settings: Settings = NOTHING_SET


def origin_of(model: Model) -> Origin:
    """A model of the store. Raises `FileError` for one that is not whole."""
    if model.problem is not None and not (model.record is None and model.damaged is None):
        raise FileError(f"{model.ref} is not whole: {model.problem}", "See: localllm verify")
    record, n_files = model.record, len(model.files)
    hashes = [""] * n_files
    if record is not None and len(record.files) == n_files:
        hashes = [file.sha256 for file in record.files]
    elif record is not None and n_files == 1:
        hashes = [record.sha256]
    return Origin(
        label=str(model.ref),
        files=model.files,
        owned=not model.elsewhere,
        sha256=tuple(hashes),
        architecture=record.architecture if record else "",
        quantization=record.quantization if record else "",
        licence=record.licence if record else "",
        settings=record.settings if record else NOTHING_SET,
    )


def own_name(text: str) -> Ref:
    """The name that a user gives to a model. Raises `ArgumentError` for one with folders, which
    would be taken for a repository or for another program's model."""
    name = wanted.parse(text)
    if not isinstance(name, PlainName):
        raise ArgumentError(
            f"{text[:80]!a} cannot be the name of a model of your own",
            "Such a name is NAME or NAME:TAG, without a slash, as in mine:1b.",
        )
    return name.ref


def require_free(store: Store, ref: Ref, *, force: bool) -> None:
    """Raises `FileError` if a model has the name, unless it may be replaced."""
    if not force and (model := store.find(ref)) is not None:
        raise FileError(
            f"there is a model called {ref} already: {model.path}",
            "Choose another name, or add --force to replace it.",
        )


def add(store: Store, ref: Ref, origin: Origin, source: str) -> Model:
    """Gives files a name of the store, which takes the place of a model of that name. source: where
    it comes from, for people. Raises `FileError`."""
    old = store.find(ref)
    if old is not None and set(old.files) & set(origin.files):
        paths = list(old.files)  # the model itself, with other settings
    elif origin.owned:
        paths = _linked(origin.files, store.paths(ref, len(origin.files)))
    else:
        paths = list(origin.files)
    return _recorded(store, ref, origin, paths, source, old)


def copy(store: Store, ref: Ref, origin: Origin, progress: Progress, *, move: bool) -> Model:
    """Brings files into the store, or moves them there. Raises `FileError`; files that were to be
    moved are deleted only when all of them are here."""
    if move and (users := _referring(store, ref, origin.files)):
        raise FileError(
            f"{', '.join(str(user.ref) for user in users)} would lose its file {origin.files[0]}",
            "Import it without --move, or remove that name first: localllm rm",
        )
    old = store.find(ref)
    finals = store.paths(ref, len(origin.files))
    total = sum(path.stat().st_size for path in origin.files)
    done = 0
    moved: list[tuple[Path, Path]] = []
    ensure(finals[0].parent)
    for path, final in zip(origin.files, finals, strict=True):
        try:
            if move and _renamed(path, final):
                moved.append((path, final))
                done += final.stat().st_size
                continue
            with path.open("rb") as source, replacing(final) as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
                    done += len(chunk)
                    progress(done, total)
        except BaseException as e:
            for before, after in moved:
                after.replace(before)
            if isinstance(e, OSError):
                raise disk_error(f"bring {path} to", final, e) from e
            raise
    model = _recorded(store, ref, origin, finals, f"{KIND}: {origin.label}", old)
    if move:
        for path in origin.files:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
    return model


def users_of(store: Store, model: Model) -> list[Model]:
    """Other models whose records refer to the files of this one, where the disk has no links. A
    model that refers to a file itself takes none away."""
    return [] if model.elsewhere else _referring(store, model.ref, model.files)


def _referring(store: Store, ref: Ref, files: Sequence[Path]) -> list[Model]:
    """Models other than `ref` whose records refer to some of these files."""
    return [
        other
        for other in store.list()
        if other.ref != ref and other.elsewhere and set(other.files) & set(files)
    ]


def is_shared(path: Path) -> bool:
    """Whether another name holds the file too, so that deleting this one frees nothing."""
    try:
        return path.is_symlink() or path.stat().st_nlink > 1
    except OSError:
        return False


def disk_bytes(models: Sequence[Model]) -> int:
    """What the files of models take together: one that several names hold counts once."""
    sizes = {}
    for model in models:
        for path in model.files:
            with contextlib.suppress(OSError):
                found = path.stat()
                sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())


def _recorded(
    store: Store, ref: Ref, origin: Origin, paths: Sequence[Path], source: str, old: Model | None
) -> Model:
    own = store.paths(ref, len(paths))
    files = []
    for path, final, sha256 in zip(paths, own, origin.sha256, strict=True):
        try:
            size = path.stat().st_size
        except OSError as e:
            raise disk_error("look at", path, e, movable=False) from e
        files.append(FileRecord(path.name, size, sha256, "" if path == final else str(path)))
    if old is not None and not old.elsewhere:
        for path in old.files:
            if path not in paths and path not in origin.files:
                with contextlib.suppress(OSError):
                    path.unlink()
    store.record(
        ref,
        Record(
            size=sum(file.size for file in files),
            sha256=files[0].sha256 if len(files) == 1 else "",
            source=source,
            added=moments.iso(),
            architecture=origin.architecture,
            quantization=origin.quantization,
            licence=origin.licence,
            kind=KIND,
            repository=origin.label,
            files=tuple(files),
            settings=origin.settings,
        ),
    )
    model = store.find(ref)
    if model is None:
        raise FileError(f"{store.path(ref)} was removed while it was being named")
    return model


def _linked(files: Sequence[Path], finals: Sequence[Path]) -> list[Path]:
    """The files under other names: links, else where they are."""
    ensure(finals[0].parent)
    made: dict[Path, Path] = {}
    try:
        for path, final in zip(files, finals, strict=True):
            if final.exists() and final.samefile(path):
                continue  # a rename onto the same file would do nothing
            temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp")
            temporary.unlink(missing_ok=True)
            os.link(path.resolve(), temporary)  # a link to a link would do as little as that one
            made[temporary] = final
        for temporary, final in made.items():
            temporary.replace(final)
    except OSError:  # a disk without links, or another disk
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        return list(files)
    fsync_folder(finals[0].parent)
    return list(finals)


def _renamed(path: Path, final: Path) -> bool:
    """Moves a file on its own disk. False where it lies on another one, or is a link: what it leads
    to is copied then."""
    if path.is_symlink():
        return False
    try:
        path.replace(final)
    except OSError:
        return False
    return True


def with_settings(origin: Origin, settings: Settings) -> Origin:
    """The same files with settings over their own: what is set takes the place of what was."""
    own = origin.settings
    return replace(
        origin,
        settings=Settings(
            template=settings.template or own.template,
            system=settings.system or own.system,
            parameters={**own.parameters, **settings.parameters},
            messages=settings.messages or own.messages,
            licence=settings.licence or own.licence,
        ),
    )
