"""The shipped catalogue, and what a wrong one says."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from localllm.errors import FormatError
from localllm.store import catalog
from localllm.store.catalog import UnknownModelError, load, suggestion
from localllm.store.ref import parse

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / ".cache" / "models"

GOOD = """
name = "m"
[[tag]]
tag = "1b"
default = true
description = "d"
architecture = "llama"
quantization = "Q4_0"
parameters = 5
context = 6
chat = true
licence = "x"
size = 7
sha256 = "{sha}"
[[tag.part]]
package = "p"
version = "1"
wheel = "p-1-py3-none-any.whl"
wheel_size = 8
wheel_sha256 = "{sha}"
member = "p/m"
size = 7
""".format(sha="a" * 64)


def test_the_two_models() -> None:
    known = load()
    smol, gemma = known.get(parse("smollm2:135m")), known.get(parse("gemma3:270m"))
    assert (smol.size, len(smol.parts), smol.chat, smol.licence) == (
        98362432,
        1,
        True,
        "Apache-2.0",
    )
    assert (gemma.size, len(gemma.parts), gemma.chat) == (253113024, 4, False)
    assert known.get(parse("smollm2")) is smol
    for name in ("gemma3", "gemma3:latest"):  # not 270m, which only continues text
        request = known.request(parse(name))
        assert known.find(parse(name)) is None and request is not None
        assert (str(request.ref), request.variant.name) == ("gemma3:1b", "instruct")
    # What a name says is so anyway; another variant or quantization is the Hub's.
    for name in ("smollm2:135m-instruct", "SmolLM2:135M-Chat", "smollm2:135m-q4_1", "smollm2:q4_1"):
        assert known.find(parse(name)) is smol, name
    assert known.find(parse("gemma3:270m-base-q4_K_M")) is gemma
    for name in (
        "smollm2:135m-q8_0",
        "smollm2:360m",
        "gemma3:270m-it",
        "gemma3:1b",
        "smollm2:135m-x",
    ):
        assert known.find(parse(name)) is None, name


def test_catalogue_names_no_registry_host() -> None:
    for path in (ROOT / "models" / "catalog").glob("*.toml"):
        assert not re.search(r"https?://|\.org\b|\.io\b", path.read_text())


@pytest.mark.skipif(not list(WHEELS.glob("*.whl")), reason="the wheels are not in .cache/models")
def test_sizes_agree_with_the_real_wheels() -> None:
    seen = 0
    for entry in load():
        for part in entry.parts:
            wheel = WHEELS / part.wheel
            if not wheel.exists():
                continue
            seen += 1
            assert wheel.stat().st_size == part.wheel_size
            with zipfile.ZipFile(wheel) as archive:
                assert archive.getinfo(part.member).file_size == part.size
    assert seen


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smolm2", "Did you mean smollm2:360m"),
        ("smollm2:136m", "Did you mean smollm2:1.7b or smollm2:135m or smollm2:360m?"),
        ("gemma", "Did you mean gemma3:4b or gemma3:1b?"),
        ("lama3:8b", "Did you mean llama3:8b or"),
        ("llama3:9b", "Did you mean llama3:70b or llama3:8b?"),
        ("zzzz", "The catalogue has: all-minilm, bge-m3, deepseek-r1, embeddinggemma, gemma2"),
    ],
)
def test_unknown_names(name: str, hint: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        load().get(parse(name))
    assert name in caught.value.message and hint in (caught.value.hint or "")


def test_suggestion_looks_at_local_names_too() -> None:
    assert suggestion(parse("mymodle"), [parse("mymodel")]) == "Did you mean mymodel?"
    assert suggestion(parse("x"), []) is None


def test_good_file(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(GOOD)
    (entry,) = load(tmp_path)
    assert (str(entry.ref), entry.download_size) == ("m:1b", 8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "m"', "", "name must be of type str, not None"),
        ('name = "m"', 'name = "../m"', "begin and end"),
        ('tag = "1b"', 'tag = "nul"', "device"),
        ("size = 7\nsha", "size = 9\nsha", "size is 9, but its parts add up to 7"),
        ("size = 7\nsha", "size = -7\nsha", "size must be above 0"),
        ("size = 7\nsha", "size = true\nsha", "size must be of type int"),
        ("parameters = 5", 'parameters = "5"', "parameters must be of type int"),
        ("chat = true", "chat = 1", "chat must be of type bool"),
        (f'wheel_sha256 = "{"a" * 64}"', 'wheel_sha256 = "abc"', "wheel_sha256 has a wrong form"),
        ("p-1-py3-none-any.whl", "../p-1-py3-none-any.whl", "wheel has a wrong form"),
        ("p-1-py3-none-any.whl", "p-1.tar.gz", "wheel has a wrong form"),
        ('package = "p"', 'package = "p --index-url x"', "package has a wrong form"),
        ('package = "p"', 'package = "-r"', "package has a wrong form"),
        ("[[tag.part]]", "[[tag.other]]", "[[part]] is missing"),
        ("[[tag]]", "[[gat]]", "[[tag]] is missing"),
        ('name = "m"', "name = ", "cannot read the catalogue file"),
    ],
)
def test_wrong_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    (tmp_path / "wrong.toml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        load(tmp_path)
    assert "wrong.toml" in str(caught.value) or "name" in str(caught.value)


def test_twice_and_missing(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text(GOOD)
    with pytest.raises(FormatError, match=r"b\.toml: m:1b is in the catalogue twice"):
        load(tmp_path)
    with pytest.raises(FormatError, match="the model catalogue is missing"):
        load(tmp_path / "nowhere")


def test_an_installed_copy_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wheel the files lie in localllm/catalog, beside the code."""
    assert catalog.folder() == ROOT / "models" / "catalog"
    monkeypatch.setattr(catalog, "__file__", str(tmp_path / "localllm" / "store" / "catalog.py"))
    (tmp_path / "localllm" / "catalog").mkdir(parents=True)
    (tmp_path / "localllm" / "catalog" / "m.toml").write_text(GOOD)
    assert [str(entry.ref) for entry in load()] == ["m:1b"]


