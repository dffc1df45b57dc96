"""Model names: what is let through, and that it can never leave the model folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.errors import ArgumentError
from localllm.store.ref import MAX_PART, Ref, from_stem, is_path, parse


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
    ],
)
def test_good_names(text: str, ref: Ref, stem: str) -> None:
    assert parse(text) == ref
    assert ref.stem == stem
    assert from_stem(stem) == ref
    assert parse(str(ref)) == ref


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the model name is empty"),
        (":x", "empty name"),
        ("x:", "empty tag"),
        ("a:b:c", "tag"),
        ("../x", "slash"),
        ("a/b:c", "slash"),
        ("a\\b", "slash"),
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
        ("[/red]", "slash"),
        ("[red]", "letters"),
        ("caf\u00e9", "letters"),
        ("cafe\u0301", "letters"),
        ("\u0430bc", "letters"),  # a Cyrillic letter
        ("\uff41", "letters"),
        ("\u0661", "letters"),  # a digit, but not an ASCII one
        ("sha256:../../", "slash"),
        ("CON", "device"),
        ("con:x", "device"),
        ("x:nul", "device"),
        ("aux.v2", "device"),
        ("COM1", "device"),
        ("lpt9:q4", "device"),
        ("a" * (MAX_PART + 1), "65 characters"),
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


@given(st.text(max_size=80) | st.text("ab.:-_/\\@CON1 \0", max_size=12))
def test_accepted_names_stay_in_their_folder(text: str) -> None:
    try:
        ref = parse(text)
    except ArgumentError:
        return
    file = Path("/models") / f"{ref.stem}.gguf"
    assert file.parent == Path("/models") and ".." not in file.parts
    assert from_stem(file.stem) == ref
    assert ref.stem == ref.stem.lower() and ref.stem.isascii()


@given(
    st.from_regex(r"[a-z0-9]{1,9}(:[a-z0-9]{1,9})?", fullmatch=True),
    st.from_regex(r"[a-z0-9]{1,9}(:[a-z0-9]{1,9})?", fullmatch=True),
)
def test_different_names_have_different_files(one: str, other: str) -> None:
    try:
        a, b = parse(one), parse(other)
    except ArgumentError:
        return
    assert (a == b) == (a.stem == b.stem)


@pytest.mark.parametrize("stem", ["UPPER", "a@latest", "a@b@c", "a@", "@b", "con", "a b", ""])
def test_stems_that_no_name_leads_to(stem: str) -> None:
    assert from_stem(stem) is None


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
    ],
)
def test_is_path(text: str, expected: bool) -> None:
    assert is_path(text) is expected
