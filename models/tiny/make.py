"""Tiny seeded GGUF models: every architecture row times every weight type, for the tests.

The bytes depend only on the row and the type, so a test that fails names a file anyone can make
again: ``python models/tiny/make.py OUT_DIR [--arch NAME] [--type NAME]``. Metadata keys and tensor
names are the ones that llama.cpp's converters write, so its engine loads these files too.
"""

from __future__ import annotations

import argparse
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

Type = gguf.GGMLQuantizationType
FileType = gguf.LlamaFileType
F32Array = NDArray[np.float32]
U8Array = NDArray[np.uint8]


# ---- Architectures --------------------------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """One row: the shape of a tiny model and the features its family adds."""

    name: str
    family: str = "llama"
    pre: str = "llama-bpe"
    n_layers: int = 2
    n_embd: int = 256
    n_ff: int = 512
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 64
    n_ctx: int = 2048
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norm: bool = False
    explicit_head_dim: bool = False  # writes attention.key_length and value_length
    rms_eps: float = 1e-5
    window: int = 0
    rope_base: float = 10000.0
    rope_factors: bool = False  # the Llama 3.1 per-frequency divisors, as a tensor
    only_block_of_32: bool = False  # widths that 256-element types cannot hold
    extra: dict[str, float | int | str] = field(default_factory=dict)


# The windows are no multiple of the 32-token KV block, and no vocabulary is one of 16 rows.
_GEMMA3 = {
    "family": "gemma3", "pre": "gpt-2", "n_layers": 7, "n_ff": 256, "n_kv_heads": 1, "tied": True,
    "qk_norm": True, "post_norm": True, "explicit_head_dim": True, "rms_eps": 1e-6, "window": 40,
    "rope_base": 1000000.0,
}  # fmt: skip
_YARN: dict[str, float | int | str] = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}  # fmt: skip
_LINEAR: dict[str, float | int | str] = {
    "rope.scaling.type": "linear", "rope.scaling.factor": 4.0,
}  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {
    row.name: row
    for row in (
        Architecture("llama"),
        Architecture("llama-tied", tied=True, rope_base=100000.0),
        Architecture("llama-factors", tied=True, rope_base=500000.0, rope_factors=True),
        Architecture("llama-linear", extra=_LINEAR),
        Architecture("llama-yarn", extra=_YARN),
        Architecture("llama-wide", n_ff=256, head_dim=128, explicit_head_dim=True, rope_base=1e6),
        Architecture("llama-odd", n_embd=160, n_ff=224, head_dim=40, only_block_of_32=True),
        Architecture("qwen2", "qwen2", "qwen2", qkv_bias=True, rms_eps=1e-6, rope_base=1000000.0),
        Architecture("qwen2-yarn", "qwen2", "qwen2", qkv_bias=True, tied=True, extra=_YARN),
        Architecture("qwen3", "qwen3", "qwen2", n_heads=8, qk_norm=True, explicit_head_dim=True,
                     tied=True, rms_eps=1e-6, rope_base=1000000.0),
        Architecture("gemma3", **_GEMMA3),  # type: ignore[arg-type]
        Architecture("gemma3-linear", extra=_LINEAR, **_GEMMA3),  # type: ignore[arg-type]
    )
}  # fmt: skip


# ---- Weight types ---------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightType:
    """One row. d_at < 0: the gguf package quantizes this type. Else blocks are random bytes whose
    f16 scale, at byte d_at, is set so that values come out with the wanted spread; min_at is where
    a block keeps its f16 min scale, min_ratio the min scale that centers the values. Blocks without
    a min have scales of both signs, which centers them too."""

    type: Type
    file_type: FileType
    d_at: int = -1
    min_at: int = -1
    min_ratio: float = 0.0


TYPES: dict[str, WeightType] = {
    row.type.name: row
    for row in (
        WeightType(Type.F32, FileType.ALL_F32),
        WeightType(Type.F16, FileType.MOSTLY_F16),
        WeightType(Type.BF16, FileType.MOSTLY_BF16),
        WeightType(Type.Q4_0, FileType.MOSTLY_Q4_0),
        WeightType(Type.Q4_1, FileType.MOSTLY_Q4_1),
        WeightType(Type.Q5_0, FileType.MOSTLY_Q5_0),
        WeightType(Type.Q5_1, FileType.MOSTLY_Q5_1),
        WeightType(Type.Q8_0, FileType.MOSTLY_Q8_0),
        WeightType(Type.Q2_K, FileType.MOSTLY_Q2_K, d_at=80, min_at=82, min_ratio=1.5),
        WeightType(Type.Q3_K, FileType.MOSTLY_Q3_K_M, d_at=108),
        WeightType(Type.Q4_K, FileType.MOSTLY_Q4_K_M, d_at=0, min_at=2, min_ratio=7.5),
        WeightType(Type.Q5_K, FileType.MOSTLY_Q5_K_M, d_at=0, min_at=2, min_ratio=15.5),
        WeightType(Type.Q6_K, FileType.MOSTLY_Q6_K, d_at=208),
        WeightType(Type.IQ4_NL, FileType.MOSTLY_IQ4_NL, d_at=0),
        WeightType(Type.IQ4_XS, FileType.MOSTLY_IQ4_XS, d_at=0),
        WeightType(Type.MXFP4, FileType.MOSTLY_MXFP4_MOE),
    )
}


