"""From a name to an offer: the catalogue's repositories in their order, the lock file before them,
and the names under which a model may already lie in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.errors import LocalLLMError
from localllm.store import quantization
from localllm.store.catalog import Catalog, Request
from localllm.store.identifiers import Repository, Revision
from localllm.store.lockfile import Lockfile, Pin
from localllm.store.quantization import Quantization
from localllm.store.ref import DEFAULT_TAG, Ref
from localllm.store.wanted import HubName

if TYPE_CHECKING:  # names in the store need nothing of the Hub
    from localllm.store.offer import Offer
    from localllm.store.sources.hub import Facts, GatedError, Hub, MissingError

_HUB = "hub"  # in pins


def resolve_request(
    request: Request, hub: Hub, lock: Lockfile | None = None, *, default: Quantization | None = None
) -> Offer:
    """The offer for a catalogue name: what the lock file holds, else the first repository that can
    deliver. default: the quantization where the name says none. Raises `DownloadError`."""
    from localllm.store.sources.hub import GatedError, MissingError, Naming

    pin = lock.find(request.ref_as(request.quantization)) if lock else None
    facts = _facts(request)
    if pin is not None and pin.source == _HUB and lock is not None:
        ref = lock.canonical(request.ref_as(request.quantization))
        return _pinned(pin, ref, hub, facts)
    refused: list[MissingError | GatedError] = []
    for repository in request.variant.repositories:
        try:
            return hub.resolve(
                repository,
                Naming(request.ref),
                wanted=request.quantization,
                default=default,
                facts=facts,
            )
        except (MissingError, GatedError) as e:
            refused.append(e)
    if len(refused) == 1:
        raise refused[0]
    raise MissingError(
        f"no repository delivers {request.ref_as(request.quantization)}: "
        + "; ".join(e.message for e in refused),
        refused[0].hint,  # of the repository that is the best place
    )


def resolve_hub(
    name: HubName, hub: Hub, lock: Lockfile | None = None, *, default: Quantization | None = None
) -> Offer:
    """The offer for a repository that was named. A revision that was named is not overruled by the
    lock file. Raises `DownloadError`."""
    from localllm.store.sources.hub import Facts, Naming

    asked = name.ref
    pin = lock.find(asked) if lock and name.revision is None else None
    is_same = pin is not None and pin.repository.lower() == str(name.repository).lower()
    if pin is not None and lock is not None and pin.source == _HUB and is_same:
        return _pinned(pin, lock.canonical(asked), hub, Facts())
    base = Ref(asked.name) if name.file is None else asked
    return hub.resolve(
        name.repository,
        Naming(base, fixed=name.file is not None),
        revision=name.revision,
        wanted=name.quantization,
        file=name.file,
        default=default,
    )


def local_refs(ref: Ref, catalog: Catalog, lock: Lockfile) -> tuple[Ref, ...]:
    """The names under which the model that `ref` asks for may lie in the store, best first."""
    names = [ref, catalog.canonical(ref), _noted(lock, ref)]
    default = quantization.parse(quantization.DEFAULT)
    if catalog.find(ref) is None and (request := catalog.request(ref)):
        asked = request.ref_as(request.quantization)
        names += [asked, _noted(lock, asked), request.ref_as(request.quantization or default)]
    elif "/" in ref.name and ref.tag == DEFAULT_TAG:
        names.append(Ref(ref.name, default.tag))
    return tuple(dict.fromkeys(names))


def exact_refs(ref: Ref, catalog: Catalog, lock: Lockfile) -> tuple[Ref, ...]:
    """The names under which the model lies that `ref` means exactly: itself, what it was pulled by,
    and the same size and quantization in another spelling. Nothing is filled in."""
    names = [ref, _noted(lock, ref)]
    request = catalog.request(ref)
    if request is not None and request.quantization and ref.tag.startswith(request.size.size):
        names.append(request.ref_as(request.quantization))
    return tuple(dict.fromkeys(names))


def _noted(lock: Lockfile, ref: Ref) -> Ref:
    """What the lock file calls a name. A damaged one must not keep models from their use: pulls say
    what is wrong with it."""
    try:
        return lock.canonical(ref)
    except LocalLLMError:
        return ref


def _pinned(pin: Pin, ref: Ref, hub: Hub, facts: Facts) -> Offer:
    from localllm.store.sources.hub import Entry

    entries = [Entry(file.name, file.size, file.sha256) for file in pin.files]
    quant = quantization.find(pin.quantization)
    repository, commit = Repository.parse(pin.repository), Revision(pin.revision)
    return hub.offer_pinned(repository, commit, ref, quant, entries, facts)


def _facts(request: Request) -> Facts:
    from localllm.store.sources.hub import Facts

    size = request.size
    return Facts(size.architecture, size.licence, size.n_params, size.n_ctx)
