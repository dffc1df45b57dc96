"""What the user typed: every form, and that nothing else is taken for one."""

from __future__ import annotations

import pytest

from localllm.errors import ArgumentError
from localllm.store import wanted
from localllm.store.identifiers import Digest, Repository, Revision
from localllm.store.quantization import parse as quant
from localllm.store.ref import parse as ref
from localllm.store.wanted import (
    HubName,
    OciName,
    PathName,
    PeerName,
    PlainName,
    UrlName,
    Wanted,
    parse,
)

U_R = Repository("User", "Repo-GGUF")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llama3:70b-q4_K_M", PlainName(ref("llama3:70b-q4_k_m"))),
        ("mine", PlainName(ref("mine"))),
        ("User/Repo-GGUF", HubName(U_R)),
        ("User/Repo-GGUF:latest", HubName(U_R)),
        ("User/Repo-GGUF:q4_k_m", HubName(U_R, None, quant("Q4_K_M"))),
        ("hf.co/User/Repo-GGUF:UD-Q4_K_XL", HubName(U_R, None, quant("UD-Q4_K_XL"))),
        ("HF.co/User/Repo-GGUF@main", HubName(U_R, Revision("main"))),
        ("hf.co/User/Repo-GGUF@refs/pr/3:Q8_0",
         HubName(U_R, Revision("refs/pr/3"), quant("Q8_0"))),
        ("hf.co/User/Repo-GGUF:sub/x-Q8_0.gguf", HubName(U_R, file="sub/x-Q8_0.gguf")),
        ("hf://User/Repo-GGUF:Q8_0", HubName(U_R, None, quant("Q8_0"))),
        ("https://huggingface.co/User/Repo-GGUF", HubName(U_R)),
        ("https://huggingface.co/User/Repo-GGUF/tree/main", HubName(U_R, Revision("main"))),
        ("https://huggingface.co/User/Repo-GGUF/tree/main/Q4_K_M",
         HubName(U_R, Revision("main"), quant("Q4_K_M"))),
        ("https://hf.co/User/Repo-GGUF/resolve/main/a/x.gguf?download=true",
         HubName(U_R, Revision("main"), file="a/x.gguf")),
        ("https://huggingface.co/User/Repo-GGUF/blob/refs%2Fpr%2F1/x.gguf",
         HubName(U_R, Revision("refs/pr/1"), file="x.gguf")),
        ("registry.ollama.ai/library/llama3:8B",
         OciName("registry.ollama.ai", None, "library/llama3", "8B",
                 ref("registry.ollama.ai/library/llama3:8b"))),
        ("localhost:5000/team/name",
         OciName("localhost", 5000, "team/name", "latest", ref("localhost+5000/team/name"))),
        ("127.0.0.1+34625/n:q4_0",
         OciName("127.0.0.1", 34625, "n", "q4_0", ref("127.0.0.1+34625/n:q4_0"))),
        ("localhost+5000/team/name",
         OciName("localhost", 5000, "team/name", "latest", ref("localhost+5000/team/name"))),
        ("localhost/name:1", OciName("localhost", None, "name", "1", ref("localhost/name:1"))),
        ("https://example.com/a/Model-Q4_K_M.gguf",
         UrlName(("https://example.com/a/Model-Q4_K_M.gguf",), ref("example.com/model:q4_k_m"))),
        ("https://e.com:8443/My%20Model.gguf?sig=s",
         UrlName(("https://e.com:8443/My%20Model.gguf?sig=s",), ref("e.com+8443/my-model"))),
        ("https://e.com/m-UD-Q4_K_XL-00001-of-00002.gguf?x=1",
         UrlName(("https://e.com/m-UD-Q4_K_XL-00001-of-00002.gguf?x=1",
                  "https://e.com/m-UD-Q4_K_XL-00002-of-00002.gguf?x=1"),
                 ref("e.com/m:ud-q4_k_xl"))),
        ("http://127.0.0.1:8000/x.gguf",
         UrlName(("http://127.0.0.1:8000/x.gguf",), ref("127.0.0.1+8000/x"))),
        ("http://nas:11435/llama3:8b", PeerName("http://nas:11435", ref("llama3:8b"))),
        ("http://192.168.0.7:11435/hf.co/u/r:q8_0",
         PeerName("http://192.168.0.7:11435", ref("hf.co/u/r:q8_0"))),
        ("./User/Repo", PathName("./User/Repo")),
        ("User/x.gguf", PathName("User/x.gguf")),
        ("~/x", PathName("~/x")),
        ("../x", PathName("../x")),
        ("C:\\x", PathName("C:\\x")),
        ("x.GGUF", PathName("x.GGUF")),
    ],
)  # fmt: skip
def test_forms(text: str, expected: Wanted) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf.co/User/Repo-GGUF", "hf.co/user/repo-gguf"),
        ("User/Repo-GGUF:Q8_0", "hf.co/user/repo-gguf:q8_0"),
        ("User/Repo-GGUF@main:a/x-Q5_K_M.gguf", "User/Repo-GGUF@main:a/x-Q5_K_M.gguf"),
        ("hf.co/User/Repo-GGUF:a/My Model.gguf", "hf.co/user/repo-gguf:my-model"),
    ],
)
def test_names_of_the_hub_in_the_store(text: str, name: str) -> None:
    wanted = parse(text)
    if isinstance(wanted, PathName):  # .gguf without hf.co before it is a file
        assert wanted.path == name
    else:
        assert isinstance(wanted, HubName) and str(wanted.ref) == name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("x" * 3000, "3000 characters"),
        ("hf.co/user", "it has the form user/repo"),
        ("a/b/c", "it has the form user/repo"),
        ("user/repo:Q9", "no quantization 'Q9'"),
        ("user/repo@../x", "no branch, tag or commit"),
        ("user/repo@", "no branch, tag or commit"),
        ("us..er/repo", "no valid host"),
        ("user/re--po", "name of a Hub repository"),
        ("-user/repo", "owner of a Hub repository"),
        ("hf.co/u/r:../x.gguf", "no file of a repository"),
        ("hf.co/u/r:/x.gguf", "no file of a repository"),
        ("sha256:../../", "no valid port"),
        ("host:99999/x", "no valid port"),
        ("a.b/..:x", "no model of a registry"),
        ("a.b/x:../y", "no model of a registry"),
        ("a.b/x:t$g", "wrong form"),
        ("ftp://e.com/x.gguf", "'ftp'"),
        ("file:///etc/passwd.gguf", "'file'"),
        ("https://user:secret@e.com/x.gguf", "password"),
        ("https://e.com/x.gguf#y", "'#'"),
        ("https://e.com/x y.gguf", "%XX"),
        ("https://e.com/\u00e9.gguf", "%XX"),
        ("https://e.com/..%5cx.gguf", "names no file"),
        ("https://e.com/x%00.gguf", "names no file"),
        ("https://e.com/x", "no GGUF file"),
        ("https://e.com/con.gguf", "device"),
        ("https://e.com/x-00002-of-00003.gguf", "one file of a split set"),
        ("https://e.com/x-00001-of-99999.gguf", "99999 files"),
        ("https://[::1/x.gguf", "no valid"),
        ("https://huggingface.co/u", "no repository"),
        ("https://huggingface.co/u/r/discussions/1", "no model file"),
        ("http://example.com/x.gguf", "not encrypted"),
        ("http://8.8.8.8:11435/x", "not encrypted"),
        ("http://huggingface.co/u/r", "not encrypted"),
        ("http://nas/llama3", "another localllm"),
        ("http://nas:1/../x", "begin and end"),
        ("http://nas:1/%2e%2e/x", "begin and end"),
        ("./x\0y", "NUL"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse(text)
    message = caught.value.message
    assert any(each in message for each in reason.split("|")), message
    assert message.isprintable() and len(message) < 600


def test_secrets_of_an_address_are_not_shown() -> None:
    for text in ("https://e.com/x?sig=secret", "http://e.com/x.gguf?sig=secret"):
        with pytest.raises(ArgumentError) as caught:
            parse(text)
        assert "secret" not in caught.value.message + (caught.value.hint or "")


def test_identifiers() -> None:
    assert str(Repository.parse("a/b.c_d")) == "a/b.c_d"
    assert Revision("a" * 40).is_commit and not Revision("main").is_commit
    assert Digest("sha256:" + "a" * 64).hexadecimal == "a" * 64


@pytest.mark.parametrize(
    "text",
    ["", "sha256:", "sha256:" + "a" * 63, "sha256:" + "A" * 64, "sha256:" + "a" * 64 + "\n",
     "sha256:../../etc/passwd", "md5:" + "a" * 64, "sha256-" + "a" * 64, "sha256:" + "\u0661" * 64],
)  # fmt: skip
def test_digests_that_are_none(text: str) -> None:
    with pytest.raises(ArgumentError, match="no digest"):
        Digest(text)


def test_a_page_of_ollamas_is_a_model_of_its_registry() -> None:
    for page in (
        "https://ollama.com/library/llama3:8b",
        "https://www.ollama.com/library/llama3:8b",
    ):
        assert wanted.parse(page) == wanted.parse("ollama.com/library/llama3:8b")
    for page in ("https://ollama.com", "https://ollama.com/search?q=x", "https://ollama.com/../x"):
        with pytest.raises(ArgumentError):
            wanted.parse(page)


def test_a_name_of_ollamas_leads_to_its_registry() -> None:
    with pytest.raises(ArgumentError, match="'1b' is no quantization") as caught:
        wanted.parse("ollama/x:1b")
    assert "registry.ollama.ai/library/x:1b" in (caught.value.hint or "")
    assert isinstance(wanted.parse("registry.ollama.ai/library/x:1b"), wanted.OciName)
    assert isinstance(wanted.parse("ollama/x:Q8_0"), wanted.HubName)


def test_ipv6_addresses() -> None:
    peer = parse("http://[FE80:0::1]:11435/a:1b")
    assert isinstance(peer, PeerName) and peer.url == "http://[fe80::1]:11435"
    file = parse("http://[::1]:80/m-Q8_0.gguf")
    assert isinstance(file, UrlName) and file.urls == ("http://[::1]:80/m-Q8_0.gguf",)
    assert str(file.ref) == "0000-0000-0000-0000-0000-0000-0000-0001+80/m:q8_0"
    registry = parse("[::1]:5000/a/b:c")
    assert isinstance(registry, OciName) and registry.authority == "[::1]:5000"
    assert str(registry.ref).startswith("0000-") and str(registry.ref).endswith("+5000/a/b:c")


@pytest.mark.parametrize(
    "text",
    ["http://[2001:4860::8888]:1/a", "http://[::ffff:8.8.8.8]:1/a", "http://[::1/a",
     "http://[1]:1/a", "http://[::1]x/a", "[::1]x/a/b", "http://[::1]:/a", "http://[fe80::1%25eth0]:1/a"],
)  # fmt: skip
def test_ipv6_addresses_that_are_not_taken(text: str) -> None:
    with pytest.raises(ArgumentError):
        parse(text)
