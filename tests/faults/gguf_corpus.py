"""The GGUF corpus: good files, and malformed ones with the error that each has to give.

`python tests/faults/gguf_corpus.py OUT_DIR` writes one file per case for the fuzzer; the parts of
a split set are joined by `PART_MARK`, as native/fuzz/fuzz_gguf.c expects them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gguf_bytes import (
    BOOL,
    F32,
    I64,
    SCALARS,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Gguf,
    array,
    kv,
    tensor,
)
from gguf_cases import (
    I8,
    Case,
    base,
    good_case,
    part,
    part_name,
    split_keys,
    with_tensors,
    with_values,
)
from gguf_malformed import malformed_files
from gguf_splits import broken_sets

PART_MARK = b"\xff--part--\xff"

# ---- Good files -------------------------------------------------------------------------------


def good_files() -> list[Case]:
    """Every shape of file that has to open."""
    cases = [good_case("base", base().build())]
    v2 = base()
    v2.version = 2
    cases.append(good_case("version-2", v2.build()))
    scalars = [kv(f"k.{t}".encode(), t, 1) for t in SCALARS]
    scalars += [kv(b"low.i8", 1, -128), kv(b"low.i64", I64, -(2**63)), kv(b"high", U64, 2**64 - 1)]
    cases.append(
        good_case("scalars", with_values(*scalars, kv(b"no", BOOL, 0), kv(b"real", F32, -0.5)))
    )
    arrays = [array(f"a.{t}".encode(), t, [1, 0, 1]) for t in SCALARS]
    cases.append(good_case("arrays-unaligned", with_values(kv(b"odd", U8, 1), *arrays)))
    cases.append(
        good_case("arrays-empty", with_values(*(array(f"e.{t}".encode(), t, []) for t in range(9))))
    )
    texts = [
        b"",
        b"plain",
        "\u00e9\U0001f600".encode(),
        b"\xff\xfe broken",
        b"nul\0inside",
        b"<0x00>",
    ]
    cases.append(
        good_case(
            "strings",
            with_values(
                *(kv(b"s.%d" % i, STRING, t) for i, t in enumerate(texts)),
                array(b"s.all", STRING, texts),
            ),
        )
    )
    for alignment in (8, 16, 64, 4096, 2**20):
        file = base()
        file.values.append(kv(b"general.alignment", U32, alignment))
        step = max(alignment, 128)
        file.tensors = [tensor(b"a", [8], 0), tensor(b"b", [8], 0, step)]
        file.alignment, file.data = alignment, bytes(step + 32)
        cases.append(good_case(f"alignment-{alignment}", file.build()))
    cases += [
        good_case("nothing", Gguf().build()),
        good_case("no-tensors", Gguf(base().values).build()),
        good_case("no-values", _no_values()),
        good_case(
            "data-out-of-order", with_tensors(tensor(b"x", [8], 0, 64), tensor(b"y", [8], 0, 0))
        ),
        good_case(
            "data-with-gaps", with_tensors(tensor(b"x", [8], 0, 32), tensor(b"y", [8], 0, 192))
        ),
        good_case("data-exact", with_tensors(tensor(b"x", [7], I8, 0), data=bytes(7))),
        good_case("dims-0", with_tensors(tensor(b"x", []))),
        good_case("dims-4", with_tensors(tensor(b"x", [2, 3, 4, 2]))),
        good_case(
            "name-127", with_tensors(tensor(b"n" * 127, [8]), tensor("\u00e9".encode(), [8], 0, 32))
        ),
        good_case("key-65535", with_values(kv(b"k" * 65535, U8, 7))),
        good_case(
            "split-count-1", with_values(kv(b"split.count", U16, 1), kv(b"split.no", U16, 0))
        ),
        good_case("magic-in-data", with_tensors(tensor(b"x", [16], 0), data=b"GGUF\x03\0\0\0" * 8)),
        good_case("many-types", _many_types()),
    ]
    for i in range(3):
        files = {part_name(p, 3): part(p, 3, 3) for p in range(3)}
        cases.append(Case(f"split-opened-by-{i + 1}", files, opens=part_name(i, 3)))
    turned = {part_name(p, 3): part((p + 1) % 3, 3, 3) for p in range(3)}
    cases.append(Case("split-names-turned", turned))
    first = Gguf([*base().values, *split_keys(0, 2, 1)]).build()
    cases.append(
        Case(
            "split-first-without-tensors", {part_name(0, 2): first, part_name(1, 2): part(1, 2, 1)}
        )
    )
    return cases


def _no_values() -> bytes:
    file = base()
    file.values = []
    return file.build()


def _many_types() -> bytes:
    sizes = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
             10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
             20: (32, 18), 23: (256, 136), 24: (1, 1), 26: (1, 4), 28: (1, 8), 30: (1, 2),
             39: (32, 17)}  # fmt: skip
    tensors, offset = [], 0
    for kind, (block, n_bytes) in sizes.items():
        tensors.append(tensor(b"t.%d" % kind, [256, 3], kind, offset))
        offset += -(-(256 * 3 // block * n_bytes) // 32) * 32
    return with_tensors(*tensors, data=bytes(offset))


def bad_files() -> list[Case]:
    """Every malformed file, with the error that it has to give."""
    return malformed_files() + list(broken_sets())


def write(case: Case, folder: Path) -> Path:
    """Writes the files of a case into a folder; the one to open."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in case.files.items():
        if content is None:
            (folder / name).mkdir(exist_ok=True)
        else:
            (folder / name).write_bytes(content)
    return folder / case.opened


def main(out: Path) -> None:
    """One file per case under 64 KiB, for the fuzzer."""
    out.mkdir(parents=True, exist_ok=True)
    for case in good_files() + bad_files():
        whole = PART_MARK.join(content for content in case.files.values() if content is not None)
        if len(whole) <= 65536:
            (out / case.name).write_bytes(whole)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
