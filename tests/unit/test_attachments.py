"""`@file` in a message: what is a file, what is not, and what is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from localllm.attachments import MAX_BYTES, attach, completions
from localllm.errors import ArgumentError, FileError, LocalLLMError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("first\nsecond\n")
    return tmp_path


def text_of(message: str) -> str:
    return attach(message).text


def test_a_file_is_fenced_under_its_name(here: Path) -> None:
    attached = attach("Sum up @notes.txt, please")
    assert attached.text == "Sum up notes.txt, please\n\nnotes.txt:\n```\nfirst\nsecond\n```"
    assert attached.told == ["attached notes.txt (13 B)"]
    (here / "big.txt").write_text("a" * 1234)
    assert attach("@big.txt").told == ["attached big.txt (1.2 kB)"]


@pytest.mark.parametrize(
    "message",
    ["@notes.txt", "(@notes.txt)", "see @notes.txt.", "see @notes.txt?!", '@"notes.txt"',
     "@'notes.txt'", "@./notes.txt", "a\n@notes.txt\nb", "@notes.txt @notes.txt"],
)  # fmt: skip
def test_forms(here: Path, message: str) -> None:
    text = text_of(message)
    assert text.count("```\nfirst\nsecond\n```") == 1
    assert "@" not in text


def test_spaces_and_folders(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "my folder").mkdir()
    (here / "my folder" / "a b.txt").write_text("inside")
    monkeypatch.setenv("HOME", str(here))
    for message in ('@"my folder/a b.txt"', "@my\\ folder/a\\ b.txt", '@"~/my folder/a b.txt"'):
        assert text_of(message).endswith("a b.txt:\n```\ninside\n```")


@pytest.mark.parametrize(
    "message",
    ["mail anna@example.com", "ask @anna", "@anna, hello", "npm i @types/node", "a @ b", "@", "@@",
     "@app.route('/')", "@dataclass", "x=@y", "10@3", "git@host.org:a/b.txt", "@media (x)",
     "@" + "a" * 5000, "@\0", "@~nobody-there"],
)  # fmt: skip
def test_text_that_is_no_file(here: Path, message: str) -> None:
    assert text_of(message) == message


def test_an_at_that_names_nothing_can_be_written(here: Path) -> None:
    assert text_of(r"\@notes.txt and \@nothere.txt") == "@notes.txt and @nothere.txt"


@pytest.mark.parametrize(
    "name", ["nothere.txt", "./nothere", "/no/such/file", "~/nothere", '"any thing"', "x.png"]
)
def test_a_missing_file_is_an_error(here: Path, name: str) -> None:
    with pytest.raises(FileError, match="there is no file") as caught:
        text_of(f"see @{name} now")
    assert caught.value.hint is not None and r"\@" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.bin", b"\0\1\2", "not a text file"),
        ("b.txt", b"caf\xe9", "not a text file"),
        ("c.txt", b"a" * (MAX_BYTES + 1), "1,048,577 bytes, and an attachment may have 1,048,576"),
        ("d.bin", b"%PDF-1.7\n\0", "not a text file"),
    ],
)
def test_refused(here: Path, name: str, content: bytes, message: str) -> None:
    (here / name).write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        text_of(f"@{name}")


@pytest.mark.skipif(os.name == "nt", reason="special files")
def test_special_files_are_not_opened(here: Path) -> None:
    os.mkfifo(here / "pipe.txt")
    (here / "folder.txt").mkdir()
    for name, message in (("pipe.txt", "not a regular file"), ("folder.txt", "is a folder"),
                          ("/dev/zero", "not a regular file")):  # fmt: skip
        with pytest.raises(FileError, match=message):
            text_of(f"@{name}")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(here: Path) -> None:
    (here / "notes.txt").chmod(0)
    with pytest.raises(FileError, match=r"cannot read notes\.txt"):
        text_of("@notes.txt")


def test_encodings_and_fences(here: Path) -> None:
    (here / "u.txt").write_bytes("größe".encode("utf-16"))
    assert "größe" in text_of("@u.txt")
    (here / "u.txt").write_bytes(b"\xef\xbb\xbfmark\r\nlines\r\n")
    assert "```\nmark\nlines\n```" in text_of("@u.txt")
    (here / "u.txt").write_text("```\ninner\n`````\n")
    assert text_of("@u.txt").endswith("``````\n```\ninner\n`````\n``````")
    (here / "u.txt").write_text("")
    assert text_of("@u.txt").endswith("u.txt:\n```\n\n```")
    (here / "u.txt").write_bytes(b"a" * MAX_BYTES)
    assert len(text_of("@u.txt")) > MAX_BYTES


def test_names_are_shown_escaped(here: Path) -> None:
    name = "evil\x1b[2J\u202e\n.txt"
    try:
        (here / name).write_text("x")
    except OSError:
        pytest.skip("this file system refuses the name")
    quoted = name.replace("\n", "")
    with pytest.raises(LocalLLMError) as caught:
        attach(f'@"{quoted}"')
    assert "\x1b" not in caught.value.message and "\u202e" not in caught.value.message
    (here / quoted).write_text("x")
    attached = attach(f'@"{quoted}"')
    assert attached.told == ["attached evil\\x1b[2J\\u202e.txt (1 B)"]
    assert "\nevil\\x1b[2J\\u202e.txt:\n" in attached.text


def test_pictures(here: Path) -> None:
    (here / "cat.png").write_bytes(b"\x89PNG\0")
    attached = attach("what is on @cat.png?")
    assert attached.text == "what is on cat.png?"
    assert attached.pictures == [str(here / "cat.png")]
    assert attached.told == ["attached cat.png (5 B)"]


def test_nothing_is_written(here: Path) -> None:
    before = {path: path.stat()[stat.ST_MTIME] for path in here.iterdir()}
    text_of("@notes.txt")
    assert {path: path.stat()[stat.ST_MTIME] for path in here.iterdir()} == before


def pdf_of(text: str) -> bytes:
    """A PDF of one page with a line of text."""
    stream = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, offsets = b"%PDF-1.4\n", []
    for n, each in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (n, each)
    begin = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    return out + end % (len(objects) + 1, begin)


def test_text_of_a_pdf(here: Path) -> None:
    (here / "paper.PDF").write_bytes(pdf_of("Hello from page one"))
    attached = attach("@paper.PDF what is it?")
    assert attached.words == "paper.PDF what is it?"
    assert attached.files == [("paper.PDF", "Hello from page one")]
    (here / "empty.pdf").write_bytes(pdf_of(""))
    (here / "bad.pdf").write_bytes(b"%PDF-1.7\nnothing that follows its rules")
    for name in ("empty.pdf", "bad.pdf"):
        with pytest.raises(ArgumentError, match=name) as caught:
            attach(f"@{name}")
        assert caught.value.hint


def test_completions(here: Path) -> None:
    (here / "a b.txt").write_text("x")
    (here / "folder").mkdir()
    assert completions("see @no") == (3, [("@notes.txt", "notes.txt")])
    assert completions("@a") == (2, [('@"a b.txt"', "a b.txt")])
    assert completions("@fo") == (3, [("@folder/", "folder/")])
    assert completions("mail@no") == (0, [])
    assert completions("@none") == (5, [])
