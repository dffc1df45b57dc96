"""Malformed GGUF files, one fault each, with the error that each has to give.

Every bug that was ever found in the reader has its input here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I32,
    I64,
    STRING,
    U8,
    U32,
    U64,
    Gguf,
    array,
    kv,
    raw_kv,
    string,
    tensor,
    u32,
    u64,
)
from gguf_cases import (
    F64_TENSOR,
    I8,
    Q4_0,
    Q4_K,
    Q8_0,
    Case,
    bad_case,
    base,
    with_tensors,
    with_values,
)

HUGE = (2**31, 2**32, 2**40, 2**63, 2**64 - 1)

# ---- Not GGUF at all --------------------------------------------------------------------------


def _wrong_files() -> Iterator[Case]:
    lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 98362432\n" % (
        b"0" * 64
    )
    safetensors = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    kinds: list[tuple[str, bytes, str]] = [
        ("git-lfs", lfs, "Git LFS pointer"),
        ("html", b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", "HTML page"),
        ("html-bom", b"\xef\xbb\xbf \r\n<HTML lang=en>", "HTML page"),
        ("xml", b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "XML"),
        ("json", b'{"error": "Repository not found"}', "JSON"),
        ("zip", b"PK\x03\x04\x14\0\0\0\x08\0" + bytes(30), "zip archive"),
        ("safetensors", u64(len(safetensors)) + safetensors + bytes(4), "safetensors"),
        ("ggml", b"lmgg" + bytes(60), "GGML file"),
        ("ggmf", b"fmgg\1\0\0\0" + bytes(60), "GGMF file"),
        ("ggjt", b"tjgg\3\0\0\0" + bytes(60), "GGJT file"),
        ("gzip", b"\x1f\x8b\x08\0" + bytes(20), "gzip"),
        ("zstd", b"\x28\xb5\x2f\xfd" + bytes(20), "zstd"),
        ("xz", b"\xfd7zXZ\0" + bytes(20), "xz"),
        ("7z", b"7z\xbc\xaf\x27\x1c" + bytes(20), "7z"),
        ("pickle", b"\x80\x02}q\0(X\x05\0\0\0model" + bytes(20), "pickle"),
        ("zeros", bytes(4096), "zeros"),
        ("one-byte", b"G", "magic is 'G'"),
        ("random", b"\x8f\x12\x00\x7f" + bytes(range(60)), r"magic is '\x8f\x12\x00\x7f'"),
        ("lower-case", b"gguf\3\0\0\0" + bytes(16), "magic is 'gguf'"),
        ("text", b"Not found\n", "magic is 'Not '"),
        ("escape", b"\x1b]0;owned\x07" + bytes(20), r"magic is '\x1b]0;'"),
    ]
    for name, content, says in kinds:
        yield bad_case(f"file-{name}", content, "not a GGUF file", says)
    yield bad_case("file-empty", b"", "empty", error="FileError")
    yield Case("file-directory", {"file-directory.gguf": None}, "FileError", ("directory",))
    for version in (0, 4, 99, 0x12345678, 2**32 - 1):
        file = base()
        file.version = version
        yield bad_case(
            f"version-{version}", file.build(), f"version {version}", error="UnsupportedError"
        )
    v1 = b"GGUF" + u32(1) + u32(0) + u32(0)
    yield bad_case("version-1", v1, "GGUF version 1,", "2 and 3", error="UnsupportedError")
    for version in (2, 3):
        big = struct.pack(">4sIQQ", b"GGUF", version, 0, 1) + bytes(32)
        yield bad_case(f"big-endian-{version}", big, "big-endian", error="UnsupportedError")
    fugg = base()
    fugg.magic = b"FUGG"
    yield bad_case("big-endian-magic", fugg.build(), "big-endian", error="UnsupportedError")


# ---- Counts, metadata -------------------------------------------------------------------------


def _counts() -> Iterator[Case]:
    for n in (*HUGE, 3000):
        file = base()
        file.n_values = n
        yield bad_case(f"n-values-{n}", file.build(), f"metadata count {n}", "limit")
        file = base()
        file.n_tensors = n
        yield bad_case(f"n-tensors-{n}", file.build(), f"tensor count {n}", "limit")
    for n, says in ((0, "8 dimensions"), (1, "9 dimensions"), (3, "name length")):
        file = base()
        file.n_values = n
        yield bad_case(f"n-values-{n}", file.build(), says)
    file = base()
    file.n_tensors = 3
    yield bad_case("n-tensors-3", file.build(), "tensor 2 of 3", "name length 0")
    many = Gguf([kv(b"k%d" % i, U8, 0) for i in range(65537)])
    yield bad_case("n-values-over-limit", many.build(), "metadata count 65537", "65536")
    crowd = Gguf(n_tensors=32769, data=bytes(25 * 32769))
    yield bad_case("n-tensors-over-limit", crowd.build(), "tensor count 32769", "32768")


def _keys() -> Iterator[Case]:
    for n in (0, 65536, *HUGE):
        yield bad_case(
            f"key-length-{n}",
            with_values(raw_kv(b"k", U8, b"\1", n)),
            "value 2 of 3",
            f"length {n};",
        )
    for name, key in (
        ("nul", b"a\0b"),
        ("tab", b"a\tb"),
        ("escape", b"\x1b[2J"),
        ("high", b"\xe9"),
    ):
        yield bad_case(
            f"key-{name}", with_values(kv(key, U8, 1)), "printable ASCII", "metadata value 2"
        )
    twice = kv(b"same.key", U8, 1)
    yield bad_case(
        "key-twice", with_values(twice, twice), "key 'same.key'", "stated twice", "2 and 3"
    )
    apart = [kv(b"k%d" % i, U8, 0) for i in range(999)]
    yield bad_case(
        "key-twice-apart", with_values(*apart, kv(b"k5", U32, 1)), "key 'k5'", "7 and 1001"
    )


def _values() -> Iterator[Case]:
    for kind in (13, 99, 2**31, 2**32 - 1):
        yield bad_case(
            f"value-type-{kind}", with_values(raw_kv(b"k", kind, bytes(64))), f"value type {kind}"
        )
        bad = raw_kv(b"k", ARRAY, u32(kind) + u64(1) + bytes(64))
        yield bad_case(f"element-type-{kind}", with_values(bad), "key 'k'", f"element type {kind}")
    yield bad_case("bool-2", with_values(kv(b"flag", BOOL, 2)), "key 'flag'", "bool 2")
    yield bad_case(
        "bool-array", with_values(array(b"flags", BOOL, [1, 0, 255])), "key 'flags'", "bool 255"
    )
    for n in (400, *HUGE):
        yield bad_case(f"string-length-{n}", with_values(raw_kv(b"s", STRING, string(b"abc", n))),
                   "key 's'", f"string length {n}", "bytes left")  # fmt: skip
        words = raw_kv(b"w", ARRAY, u32(STRING) + u64(2) + string(b"ok") + string(b"bad", n))
        yield bad_case(
            f"string-in-array-{n}", with_values(words), "key 'w'", "string 1 of 2", f"length {n};"
        )
        for kind in (U8, U32, F64, BOOL, STRING):
            values = with_values(array(b"c", kind, [b"x"] if kind == STRING else [1], n))
            yield bad_case(
                f"array-count-{kind}-{n}", values, "key 'c'", f"array count {n} ", "room for"
            )
    small = Gguf([raw_kv(b"x", STRING, u64(2**30) + bytes(100))]).build()
    yield bad_case("string-1-gib-in-160-bytes", small, "key 'x'", "1073741824")
    hang = Gguf([raw_kv(b"k", ARRAY, u32(U8) + u64(2**62))], n_values=1).build()
    yield bad_case("hang-of-the-gguf-package", hang, "key 'k'", "4611686018427387904")
    overflow = Gguf([raw_kv(b"k", ARRAY, u32(U64) + u64(2**61 + 1) + bytes(64))]).build()
    yield bad_case("array-bytes-wrap", overflow, "key 'k'", "2305843009213693953", "room for 8")
    nested = u32(ARRAY) + u64(1) + u32(U8) + u64(1) + b"\1"
    for depth in (1, 2, 5000):
        payload = (u32(ARRAY) + u64(1)) * (depth - 1) + nested
        yield bad_case(f"nested-{depth}", with_values(raw_kv(b"deep", ARRAY, payload)),
                   "key 'deep'", "array of arrays", error="UnsupportedError")  # fmt: skip
    for name, kinds, counts in (
        ("strings", (STRING,), (2**22 + 1,)),
        ("bools", (BOOL, BOOL), (2**21, 2**21 + 1)),
    ):
        arrays = [
            raw_kv(b"a%d" % i, ARRAY, u32(kind) + u64(n) + bytes(n * (8 if kind == STRING else 1)))
            for i, (kind, n) in enumerate(zip(kinds, counts, strict=True))
        ]
        says = f"array count {counts[-1]} ({name[:-1]})"
        yield bad_case(f"array-limit-{name}", Gguf(arrays).build(), says, "4194304")


def _alignments() -> Iterator[Case]:
    key = b"general.alignment"
    for n in (0, 1, 2, 3, 4, 7, 24, 33, 2**21, 2**31, 2**32 - 1):
        yield bad_case(f"alignment-{n}", with_values(kv(key, U32, n)), f"'general.alignment': {n};")
    for kind in (U8, I32, U64, I64, F32, BOOL):
        yield bad_case(
            f"alignment-type-{kind}", with_values(kv(key, kind, 1)), "alignment': type", "u32"
        )
    yield bad_case(
        "alignment-string", with_values(kv(key, STRING, b"32")), "alignment': type string"
    )
    yield bad_case("alignment-array", with_values(array(key, U32, [32])), "alignment': type array")


# ---- Tensors ----------------------------------------------------------------------------------


def _names() -> Iterator[Case]:
    for n in (0, 128, *HUGE):
        record = string(b"x", n) + u32(1) + u64(8) + u32(0) + u64(0)
        yield bad_case(
            f"name-length-{n}", with_tensors(record), "tensor 0 of 1", f"name length {n};"
        )
    names = {"nul": b"a\0b", "escape": b"\x1b[31m", "cut": b"\xe2\x82", "overlong": b"\xc0\xaf",
             "surrogate": b"\xed\xa0\x80", "high": b"\xf4\x90\x80\x80",
             "tail": b"\x80", "del": b"\x7f"}  # fmt: skip
    for name, text in names.items():
        yield bad_case(
            f"name-{name}", with_tensors(tensor(text, [8])), "tensor 0", "not plain UTF-8"
        )
    crowd = [tensor(b"%0127d" % (i % 32767), [8], 0, 32 * i) for i in range(32768)]
    yield bad_case(
        "tensor-twice-in-32768", with_tensors(*crowd, data=bytes(32768 * 32)), "0 and 32767"
    )
    same = [tensor(b"same", [8], 0, 0), tensor(b"other", [8], 0, 32), tensor(b"same", [8], 0, 64)]
    yield bad_case("tensor-twice", with_tensors(*same), "tensor 'same'", "listed twice", "0 and 2")


def _shapes() -> Iterator[Case]:
    for n in (5, 6, 255, 2**31, 2**32 - 1):
        record = tensor(b"t", [1] * min(n, 8), n_dims=n)
        yield bad_case(f"n-dims-{n}", with_tensors(record), "tensor 't'", f"{n} dimensions", "4")
    for n in (0, 2**63, 2**64 - 1):
        yield bad_case(
            f"dim-{n}", with_tensors(tensor(b"t", [8, n])), "tensor 't'", f"dimension 1 is {n};"
        )
    for n in (2**31, 2**32, 2**40, 2**62):
        yield bad_case(
            f"dim-{n}", with_tensors(tensor(b"t", [n])), "tensor 't'", f"{n * 4 % 2**64}"
        )
    for i, dims in enumerate(
        ([2**32, 2**32], [2**31, 2**31, 4], [2**62, 4], [2**16] * 4, [2**33, 2**31], [2**63 - 1, 3])
    ):
        yield bad_case(f"dims-wrap-{i}", with_tensors(tensor(b"t", dims)), "tensor 't'", "product")
    for kind, n in ((0, 2**62), (0, 2**62 + 1), (F64_TENSOR, 2**61), (F64_TENSOR, 2**62 + 1)):
        yield bad_case(
            f"bytes-wrap-{kind}-{n}", with_tensors(tensor(b"t", [n], kind)), "tensor 't'", str(n)
        )
    for kind in (4, 5, 31, 36, 99, 2**31, 2**32 - 1):
        yield bad_case(f"tensor-type-{kind}", with_tensors(tensor(b"t", [256], kind)),
                   "tensor 't'", f"type {kind} ", error="UnsupportedError")  # fmt: skip
    for kind, n in ((Q4_0, 33), (Q4_0, 1), (Q8_0, 16), (Q4_K, 128), (Q4_K, 257)):
        yield bad_case(
            f"row-{kind}-{n}", with_tensors(tensor(b"t", [n, 256], kind)), f"rows of {n} "
        )


def _ranges() -> Iterator[Case]:
    for n in (1, 8, 16, 31, 33):
        yield bad_case(
            f"offset-{n}", with_tensors(tensor(b"t", [8], 0, n)), f"offset {n};", "alignment 32"
        )
    for n in (256, 2**31, 2**32, 2**40, 2**63, 2**64 - 32):
        yield bad_case(
            f"offset-{n}",
            with_tensors(tensor(b"t", [8], 0, n)),
            "tensor 't'",
            f"offset {n};",
            "256",
        )
    wrap = tensor(b"t", [2**64 - 2**63 - 8], I8, 2**63)
    yield bad_case("range-wraps", with_tensors(wrap), "tensor 't'", f"offset {2**63}")
    yield bad_case(
        "range-last-byte", with_tensors(tensor(b"t", [57], 0, 32)), "228 bytes at offset 32", "256"
    )
    yield bad_case(
        "no-data", with_tensors(tensor(b"t", [8]), data=b""), "tensor 't'", "has 0 bytes"
    )
    # Sizes whose sum wraps to something small (CVE-2025-53630, CVE-2026-27940).
    for i, sizes in enumerate(
        ([2**62] * 4, [2**63 - 32, 2**63 - 32, 64], [2**61] * 8 + [32], [2**63 - 1, 2**63 - 1, 2])
    ):
        records, offset = [], 0
        for k, n in enumerate(sizes):
            records.append(tensor(b"t%d" % k, [n], I8, offset % 2**64))
            offset += -(-n // 32) * 32
        yield bad_case(f"sum-wraps-{i}", with_tensors(*records), "tensor 't0'", f"{sizes[0]} bytes")
    zero = [tensor(b"t%d" % k, [2**62], I8, 0) for k in range(4)]
    yield bad_case("sum-wraps-at-zero", with_tensors(*zero), "tensor 't0'", "download cut short")
    for name, ranges in (
        ("same", [(0, 8), (0, 8)]),
        ("inside", [(0, 64), (32, 8)]),
        ("partly", [(0, 16), (32, 16)]),
        ("backwards", [(32, 16), (0, 16)]),
        ("far", [(0, 8), (96, 8), (64, 8), (64, 4)]),
    ):
        records = [tensor(b"t%d" % k, [n], 0, at) for k, (at, n) in enumerate(ranges)]
        yield bad_case(f"overlap-{name}", with_tensors(*records), "lies inside tensor", "offset")


def _truncations() -> Iterator[Case]:
    whole = base().build()
    for n in range(4, len(whole), 7):
        yield bad_case(f"cut-at-{n:03}", whole[:n])
    yield bad_case("cut-last-byte", whole[:-1], "tensor 'b.weight'", "32 bytes at offset 96")
    head = base().head()
    yield bad_case("cut-after-list", head, "tensor 'a.weight'", "0 bytes")
    for n in (-1, -9, -20):
        yield bad_case(f"cut-in-list{n}", head[:n], "tensor")


def malformed_files() -> list[Case]:
    """Every malformed single file."""
    makers = (_wrong_files, _counts, _keys, _values, _alignments, _names, _shapes, _ranges,
              _truncations)  # fmt: skip
    return [case for make in makers for case in make()]
