"""The Hugging Face Hub as a source. Its own client finds and lists: it knows the token,
HF_ENDPOINT, proxies and HF_HUB_OFFLINE. The bytes are left to the download engine, because the
client does not resume and checks only the size; what its cache has already is used where it lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from localllm.errors import ArgumentError, DownloadError
from localllm.store import listing, quantization
from localllm.store.identifiers import SHA256, Repository, Revision
from localllm.store.offer import Location, Offer, RemoteFile
from localllm.store.quantization import Quantization
from localllm.store.ref import Ref
from localllm.store.sources.hub_cache import CachedFile, HubCache
from localllm.store.sources.hub_client import library, patiently, retry_after
from localllm.store.transfer.http import Fault
from localllm.store.transfer.small import BUSY

SOURCE = "hub"
MAIN = Revision("main")
_TIMEOUT_S = 30.0
_UPDATE = (
    "Its owner replaced what was pinned. To take what is there now: localllm pull --update NAME"
)
_MOST_SHOWN = 12  # names in a message


class MissingError(DownloadError):
    """The Hub has no such repository, revision or file, or does not show it to this user."""


class GatedError(DownloadError):
    """The owner of a repository wants to know who takes it."""


class UnreachableError(DownloadError):
    """The Hub did not answer, or must not be asked."""


@dataclass(frozen=True)
class Facts:
    """What is known of a model beside the Hub; empty or 0 where nothing is."""

    architecture: str = ""
    licence: str = ""
    n_params: int = 0
    n_ctx: int = 0


@dataclass(frozen=True)
class Naming:
    """How what is found is called in the store: `base` with the quantization in its tag, unless it
    is fixed."""

    base: Ref
    fixed: bool = False

    def ref(self, quantization: Quantization | None) -> Ref:
        if quantization is None or self.fixed:
            return self.base
        is_default = self.base.tag == Ref(self.base.name).tag
        tag = quantization.tag if is_default else f"{self.base.tag}-{quantization.tag}"
        return Ref(self.base.name, tag)


@dataclass(frozen=True)
class Entry:
    """A file as the Hub lists it."""

    name: str
    size: int | None  # bytes
    sha256: str | None  # of large files


@dataclass(frozen=True)
class Repo:
    """A repository at one commit. Texts come from its owner."""

    repository: Repository
    commit: str
    entries: tuple[Entry, ...]
    facts: Facts
    cached: Mapping[str, CachedFile]  # files of this commit that are on this machine


@dataclass(frozen=True)
class Match:
    """A repository that a search found."""

    repository: str
    downloads: int
    likes: int
    gated: bool
    modified: str  # ISO 8601, "" where the Hub does not say


class Hub:
    """A Hub-compatible server. What is left out is read from the environment, as the Hub's client
    does: HF_ENDPOINT, HF_TOKEN and the token's file, HF_HUB_CACHE, HF_HUB_OFFLINE."""

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | None = None,
        cache: Path | None = None,
        offline: bool | None = None,
    ) -> None:
        client = library()
        self.endpoint = (endpoint or client.constants.ENDPOINT).rstrip("/")
        self._token = token or client.get_token()
        self.cache = HubCache(cache or Path(client.constants.HF_HUB_CACHE))
        self.offline = client.constants.HF_HUB_OFFLINE if offline is None else offline
        self._api = client.HfApi(endpoint=self.endpoint, token=self._token or False)

    def resolve(
        self,
        repository: Repository,
        naming: Naming,
        *,
        revision: Revision | None = None,
        wanted: Quantization | None = None,
        default: Quantization | None = None,
        file: str | None = None,
        facts: Facts | None = None,
    ) -> Offer:
        """The offer of a repository: of `file`, or else of the quantization that is wanted, or else
        of the default (Q4_K_M unless said otherwise) or what is nearest to it. Nothing is fetched
        but the listing. Raises `DownloadError`, which names what is there where the wanted is
        not."""
        repo = self.look(repository, revision or MAIN)
        found = listing.group(entry.name for entry in repo.entries)
        if file is not None:
            group, note = _group_of_file(repo, found, file), ""
        else:
            group, note = _group_of(repo, found, wanted, default)
        by_name = {entry.name: entry for entry in repo.entries}
        entries = [by_name[name] for name in group.files]
        notes = [note] if note else []
        if str(repo.repository) != str(repository):
            notes.append(f"{repository} is called {repo.repository} now")
        return self._offer(repo, naming.ref(group.quantization), group.quantization, entries, notes,
                           facts or Facts())  # fmt: skip

    def offer_pinned(
        self,
        repository: Repository,
        commit: Revision,
        ref: Ref,
        quant: Quantization | None,
        entries: Iterable[Entry],
        facts: Facts,
    ) -> Offer:
        """The offer of files that are known from an earlier listing; asks nobody."""
        repo = Repo(repository, str(commit), tuple(entries), Facts(), {})
        return self._offer(repo, ref, quant, list(repo.entries), [], facts)

    def look(self, repository: Repository, revision: Revision = MAIN) -> Repo:
        """The listing of a repository; of the cache where the Hub cannot or must not be asked."""
        if self.offline:
            return self._from_cache(repository, revision, "HF_HUB_OFFLINE is set")
        try:
            with _explained(self.endpoint, repository, revision, has_token=bool(self._token)):
                info = patiently(
                    lambda: self._api.model_info(
                        str(repository),
                        revision=None if revision == MAIN else str(revision),
                        files_metadata=True,
                        timeout=_TIMEOUT_S,
                    )
                )
                return self._repo(repository, info)
        except UnreachableError as e:
            try:
                return self._from_cache(repository, revision, e.message)
            except UnreachableError:
                raise e from e.__cause__

    def locate(self, repository: Repository, commit: str, entry: Entry) -> Location:
        """Where a file is at this moment. The token goes to the Hub's own host alone. Raises
        `DownloadError`, and `Fault` where the Hub may answer a moment later."""
        revision = Revision(commit)
        if self.offline:
            raise UnreachableError(
                f"cannot fetch {entry.name} of {repository}: HF_HUB_OFFLINE is set",
                "Unset it to fetch.",
            )
        url = f"{self.endpoint}/{repository}/resolve/{revision}/{quote(entry.name)}"
        try:
            with _explained(
                self.endpoint, repository, revision, has_token=bool(self._token), listed=True
            ):
                found = library().get_hf_file_metadata(
                    url, token=self._token or False, timeout=_TIMEOUT_S, endpoint=self.endpoint
                )
        except UnreachableError as e:
            raise Fault(e.message, unreachable=True) from e
        except DownloadError as e:
            answer = getattr(e.__cause__, "response", None)
            if answer is None or answer.status_code not in BUSY:
                raise
            raise Fault(e.message, after=retry_after(answer), busy=True) from e
        linked = found.etag or ""
        if entry.sha256 and SHA256.fullmatch(linked) and linked != entry.sha256:
            raise DownloadError(
                f"{entry.name} of {repository} is not what was listed: expected sha256 "
                f"{entry.sha256}, the Hub has {linked}",
                _UPDATE,
            )
        headers = {}
        is_own = _origin(found.location) == _origin(self.endpoint)
        if self._token and is_own:
            headers["Authorization"] = f"Bearer {self._token}"
        # Behind a redirect the content has an ETag of another kind than the one that was told.
        return Location(found.location, headers, found.etag if found.location == url else None)

    def search(self, words: str, limit: int = 20) -> list[Match]:
        """Repositories with GGUF files, the most downloaded first. Raises `DownloadError`."""
        if self.offline:
            raise UnreachableError("cannot search the Hub: HF_HUB_OFFLINE is set", "Unset it.")
        with _explained(self.endpoint, None, None, has_token=bool(self._token)):
            # The client's own list_models tries for 25 s to reach a server that is not there.
            utils = library().utils
            query = {"search": words, "filter": "gguf", "sort": "downloads", "limit": str(limit)}

            def ask() -> Any:
                response = utils.get_session().get(
                    f"{self.endpoint}/api/models",
                    params=query,
                    headers=utils.build_hf_headers(token=self._token or False),
                    timeout=_TIMEOUT_S,
                )
                utils.hf_raise_for_status(response)
                return response.json()

            return [_match(row) for row in patiently(ask)]

    def _repo(self, repository: Repository, info: Any) -> Repo:
        try:
            name = Repository.parse(str(info.id))
            commit = Revision(str(info.sha))
        except ArgumentError as e:
            raise DownloadError(f"the Hub's answer on {repository} is wrong: {e.message}") from e
        entries = tuple(_entries(info.siblings or []))
        snapshot = self.cache.snapshot(name, commit) if commit.is_commit else None
        cached = {file.name: file for file in snapshot.files} if snapshot else {}
        return Repo(name, str(commit), entries, _facts(info), cached)

    def _from_cache(self, repository: Repository, revision: Revision, why: str) -> Repo:
        snapshot = self.cache.snapshot(repository, revision)
        if snapshot is None:
            raise UnreachableError(
                f"{repository} cannot be looked up: {why}",
                "It is not in the Hub's cache on this machine either.",
            )
        entries = tuple(Entry(file.name, file.size, file.sha256) for file in snapshot.files)
        cached = {file.name: file for file in snapshot.files}
        return Repo(repository, snapshot.commit, entries, Facts(), cached)

    def _offer(
        self,
        repo: Repo,
        ref: Ref,
        quant: Quantization | None,
        entries: list[Entry],
        notes: list[str],
        known: Facts,
    ) -> Offer:
        told = repo.facts
        return Offer(
            ref=ref,
            source=SOURCE,
            repository=str(repo.repository),
            revision=repo.commit,
            files=tuple(self._remote(repo, entry) for entry in entries),
            quantization=str(quant) if quant else "",
            architecture=told.architecture or known.architecture,
            licence=known.licence or told.licence,  # the catalogue spells it out
            n_params=told.n_params or known.n_params,
            n_ctx=told.n_ctx or known.n_ctx,
            in_place=self._in_place(repo, entries),
            notes=tuple(notes),
        )

    def _remote(self, repo: Repo, entry: Entry) -> RemoteFile:
        return RemoteFile(
            entry.name,
            entry.size,
            entry.sha256,
            lambda: self.locate(repo.repository, repo.commit, entry),
        )

    def _in_place(self, repo: Repo, entries: list[Entry]) -> tuple[Path, ...]:
        """The cache's files, if it has every one with the right content, all in one folder."""
        paths = []
        for entry in entries:
            if entry.sha256 is None or entry.size is None:
                return ()
            cached = repo.cached.get(entry.name)
            if cached and (cached.sha256, cached.size) == (entry.sha256, entry.size):
                path: Path | None = cached.path
            else:
                path = self.cache.find(repo.repository, entry.name, entry.size, entry.sha256)
            if path is None:
                return ()
            paths.append(path)
        return tuple(paths) if len({path.parent for path in paths}) == 1 else ()


