"""Opening the model of `run`: found, pulled if need be, loaded with a line of progress."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from localllm import paths
from localllm.cli import output
from localllm.cli.finding import Found, find_model, hints, sound_catalogue
from localllm.cli.interrupt import Interrupts, exit_at_once
from localllm.cli.loading_options import Opening
from localllm.errors import CancelledError
from localllm.store.index import Store

if TYPE_CHECKING:
    from localllm.remote_session import AnySession


def find(name: str) -> Found:
    """The model behind NAME or PATH; pulls it if it is known and not here."""
    found = find_model(name, may_pull=True)
    if found.to_pull is not None:
        return _pulled(found)
    if found.model is not None and found.model.problem is not None:
        problem = output.escape_line(found.model.problem)
        output.say(f"note: {problem}. To check the file: localllm pull {found.label}")
    return found


def load(found: Found, opening: Opening, *, ends: bool = True) -> AnySession:
    """Loads a model, unless a running server holds it. Ctrl-C meanwhile ends the process, which
    holds nothing that could be lost; or, where `ends` is False, the load with `CancelledError`.
    What comes with the model (its context, its threads, its template) counts where the command line
    says nothing."""
    if opening.server and not opening.asks_for_a_load:
        served = _served(found, opening)
        if served is not None:
            return served
    from localllm.session import Session  # numpy and the engine: 100 ms

    line = output.ProgressLine()
    stopped = threading.Event()

    def show(share: float) -> None:
        if stopped.is_set():
            raise CancelledError(f"loading {found.label} was stopped")
        line.draw(f"loading {found.label} {share:4.0%}")

    def notice(text: str) -> None:
        line.clear()
        output.note(text)

    carried = found.settings
    # Another machine's number of threads may be more than makes sense here.
    n_threads = min(carried.at_load("num_thread"), os.cpu_count() or 1)
    try:
        with Interrupts(exit_at_once if ends else stopped.set, ends=ends), hints(found):
            session = Session.open(
                found.path,
                engine=opening.engine,
                n_threads=opening.n_threads or n_threads,
                n_ctx=opening.n_ctx or carried.at_load("num_ctx"),
                kv_type=opening.kv_type,
                isa=opening.isa,
                digest=found.digest,
                label=found.label,
                template=opening.template,
                beside="" if opening.raw else carried.template,
                mmap=opening.mmap,
                progress=show,
                notice=notice,
            )
    finally:
        line.clear()
    if found.model is not None:
        Store(paths.current().models).touch(found.model.ref)
    return session


def _served(found: Found, opening: Opening) -> AnySession | None:
    """The session of a running server that serves this model."""
    folder = paths.current().servers
    if not folder.is_dir() or not any(folder.iterdir()):
        return None  # what follows takes its time
    from localllm import remote_session

    template = found.settings.template
    sought = remote_session.Sought(found.path, found.label, template, opening.kv_type)
    with output.waiting(f"{found.label}: asking the server"):
        session, why_not = remote_session.find(folder, sought)
    if session is not None:
        session.may_store = opening.store
    if why_not:
        output.note(f"{why_not}: loading the model here")
    return session


def is_base(found: Found) -> bool:
    """Whether the catalogue says that this very file was never taught to chat."""
    if found.model is None or found.model.record is None:
        return False
    entry = sound_catalogue().find(found.model.ref)
    return entry is not None and entry.sha256 == found.model.record.sha256 and not entry.chat


def _pulled(found: Found) -> Found:
    from localllm.cli.pull import pull_wish

    assert found.to_pull is not None  # the caller looked
    output.say(f"{found.label} is not on this machine yet: pulling it.")
    model = pull_wish(found.to_pull, sound_catalogue())
    return Found(str(model.ref), model.path, model)
