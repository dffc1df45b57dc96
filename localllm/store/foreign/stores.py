"""All stores of other programs on this machine, as one list."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from localllm.errors import LocalLLMError
from localllm.store import ref
from localllm.store.foreign import ForeignModel, hub, lm_studio, ollama
from localllm.store.ref import Ref

#: The first folder of the names of each program's models.
PREFIXES = ("ollama", "lm-studio", "hf.co")
PROGRAMS = (ollama.PROGRAM, lm_studio.PROGRAM, hub.PROGRAM)


def models(env: Mapping[str, str] | None = None, home: Path | None = None) -> list[ForeignModel]:
    """Every model of another program that is whole, by name; of two with one name the first."""
    env = os.environ if env is None else env
    if home is None:
        try:
            home = Path.home()
        except RuntimeError:  # this user has none
            home = Path(os.devnull)
    found: dict[Ref, ForeignModel] = {}
    for model in _all(env, home):
        found.setdefault(model.ref, model)
    return sorted(found.values(), key=lambda model: model.ref)


def find(name: str) -> ForeignModel | None:
    """The model of another program with this name, None if there is none or it is no such name."""
    if name.partition("/")[0].lower() not in PREFIXES:
        return None
    try:
        wanted = ref.parse(name)
    except LocalLLMError:
        return None
    return next((model for model in models() if model.ref == wanted), None)


def _all(env: Mapping[str, str], home: Path) -> Iterator[ForeignModel]:
    for folder in ollama.folders(env, home):
        yield from ollama.models(folder)
    for folder in lm_studio.folders(env, home):
        yield from lm_studio.models(folder)
    yield from hub.models(hub.folder(env, home))