def _group_of(
    repo: Repo,
    found: listing.Listing,
    wanted: Quantization | None,
    default: Quantization | None,
) -> tuple[listing.Group, str]:
    """The model to take, and a note where it is not the one that was meant."""
    _require_models(repo, found)
    there = found.quantizations()
    if wanted is not None and wanted not in there:
        raise MissingError(
            f"{repo.repository} has no {wanted}, only "
            f"{_shown(map(str, there)) or 'files that do not say what they are'}",
            "Name one of these, or none to have the one nearest to Q4_K_M.",
        )
    if not there:
        if len(found.models) == 1:
            return found.models[0], ""
        raise _ambiguous(repo, found.models)
    choice = quantization.choose(wanted or default, there)
    groups = [group for group in found.models if group.quantization == choice.quantization]
    if len(groups) > 1:
        raise _ambiguous(repo, groups)
    return groups[0], choice.note


def _group_of_file(repo: Repo, found: listing.Listing, file: str) -> listing.Group:
    """The model that a file is, or is a part of; also one that goes beside a model."""
    for group in found.models:
        if file in group.files:
            return group
    if file in found.beside:
        return listing.Group(file, (file,), quantization.quantization_of(file))
    _require_models(repo, found)
    names = [group.files[0] for group in found.models]
    raise MissingError(f"{repo.repository} has no file {file[:200]!a}", f"It has {_shown(names)}.")


