"""Tiny seeded GGUF models that the native engine does not run: other architectures, and one of its
own with a vocabulary that our tokenizer does not know."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize

from models.tiny import make

N_EMBD, N_LAYERS, N_HEADS, N_CTX = 256, 2, 4, 512
_D_INNER, _D_STATE, _D_CONV, _DT_RANK, _N_FF = 2 * N_EMBD, 16, 4, 4, 256

Shape = tuple[int, ...]  # as numpy has it: the contiguous dimension comes last


@dataclass(frozen=True)
class Foreign:
    """A row: what the file says its architecture is, and how it differs from the others."""

    architecture: str
    rwkv_vocabulary: bool = False
    quantized: gguf.GGMLQuantizationType | None = None  # type of the layers' matrices, else F32
    keys: dict[str, int | float] = field(default_factory=dict)


_EPS = {"attention.layer_norm_epsilon": 1e-5}
_RMS = {"attention.layer_norm_rms_epsilon": 1e-5}

FOREIGN = {
    "gpt2": Foreign("gpt2", keys=_EPS),
    "mamba": Foreign(
        "mamba",
        keys={
            "ssm.conv_kernel": _D_CONV,
            "ssm.inner_size": _D_INNER,
            "ssm.state_size": _D_STATE,
            "ssm.time_step_rank": _DT_RANK,
            **_RMS,
        },
    ),
    "bert": Foreign("bert", keys=_EPS),
    "t5": Foreign("t5", keys={"attention.relative_buckets_count": 32, **_RMS}),
    "llama-rwkv": Foreign("llama", rwkv_vocabulary=True, keys=_RMS),
    "llama-tq2": Foreign("llama", quantized=gguf.GGMLQuantizationType.TQ2_0, keys=_RMS),
}


def _layer(name: str) -> Iterator[tuple[str, Shape]]:
    both = ("weight", "bias")
    if name == "gpt2":
        for norm in ("attn_norm", "ffn_norm"):
            yield from ((f"{norm}.{part}", (N_EMBD,)) for part in both)
        for matrix, rows, cols in (
            ("attn_qkv", 3 * N_EMBD, N_EMBD),
            ("attn_output", N_EMBD, N_EMBD),
            ("ffn_up", _N_FF, N_EMBD),
            ("ffn_down", N_EMBD, _N_FF),
        ):
            yield f"{matrix}.weight", (rows, cols)
            yield f"{matrix}.bias", (rows,)
    elif name == "mamba":
        yield "attn_norm.weight", (N_EMBD,)
        yield "ssm_in.weight", (2 * _D_INNER, N_EMBD)
        yield "ssm_conv1d.weight", (_D_INNER, _D_CONV)
        yield "ssm_conv1d.bias", (_D_INNER,)
        yield "ssm_x.weight", (_DT_RANK + 2 * _D_STATE, _D_INNER)
        yield "ssm_dt.weight", (_D_INNER, _DT_RANK)
        yield "ssm_dt.bias", (_D_INNER,)
        yield "ssm_a", (_D_INNER, _D_STATE)
        yield "ssm_d", (_D_INNER,)
        yield "ssm_out.weight", (N_EMBD, _D_INNER)
    elif name == "bert":
        for matrix in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{matrix}.weight", (N_EMBD, N_EMBD)
            yield f"{matrix}.bias", (N_EMBD,)
        for norm in ("attn_output_norm", "layer_output_norm"):
            yield from ((f"{norm}.{part}", (N_EMBD,)) for part in both)
        yield "ffn_up.weight", (_N_FF, N_EMBD)
        yield "ffn_down.weight", (N_EMBD, _N_FF)
    else:
        yield "attn_norm.weight", (N_EMBD,)
        yield "ffn_norm.weight", (N_EMBD,)
        for matrix in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{matrix}.weight", (N_EMBD, N_EMBD)
        yield "ffn_gate.weight", (_N_FF, N_EMBD)
        yield "ffn_up.weight", (_N_FF, N_EMBD)
        yield "ffn_down.weight", (N_EMBD, _N_FF)


def _t5_tensors() -> Iterator[tuple[str, Shape]]:
    for side, attentions in (("enc", ("attn",)), ("dec", ("attn", "cross_attn"))):
        yield f"{side}.output_norm.weight", (N_EMBD,)
        for layer in range(N_LAYERS):
            at = f"{side}.blk.{layer}"
            for attention in attentions:
                yield f"{at}.{attention}_norm.weight", (N_EMBD,)
                for part in "qkvo":
                    yield f"{at}.{attention}_{part}.weight", (N_EMBD, N_EMBD)
            yield f"{at}.ffn_norm.weight", (N_EMBD,)
            yield f"{at}.ffn_up.weight", (_N_FF, N_EMBD)
            yield f"{at}.ffn_down.weight", (N_EMBD, _N_FF)


def _tensors(name: str, n_vocab: int) -> Iterator[tuple[str, Shape]]:
    yield "token_embd.weight", (n_vocab, N_EMBD)
    if name == "t5":
        yield from _t5_tensors()
        return
    if name in ("gpt2", "bert"):
        yield "position_embd.weight", (N_CTX, N_EMBD)
    if name == "bert":
        yield "token_types.weight", (2, N_EMBD)
        yield "token_embd_norm.weight", (N_EMBD,)
        yield "token_embd_norm.bias", (N_EMBD,)
    else:
        yield "output_norm.weight", (N_EMBD,)
    if name == "gpt2":
        yield "output_norm.bias", (N_EMBD,)
    for layer in range(N_LAYERS):
        yield from ((f"blk.{layer}.{part}", shape) for part, shape in _layer(name))


def _values(name: str, tensor: str, shape: Shape) -> np.ndarray:
    rng = np.random.Generator(np.random.PCG64(zlib.crc32(f"{name}/{tensor}".encode())))
    noise = rng.standard_normal(shape)
    if tensor.endswith("ssm_a"):
        return -np.exp(noise).astype(np.float32)
    if tensor.endswith("norm.weight"):
        return (1.0 + 0.2 * noise).astype(np.float32)
    spread = 0.1 if len(shape) == 1 else shape[-1] ** -0.5
    return (spread * noise).astype(np.float32)


def _write_rwkv_vocabulary(w: gguf.GGUFWriter) -> int:
    """All bytes, and some words; written as RWKV's converter does, with escapes."""
    tokens = ["<s>", *(f"\\x{byte:02x}" for byte in range(256)), "the", " the", "ing", "\\n\\n"]
    w.add_tokenizer_model("rwkv")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    w.add_bos_token_id(0)
    w.add_eos_token_id(0)
    return len(tokens)


