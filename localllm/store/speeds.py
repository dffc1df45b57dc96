"""How fast models answered on this machine, as `bench` and `run` measured it: what a prediction
should rest on where it can. One figure is kept for each model and engine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from localllm import paths
from localllm.errors import FileError
from localllm.store.durable import replacing
from localllm.store.index import Model

NAME = "speeds.json"
VERSION = 1
BENCH, RUN = "bench", "run"
MOST = 200  # figures that are kept
#: An answer of fewer tokens, or of less time, says little.
LEAST_TOKENS, LEAST_S = 32, 0.5
#: How many times larger or smaller a model may be to tell something of another one's speed: a small
#: one is held up by other things than reading, or read from the CPU's own cache.
_NEAR = 4.0


@dataclass(frozen=True)
class Measured:
    """The speed of one model's answers."""

    name: str  # that it was asked for by
    digest: str  # of the file, "" where nobody knows it
    engine: str  # "native" or "llama.cpp"
    isa: str
    n_threads: int
    weight_bytes: float  # that a token reads
    kv_bytes: float  # that a token reads for each token before it
    depth: float  # tokens before it
    tokens_per_s: float
    by: str  # BENCH or RUN

    @property
    def bytes_per_s(self) -> float:
        return self.tokens_per_s * self._step_bytes(self.depth)

    def at(self, depth: float) -> float:
        """Tokens per second behind another number of tokens."""
        return self.bytes_per_s / self._step_bytes(depth)

    def _step_bytes(self, depth: float) -> float:
        return self.weight_bytes + self.kv_bytes * depth


def note(folder: Path, measured: Measured) -> None:
    """Keeps a figure in a folder, in place of the same model's; that of a short answer does not
    replace one of `bench`. A folder that cannot be used costs only the figure."""
    kept = load(folder)
    key = _key(measured)
    before = next((each for each in kept if _key(each) == key), None)
    if before is not None and before.by == BENCH and measured.by == RUN:
        return
    kept = [*(each for each in kept if _key(each) != key), measured][-MOST:]
    document = {"version": VERSION, "models": [asdict(each) for each in kept]}
    try:
        paths.ensure(folder)
        with replacing(folder / NAME) as file:
            file.write(json.dumps(document, indent=1).encode() + b"\n")
    except (OSError, FileError):
        pass


def load(folder: Path) -> list[Measured]:
    """The figures in a folder, the oldest first; a file that is damaged has none."""
    try:
        document = json.loads((folder / NAME).read_bytes())
        if document["version"] != VERSION:
            return []
        found = [Measured(**{f.name: each[f.name] for f in fields(Measured)})
                 for each in document["models"]]  # fmt: skip
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return []
    return [each for each in found if _is_sound(each)]


def here(folder: Path, models: Sequence[Model], isa: str, n_threads: int) -> list[Measured]:
    """What was measured in the way in which models run here by default (on that instruction set, on
    so many threads), of the files that are here."""
    digests = {str(model.ref): model.record.digest for model in models if model.record}
    return [
        each
        for each in load(folder)
        if each.n_threads == n_threads
        and (each.isa == isa or each.engine != "native")  # the other one has its own words for it
        and digests.get(each.name, each.digest) in (each.digest, None)
    ]


def nearest(known: Iterable[Measured], engine: str, weight_bytes: float) -> Measured | None:
    """The figure of the engine whose model is most like one of so many bytes, if one is like it."""

    def distance(each: Measured) -> float:
        return abs(math.log(each.weight_bytes / weight_bytes))

    mine = [each for each in known if each.engine == engine]
    best = min(mine, key=distance, default=None)
    return best if best is not None and distance(best) <= math.log(_NEAR) else None


def _key(measured: Measured) -> tuple[str, ...]:
    return (measured.digest or measured.name, measured.engine)


def _is_sound(each: Measured) -> bool:
    texts = (each.name, each.digest, each.engine, each.isa, each.by)
    numbers = (each.weight_bytes, each.kv_bytes, each.depth, each.tokens_per_s)
    return (
        all(isinstance(text, str) for text in texts)
        and type(each.n_threads) is int
        and all(type(number) in (int, float) and 0 <= number < 1e18 for number in numbers)
        and each.weight_bytes >= 1
        and each.tokens_per_s > 0
    )