SIZES = """
name = "m"
description = "d"
architecture = "llama"
context = 6
[[size]]
size = "7b"
default = true
parameters = 5
layers = 4
full_layers = 1
window = 3
kv_heads = 2
head = 8
[size.variants]
instruct = ["u/r-GGUF", "v/s"]
base = ["u/b"]
[[size]]
size = "7b-a1b"
parameters = 9
active = 2
licence = "x"
published = "mxfp4"
draft = "m:7b"
[size.variants]
thinking = ["u/t"]
"""


def write(folder: Path, text: str, name: str = "m.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def test_sizes_of_a_file(tmp_path: Path) -> None:
    one, other = load(write(tmp_path, SIZES)).sizes
    assert (one.n_active, one.licence, one.kind, one.draft) == (5, "", "chat", "")
    assert one.attention is not None and one.attention.kv_bytes(10) == 2 * 2 * 8 * 2 * (10 + 3 * 3)
    assert (other.n_active, other.attention, str(other.published)) == (2, None, "MXFP4")
    assert [str(each) for each in one.variants[0].repositories] == ["u/r-GGUF", "v/s"]


@pytest.mark.parametrize(
    ("text", "ref", "quantization"),
    [
        ("m", "m:7b", None),
        ("m:7b", "m:7b", None),
        ("M:7B-Q4_K_M", "m:7b", "Q4_K_M"),
        ("m:7b-instruct-q4_K_M", "m:7b", "Q4_K_M"),
        ("m:7b-chat", "m:7b", None),
        ("m:it", "m:7b", None),
        ("m:q8_0", "m:7b", "Q8_0"),
        ("m:7b-base-ud-q4_k_xl", "m:7b-base", "UD-Q4_K_XL"),
        ("m:7b-a1b", "m:7b-a1b", None),
        ("m:7b-a1b-thinking-f16", "m:7b-a1b", "F16"),
    ],
)
def test_requests(tmp_path: Path, text: str, ref: str, quantization: str | None) -> None:
    request = load(write(tmp_path, SIZES)).request(parse(text))
    assert request is not None and str(request.ref) == ref
    assert (str(request.quantization) if request.quantization else None) == quantization
    named = request.ref_as(request.quantization)
    assert load(tmp_path).request(named) == request


@pytest.mark.parametrize("text", ["n", "m:8b", "m:7b-foo", "m:7b-a1b-instruct", "m:7", "m:q9_0"])
def test_requests_that_nothing_answers(tmp_path: Path, text: str) -> None:
    assert load(write(tmp_path, SIZES)).request(parse(text)) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('size = "7b"\n', 'size = "7 b"\n', "size has a wrong form"),
        ("parameters = 5", "parameters = 0", "parameters must be above 0"),
        ("active = 2", "active = 20", "active is 20, above parameters (9)"),
        ("full_layers = 1", "full_layers = 5", "full_layers is 5, above layers (4)"),
        ("window = 3", "", "window must be of type int"),
        ('"u/r-GGUF", "v/s"', '"../../x"', "cannot be '..'"),
        ('"u/r-GGUF", "v/s"', '"nothing"', "user/repo"),
        ('["u/r-GGUF", "v/s"]', '"u/r"', "needs a list"),
        ('description = "d"', "", "description must be of type str"),
        ('published = "mxfp4"', 'published = "q9"', "no quantization 'q9'"),
        ('draft = "m:7b"', 'draft = "../x"', "begin and end"),
        ('licence = "x"', 'license = "x"', "'license' is no key of [[size]]"),
        ("context = 6", 'context = 6\nkind = "poem"', "kind is 'poem'"),
        ('size = "7b-a1b"', 'size = "7b"', "m:7b is in the catalogue twice"),
    ],
)
def test_wrong_sizes(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SIZES
    write(tmp_path, SIZES.replace(old, new, 1))
    with pytest.raises(FormatError, match=re.escape(message)) as caught:
        load(tmp_path)
    assert "m.toml" in caught.value.message


def test_the_users_files_come_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    assert load().request(parse("m:7b")) is None
    text = SIZES.replace("u/r-GGUF", "mine/own").replace('name = "m"', 'name = "llama3"')
    own = write(tmp_path / "config" / "catalog", text.replace('"7b"', '"8b"'))
    request = load().request(parse("llama3:8b"))
    assert request is not None and str(request.variant.repositories[0]) == "mine/own"
    assert load().request(parse("llama3:70b")) is not None
    write(own, SIZES.replace('name = "m"', 'name = "smollm2"').replace('"7b"', '"135m"'))
    assert load().find(parse("smollm2:135m")) is None
    write(own, "name = 5")
    with pytest.raises(FormatError, match=r"m\.toml"):
        load()
    write(own, SIZES.replace('"7b"', '"8b"'), "n.toml")
    told: list[FormatError] = []
    known = load(damaged=told.append)
    assert [e.message.partition(":")[0] for e in told] == ["m.toml"] and "move it" in told[0].hint  # type: ignore[operator]
    assert known.request(parse("m:8b")) is not None
    assert known.find(parse("smollm2:135m")) is not None


def test_the_shipped_sizes() -> None:
    known = load()
    assert len(known.sizes) >= 80 and len({size.family for size in known.sizes}) >= 30
    for size in known.sizes:
        name = str(size.ref)
        request = known.request(size.ref)
        assert request is not None and request.size is size, name
        assert (size.licence and size.n_ctx) or size.family == "qwen3.8", name
        repositories = [each for v in size.variants for each in v.repositories]
        assert len(set(repositories)) == len(repositories), name
        if size.draft:
            draft = known.request(parse(size.draft))
            assert draft is not None and draft.size.n_params < size.n_params / 3, name
    families = {size.family for size in known.sizes}
    assert families >= {
        "llama3", "llama3.1", "llama3.2", "llama3.3", "qwen2.5", "qwen2.5-coder", "qwen3",
        "qwen3-coder", "qwen3.5", "gemma2", "gemma3", "gemma4", "mistral", "mixtral", "phi3",
        "phi4", "gpt-oss", "deepseek-r1", "smollm2", "smollm3", "granite3.3", "olmo2", "tinyllama",
        "nomic-embed-text",
    }  # fmt: skip
    for family in families:
        request = known.request(parse(family))
        assert request is not None and request.variant.name != "base", family


def test_names_that_the_issue_promises() -> None:
    known = load()
    short, long = (known.request(parse(f"llama3:70b-{v}q4_K_M")) for v in ("", "instruct-"))
    assert short is not None and short == long
    assert str(short.variant.repositories[0]) == "bartowski/Meta-Llama-3-70B-Instruct-GGUF"
    assert str(short.ref_as(short.quantization)) == "llama3:70b-q4_k_m"
    with pytest.raises(UnknownModelError, match="not in the package index") as caught:
        known.get(parse("llama3:70b"))
    assert "bartowski/Meta-Llama-3-70B-Instruct-GGUF" in (caught.value.hint or "")
    assert not re.search(r"revision|sha256", (catalog.folder() / "llama3.toml").read_text())