def make_foreign(folder: Path, name: str) -> Path:
    """Writes a row of FOREIGN unless it is there already; returns its path."""
    row = FOREIGN[name]
    path = folder / f"foreign-{name}.gguf"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    w = gguf.GGUFWriter(part, row.architecture)
    w.add_name(f"foreign {name}")
    w.add_context_length(N_CTX)
    w.add_embedding_length(N_EMBD)
    w.add_block_count(N_LAYERS)
    w.add_feed_forward_length(_N_FF)
    w.add_head_count(N_HEADS)
    for key, value in row.keys.items():
        add = w.add_uint32 if isinstance(value, int) else w.add_float32
        add(f"{row.architecture}.{key}", value)
    if row.rwkv_vocabulary:
        n_vocab = _write_rwkv_vocabulary(w)
    else:
        n_vocab = make._write_vocabulary(w, "gpt-2")
    if row.architecture == "bert":
        w.add_uint32("tokenizer.ggml.token_type_count", 2)
    w.add_vocab_size(n_vocab)
    for tensor, shape in _tensors(name, n_vocab):
        values = _values(name, tensor, shape)
        if row.quantized and tensor.startswith("blk.") and len(shape) == 2:
            w.add_tensor(tensor, quantize(values, row.quantized), raw_dtype=row.quantized)
        else:
            w.add_tensor(tensor, values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return part.replace(path)
