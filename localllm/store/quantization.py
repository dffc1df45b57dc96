"""Names of quantizations: their table, how they occur in file names, which one to take of those
that are there.

Bits per weight are those of whole files (embeddings and output included) of models of 7 to 8
billion parameters. They order the table and serve estimates; a real size comes from a listing.
Sources: llama.cpp, tools/quantize/README.md (Llama 3.1 8B) and the block layouts in ggml-common.h.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from localllm.errors import ArgumentError

DEFAULT = "Q4_K_M"

#: Bits per weight by name. _L and _XL keep the embeddings and the output at 8 bits or more.
BITS: dict[str, float] = {
    "IQ1_S": 2.00,
    "TQ1_0": 1.69,
    "IQ1_M": 2.15,
    "TQ2_0": 2.06,
    "IQ2_XXS": 2.38,
    "IQ2_XS": 2.59,
    "IQ2_S": 2.74,
    "IQ2_M": 2.93,
    "Q2_K_S": 2.97,
    "Q2_K": 3.16,
    "Q2_K_L": 3.40,
    "Q2_K_XL": 3.45,
    "IQ3_XXS": 3.25,
    "IQ3_XS": 3.50,
    "Q3_K_S": 3.64,
    "IQ3_S": 3.67,
    "IQ3_M": 3.76,
    "Q3_K_M": 4.00,
    "Q3_K": 4.00,
    "Q3_K_L": 4.31,
    "Q3_K_XL": 4.40,
    "MXFP4": 4.25,
    "MXFP4_MOE": 4.30,
    "IQ4_XS": 4.46,
    "NVFP4": 4.60,
    "Q4_0": 4.66,
    "Q4_0_4_4": 4.66,
    "Q4_0_4_8": 4.66,
    "Q4_0_8_8": 4.66,
    "Q4_K_S": 4.67,
    "IQ4_NL": 4.68,
    "Q4_K_M": 4.89,
    "Q4_K": 4.89,
    "Q4_K_L": 5.10,
    "Q4_K_XL": 5.12,
    "Q4_1": 5.14,
    "Q5_0": 5.60,
    "Q5_K_S": 5.57,
    "Q5_K_M": 5.70,
    "Q5_K": 5.70,
    "Q5_K_L": 5.90,
    "Q5_K_XL": 5.92,
    "Q5_1": 6.05,
    "Q6_K": 6.56,
    "Q6_K_L": 6.75,
    "Q6_K_XL": 7.20,
    "Q8_0": 8.50,
    "Q8_K_XL": 10.0,
    "F16": 16.0,
    "BF16": 16.0,
    "F32": 32.0,
}
#: Other spellings in file names and tags.
_ALIASES = {"FP16": "F16", "FP32": "F32", "Q8_K_L": "Q8_0"}
#: Layouts of older llama.cpp versions that nothing reads any more: never chosen unasked.
_RETIRED = frozenset(["Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8"])
_DYNAMIC = "UD-"  # Unsloth's name for files whose tensors have types of their own

_PREFIX = re.compile(r"UD[-_]", re.ASCII | re.IGNORECASE)


@functools.cache
def _in_file() -> re.Pattern[str]:
    """Compiled when it is needed: commands that start fast import this module."""
    names = "|".join(sorted([*BITS, *_ALIASES], key=len, reverse=True))
    return re.compile(
        rf"(?<![A-Za-z0-9])(UD[-_])?({names})(?![A-Za-z0-9]|_[A-Za-z0-9])",
        re.ASCII | re.IGNORECASE,
    )


@dataclass(frozen=True)
class Quantization:
    """A row of the table. `str()` is its usual spelling, such as `Q4_K_M` or `UD-Q4_K_XL`."""

    name: str
    dynamic: bool = False

    def __str__(self) -> str:
        return f"{_DYNAMIC}{self.name}" if self.dynamic else self.name

    @property
    def bits(self) -> float:
        """Bits per weight of a whole file, roughly."""
        return BITS[self.name]

    @property
    def tag(self) -> str:
        """As it stands in names of the store."""
        return str(self).lower()


def find(text: str) -> Quantization | None:
    """The quantization that `text` is the name of, in any case; None if it is none."""
    prefix = _PREFIX.match(text)
    name = text[prefix.end() if prefix else 0 :].upper()
    name = _ALIASES.get(name, name)
    return Quantization(name, dynamic=prefix is not None) if name in BITS else None


def parse(text: str) -> Quantization:
    """Like `find`, but raises `ArgumentError`."""
    if found := find(text):
        return found
    raise ArgumentError(
        f"there is no quantization {text[:40]!a}",
        "Usual ones are Q4_K_M, Q5_K_M, Q6_K, Q8_0, IQ4_XS and F16.",
    )


def quantization_of(file_name: str) -> Quantization | None:
    """The quantization that a file name tells: the last one in it, else the one of the folder it
    lies in. None for names such as `phi-4-q4.gguf`, which say too little."""
    for piece in reversed(file_name.split("/")):
        matches = list(_in_file().finditer(piece))
        if matches:
            return find(matches[-1][0])
    return None


def at_end_of(text: str) -> tuple[str, Quantization | None]:
    """Splits a tag: `70b-instruct-q4_K_M` is (`70b-instruct`, Q4_K_M)."""
    for i, character in enumerate(text):
        if i == 0 or character == "-":
            start = 0 if i == 0 else i + 1
            if found := find(text[start:]):
                return text[:i], found
    return text, None


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why it is not what was wanted ("" if it is)."""

    quantization: Quantization
    note: str = ""


def choose(wanted: Quantization | None, available: Iterable[Quantization]) -> Choice:
    """Of what is there: the wanted one (by default Q4_K_M), else the nearest larger one, else the
    largest of the smaller ones. Raises `ArgumentError` if nothing is there."""
    target = wanted or Quantization(DEFAULT)
    there = sorted(set(available), key=lambda q: (q.bits, q.dynamic, q.name))
    if target in there:
        return Choice(target)
    same_bits = [q for q in there if q.name == target.name]
    usable = same_bits or [q for q in there if q.name not in _RETIRED] or there
    if not usable:
        raise ArgumentError(f"no quantization is there to choose for {target}")
    larger = [q for q in usable if q.bits >= target.bits]
    if larger:
        chosen, how = larger[0], "the nearest larger one"
    else:
        chosen, how = usable[-1], "smaller, and the largest that is there"
    return Choice(chosen, f"there is no {target}: {chosen} is {how}")
