"""`@file` in a message: the text of a file goes with it, in a fenced block under its name.

A word that begins with @ names a file if there is one, or if it looks like one: it is quoted,
begins with a folder, or ends like a document. Anything else, such as an e-mail address or a
mention of a person, stays as it is. `\\@` is an @ that names nothing.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from localllm.cli import output
from localllm.errors import ArgumentError, FileError

MAX_BYTES = 1 << 20
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
_AFTER = ".,;:!?)]}"  # what a sentence may put after a name
_HINT = r"To send an @ that names no file: \@"


@dataclass
class Attached:
    """A message with its attachments. told: a line for the user about each."""

    text: str
    pictures: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def attach(text: str) -> Attached:
    """Takes the files in that a message names. Raises `FileError` for one that cannot be read, and
    `ArgumentError` for one that is too large or no text. Pictures are only named: whether they can
    be looked at is the session's to say."""
    attached = Attached("")
    blocks: dict[Path, str] = {}

    def taken(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "@"
        quoted = match["double"] or match["single"]
        name, rest = (quoted, "") if quoted else _found(match["bare"].replace("\\ ", " "))
        if name is None:
            return match[0]
        path = Path(name).expanduser()
        if path not in blocks:
            blocks[path] = _block(name, path, attached)
        return path.name + rest

    text = _REFERENCE.sub(taken, text)
    attached.text = "\n\n".join([text, *(block for block in blocks.values() if block)])
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


def _block(name: str, path: Path, attached: Attached) -> str:
    """The text to add for a file; for a picture nothing, as it goes beside the text."""
    shown = output.escape_line(name[:200])
    if path.suffix[1:].lower() in PICTURES:
        size = _regular_size(path, shown)
        attached.pictures.append(str(path.absolute()))
        attached.told.append(f"attached {shown} ({output.size_text(size)})")
        return ""
    content = _text(path, shown)
    attached.told.append(f"attached {shown} ({output.size_text(len(content.encode()))})")
    longest = max((len(run) for run in re.findall("`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{output.escape_line(path.name)}:\n{fence}\n{content.removesuffix(chr(10))}\n{fence}"


def _text(path: Path, shown: str) -> str:
    size = _regular_size(path, shown)
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
