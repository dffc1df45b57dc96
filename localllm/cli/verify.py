"""`localllm verify`: every byte of the models against the hashes on record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from localllm import moments, paths
from localllm.cli import output
from localllm.cli.finding import Found, find_model
from localllm.cli.options import ModelName
from localllm.errors import ArgumentError, LocalLLMError
from localllm.store.digest import sha256_of
from localllm.store.index import Model, Store
from localllm.store.lockfile import Lockfile
from localllm.store.record import FileRecord, Record


@click.command("verify")
@click.argument("names", metavar="[NAME]...", nargs=-1, type=ModelName())
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def command(names: tuple[str, ...], as_json: bool) -> int:
    """Read all files of models and compare them with the hashes on record.

    Without NAME all models of the store. A file whose hash nobody knows is hashed, and its hash put
    on record. The exit code is 1 if one is damaged.
    """
    store = Store(paths.current().models)
    if names:
        found = [find_model(name, may_pull=False) for name in names]
    else:
        found = [Found(str(model.ref), model.path, model) for model in store.list()]
    for name, each in zip(names, found, strict=False):
        if each.model is None and each.foreign is None:
            raise ArgumentError(
                f"nothing is on record of {name[:200]}",
                "To put a file on record: localllm import PATH NAME",
            )
    meter = _Meter(sum(_size(each) for each in found))
    rows = []
    for each in found:
        row = _verified(each, store, meter)
        rows.append(row)
        meter.line.clear()
        if not as_json:
            output.emit(output.escape_line(f"{row['name']}: {row['text']}") + "\n")
    if as_json:
        output.emit(json.dumps(rows) + "\n")
    elif not rows:
        output.say("There are no models to verify.")
    damaged = [row for row in rows if row["state"] == "damaged"]
    if damaged and not as_json:
        output.say("")
        output.say(output.styled("hint:", "1") + " A model that was pulled is mended by: "
                   "localllm pull NAME")  # fmt: skip
    return 1 if damaged else 0


class _Meter:
    """The line of progress over all models."""

    def __init__(self, total: int) -> None:
        self.line = output.ProgressLine()
        self.total, self.done = total, 0

    def add(self, label: str, n_bytes: int) -> None:
        self.done += n_bytes
        share = f"{output.size_text(self.done)} of {output.size_text(self.total)}"
        self.line.draw(f"verifying {label}  {share}")


def _size(found: Found) -> int:
    return found.model.size if found.model else found.foreign.size if found.foreign else 0


def _verified(found: Found, store: Store, meter: _Meter) -> dict[str, Any]:
    """A row: state is "ok", "recorded" (its hash was taken just now), "unknown" or "damaged"."""
    model = found.model
    if model is None:
        assert found.foreign is not None  # the caller looked
        files, expected = found.foreign.files, [found.foreign.sha256] * len(found.foreign.files)
        sizes: list[int | None] = [None] * len(files)
    else:
        record = model.record or model.damaged
        if model.damaged is not None or (model.problem and record is not None):
            # A file is missing, or its size alone shows it.
            return _row(found, "damaged", f"damaged, {model.problem}")
        if model.problem:  # the record cannot be read: what it said must not be made up anew
            return _row(found, "damaged", f"damaged, {model.problem}{_against_lock(model, meter)}")
        files, expected, sizes = model.files, *_on_record(record, len(model.files))
    hashes = []
    for path, sha256, size in zip(files, expected, sizes, strict=True):
        try:
            taken, n_bytes = sha256_of(path, lambda n: meter.add(found.label, n))
        except OSError as e:
            why = f"{path.name} cannot be read: {e.strerror or e}"
            return _row(found, "damaged", f"damaged, {why}")
        if size is not None and n_bytes != size:
            why = f"{path.name} has {n_bytes} bytes, on record are {size}"
            return _row(found, "damaged", f"damaged, {why}")
        if sha256 and taken != sha256:
            why = f"{path.name} has the sha256 {taken}, on record is {sha256}"
            return _row(found, "damaged", f"damaged, {why}")
        hashes.append((path, n_bytes, taken))
    if all(expected):
        return _row(found, "ok", "ok", [sha256 for _, _, sha256 in hashes])
    taken_all = [sha256 for _, _, sha256 in hashes]
    if model is None:
        return _row(found, "unknown", "nothing to compare with", taken_all)
    store.record(model.ref, _with_hashes(model, hashes))
    what = "its hash is" if len(hashes) == 1 else "its hashes are"
    return _row(found, "recorded", f"nothing to compare with: {what} on record now", taken_all)


def _against_lock(model: Model, meter: _Meter) -> str:
    """What the lock file says of the files of a model whose record cannot be read."""
    try:
        pin = Lockfile().find(model.ref)
    except LocalLLMError:
        return ""
    if pin is None or len(pin.files) != len(model.files):
        return "; models.lock.json does not have it either"
    for path, file in zip(model.files, pin.files, strict=True):
        try:
            taken, _ = sha256_of(path, lambda n: meter.add(str(model.ref), n))
        except OSError as e:
            return f"; {path.name} cannot be read: {e.strerror or e}"
        if taken != file.sha256:
            return f"; {path.name} has the sha256 {taken}, in models.lock.json is {file.sha256}"
    what = "the file is" if len(pin.files) == 1 else "the files are"
    return f"; {what} as models.lock.json has it"


def _row(found: Found, state: str, text: str, hashes: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "name": found.label,
        "state": state,
        "text": text,
        "path": str(found.path),
        "sha256": list(hashes),
    }


def _on_record(record: Record | None, n_files: int) -> tuple[list[str], list[int | None]]:
    """The hash and the size of each file, "" and None where nobody has taken them."""
    if record is not None and len(record.files) == n_files:
        return [file.sha256 for file in record.files], [file.size for file in record.files]
    if record is not None and n_files == 1:
        return [record.sha256], [record.size]
    return [""] * n_files, [None] * n_files


def _with_hashes(model: Model, hashes: Sequence[tuple[Path, int, str]]) -> Record:
    record = model.record
    if record is None:
        record = Record(model.size, "", "a file of your own", moments.iso())
    before = record.files if len(record.files) == len(hashes) else ()
    files = [
        replace(before[i], sha256=sha256) if before else FileRecord(path.name, size, sha256)
        for i, (path, size, sha256) in enumerate(hashes)
    ]
    return replace(record, files=tuple(files), sha256=files[0].sha256 if len(files) == 1 else "")
