"""A tiny seeded projector for the tiny models, of LLaVA's kind: a vision transformer and two
matrices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

N_VISION, N_FF, N_LAYERS, N_HEADS = 32, 64, 2, 2
IMAGE, PATCH = 28, 14
N_PATCHES = (IMAGE // PATCH) ** 2


def _tensors(n_embd: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "v.patch_embd.weight", (N_VISION, 3, PATCH, PATCH)
    yield "v.position_embd.weight", (N_PATCHES, N_VISION)
    for layer in range(N_LAYERS):
        for name, rows, cols in (
            ("attn_q", N_VISION, N_VISION),
            ("attn_k", N_VISION, N_VISION),
            ("attn_v", N_VISION, N_VISION),
            ("attn_out", N_VISION, N_VISION),
            ("ffn_up", N_FF, N_VISION),
            ("ffn_down", N_VISION, N_FF),
        ):
            yield f"v.blk.{layer}.{name}.weight", (rows, cols)
            yield f"v.blk.{layer}.{name}.bias", (rows,)
        for norm in ("ln1", "ln2"):
            yield f"v.blk.{layer}.{norm}.weight", (N_VISION,)
            yield f"v.blk.{layer}.{norm}.bias", (N_VISION,)
    for number, cols in ((0, N_VISION), (2, n_embd)):
        yield f"mm.{number}.weight", (n_embd, cols)
        yield f"mm.{number}.bias", (n_embd,)


def make_projector(path: Path, n_embd: int = 256, n_heads: int = N_HEADS) -> Path:
    """Writes a projector for models of width n_embd."""
    w = gguf.GGUFWriter(path, "clip")
    w.add_name("tiny projector")
    w.add_bool("clip.has_vision_encoder", True)
    w.add_string("clip.projector_type", "mlp")
    w.add_bool("clip.use_gelu", True)
    for key, value in (
        ("image_size", IMAGE),
        ("patch_size", PATCH),
        ("embedding_length", N_VISION),
        ("feed_forward_length", N_FF),
        ("block_count", N_LAYERS),
        ("projection_dim", n_embd),
        ("attention.head_count", n_heads),
    ):
        w.add_uint32(f"clip.vision.{key}", value)
    w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    w.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    w.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    rng = np.random.default_rng(3)
    for name, shape in _tensors(n_embd):
        spread = 1.0 if "position" in name else np.prod(shape[1:]) ** -0.5
        w.add_tensor(name, (spread * rng.standard_normal(shape)).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path