def fits(arch: Architecture, weight: WeightType) -> bool:
    """Whether the rows of this architecture are whole blocks of this type."""
    return not arch.only_block_of_32 or gguf.GGML_QUANT_SIZES[weight.type][0] <= 32


def pairs() -> Iterator[tuple[str, str]]:
    """Every (architecture, type) that can be made."""
    for arch in ARCHITECTURES.values():
        for name, weight in TYPES.items():
            if fits(arch, weight):
                yield arch.name, name


def _rng(*parts: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(zlib.crc32("/".join(parts).encode())))


def _put_f16(blocks: U8Array, at: int, values: NDArray[np.floating]) -> None:
    blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


def _random_blocks(rng: np.random.Generator, w: WeightType, n: int, spread: float) -> U8Array:
    block_bytes = gguf.GGML_QUANT_SIZES[w.type][1]
    blocks = rng.integers(0, 256, size=(n, block_bytes), dtype=np.uint8)
    d = rng.uniform(0.5, 1.5, size=n)
    if w.min_at < 0:
        d *= rng.choice([-1.0, 1.0], size=n)

    def set_scales(scale: float) -> None:
        _put_f16(blocks, w.d_at, d * scale)
        if w.min_at >= 0:
            _put_f16(blocks, w.min_at, d * scale * w.min_ratio)

    set_scales(1.0)
    set_scales(spread / float(np.std(dequantize(blocks, w.type))))
    return blocks


