"""Broken split sets, with the error that each has to give."""

from __future__ import annotations

from collections.abc import Iterator

from gguf_bytes import (
    BOOL,
    F32,
    I32,
    STRING,
    Gguf,
    kv,
)
from gguf_cases import (
    Case,
    base,
    part,
    part_name,
    split_keys,
)

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98362432\n"


def _set(*parts: bytes | None, count: int = 3) -> dict[str, bytes | None]:
    return {part_name(i, count): part for i, part in enumerate(parts)}


def broken_sets() -> Iterator[Case]:
    """Every broken set."""
    p = [part(i, 3, 3) for i in range(3)]

    def bad(name: str, files: dict[str, bytes | None], *says: str, error: str = "FormatError",
            opens: str = "") -> Case:  # fmt: skip
        return Case(f"split-{name}", files, error, says, opens)

    for i in range(3):
        files = _set(*p)
        del files[part_name(i, 3)]
        yield bad(f"missing-{i + 1}", files, "1 of the 3 parts", part_name(i, 3), error="FileError")
    yield bad("missing-many", {part_name(0, 1000): part(0, 1000, 5)}, "999 of the 1000 parts",
              "m-00002-of-01000.gguf", "and 991 more", error="FileError")  # fmt: skip
    yield bad("count-differs-from-name", {part_name(0, 4): p[0]}, "split.count': 3", "4")
    yield bad("count-differs", _set(p[0], part(1, 2, 3), p[2]), "split.count': 2", "3 parts")
    yield bad("count-missing", _set(p[0], base().build(), p[2]), "split.count': 0", "3 parts")
    yield bad("number-twice", _set(p[0], p[1], p[1]), "split.no': 1", "claims the same number")
    yield bad("number-all-0", _set(p[0], p[0], p[0]), "split.no': 0", "claims the same number")
    yield bad("number-over", _set(p[0], part(3, 3, 3), p[2]), "split.no': 3", "limit is 2")
    yield bad("tensor-twice", _set(p[0], p[1], part(2, 3, 3, b"part0.weight")),
              "tensor 'part0.weight'", "part 1", "part 3")  # fmt: skip
    for total in (2, 4, 0):
        parts = [part(i, 3, total) for i in range(3)]
        yield bad(f"total-{total}", _set(*parts), f"split.tensors.count': {total};", "hold 3")
    yield bad("total-differs", _set(p[0], part(1, 3, 7), p[2]), "split.tensors.count': 7")
    for name, value in (("negative", -1), ("over", 2**31 - 1)):
        keys = [*split_keys(0, 2, 0)[:2], kv(b"split.tensors.count", I32, value)]
        yield bad(f"total-{name}", _set(Gguf(keys).build()), "split.tensors.count'")
    yield bad("total-missing", _set(Gguf(split_keys(0, 2, 0)[:2]).build(), part(1, 2, 1), count=2),
              "split.tensors.count': missing")  # fmt: skip
    yield bad("number-missing", _set(Gguf(split_keys(0, 3, 0)[1:]).build()), "split.no': missing")
    for n in (1001, 65535):
        yield bad(f"count-{n}", {part_name(0, n): part(0, n, 1)}, f"split.count': {n}", "1000")
    for kind, value in ((STRING, b"3"), (F32, 3.0), (BOOL, 1)):
        yield bad(f"count-type-{kind}", _set(Gguf([kv(b"split.count", kind, value)]).build()),
                  "split.count': type")  # fmt: skip
    yield bad("renamed", {"model.gguf": p[1]}, "part 2 of a set of 3", "-00002-of-00003.gguf")
    joined = b"".join(p)
    yield bad("joined-by-cat", {"model.gguf": joined}, "joined by 'cat'", "another GGUF file")
    yield bad("joined-and-named", {part_name(0, 3): joined}, "joined by 'cat'")
    whole = base().build()
    yield bad("joined-whole-files", {"model.gguf": whole + whole}, "joined by 'cat'")
    first = Gguf(split_keys(0, 3, 2)).build()
    yield bad("joined-after-metadata", {"m.gguf": first + p[1]}, "joined by 'cat'")
    yield bad("part-git-lfs", _set(p[0], LFS_POINTER, p[2]), part_name(1, 3), "Git LFS pointer")
    yield bad("part-html", _set(p[0], p[1], b"<html></html>"), part_name(2, 3), "HTML")
    yield bad("part-cut", _set(p[0], p[1][:-1], p[2]), part_name(1, 3), "cut short")
    yield bad("part-empty", _set(p[0], b"", p[2]), part_name(1, 3), "empty", error="FileError")
    yield bad("part-directory", _set(p[0], None, p[2]), "directory", error="FileError")
    yield bad("part-version", _set(p[0], p[1].replace(b"GGUF\3", b"GGUF\4"), p[2]), "version 4",
              error="UnsupportedError")  # fmt: skip
