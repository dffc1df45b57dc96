"""A NumPy forward pass over a GGUF file, written apart from the engine to check it.

It reads metadata and tensors with the ``gguf`` package and computes in f64. Three switches say how
much of the engine's own rounding it follows, so that a comparison is as tight as it can be:

* ``kv``: "f32" keeps K and V as they are, "f16" and "q8_0" round them as the pool stores them;
* ``quantize_acts``: activations of a matmul over a quantized weight are rounded to int8 with one
  scale per 32 or 256 inputs (amax / 127), the block size of the weight;
* weights are always what the file's blocks decode to.

The formulas: RMS norm, SwiGLU, GeGLU with the tanh form of GELU, rotary embedding with the linear
and YaRN scalings and the per-frequency divisors of Llama 3.1, grouped-query causal attention with
an optional window. Sources: the papers that named them, and llama.cpp's conventions for GGUF keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """What a family does that metadata does not say."""

    halves: bool  # rope rotates (i, i + n/2), else (2i, 2i + 1)
    gelu: bool = False
    scale_embedding: bool = False  # times sqrt(n_embd)
    window_pattern: int = 1  # every n-th layer sees everything; 1: the window holds in all layers
    local_rope: bool = False  # layers with a window have their own rope base and no rope scaling


FAMILIES = {
    "llama": Family(halves=False),
    "qwen2": Family(halves=True),
    "qwen3": Family(halves=True),
    "gemma3": Family(True, gelu=True, scale_embedding=True, window_pattern=6, local_rope=True),
}


@dataclass
class Matrix:
    """Decoded rows [n_out, n_in] and the block size its type quantizes activations by (1: none)."""

    values: F64
    block: int


def round_acts(x: F64, block: int) -> F64:
    """int8 activations per block of the last axis (padded with zeros), decoded again."""
    n = x.shape[-1]
    x32 = np.pad(x.astype(np.float32), [(0, 0), (0, -n % block)]).reshape(len(x), -1, block)
    amax = np.abs(x32).max(axis=-1, keepdims=True)
    inverse = np.where(amax > 0, np.float32(127) / np.where(amax > 0, amax, 1), np.float32(0))
    q = np.rint(x32 * inverse.astype(np.float32))
    d = (amax / np.float32(127)).astype(np.float64)
    return (q * d).reshape(len(x), -1)[:, :n]


def rotate(x: F64) -> F64:
    """The last axis, padded with zeros to a multiple of 32, each 32 times the Hadamard matrix."""
    hadamard = np.ones((1, 1))
    while len(hadamard) < 32:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    n = x.shape[-1]
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -n % 32)])
    y = x.reshape(*x.shape[:-1], -1, 32) @ hadamard / np.sqrt(32)
    return y.reshape(x.shape)


def rms_norm(x: F64, weight: F64, eps: float) -> F64:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def _silu(x: F64) -> F64:
    return x / (1.0 + np.exp(-x))


def _gelu_tanh(x: F64) -> F64:
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


class Reference:
    """A model in memory. Errors: KeyError for a missing key or tensor, ValueError otherwise."""

    def __init__(self, path: Path, kv: str = "f16", quantize_acts: bool = True) -> None:
        reader = gguf.GGUFReader(path)
        self._keys: dict[str, Any] = {
            name: f.contents()
            for name, f in reader.fields.items()
            if not name.startswith(("GGUF.", "tokenizer."))
        }
        self._tensors = {t.name: t for t in reader.tensors}
        self._decoded: dict[str, Matrix] = {}
        self._arch = self._keys["general.architecture"]
        self._family = FAMILIES[self._arch]
        if kv not in ("f32", "f16", "q8_0"):
            raise ValueError(f"kv type {kv}")
        self._kv = kv
        self._quantize_acts = quantize_acts
        self.n_layers: int = self._key("block_count")
        self.n_embd: int = self._key("embedding_length")
        self.n_heads: int = self._key("attention.head_count")
        self.n_kv_heads: int = self._key("attention.head_count_kv", self.n_heads)
        self.head_dim: int = self._key("attention.key_length", self.n_embd // self.n_heads)
        self.eps: float = self._key("attention.layer_norm_rms_epsilon")
        self.n_vocab = len(self._matrix("token_embd").values)

    def _key(self, name: str, default: Any = None) -> Any:
        value = self._keys.get(f"{self._arch}.{name}", default)
        if value is None:
            raise KeyError(f"{self._arch}.{name}")
        return value

    def _matrix(self, name: str) -> Matrix:
        if name not in self._decoded:
            t = self._tensors[f"{name}.weight"]
            values = dequantize(t.data, t.tensor_type).astype(np.float64)
            self._decoded[name] = Matrix(values, gguf.GGML_QUANT_SIZES[t.tensor_type][0])
        return self._decoded[name]

    def _vector(self, name: str) -> F64:
        return np.asarray(self._tensors[name].data, dtype=np.float64)

    def _linear(self, x: F64, name: str) -> F64:
        m = self._matrix(name)
        if m.block > 1 and self._quantize_acts:
            x = round_acts(x, m.block)
        y = x @ m.values.T
        return y + self._vector(f"{name}.bias") if f"{name}.bias" in self._tensors else y

    def window_of(self, layer: int) -> int:
        """Tokens that a query of this layer sees, itself included; 0: all."""
        window = int(self._key("attention.sliding_window", 0))
        pattern = self._family.window_pattern
        return 0 if pattern > 1 and layer % pattern == pattern - 1 else window

    def _rope_angles(self, layer: int, positions: F64) -> tuple[F64, F64]:
        """cos and sin [n_tokens, head_dim / 2], magnitude correction included."""
        base = float(self._key("rope.freq_base", 10000.0))
        kind = self._key("rope.scaling.type", "linear")
        factor = float(self._key("rope.scaling.factor", 1.0))
        if self._family.local_rope and self.window_of(layer):
            base, factor = float(self._key("rope.freq_base_swa", 10000.0)), 1.0
        n_pairs = self.head_dim // 2
        pair = np.arange(n_pairs)
        freq = base ** (-pair / n_pairs)
        if "rope_freqs.weight" in self._tensors:
            freq = freq / self._vector("rope_freqs.weight")
        magnitude = 1.0
        if kind == "yarn":
            n_ctx = self._key("rope.scaling.original_context_length")

            def pair_of(turns: float) -> float:  # the pair that turns so often in n_ctx tokens
                return n_pairs * np.log(n_ctx / (turns * 2 * np.pi)) / np.log(base)

            low = max(0.0, np.floor(pair_of(32.0)))
            high = min(self.head_dim - 1.0, np.ceil(pair_of(1.0)))
            keep = 1.0 - np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0)
            freq = freq * (keep + (1.0 - keep) / factor)
            magnitude = 1.0 + 0.1 * np.log(factor)
        elif kind == "linear":
            freq = freq / factor
        angle = positions[:, None] * freq[None, :]
        return np.cos(angle) * magnitude, np.sin(angle) * magnitude

    def _rope(self, x: F64, cos: F64, sin: F64) -> F64:
        """x [n_tokens, n_heads, head_dim]"""
        cos, sin = cos[:, None, :], sin[:, None, :]
        out = np.empty_like(x)
        half = self.head_dim // 2
        a, b = (
            (np.s_[..., :half], np.s_[..., half:])
            if self._family.halves
            else (np.s_[..., 0::2], np.s_[..., 1::2])
        )
        out[a] = x[a] * cos - x[b] * sin
        out[b] = x[a] * sin + x[b] * cos
        return out

    def _store(self, x: F64) -> F64:
        """K or V [n_tokens, n_kv_heads, head_dim] as the pool gives it back."""
        if self._kv == "f32":
            return x
        if self._kv == "f16":
            return x.astype(np.float32).astype(np.float16).astype(np.float64)
        n = x.shape[-1]
        x32 = np.pad(x.astype(np.float32), [(0, 0), (0, 0), (0, -n % 32)])
        x32 = x32.reshape(*x.shape[:-1], -1, 32)
        amax = np.abs(x32).max(axis=-1, keepdims=True)
        inverse = np.where(amax > 0, np.float32(127) / np.where(amax > 0, amax, 1), np.float32(0))
        d = (amax / np.float32(127)).astype(np.float16).astype(np.float64)
        q = np.rint(x32 * inverse.astype(np.float32))
        return (q * d).reshape(*x.shape[:-1], -1)[..., :n]

    def _attention(self, x: F64, layer: int, positions: F64) -> F64:
        blk = f"blk.{layer}"

        def heads(name: str, n: int) -> F64:
            y = self._linear(x, f"{blk}.attn_{name}").reshape(len(x), n, self.head_dim)
            norm = f"{blk}.attn_{name}_norm.weight"
            return rms_norm(y, self._vector(norm), self.eps) if norm in self._tensors else y

        cos, sin = self._rope_angles(layer, positions)
        q = self._rope(heads("q", self.n_heads), cos, sin)
        k = self._rope(heads("k", self.n_kv_heads), cos, sin)
        if self._kv == "q8_0":  # its weights of 15 bits are left out: below the other errors
            q, k = rotate(q), rotate(k)
            q = round_acts(q.reshape(-1, q.shape[-1]), 32).reshape(q.shape)
        k = self._store(k)
        v = self._store(heads("v", self.n_kv_heads))
        group = self.n_heads // self.n_kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k, optimize=True) / np.sqrt(self.head_dim)
        distance = positions[:, None] - positions[None, :]
        window = self.window_of(layer)
        visible = (distance >= 0) & ((distance < window) if window else True)
        scores = np.where(visible[None], scores, -np.inf)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        o = np.einsum("hqk,khd->qhd", p, v, optimize=True).reshape(len(x), -1)
        return self._linear(o, f"{blk}.attn_output")

    def _feed_forward(self, x: F64, layer: int) -> F64:
        blk = f"blk.{layer}"
        gate = self._linear(x, f"{blk}.ffn_gate")
        act = _gelu_tanh(gate) if self._family.gelu else _silu(gate)
        return self._linear(act * self._linear(x, f"{blk}.ffn_up"), f"{blk}.ffn_down")

    def _add_normed(self, x: F64, branch: F64, norm: str) -> F64:
        if norm in self._tensors:
            branch = rms_norm(branch, self._vector(norm), self.eps)
        return x + branch

    def forward(self, tokens: list[int]) -> F64:
        """Logits [n_tokens, n_vocab] of one sequence that starts at position 0."""
        positions = np.arange(len(tokens), dtype=np.float64)
        x = self._matrix("token_embd").values[tokens]
        if self._family.scale_embedding:
            x = x * np.sqrt(self.n_embd)
        for i in range(self.n_layers):
            normed = rms_norm(x, self._vector(f"blk.{i}.attn_norm.weight"), self.eps)
            branch = self._attention(normed, i, positions)
            x = self._add_normed(x, branch, f"blk.{i}.post_attention_norm.weight")
            normed = rms_norm(x, self._vector(f"blk.{i}.ffn_norm.weight"), self.eps)
            branch = self._feed_forward(normed, i)
            x = self._add_normed(x, branch, f"blk.{i}.post_ffw_norm.weight")
        x = rms_norm(x, self._vector("output_norm.weight"), self.eps)
        head = "output" if "output.weight" in self._tensors else "token_embd"
        return self._linear(x, head)
