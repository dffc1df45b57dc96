"""What the user typed, where a model is wanted: told apart by its form alone, before anything is
asked or opened.

| form | kind |
|---|---|
| ./x  ../x  ~/x  /x  C:\\x  x.gguf | `PathName`: a file or folder of this machine |
| https://.../x.gguf | `UrlName` |
| https://huggingface.co/user/repo... | `HubName` |
| http://host:port/NAME | `PeerName`: another localllm |
| hf.co/user/repo[@rev][:quant] | `HubName` |
| host/ns/name[:tag], the host with a dot, a port or localhost | `OciName` |
| user/repo[@rev][:quant] | `HubName`; a folder of that name needs ./ before it |
| name[:tag] | `PlainName`: of the catalogue or the store |

Every kind but a path carries the name that the model has in the store, so no path is ever built
from anything but a checked `Ref`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from localllm.errors import ArgumentError
from localllm.store import quantization, ref
from localllm.store.identifiers import Repository, Revision
from localllm.store.quantization import Quantization
from localllm.store.ref import SUFFIX, Ref

HUB_HOSTS = ("hf.co", "huggingface.co", "www.huggingface.co")
HUB = "hf.co"  # the folder in the store
MAX_TEXT = 4096  # characters, as long as a path of Linux; signed addresses are long

_HOST = re.compile(r"[a-z0-9](?:(?:-*|\.)[a-z0-9])*", re.ASCII)
_BRACKETED = re.compile(r"\[([0-9a-f:.]+)\](?:(:)(.*))?", re.ASCII)  # an IPv6 address
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)  # of OCI distribution
_NAMESPACE = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*", re.ASCII)  # the same
_URL_TEXT = re.compile(r"[!#-;=?-\[\]_a-z~]+", re.ASCII)  # printable, without " < > \ ^ ` { | }
_SPLIT = re.compile(r"(.*-)00001(-of-)([0-9]{5})(\.gguf)", re.ASCII | re.IGNORECASE)
_HUB_PAGE = re.compile(r"(?:blob|resolve|tree)/([^/]+(?:/pr/[0-9]+)?)(?:/(.+))?", re.ASCII)
_FORMS = (
    "A model is smollm2:135m, hf.co/user/repo:Q4_K_M, an https address of a .gguf file, or a file: "
    "./model.gguf"
)


@dataclass(frozen=True)
class PlainName:
    """`name:tag`, of the catalogue or of the store."""

    ref: Ref


@dataclass(frozen=True)
class HubName:
    """A repository of the Hub."""

    repository: Repository
    revision: Revision | None = None  # None: its main branch
    quantization: Quantization | None = None  # None: the default one
    file: str | None = None  # as the repository calls it; for the Hub alone

    @property
    def ref(self) -> Ref:
        """`hf.co/user/repo`, with what was asked for as the tag."""
        name = f"{HUB}/{self.repository}"
        if self.file is not None:
            return ref.parse(f"{name}:{_tag_of_file(self.file)}")
        return ref.parse(f"{name}:{self.quantization.tag}" if self.quantization else name)


@dataclass(frozen=True)
class OciName:
    """A model of an OCI registry, such as Ollama's."""

    host: str
    port: int | None
    repository: str  # namespace/name, or name
    tag: str  # spelled as typed
    ref: Ref

    @property
    def authority(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class UrlName:
    """A GGUF file of a web server; of a split set, all its files."""

    urls: tuple[str, ...]
    ref: Ref


@dataclass(frozen=True)
class PeerName:
    """A model of another localllm, by the name that it has there."""

    url: str  # http://host:port
    ref: Ref


@dataclass(frozen=True)
class PathName:
    """A file or a folder of this machine, as typed."""

    path: str


Wanted = PlainName | HubName | OciName | UrlName | PeerName | PathName


def parse(text: str) -> Wanted:
    """What `text` means. Raises `ArgumentError` for what is none of the forms, or holds a part that
    breaks its rule."""
    if not text:
        raise ArgumentError("the model name is empty", _FORMS)
    if len(text) > MAX_TEXT:
        raise ArgumentError(
            f"the model name {_shown(text)} has {len(text)} characters, at most {MAX_TEXT} are "
            "allowed",
            _FORMS,
        )
    if "://" in text:
        return _address(text)
    if ref.is_path(text) and not _is_hub_file(text):
        if "\0" in text:
            raise ArgumentError(f"the path {_shown(text)} holds a NUL character")
        return PathName(text)
    if "/" not in text:
        return PlainName(ref.parse(text))
    first, _, rest = text.partition("/")
    if first.lower() in HUB_HOSTS:
        return _hub(rest)
    if "." in first or ":" in first or "+" in first or first.lower() == "localhost":
        return _oci(text, first, rest)
    return _hub(text)


def _is_hub_file(text: str) -> bool:
    """hf.co/user/repo:file.gguf is no file of this machine."""
    return text.lower().startswith(tuple(f"{host}/" for host in HUB_HOSTS)) and ":" in text


def _hub(text: str) -> HubName:
    place, colon, what = text.partition(":")
    place, at, revision = place.partition("@")
    if place.count("/") != 1:
        raise ArgumentError(
            f"{_shown(text)} is no repository of the Hub: it has the form user/repo",
            f"Perhaps a file was meant: ./{place}" if place.isascii() else _FORMS,
        )
    if place.lower().startswith("ollama/") and colon and not _is_hub_choice(what):
        raise ArgumentError(
            f"{_shown(text)} is no repository of the Hub: {_shown(what)} is no quantization",
            "Ollama's own models have such names, where it runs on this machine: localllm list. "
            f"From its registry: registry.ollama.ai/library/{text.partition('/')[2][:80]}",
        )
    name = HubName(
        Repository.parse(place),
        Revision(revision) if at else None,
        *(_hub_choice(what) if colon else (None, None)),
    )
    return _checked(name)


def _is_hub_choice(text: str) -> bool:
    return (
        text.lower() == ref.DEFAULT_TAG
        or text.lower().endswith(SUFFIX)
        or quantization.find(text) is not None
    )


def _hub_choice(text: str) -> tuple[Quantization | None, str | None]:
    if text.lower() == ref.DEFAULT_TAG:
        return None, None
    if text.lower().endswith(SUFFIX):
        return None, _hub_file(text)
    return quantization.parse(text), None


def _hub_file(text: str) -> str:
    """A file's path in a repository. It names the file to the Hub and to nothing else."""
    pieces = text.split("/")
    if not text.isascii() or not text.isprintable() or {"", ".", ".."} & set(pieces):
        raise ArgumentError(f"{_shown(text)} is no file of a repository")
    return text


def _checked(name: HubName) -> HubName:
    """Raises now what the name in the store would raise later."""
    _ = name.ref
    return name


def _tag_of_file(file: str) -> str:
    """A tag for a file that was named: its quantization, else the beginning of its name."""
    if found := quantization.quantization_of(file):
        return found.tag
    stem = file.rpartition("/")[2][: -len(SUFFIX)].lower()
    return re.sub(r"[^a-z0-9._-]+", "-", stem)[: ref.MAX_PART].strip("._-") or "file"


def _oci(text: str, first: str, rest: str) -> OciName:
    # Names in the store hold no ":" but that of the tag: what is listed there is taken as well.
    host, port = _host_port(_shown(text), first.replace("+", ":", 1))
    repository, tag = rest, ref.DEFAULT_TAG
    last = rest.rpartition("/")[2]
    if ":" in last:
        repository, _, tag = rest.rpartition(":")
    if not all(_NAMESPACE.fullmatch(part.lower()) for part in repository.split("/")):
        raise ArgumentError(
            f"{_shown(text)} is no model of a registry: it has the form host/namespace/name:tag",
            _FORMS,
        )
    if not _TAG.fullmatch(tag):
        raise ArgumentError(f"the tag in the model name {_shown(text)} has a wrong form", _FORMS)
    name = ref.parse(f"{_folder(host, port)}/{repository}:{tag.strip('_')}")
    return OciName(host, port, repository.lower(), tag, name)


def _folder(host: str, port: int | None) -> str:
    """What a host is called in the store: an IPv6 address in full, with '-' for its colons."""
    if host.startswith("["):
        import ipaddress

        host = ipaddress.IPv6Address(host.strip("[]")).exploded.replace(":", "-")
    return host if port is None else f"{host}+{port}"


def _host_port(shown: str, authority: str) -> tuple[str, int | None]:
    host, colon, digits = authority.lower().partition(":")
    if bracketed := _BRACKETED.fullmatch(authority.lower()):
        import ipaddress

        try:
            host = f"[{ipaddress.IPv6Address(bracketed[1])}]"
        except ValueError:
            raise ArgumentError(f"{shown} has no valid host: {_shown(authority)}", _FORMS) from None
        colon, digits = bracketed[2] or "", bracketed[3] or ""
    elif not _HOST.fullmatch(host) or len(host) > 253:
        raise ArgumentError(f"{shown} has no valid host: {_shown(host)}", _FORMS)
    if not colon:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", digits, re.ASCII) or not 1 <= int(digits) <= 65535:
        raise ArgumentError(f"{shown} has no valid port: {_shown(digits)}", "1 to 65535.")
    return host, int(digits)


def _address(text: str) -> Wanted:
    shown = _shown(text.partition("?")[0])  # what follows may be a signature
    if not _URL_TEXT.fullmatch(text.partition("://")[2] or " "):
        raise ArgumentError(
            f"the address {shown} holds characters that an address has only in the form %XX"
        )
    try:
        url = urlsplit(text)
        authority = url.netloc
    except ValueError as e:
        raise ArgumentError(f"{shown} is no valid address: {e}") from e
    scheme = url.scheme.lower()
    reader = _SCHEMES.get(scheme)
    if reader is None:
        raise ArgumentError(
            f"models do not come from {_shown(scheme)} addresses: {shown}",
            "https:// for files, http:// for another localllm in this network.",
        )
    if "@" in authority:
        raise ArgumentError(
            "an address with a user name or a password in it is not taken",
            "It would be recorded. Ask the owner for an address without, or use HF_TOKEN.",
        )
    if url.fragment:
        raise ArgumentError(f"the address {shown} holds a '#'", "Leave out what follows it.")
    return reader(shown, url)


def _https(shown: str, url: SplitResult) -> Wanted:
    if (url.hostname or "") in HUB_HOSTS:
        return _hub_page(shown, url)
    if url.path.lower().endswith(SUFFIX):
        return _file_address(shown, url)
    rest = unquote(url.path).removeprefix("/")
    if url.netloc.lower() in ("ollama.com", "www.ollama.com") and "/" in rest:  # a model's page
        return _oci(f"ollama.com/{rest}", "ollama.com", rest)
    raise ArgumentError(
        f"the address {shown} is that of no GGUF file",
        "It must end in .gguf. Another localllm is http://host:port/NAME.",
    )


def _http(shown: str, url: SplitResult) -> Wanted:
    host, port = _host_port(shown, url.netloc)
    if host in HUB_HOSTS or not _is_near(host):
        raise ArgumentError(
            f"the address {shown} is not encrypted, and not in this network",
            "Others could change what it delivers. Use https://",
        )
    if url.path.lower().endswith(SUFFIX):
        return _file_address(shown, url)
    if port is None or url.query or url.path in ("", "/"):
        raise ArgumentError(
            f"{shown} is no model of another localllm",
            "Such an address is http://host:port/NAME, for example http://nas:11435/llama3:8b",
        )
    return PeerName(f"http://{host}:{port}", ref.parse(unquote(url.path.removeprefix("/"))))


_SCHEMES: dict[str, Callable[[str, SplitResult], Wanted]] = {
    "https": _https,
    "http": _http,
    "hf": lambda shown, url: _hub(url.netloc + url.path),
}


def _is_near(host: str) -> bool:
    """Whether a host is this machine or one of the local network, as far as its name tells."""
    import ipaddress  # only addresses need it

    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return "." not in host or host.endswith((".local", ".lan", ".home.arpa", ".internal"))
    address = getattr(address, "ipv4_mapped", None) or address  # ::ffff:8.8.8.8 is far away
    return address.is_loopback or address.is_private or address.is_link_local


def _file_address(shown: str, url: SplitResult) -> UrlName:
    host, port = _host_port(shown, url.netloc)
    _, slash, file = unquote(url.path).rpartition("/")
    if not slash or "\\" in file or not file.isprintable():
        raise ArgumentError(f"the address {shown} names no file")
    urls: tuple[str, ...] = (url.geturl(),)
    stem = file[: -len(SUFFIX)]
    if match := _SPLIT.fullmatch(url.path):
        n_files = int(match[3])
        if not 1 <= n_files <= ref.MAX_FILES:
            raise ArgumentError(
                f"{shown} is one of {n_files} files, at most {ref.MAX_FILES} are taken"
            )
        numbers = range(1, n_files + 1)
        urls = tuple(
            url._replace(path=f"{match[1]}{i:05}{match[2]}{match[3]}{match[4]}").geturl()
            for i in numbers
        )
        stem = stem[: -len("-00001-of-00001")]
    return UrlName(urls, _file_ref(_folder(host, port), stem))


def _file_ref(folder: str, stem: str) -> Ref:
    """host/name:quantization, from a file name of somebody else's choice."""
    found = quantization.quantization_of(stem)
    name = stem.lower()
    if found:
        at = name.rfind(found.name.lower())
        name = name[:at] if at > 0 else name
    name = re.sub(r"[^a-z0-9._-]+", "-", name)
    name = re.sub(r"\.{2,}", ".", name).strip("._-").removesuffix("-ud")
    name = name[: ref.MAX_PART].strip("._-") or "model"
    return ref.parse(f"{folder}/{name}:{found.tag}" if found else f"{folder}/{name}")


def _hub_page(shown: str, url: SplitResult) -> HubName:
    """An address of the Hub's site: of a repository, a folder or a file in it."""
    pieces = unquote(url.path).strip("/").split("/", 2)
    if len(pieces) < 2:
        raise ArgumentError(f"the address {shown} is that of no repository", _FORMS)
    repository = Repository(pieces[0], pieces[1])
    if len(pieces) == 2:
        return _checked(HubName(repository))
    match = _HUB_PAGE.fullmatch(pieces[2])
    if match is None:
        raise ArgumentError(
            f"the address {shown} is that of no model file",
            f"For the repository itself: hf.co/{repository}",
        )
    revision, file = Revision(match[1]), match[2] or ""
    if file.lower().endswith(SUFFIX):
        return _checked(HubName(repository, revision, None, _hub_file(file)))
    wanted = quantization.quantization_of(file) if file else None
    return _checked(HubName(repository, revision, wanted))


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 128 else f"{text[:128]}...")
