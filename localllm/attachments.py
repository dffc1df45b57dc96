"""`@file` in a message: the text of a file goes with it, in a fenced block under its name.

A word that begins with @ names a file if there is one, or if it looks like one: it is quoted,
begins with a folder, or ends like a document. Anything else, such as an e-mail address or a
mention of a person, stays as it is. `\\@` is an @ that names nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from localllm.errors import ArgumentError, FileError, LocalLLMError
from localllm.plain_text import escape_line, size_text

MAX_BYTES = 1 << 20
MAX_PDF_BYTES = 64 << 20
_MAX_FILES = 200  # that are offered
PICTURES = frozenset(["bmp", "gif", "jpeg", "jpg", "png", "webp"])
_DOCUMENTS = PICTURES | {
    *("c", "cc", "cfg", "conf", "cpp", "css", "csv", "diff", "docx", "go", "h", "hpp", "htm"),
    *("html", "ini", "java", "js", "json", "log", "md", "odt", "patch", "pdf", "py", "rb", "rs"),
    *("rst", "sh", "sql", "tex", "toml", "ts", "tsv", "txt", "xml", "yaml", "yml", "zip"),
}
_REFERENCE = re.compile(
    r"""(?P<escaped>\\@)
    | (?<![^\s(\[{"'])@(?: "(?P<double>[^"\n]+)" | '(?P<single>[^'\n]+)'
                       | (?P<bare>(?:\\\ |[^\s"'])+) )""",
    re.VERBOSE,
)
_UNFINISHED = re.compile(r"""(?:^|(?<=\s))@(?:"(?P<quoted>[^"\n]*)|(?P<bare>(?:\\ |[^\s"'])*))$""")
_AFTER = ".,;:!?)]}"  # what a sentence may put after a name
_HINT = r"To send an @ that names no file: \@"


@dataclass
class Attached:
    """A message with its attachments. words: what was written; files: (name, text) of each file
    but the pictures; told: a line for the user about each."""

    words: str
    files: list[tuple[str, str]] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What the model reads: the words, and below them the files."""
        return with_files(self.words, self.files)


def with_files(words: str, files: Iterable[tuple[str, str]]) -> str:
    """A message with the texts of its files, each in a fenced block under its name."""
    return "\n\n".join([words, *(_block(name, content) for name, content in files)])


def attach(text: str) -> Attached:
    """Takes the files in that a message names. Raises `FileError` for one that cannot be read, and
    `ArgumentError` for one that is too large or no text. Pictures are only named: whether they can
    be looked at is the session's to say."""
    attached = Attached("")
    taken_in: set[Path] = set()

    def taken(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "@"
        quoted = match["double"] or match["single"]
        name, rest = (quoted, "") if quoted else _found(match["bare"].replace("\\ ", " "))
        if name is None:
            return match[0]
        path = Path(name).expanduser()
        if path not in taken_in:
            taken_in.add(path)
            _take(name, path, attached)
        return path.name + rest

    attached.words = _REFERENCE.sub(taken, text)
    return attached


def _found(word: str) -> tuple[str | None, str]:
    """The name at the beginning of a word and what follows it; None if it names no file."""
    end = len(word)
    while end and not _is_file(word[:end]) and word[end - 1] in _AFTER:
        end -= 1
    if _is_file(word[:end]):
        return word[:end], word[end:]
    name = word.rstrip(_AFTER)
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    looks = name.startswith(("/", "./", "../", "~/")) or suffix in _DOCUMENTS
    return (name, word[len(name) :]) if looks else (None, "")


def _is_file(name: str) -> bool:
    try:
        return bool(name) and Path(name).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, no such user
        return False


def _take(name: str, path: Path, attached: Attached) -> None:
    shown = escape_line(name[:200])
    if path.suffix[1:].lower() in PICTURES:
        size = _regular_size(path, shown)
        attached.pictures.append(str(path.absolute()))
        attached.told.append(f"attached {shown} ({size_text(size)})")
        return
    content = _text(path, shown)
    attached.told.append(f"attached {shown} ({size_text(len(content.encode()))})")
    attached.files.append((path.name, content))


def _block(name: str, content: str) -> str:
    longest = max((len(run) for run in re.findall("`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{escape_line(name)}:\n{fence}\n{content.removesuffix(chr(10))}\n{fence}"


def _text(path: Path, shown: str) -> str:
    size = _regular_size(path, shown)
    if path.suffix.lower() == ".pdf":
        return _pdf_text(path, shown, size)
    if size > MAX_BYTES:
        raise ArgumentError(
            f"{shown} has {size:,} bytes, and an attachment may have {MAX_BYTES:,}",
            "Attach a part of it.",
        )
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES)
    except OSError as e:
        raise FileError(f"cannot read {shown}: {e.strerror or e}", _HINT) from e
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ArgumentError(
            f"{shown} is not a text file", "Attach text in UTF-8, or convert the file first."
        )
    return text.replace("\r\n", "\n")


def _pdf_text(path: Path, shown: str, size: int) -> str:
    """The text of a PDF, page by page."""
    if size > MAX_PDF_BYTES:
        raise ArgumentError(
            f"{shown} has {size:,} bytes, and a PDF may have {MAX_PDF_BYTES:,}",
            "Attach a part of it.",
        )
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings would cross the screen
    try:
        pages, room = [], MAX_BYTES
        for page in PdfReader(path).pages:
            pages.append(page.extract_text().strip())
            room -= len(pages[-1].encode("utf-8", "replace"))
            if room < 0:
                raise ArgumentError(
                    f"the text of {shown} has more than {MAX_BYTES:,} bytes", "Attach a part of it."
                )
    except LocalLLMError:
        raise
    except OSError as e:
        raise FileError(f"cannot read {shown}: {e.strerror or e}", _HINT) from e
    except Exception as e:  # the reader raises whatever a damaged file leads it to
        raise ArgumentError(
            f"cannot read the PDF {shown}: {str(e)[:200] or type(e).__name__}",
            "Convert it to text first.",
        ) from e
    text = "\n\n".join(page for page in pages if page)
    if not text:
        raise ArgumentError(
            f"{shown} holds no text, only pictures perhaps", "Convert it to text first."
        )
    return text.encode("utf-8", "replace").decode()


def completions(text: str) -> tuple[int, list[tuple[str, str]]]:
    """What may take the place of an `@file` that a text ends with: how many characters it
    replaces, and (text, name) of each file. Nothing where the text does not end with one."""
    match = _UNFINISHED.search(text)
    return (len(match[0]), list(_files(match))) if match else (0, [])


def _files(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    typed = match["quoted"] if match["quoted"] is not None else match["bare"].replace("\\ ", " ")
    head, _, begin = typed.rpartition("/")
    folder = head + "/" if "/" in typed else ""
    try:
        names = sorted(
            entry.name + ("/" if entry.is_dir() else "")
            for entry in os.scandir(Path(folder or ".").expanduser())
            if entry.name.startswith(begin) and (begin or not entry.name.startswith("."))
        )
    except (OSError, ValueError, RuntimeError):
        return
    for name in names[:_MAX_FILES]:
        if escape_line(name) != name or '"' in name:
            continue  # cannot be typed either
        whole = folder + name
        quoted = match["quoted"] is not None or any(c.isspace() or c == "'" for c in whole)
        yield (f'@"{whole}' + ("" if name.endswith("/") else '"') if quoted else f"@{whole}"), name


def _regular_size(path: Path, shown: str) -> int:
    try:
        facts = path.stat()
    except (OSError, ValueError, RuntimeError) as e:
        reason = getattr(e, "strerror", None) or e
        if isinstance(e, FileNotFoundError):
            raise FileError(f"there is no file {shown}", _HINT) from e
        raise FileError(f"cannot read {shown}: {reason}", _HINT) from e
    if not stat.S_ISREG(facts.st_mode):
        kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "not a regular file"
        raise FileError(f"{shown} is {kind}", _HINT)
    return facts.st_size
