"""How far a run is, what is left of it, and going on with one that was cut."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from benchmarks.report import Key, Row

#: Only how they compare matters: seconds of a row of each section, from a full run on two CPUs.
ROW_SECONDS = {
    "roofs": 0.5, "ops": 2.0, "sampling": 0.3, "start": 2.5, "memory": 2.0, "pool": 10.0,
    "steps": 2.0, "speed": 28.0, "serving": 15.0,
}  # fmt: skip
LONGEST_BREAK = timedelta(days=1)  # a machine is another one the day after


@dataclass(frozen=True)
class Piece:
    """Rows that share a model or a matrix. `measure` gets those of `keys` that are missing, and
    yields them; rows that come only together it may yield again."""

    keys: tuple[Key, ...]
    measure: Callable[[Collection[Key]], Iterator[Row]]


class Progress:
    """Rows that are there of those that are planned, by section. have: of the run that this one
    goes on with."""

    def __init__(
        self,
        plan: Mapping[str, Sequence[Piece]],
        have: Collection[Key] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._missing = {
            section: {key for piece in pieces for key in piece.keys} - set(have)
            for section, pieces in plan.items()
        }
        self.n_planned = len({key for pieces in plan.values() for p in pieces for key in p.keys})
        self._clock, self._begin, self._measured = clock, clock(), 0.0

    @property
    def n_missing(self) -> int:
        return sum(map(len, self._missing.values()))

    def missing(self, section: str, piece: Piece) -> list[Key]:
        return [key for key in piece.keys if key in self._missing[section]]

    def came(self, section: str, row: Row) -> None:
        """Counts a row of a section."""
        if (row.test, row.subject) in self._missing[section]:
            self._missing[section].remove((row.test, row.subject))
            self._measured += ROW_SECONDS.get(section, 1.0)

    def failed(self, section: str) -> None:
        """Nothing more comes of a section."""
        self.n_planned -= len(self._missing[section])
        self._missing[section].clear()

    def __str__(self) -> str:
        text = f"{self.n_planned - self.n_missing} of {self.n_planned} rows"
        if not self.n_missing or not self._measured:
            return text
        left = sum(ROW_SECONDS.get(s, 1.0) * len(keys) for s, keys in self._missing.items())
        seconds = (self._clock() - self._begin) * left / self._measured
        about = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        return f"{text}, about {about} left"


@dataclass(frozen=True)
class Begun:
    """A run whose rows are kept: when it began, of which commit, with which arguments."""

    time: str
    commit: str
    argv: list[str]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def last_begun(path: Path, commit: str) -> Begun:
    """The run to go on with. Raises ValueError where there is none, or where what is left of it
    would not compare with what is there."""
    try:
        begun = Begun(**json.loads(path.read_text(encoding="utf-8")))
        age = datetime.now(timezone.utc) - datetime.fromisoformat(begun.time)
    except FileNotFoundError:
        raise ValueError("no run whose rows were kept has begun here") from None
    except (ValueError, TypeError) as e:
        raise ValueError(f"{path} is damaged: {e}") from None
    if begun.commit != commit:
        raise ValueError(f"the last run measured commit {begun.commit}, and this is {commit}")
    if age > LONGEST_BREAK:
        raise ValueError(f"the last run began at {begun.time}, more than a day ago")
    return begun
