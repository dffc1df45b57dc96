"""What a case of the GGUF corpus is, and the small files that cases are made from."""

from __future__ import annotations

from dataclasses import dataclass

from gguf_bytes import I32, STRING, U16, Gguf, array, kv, tensor

Q4_0, Q8_0, Q4_K, I8, F64_TENSOR = 2, 8, 12, 24, 28  # GGML type numbers


@dataclass(frozen=True)
class Case:
    """Files by name, the one to open, and what comes of it.

    error: "" for a good file, else the class of localllm.errors; says: texts in its message.
    """

    name: str
    files: dict[str, bytes | None]  # None: a directory
    error: str = ""
    says: tuple[str, ...] = ()
    opens: str = ""  # the first of `files` when empty

    @property
    def opened(self) -> str:
        return self.opens or next(iter(self.files))


def bad_case(name: str, content: bytes, *says: str, error: str = "FormatError") -> Case:
    return Case(name, {f"{name}.gguf": content}, error, says)


def good_case(name: str, content: bytes) -> Case:
    return Case(name, {f"{name}.gguf": content})


def base() -> Gguf:
    """A small valid file: two values, two tensors."""
    return Gguf(
        [kv(b"general.architecture", STRING, b"llama"), array(b"list", I32, [1, -2, 3])],
        [tensor(b"a.weight", [32, 2], Q8_0), tensor(b"b.weight", [8], 0, 96)],
        bytes(range(128)),
    )


def with_values(*values: bytes) -> bytes:
    file = base()
    file.values += values
    return file.build()


def with_tensors(*tensors: bytes, data: bytes = bytes(256)) -> bytes:
    file = base()
    file.tensors, file.data = list(tensors), data
    return file.build()


def split_keys(no: int, count: int, total: int) -> list[bytes]:
    return [
        kv(b"split.no", U16, no),
        kv(b"split.count", U16, count),
        kv(b"split.tensors.count", I32, total),
    ]


def part(no: int, count: int, total: int, name: bytes | None = None) -> bytes:
    values = base().values if no == 0 else []
    record = tensor(name or b"part%d.weight" % no, [16])
    return Gguf([*values, *split_keys(no, count, total)], [record], bytes([no]) * 64).build()


def part_name(index: int, count: int) -> str:
    return f"m-{index + 1:05}-of-{count:05}.gguf"
