"""Model names: what is let through, and that it can never leave the model folder."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import ArgumentError
from localllm.store.ref import MAX_FILES, MAX_PART, Ref, from_path, is_path, parse


@pytest.mark.parametrize(
    ("text", "ref", "stem"),
    [
        ("smollm2:135m", Ref("smollm2", "135m"), "smollm2@135m"),
        ("smollm2", Ref("smollm2", "latest"), "smollm2"),
        ("smollm2:latest", Ref("smollm2", "latest"), "smollm2"),
        ("Llama3:70b-q4_K_M", Ref("llama3", "70b-q4_k_m"), "llama3@70b-q4_k_m"),
        ("qwen2.5:0.5b", Ref("qwen2.5", "0.5b"), "qwen2.5@0.5b"),
        ("a:1", Ref("a", "1"), "a@1"),
        ("console:com", Ref("console", "com"), "console@com"),
        ("a/b:c", Ref("a/b", "c"), "a/b@c"),
        (
            "hf.co/User/Repo-GGUF:Q4_K_M",
            Ref("hf.co/user/repo-gguf", "q4_k_m"),
            "hf.co/user/repo-gguf@q4_k_m",
        ),
        ("localhost+5000/library/x", Ref("localhost+5000/library/x"), "localhost+5000/library/x"),
        ("a.b+1/c/d/e:f", Ref("a.b+1/c/d/e", "f"), "a.b+1/c/d/e@f"),
    ],
)
def test_good_names(text: str, ref: Ref, stem: str) -> None:
    assert parse(text) == ref
    assert ref.stem == stem
    assert from_path(PurePath(f"{stem}.gguf")) == ref
    assert parse(str(ref)) == ref


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the model name is empty"),
        (":x", "empty name"),
        ("x:", "empty tag"),
        ("a:b:c", "tag"),
        ("../x", "begin and end"),
        ("a/../b", "begin and end"),
        ("a/", "empty name"),
        ("/a", "empty folder"),
        ("a//b", "empty folder"),
        ("a/b/c/d/e", "5 parts"),
        ("a/con/b", "device"),
        ("a:b/c", "letters"),
        ("a+b/c", "letters"),
        ("a/b+5", "letters"),
        ("a+123456/b", "letters"),
        ("a..b+5/c", "letters"),
        ("a\\b", "backslash"),
        ("x.json", "path"),
        ("x.12.tmp/y", "path"),
        ("x:y.partial", "path"),
        ("x-00001-of-00002", "split set"),
        ("x:y-00001-of-00002", "split set"),
        ("..", "begin and end"),
        ("a..b", "path"),
        (".hidden", "begin and end"),
        ("-x", "begin and end"),
        ("x-", "begin and end"),
        ("x.", "begin and end"),
        ("x.gguf", "path"),
        ("x:y.GGUF", "path"),
        ("a%2f", "letters"),
        ("a b", "letters"),
        ("a@b", "letters"),
        ("a\0", "letters"),
        ("a\n", "letters"),
        ("a\x1b[31m", "letters"),
        ("[/red]", "begin and end"),
        ("[red]", "letters"),
        ("caf\u00e9", "letters"),
        ("cafe\u0301", "letters"),
        ("\u0430bc", "letters"),  # a Cyrillic letter
        ("\uff41", "letters"),
        ("\u0661", "letters"),  # a digit, but not an ASCII one
        ("sha256:../../", "letters"),
        ("CON", "device"),
        ("con:x", "device"),
        ("x:nul", "device"),
        ("aux.v2", "device"),
        ("COM1", "device"),
        ("lpt9:q4", "device"),
        ("a" * (MAX_PART + 1), "97 characters"),
        ("a:" + "b" * 4096, "4096 characters"),
    ],
)
def test_bad_names(text: str, reason: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse(text)
    assert reason in caught.value.message
    assert caught.value.hint is not None
    assert caught.value.message.isascii() and caught.value.message.isprintable()
    assert len(caught.value.message) < 500


def test_longest_names() -> None:
    text = "a" * MAX_PART + ":" + "b" * MAX_PART
    assert len(parse(text).stem) == 2 * MAX_PART + 1


@given(
    st.text(max_size=80) | st.text("ab.:-_/\\@+5CON1 \0", max_size=14), st.integers(1, MAX_FILES)
)
def test_accepted_names_stay_in_their_folder(text: str, n_files: int) -> None:
    try:
        ref = parse(text)
    except ArgumentError:
        return
    assert ref.stem == ref.stem.lower() and ref.stem.isascii()
    for file in ref.files(n_files)[:2]:
        path = Path("/models") / file
        assert path.is_relative_to("/models") and path == Path(os.path.normpath(path))
        assert not {".", "..", ""} & set(file.split("/")) and len(path.parts) <= 6
    assert from_path(PurePath(ref.files(n_files)[0])) == ref


def test_split_sets() -> None:
    ref = parse("a/m:1b")
    assert ref.files(2) == ("a/m@1b-00001-of-00002.gguf", "a/m@1b-00002-of-00002.gguf")
    assert from_path(PurePath("a/m@1b-00001-of-00002.gguf")) == ref
    assert parse("m").files(3)[0] == "m-00001-of-00003.gguf"
    for n_files in (0, MAX_FILES + 1):
        with pytest.raises(ArgumentError, match="out of range"):
            ref.files(n_files)


@given(
    st.from_regex(r"([a-z0-9]{1,3}/){0,2}[a-z0-9]{1,9}(:[a-z0-9]{1,9})?", fullmatch=True),
    st.from_regex(r"([a-z0-9]{1,3}/){0,2}[a-z0-9]{1,9}(:[a-z0-9]{1,9})?", fullmatch=True),
)
def test_different_names_have_different_files(one: str, other: str) -> None:
    try:
        a, b = parse(one), parse(other)
    except ArgumentError:
        return
    assert (a == b) == (a.stem == b.stem)


@pytest.mark.parametrize(
    "stem",
    ["UPPER", "a@latest", "a@b@c", "a@", "@b", "con", "a b", "", "a@b/c", "a/b/c/d/e", "../a",
     "a-00002-of-00002", "a-00001-of-00001", "a-00001-of-00000", "a-00001-of-99999", ".a"],
)  # fmt: skip
def test_paths_that_no_name_leads_to(stem: str) -> None:
    assert from_path(PurePath(f"{stem}.gguf")) is None
    assert from_path(PurePath(f"{stem}.json")) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smollm2:135m", False),
        ("smollm2", False),
        ("./x", True),
        ("x.gguf", True),
        ("X.GGUF", True),
        ("~/x", True),
        ("/x", True),
        ("a\\b", True),
        ("..", False),
        ("../x", True),
        ("C:/x", True),
        ("c:x", False),
        ("user/repo", False),
        (".hidden", False),
    ],
)
def test_is_path(text: str, expected: bool) -> None:
    assert is_path(text) is expected