def weight_bytes(
    rng: np.random.Generator, w: WeightType, rows: int, cols: int
) -> NDArray[np.generic]:
    """Random rows [rows][cols] of spread 1/sqrt(cols), in the file form of the type."""
    spread = cols**-0.5
    if w.d_at >= 0:
        block_elements = gguf.GGML_QUANT_SIZES[w.type][0]
        return _random_blocks(rng, w, rows * cols // block_elements, spread).reshape(rows, -1)
    values = (rng.standard_normal((rows, cols)) * spread).astype(np.float32)
    return values if w.type is Type.F32 else quantize(values, w.type)


# ---- Vocabulary -----------------------------------------------------------------------------

_MERGES = (
    "Ġ t", "h e", "Ġ a", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "Ġ w", "e n", "Ġ o",
    "i s", "Ġ c", "n d", "i t", "o r", "Ġa nd", "e s", "l l", "in g", "Ġ f", "Ġ p",
)  # fmt: skip
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level BPE vocabulary (GPT-2's table):
    printable Latin-1 stands for itself, the rest take code points from 256 on."""
    letters, n_moved = [], 0
    for byte in range(256):
        printable = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
        letters.append(chr(byte if printable else 256 + n_moved))
        n_moved += not printable
    return letters


def _write_vocabulary(w: gguf.GGUFWriter, pre: str) -> int:
    tokens = [*_byte_letters(), *(m.replace(" ", "") for m in _MERGES), *_SPECIAL]
    normal = len(tokens) - len(_SPECIAL)
    types = [gguf.TokenType.NORMAL] * normal + [gguf.TokenType.CONTROL] * len(_SPECIAL)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(list(_MERGES))
    w.add_bos_token_id(normal + 1)
    w.add_eos_token_id(normal + 2)
    w.add_pad_token_id(normal)
    w.add_add_bos_token(False)
    w.add_chat_template(_TEMPLATE)
    return len(tokens)


# ---- Files ----------------------------------------------------------------------------------


def _write_metadata(w: gguf.GGUFWriter, a: Architecture, weight: WeightType) -> None:
    w.add_name(f"tiny {a.name} {weight.type.name}")
    w.add_file_type(int(weight.file_type))
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    w.add_context_length(a.n_ctx)
    w.add_embedding_length(a.n_embd)
    w.add_block_count(a.n_layers)
    w.add_feed_forward_length(a.n_ff)
    w.add_head_count(a.n_heads)
    w.add_head_count_kv(a.n_kv_heads)
    w.add_layer_norm_rms_eps(a.rms_eps)
    w.add_rope_freq_base(a.rope_base)
    if a.explicit_head_dim:
        w.add_key_length(a.head_dim)
        w.add_value_length(a.head_dim)
    if a.family == "llama":
        w.add_rope_dimension_count(a.head_dim)
    if a.window:
        w.add_sliding_window(a.window)
    for key, value in a.extra.items():
        full = f"{a.family}.{key}"
        if isinstance(value, str):
            w.add_string(full, value)
        elif isinstance(value, int):
            w.add_uint32(full, value)
        else:
            w.add_float32(full, value)


def _llama31_factors(a: Architecture) -> F32Array:
    """Divisors of the rope frequencies as Llama 3.1 defines them (factor 8, low 1, high 4), with an
    original context of 64 so that all three ranges occur. [head_dim / 2]"""
    wave = 2 * np.pi * a.rope_base ** (np.arange(0, a.head_dim, 2) / a.head_dim)
    smooth = np.clip((64 / wave - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / 8.0 + smooth)).astype(np.float32)


def _norm_vectors(a: Architecture) -> Iterator[tuple[str, int]]:
    yield "attn_norm", a.n_embd
    yield "ffn_norm", a.n_embd
    if a.qk_norm:
        yield "attn_q_norm", a.head_dim
        yield "attn_k_norm", a.head_dim
    if a.post_norm:
        yield "post_attention_norm", a.n_embd
        yield "post_ffw_norm", a.n_embd


def _matrices(a: Architecture) -> Iterator[tuple[str, int, int]]:
    n_q, n_kv = a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim
    yield "attn_q", n_q, a.n_embd
    yield "attn_k", n_kv, a.n_embd
    yield "attn_v", n_kv, a.n_embd
    yield "attn_output", a.n_embd, n_q
    yield "ffn_gate", a.n_ff, a.n_embd
    yield "ffn_up", a.n_ff, a.n_embd
    yield "ffn_down", a.n_embd, a.n_ff


def _write_tensors(w: gguf.GGUFWriter, a: Architecture, weight: WeightType, n_vocab: int) -> None:
    def matrix(name: str, rows: int, cols: int) -> None:
        data = weight_bytes(_rng(a.name, name), weight, rows, cols)
        raw = None if data.dtype in (np.float32, np.float16) else weight.type
        w.add_tensor(f"{name}.weight", data, raw_dtype=raw)

    def vector(name: str, n: int, mean: float, spread: float) -> None:
        values = mean + spread * _rng(a.name, name).standard_normal(n)
        w.add_tensor(name, values.astype(np.float32))

    matrix("token_embd", n_vocab, a.n_embd)
    if a.rope_factors:
        w.add_tensor("rope_freqs.weight", _llama31_factors(a))
    for layer in range(a.n_layers):
        for name, n in _norm_vectors(a):
            vector(f"blk.{layer}.{name}.weight", n, 1.0, 0.2)
        for name, rows, cols in _matrices(a):
            matrix(f"blk.{layer}.{name}", rows, cols)
            if a.qkv_bias and name in ("attn_q", "attn_k", "attn_v"):
                vector(f"blk.{layer}.{name}.bias", rows, 0.0, 0.3)
    vector("output_norm.weight", a.n_embd, 1.0, 0.2)
    if not a.tied:
        matrix("output", n_vocab, a.n_embd)


def make(out_dir: Path, arch: str, weight_type: str) -> Path:
    """Writes one model unless it is there already; returns its path."""
    a, weight = ARCHITECTURES[arch], TYPES[weight_type]
    if not fits(a, weight):
        raise ValueError(f"rows of {arch} are not whole blocks of {weight_type}")
    path = out_dir / f"tiny-{arch}-{weight_type}.gguf"
    if path.exists():
        return path
    out_dir.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    w = gguf.GGUFWriter(part, a.family)
    _write_metadata(w, a, weight)
    n_vocab = _write_vocabulary(w, a.pre)
    w.add_vocab_size(n_vocab)
    _write_tensors(w, a, weight, n_vocab)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return part.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tiny seeded GGUF models.")
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES))
    parser.add_argument("--type", choices=sorted(TYPES))
    args = parser.parse_args()
    for arch, weight_type in pairs():
        if args.arch in (None, arch) and args.type in (None, weight_type):
            print(make(args.out_dir, arch, weight_type))


if __name__ == "__main__":
    main()
