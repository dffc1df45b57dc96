"""Names by people who mean harm: refused with a short message, or stored inert. Whatever is let
through leads to a path inside the store, and to the same name again."""

from __future__ import annotations

import itertools
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localllm.errors import ArgumentError
from localllm.store import quantization
from localllm.store.index import Store
from localllm.store.ref import from_path
from localllm.store.wanted import PathName, parse

STORE = Store(Path("/store/models"))

_PIECES = (
    "..", ".", "", "...", "CON", "nul.gguf", "COM1", "aux", "a%2fb", "%2e%2e", "a\0b", "\0",
    "-rf", "--help", "~", "~root", "$HOME", "`id`", "a;b", "a|b", "a b", "a\tb", "a\nb", "\r\n",
    "C:", "c:x", "\\\\host\\share", "..\\..", "a\\b", "\x1b]0;x\x07", "\x1b[2J", "\x9b31m",
    "\u202egguf", "[/red]", "[b", "{{7*7}}", "${x}", "sha256:..", "sha256:" + "0" * 64,
    "caf\u00e9", "cafe\u0301", "\u0430pple", "\uff0e\uff0e", "\u2024\u2024", "\u2215", "\ud800",
    "a" * 4096, "x" * 97, ".hidden", "x.", "x..y", "x.json", "x.1.tmp", "x-00001-of-00002", "x@y",
    "x@latest", "refs/heads/main", ".git", "hf.co",
)  # fmt: skip
_FRAMES = (
    "{}", "{}:1b", "m:{}", "{}/m", "u/{}", "u/{}:q8_0", "u/r@{}", "u/r:{}", "hf.co/{}/r",
    "hf.co/u/{}", "hf.co/u/r:{}.gguf", "a.b/{}/m", "a.b/m:{}", "localhost:5000/{}/m",
    "https://e.com/{}.gguf", "https://{}/x.gguf", "http://nas:1/{}", "https://huggingface.co/{}/r",
    "https://huggingface.co/u/r/resolve/main/{}.gguf", "https://huggingface.co/u/r/tree/{}",
)  # fmt: skip


def hostile() -> Iterator[str]:
    """More than a thousand names."""
    yield from (frame.format(piece) for frame, piece in itertools.product(_FRAMES, _PIECES))
    for depth in range(1, 20):
        yield "../" * depth + "etc/passwd"
        yield "u/" + "../" * depth + "x"
        yield "https://e.com/" + "%2e%2e%2f" * depth + "x.gguf"


def check(text: str) -> str:
    """What became of a name: "refused", "path" or "inert"."""
    try:
        wanted = parse(text)
    except ArgumentError as e:
        for line in (e.message, e.hint or ""):
            assert line.isprintable() and len(line) < 700, line
        return "refused"
    if isinstance(wanted, PathName):
        assert wanted.path == text  # the user's own file; the store is not involved
        return "path"
    ref = wanted.ref
    for n_files in (1, 3):
        for path in STORE.paths(ref, n_files):
            assert path == Path(os.path.normpath(path)), path
            assert path.is_relative_to(STORE.folder) and path != STORE.folder
            assert str(path).isascii() and str(path).isprintable() and "\\" not in str(path)
            assert len(path.relative_to(STORE.folder).parts) <= 4
    assert from_path(PurePath(STORE.path(ref).relative_to(STORE.folder))) == ref
    return "inert"


def test_a_thousand_hostile_names() -> None:
    names = list(hostile())
    assert len(set(names)) >= 1000
    became = [check(name) for name in names]
    assert became.count("refused") > 700 and became.count("inert") > 30


@given(
    st.text(max_size=60)
    | st.text("ab./\\:@-_%+~ \0CON1\u00e9[]", max_size=24)
    | st.builds("{}://{}".format, st.sampled_from(["https", "http", "hf"]), st.text(max_size=40))
    | st.builds("{}/{}:{}".format, st.text("ab.-", max_size=9), st.text("ab./-", max_size=9),
                st.sampled_from(["q8_0", "latest", "x.gguf", "../x.gguf"]))
)  # fmt: skip
@example("a.b/c/d/e/f:g")
@example("https://a+5/x.gguf")
def test_any_name(text: str) -> None:
    check(text)


@given(st.text(max_size=40))
def test_forms_of_unicode_are_refused_alike(text: str) -> None:
    """Two spellings that look the same never lead to two files."""
    forms = {unicodedata.normalize(form, f"a{text}") for form in ("NFC", "NFD")}
    if len(forms) == 2:
        assert {check(form) for form in forms} <= {"refused", "path"}


@given(st.text(max_size=40))
def test_a_file_name_of_a_listing_never_breaks(name: str) -> None:
    found = quantization.quantization_of(name)
    assert found is None or quantization.find(found.tag) == found


@pytest.mark.parametrize("name", ["a/b", "hf.co/u/r:q8_0", "m:1b"])
def test_the_check_can_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "paths", lambda self, ref, n=1: (self.folder / ".." / str(ref),))
    with pytest.raises(AssertionError):
        check(name)
