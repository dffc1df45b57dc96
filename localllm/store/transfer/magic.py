"""What the first bytes of an answer say it is: refused at once if it is no GGUF file."""

from __future__ import annotations

from localllm.errors import FormatError

HEAD_BYTES = 4096  # what is read before anything is written to the disk

_GGUF = b"GGUF"
_OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer, a note that stands in for the file",
        "The repository was copied without its large files. Use another source.",
    ),
    (b"PK\x03\x04", "a zip archive", "Name the .gguf file itself."),
    (b"\x1f\x8b", "a gzip archive", "Name the .gguf file itself."),
    (b"FUGG", "a GGUF file of a big-endian machine", "Look for a little-endian version of it."),
    (b"ggjt", "a GGML file from before GGUF", "Look for a GGUF version of this model."),
    (b"lmgg", "a GGML file from before GGUF", "Look for a GGUF version of this model."),
)


def require_gguf(name: str, head: bytes) -> None:
    """Raises `FormatError`, saying what `head` (the first bytes of a file) is, unless it is
    GGUF."""
    if head.startswith(_GGUF):
        return
    for magic, what, hint in _OTHERS:
        if head.startswith(magic):
            raise FormatError(f"{name} is {what}, not a GGUF file", hint)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml", b"<!--")):
        raise FormatError(
            f"{name} is an HTML page, not a GGUF file",
            "The address leads to a page about the file, or a network asks you to sign in first.",
        )
    if text.startswith((b'{"', b"{\n")):
        raise FormatError(f"{name} is a JSON answer, not a GGUF file: {_start(head)}")
    if head[8:9] == b"{":
        raise FormatError(
            f"{name} is a safetensors file, not a GGUF file",
            "Look for a repository with GGUF in its name.",
        )
    raise FormatError(f"{name} is not a GGUF file: it begins with {_start(head)}")


def _start(head: bytes) -> str:
    return ascii(head[:80].decode("utf-8", "replace")) if head else "nothing"
