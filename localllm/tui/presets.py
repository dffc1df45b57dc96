"""Named sets of instructions and parameters, in one file of the configuration folder.

Nothing here knows Textual; every call reads or writes the file, and belongs into a thread.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localllm.errors import ArgumentError, FileError, FormatError
from localllm.params import PARAMETERS, THINK
from localllm.paths import ensure
from localllm.store.durable import disk_error, replacing

NAME = "presets.json"
VERSION = 1
MOST_NAME, MOST_SYSTEM, MOST_PRESETS = 60, 1 << 20, 500


@dataclass(frozen=True)
class Wishes:
    """What is asked of answers. system None: the model's own instructions; params: only those that
    were set, as JSON holds them; think None: as the model does."""

    system: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    think: bool | str | None = None


class Presets:
    """The presets of a folder, which need not exist. Each method raises `FileError`; `FormatError`
    for a file that is none of ours, which is never overwritten."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._lock = threading.Lock()

    def all(self) -> dict[str, Wishes]:
        """By name, sorted. What is out of range in a file that was edited is left out."""
        return dict(sorted(self._read().items(), key=lambda item: item[0].lower()))

    def save(self, name: str, wishes: Wishes) -> str:
        """Keeps a preset, in place of one of that name; returns the name as it is kept. Raises
        `ArgumentError` for a name that is none."""
        name = checked_name(name)
        with self._lock:
            kept = self._read()
            if len(kept) >= MOST_PRESETS and name not in kept:
                raise ArgumentError(f"there are {len(kept)} presets", "Delete some of them.")
            kept[name] = wishes
            self._write(kept)
        return name

    def delete(self, name: str) -> None:
        """No error if there is none."""
        with self._lock:
            kept = self._read()
            if kept.pop(name, None) is not None:
                self._write(kept)

    def _read(self) -> dict[str, Wishes]:
        try:
            document = json.loads(self.path.read_bytes())
            if document["version"] != VERSION:
                raise FormatError(
                    f"{self.path} has the version {str(document['version'])[:20]}, this program "
                    f"reads {VERSION}",
                    "Update localllm, or move the file away.",
                )
            rows = document["presets"].items()
            return {str(name)[:MOST_NAME]: _wishes(row) for name, row in rows}
        except FileNotFoundError:
            return {}
        except OSError as e:
            raise disk_error("read", self.path, e) from e
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as e:
            raise FormatError(
                f"the presets in {self.path} are damaged: {str(e)[:80]}",
                "Correct the file, or move it away.",
            ) from e

    def _write(self, kept: Mapping[str, Wishes]) -> None:
        rows = {
            name: {"system": each.system, "params": dict(each.params), "think": each.think}
            for name, each in kept.items()
        }
        text = json.dumps({"version": VERSION, "presets": rows}, indent=1, ensure_ascii=True)
        try:
            ensure(self.path.parent)
            with replacing(self.path, mode=0o600) as file:
                file.write(text.encode() + b"\n")
        except OSError as e:
            raise disk_error("write", self.path, e) from e
        except FileError:
            raise


def checked_name(name: str) -> str:
    """Raises `ArgumentError` for what no list could show."""
    name = name.strip()
    if not name or len(name) > MOST_NAME or not name.isprintable():
        raise ArgumentError(
            f"{name[:MOST_NAME]!a} cannot be the name of a preset",
            f"It may have 1 to {MOST_NAME} printable characters.",
        )
    return name


def _wishes(row: Mapping[str, Any]) -> Wishes:
    """Checked; what this version does not know, or is out of range, is left out."""
    system, think = row.get("system"), row.get("think")
    params: dict[str, Any] = {}
    for name, value in row.get("params", {}).items():
        if name in PARAMETERS:
            try:
                params[name] = plain(PARAMETERS[name].checked(value))
            except ArgumentError:
                continue
    return Wishes(
        system[:MOST_SYSTEM] if isinstance(system, str) else None,
        params,
        think if think in THINK.values() and isinstance(think, (bool, str)) else None,
    )


def plain(value: Any) -> Any:
    """A checked value as JSON holds it."""
    return [plain(each) for each in value] if isinstance(value, tuple) else value