def _require_models(repo: Repo, found: listing.Listing) -> None:
    if found.models:
        return
    if found.incomplete:
        raise MissingError(
            f"{repo.repository} holds only a part of {_shown(found.incomplete)}",
            "Its owner has not put all files there yet. Look for another repository.",
        )
    raise MissingError(
        f"{repo.repository} holds no GGUF file",
        f"Others may have converted it: localllm search {repo.repository.name} --hub",
    )


def _ambiguous(repo: Repo, groups: Iterable[listing.Group]) -> DownloadError:
    files = [group.files[0] for group in groups]
    return MissingError(
        f"{repo.repository} holds several models: {_shown(files)}",
        f"Name the file, for example hf.co/{repo.repository}:{files[0]}",
    )


def _shown(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - _MOST_SHOWN
    text = ", ".join(name[:120] for name in names[:_MOST_SHOWN])
    return f"{text} and {more} more" if more > 0 else text


def _entries(siblings: Iterable[Any]) -> Iterator[Entry]:
    """The files of a listing whose names are usable; the Hub is believed in nothing else."""
    for sibling in siblings:
        name, size, lfs = sibling.rfilename, sibling.size, sibling.lfs
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 1024:
            continue
        if {"", ".", ".."} & set(name.split("/")) or "\\" in name:
            continue
        sha256 = getattr(lfs, "sha256", None)
        yield Entry(
            name,
            size if type(size) is int and size >= 0 else None,
            sha256 if isinstance(sha256, str) and SHA256.fullmatch(sha256) else None,
        )


def _facts(info: Any) -> Facts:
    """What the repository says of the model."""
    card: Any = info.card_data or {}
    licence = card.get("license") if hasattr(card, "get") else None
    if licence == "other":
        licence = card.get("license_name") or licence
    gguf = info.gguf if isinstance(info.gguf, dict) else {}
    architecture = gguf.get("architecture")
    return Facts(
        architecture=architecture if isinstance(architecture, str) else "",
        licence=licence if isinstance(licence, str) else "",
        n_params=_count(gguf.get("total")),
        n_ctx=_count(gguf.get("context_length")),
    )


def _count(value: Any) -> int:
    return value if type(value) is int and 0 < value < 2**53 else 0


def _match(row: Mapping[str, Any]) -> Match:
    return Match(
        repository=str(row["id"]),
        downloads=_count(row.get("downloads")),
        likes=_count(row.get("likes")),
        gated=bool(row.get("gated")),
        modified=str(row.get("lastModified") or ""),
    )


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


@contextmanager
def _explained(
    endpoint: str,
    repository: Repository | None,
    revision: Revision | None,
    *,
    has_token: bool,
    listed: bool = False,
) -> Iterator[None]:
    """Turns the client's errors into ours. listed: the revision is from a listing or a pin."""
    import httpx2

    errors = library().errors
    host = urlsplit(endpoint).netloc
    try:
        yield
    except errors.GatedRepoError as e:
        raise GatedError(
            f"{repository} is gated: its owner wants to know who takes it",
            f"Your token is not allowed to read it. Ask for access at {endpoint}/{repository}"
            if has_token
            else f"Accept its terms at {endpoint}/{repository}, then set HF_TOKEN to a token of "
            f"{endpoint}/settings/tokens",
        ) from e
    except errors.RevisionNotFoundError as e:
        raise MissingError(
            f"{repository} has no revision {revision}" + " any more" * listed,
            _UPDATE if listed else "The usual one is main: leave @... out.",
        ) from e
    except errors.EntryNotFoundError as e:
        raise MissingError(f"{repository} has lost a file that it listed", _UPDATE) from e
    except errors.RepositoryNotFoundError as e:
        name = repository.name if repository else ""
        raise MissingError(
            f"{host} has no repository {repository}, or it is private",
            f"See: localllm search {name} --hub. A private one needs HF_TOKEN.",
        ) from e
    except errors.OfflineModeIsEnabled as e:
        raise UnreachableError("HF_HUB_OFFLINE is set", "Unset it to ask the Hub.") from e
    except errors.HfHubHTTPError as e:
        status = e.response.status_code if e.response is not None else 0
        hint = "Wait a while." if status == 429 else "Try again later."
        if status == 401:
            hint = "The token in HF_TOKEN, or the one you logged in with, is not accepted."
        elif status == 403:
            hint = f"The token may not read it, or terms wait at {endpoint}/{repository or ''}"
        raise DownloadError(f"{host} answered with the status {status}", hint) from e
    except (httpx2.HTTPError, OSError) as e:
        raise UnreachableError(
            f"{host} cannot be reached: {str(e)[:200] or type(e).__name__}",
            "Check the network and the proxy. HF_ENDPOINT names another server.",
        ) from e
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise DownloadError(
            f"the answer of {host} cannot be understood: {str(e)[:200] or type(e).__name__}",
            "It may be another kind of server: see HF_ENDPOINT.",
        ) from e
