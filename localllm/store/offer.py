"""What a source offers under a name: which files, how large, with which hashes and what is known
of the model. An offer is made, and shown to the user, before the first byte of it is fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localllm.store.ref import Ref
from localllm.store.settings import NOTHING_SET, Settings


@dataclass(frozen=True)
class Location:
    """Where the bytes of a file are at this moment. Signed addresses expire, so a location is asked
    for anew whenever one is refused."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)  # for the host of `url` alone
    etag: str | None = None  # of the content; strong ones only


@dataclass(frozen=True)
class RemoteFile:
    """One file of an offer."""

    name: str  # as the source calls it: for the screen and the record, never joined to a path
    size: int | None  # bytes, None where only the first answer tells
    sha256: str | None  # 64 hex digits, None where the source names none
    locate: Callable[[], Location]  # raises DownloadError


@dataclass(frozen=True)
class Offer:
    """A model that a source can deliver as `ref`. Texts are empty where the source says nothing."""

    ref: Ref  # the name in the store
    source: str  # a key of store/sources: "hub", "oci", "url", "peer", "local"
    repository: str  # as its owner spells it: user/repo, host/namespace/name, an address, a folder
    revision: str  # commit, digest or ETag that the files belong to
    files: tuple[RemoteFile, ...]  # GGUF files in the order of the split, at least one
    quantization: str = ""
    architecture: str = ""
    licence: str = ""
    n_params: int = 0  # 0: not known
    n_ctx: int = 0  # trained context in tokens, 0: not known
    settings: Settings = NOTHING_SET  # a template beside the file gives way to the file's own
    in_place: tuple[Path, ...] = ()  # the files are on this disk: nothing is fetched or copied
    notes: tuple[str, ...] = ()  # lines for the user, such as why it is another quantization

    @property
    def size(self) -> int | None:
        """Bytes of all files, None while one of them is not known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)
