"""GGUF files of any size without their data: what a plan needs, in some hundred kilobytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf

Type = gguf.GGMLQuantizationType


@dataclass(frozen=True)
class Shape:
    """A model of the Llama family."""

    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    n_vocab: int
    n_ctx: int


LLAMA3_70B = Shape(80, 8192, 28672, 64, 8, 128256, 8192)
#: The 7B of the source article: one head of keys and values for each of queries, 32k tokens.
ARTICLE_7B = Shape(32, 4096, 11008, 32, 32, 64000, 32768)


def f16(name: str, layer: int) -> Type:
    return Type.F16


def q4_k_m(name: str, layer: int) -> Type:
    """As llama.cpp's quantizer mixes types for 70B: Q6_K where it matters, Q5_K for its wide V."""
    if name == "output":
        return Type.Q6_K
    more_bits = layer < 10 or layer >= 70 or (layer - 10) % 3 == 2  # an eighth at each end
    if name == "ffn_down":
        return Type.Q6_K if more_bits else Type.Q4_K
    if name == "attn_v":
        return Type.Q6_K if more_bits else Type.Q5_K
    return Type.Q4_K


def write(path: Path, shape: Shape, type_of: Callable[[str, int], Type]) -> int:
    """Writes the header; returns the bytes that the data would have."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.n_layers)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_context_length(shape.n_ctx)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.n_vocab)
    head = shape.n_embd // shape.n_heads
    kv = head * shape.n_kv_heads
    matrices = {
        "attn_q": (shape.n_embd, shape.n_embd),
        "attn_k": (kv, shape.n_embd),
        "attn_v": (kv, shape.n_embd),
        "attn_output": (shape.n_embd, shape.n_embd),
        "ffn_gate": (shape.n_ff, shape.n_embd),
        "ffn_up": (shape.n_ff, shape.n_embd),
        "ffn_down": (shape.n_embd, shape.n_ff),
    }
    total = 0

    def add(name: str, n_rows: int, n_cols: int, kind: Type) -> None:
        nonlocal total
        block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        row = n_cols // block * n_bytes
        shape_of_bytes = (n_rows, row) if n_rows else (row,)
        size = max(n_rows, 1) * row
        total += size
        import numpy as np

        if kind in (Type.F32, Type.F16):
            dtype = np.dtype(np.float32 if kind == Type.F32 else np.float16)
            plain = (n_rows, n_cols) if n_rows else (n_cols,)
            writer.add_tensor_info(name, plain, dtype, size)
        else:
            writer.add_tensor_info(name, shape_of_bytes, np.dtype(np.uint8), size, raw_dtype=kind)

    add("token_embd.weight", shape.n_vocab, shape.n_embd, type_of("token_embd", 0))
    for layer in range(shape.n_layers):
        for name, (n_rows, n_cols) in matrices.items():
            add(f"blk.{layer}.{name}.weight", n_rows, n_cols, type_of(name, layer))
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", 0, shape.n_embd, Type.F32)
    add("output_norm.weight", 0, shape.n_embd, Type.F32)
    add("output.weight", shape.n_vocab, shape.n_embd, type_of("output", 0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return total
