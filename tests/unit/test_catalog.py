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
    assert known.get(parse("gemma3")) is gemma
    assert known.get(parse("gemma3:latest")) is gemma


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
        ("smolm2", "Did you mean smollm2:135m?"),
        ("smollm2:136m", "Did you mean smollm2:135m?"),
        ("gemma", "Did you mean gemma3:270m?"),
        ("zzzz", "The catalogue has: gemma3:270m, smollm2:135m."),
    ],
)
def test_unknown_names(name: str, hint: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        load().get(parse(name))
    assert name in caught.value.message and caught.value.hint == hint


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
        ('name = "m"', 'name = "../m"', "slash"),
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
