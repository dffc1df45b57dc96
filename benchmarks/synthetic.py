"""Writes GGUF files with random weights in the shapes of real Llama models, in seconds.

Speed depends on shapes and types only, so such a file is as good as a real one for timing. Scales
are chosen so that activations stay finite and sane: a weight has mean 0 and standard deviation
1 / sqrt(inputs). Large tensors repeat a random chunk. The files have no tokenizer
(``tokenizer.ggml.model = no_vocab``); llama.cpp loads them, too.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

Bytes = npt.NDArray[np.uint8]


CHUNK_BLOCKS = 65521  # random blocks before they repeat; prime, so that rows are not alike


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model; ``tied``: the embedding matrix is the output head as well."""

    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    tied: bool


# 1b, 3b and 8b: Llama 3.2 and 3.1 of these sizes. 0.5b: their make, with fewer and narrower layers.
SHAPES = {
    "0.5b": Shape(24, 1024, 4096, 16, 4, 64, 128256, True),
    "1b": Shape(16, 2048, 8192, 32, 8, 64, 128256, True),
    "3b": Shape(28, 3072, 8192, 24, 8, 128, 128256, True),
    "8b": Shape(32, 4096, 14336, 32, 8, 128, 128256, False),
}


@dataclass(frozen=True)
class Blocks:
    """Where a block of a type keeps its float16 scale and min, and their ratio for mean zero; or
    the byte of a scale that is a power of two."""

    scale_at: int
    min_at: int = -1
    min_per_scale: float = 0.0
    power_of_two: bool = False


BLOCKS = {
    Type.Q4_0: Blocks(0),
    Type.Q4_1: Blocks(0, 2, -7.5),
    Type.Q5_0: Blocks(0),
    Type.Q5_1: Blocks(0, 2, -15.5),
    Type.Q8_0: Blocks(0),
    Type.Q2_K: Blocks(80, 82, 1.5),
    Type.Q3_K: Blocks(108),
    Type.Q4_K: Blocks(0, 2, 7.5),
    Type.Q5_K: Blocks(0, 2, 15.5),
    Type.Q6_K: Blocks(208),
    Type.IQ4_NL: Blocks(0),
    Type.IQ4_XS: Blocks(0),
    Type.MXFP4: Blocks(0, power_of_two=True),
}
FLOATS = (Type.F32, Type.F16, Type.BF16)
# The better type that a _M mix gives to some of attn_v and ffn_down, and to the output head.
MIXES = {"Q4_K_M": (Type.Q4_K, Type.Q6_K), "Q5_K_M": (Type.Q5_K, Type.Q6_K)}


def mix_names() -> list[str]:
    """The mixes with a name of their own; `mix_types` knows all pairs of types beside them."""
    return [*MIXES, *(t.name for t in (*FLOATS, *BLOCKS))]


def mix_types(mix: str) -> tuple[Type, Type]:
    """The type of most matrices and the better one of `_tensors`: of `Q4_K_M`, of one type alone
    (`Q8_0`), or of any two (`Q4_0+Q6_K`). Raises ValueError."""
    if mix in MIXES:
        return MIXES[mix]
    low, _, high = mix.partition("+")
    known = {t.name: t for t in (*FLOATS, *BLOCKS)}
    if low not in known or (high or low) not in known:
        raise ValueError(
            f"no mix {mix!r}: one of {', '.join(mix_names())}, or two types joined by +"
        )
    return known[low], known[high or low]


def _set_powers(blocks: Bytes, at: int, scale: float) -> None:
    """Bytes e, which say 2^(e - 127), evenly mixed of the two powers around the scale so that their
    mean square is its square; a scale of 0 is blocks of zeros."""
    if scale == 0:
        blocks[:] = 0
        return
    below = math.floor(math.log2(scale))
    share = ((scale / 2.0**below) ** 2 - 1) / 3  # of those twice as large
    steps = np.floor(np.arange(len(blocks) + 1) * share)
    blocks[:, at] = 127 + below + np.diff(steps).astype(np.uint8)


def _set_scale(blocks: Bytes, layout: Blocks, scale: float) -> None:
    if layout.power_of_two:
        _set_powers(blocks, layout.scale_at, scale)
        return
    blocks[:, layout.scale_at : layout.scale_at + 2] = np.array([scale], "<f2").view(np.uint8)
    if layout.min_at >= 0:
        low = np.array([scale * layout.min_per_scale], "<f2").view(np.uint8)
        blocks[:, layout.min_at : layout.min_at + 2] = low


def _unit_deviation(quant: Type) -> float:
    """Standard deviation of random blocks of a type whose scale is 1."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    blocks = np.frombuffer(np.random.default_rng(1).bytes(512 * block_bytes), np.uint8)
    blocks = blocks.reshape(512, block_bytes).copy()
    _set_scale(blocks, BLOCKS[quant], 1.0)
    return float(gguf.dequantize(blocks, quant).std())


def random_rows(
    quant: Type, n_rows: int, n_cols: int, deviation: float, rng: np.random.Generator
) -> Bytes:
    """Raw bytes [n_rows, row bytes] of random weights with mean 0 and the given deviation."""
    if quant in FLOATS:
        n_values = min(n_rows * n_cols, 16 * CHUNK_BLOCKS)
        values = rng.standard_normal(n_values, np.float32) * np.float32(deviation)
        raw: Bytes = np.ascontiguousarray(gguf.quantize(values[None], quant)).view(np.uint8)
        return np.resize(raw, (n_rows, n_cols * raw.size // n_values))
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    if n_cols % block_elements:
        raise ValueError(f"{quant.name}: {n_cols} columns are no multiple of {block_elements}")
    n_blocks = n_rows * n_cols // block_elements
    n_random = min(n_blocks, CHUNK_BLOCKS)
    words = rng.integers(0, 2**64, (n_random * block_bytes + 7) // 8, np.uint64)
    blocks = words.view(np.uint8)[: n_random * block_bytes].reshape(n_random, block_bytes)
    scale = 0.0 if deviation == 0 else deviation / _unit_deviation(quant)
    _set_scale(blocks, BLOCKS[quant], scale)
    return np.resize(blocks, (n_rows, n_cols // block_elements * block_bytes))


def matrix(type_name: str, n_rows: int, n_cols: int) -> Bytes:
    """Raw bytes of a matrix of the op table: the same in every process, for the rival has one."""
    rng = np.random.default_rng(1)
    return random_rows(Type[type_name], n_rows, n_cols, n_cols**-0.5, rng).ravel()


def activations(n: int, n_cols: int) -> npt.NDArray[np.float32]:
    """What that matrix is multiplied by, [n, n_cols]: the same in every process, too."""
    return np.random.default_rng(2).standard_normal((n, n_cols), np.float32)


def _more_bits(layer: int, n_layers: int) -> bool:
    """The layers that a _M mix favours: the first and last eighth and each third between."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def _tensors(s: Shape, mix: str, n_identity: int) -> Iterator[tuple[str, int, int, Type, float]]:
    """Yields name, rows, columns, type, deviation; one row and deviation -1: a norm of ones. The
    other layers have the types of a model without the identity layers."""
    low, high = mix_types(mix)
    n_real = s.n_layers - n_identity
    yield "token_embd.weight", s.n_vocab, s.n_embd, high if s.tied else low, 0.02
    n_q, n_kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    for i in range(s.n_layers):
        better = high if _more_bits(i, n_real if i < n_real else s.n_layers) else low
        out = 0.0 if i >= n_real else 1.0  # nothing is added to the residual
        yield f"blk.{i}.attn_norm.weight", 1, s.n_embd, Type.F32, -1
        yield f"blk.{i}.attn_q.weight", n_q, s.n_embd, low, s.n_embd**-0.5
        yield f"blk.{i}.attn_k.weight", n_kv, s.n_embd, low, s.n_embd**-0.5
        yield f"blk.{i}.attn_v.weight", n_kv, s.n_embd, better, s.n_embd**-0.5
        yield f"blk.{i}.attn_output.weight", s.n_embd, n_q, low, out * n_q**-0.5
        yield f"blk.{i}.ffn_norm.weight", 1, s.n_embd, Type.F32, -1
        yield f"blk.{i}.ffn_gate.weight", s.n_ff, s.n_embd, low, s.n_embd**-0.5
        yield f"blk.{i}.ffn_up.weight", s.n_ff, s.n_embd, low, s.n_embd**-0.5
        yield f"blk.{i}.ffn_down.weight", s.n_embd, s.n_ff, better, out * s.n_ff**-0.5
    yield "output_norm.weight", 1, s.n_embd, Type.F32, -1
    if not s.tied:
        yield "output.weight", s.n_vocab, s.n_embd, high, s.n_embd**-0.5


def write(
    path: Path,
    shape: Shape,
    mix: str,
    n_identity: int = 0,
    seed: int = 0,
    vocabulary: Callable[[gguf.GGUFWriter, int], None] | None = None,
) -> None:
    """Writes a model file; ``mix`` says the types, see ``mix_types``. The last ``n_identity``
    layers add nothing: the logits are those of a file without them. vocabulary: adds a tokenizer of
    so many tokens (None: the file has none). Raises ValueError."""
    if not 0 <= n_identity <= shape.n_layers:
        raise ValueError(f"{n_identity} identity layers of {shape.n_layers}")
    w = gguf.GGUFWriter(path, "llama")
    w.add_name(path.stem)
    w.add_block_count(shape.n_layers)
    w.add_context_length(131072)
    w.add_embedding_length(shape.n_embd)
    w.add_feed_forward_length(shape.n_ff)
    w.add_head_count(shape.n_heads)
    w.add_head_count_kv(shape.n_kv_heads)
    w.add_key_length(shape.head_dim)
    w.add_value_length(shape.head_dim)
    w.add_rope_dimension_count(shape.head_dim)
    w.add_rope_freq_base(500000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(shape.n_vocab)
    if vocabulary is None:
        w.add_tokenizer_model("no_vocab")
    else:
        vocabulary(w, shape.n_vocab)
    tensors = list(_tensors(shape, mix, n_identity))
    for name, n_rows, n_cols, quant, deviation in tensors:
        block_elements, block_bytes = gguf.GGML_QUANT_SIZES[quant]
        n_bytes = n_rows * n_cols // block_elements * block_bytes
        dims = [n_cols] if deviation == -1 else [n_rows, n_cols]
        w.add_tensor_info(name, dims, np.dtype(np.float32), n_bytes, quant)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    rng = np.random.Generator(np.random.SFC64(seed))
    for _, n_rows, n_cols, quant, deviation in tensors:
        if deviation == -1:
            w.write_tensor_data(np.ones(n_cols, np.float32))
        else:
            w.write_tensor_data(random_rows(quant, n_rows, n_cols, deviation, rng))
    w.close()


def ensure(folder: Path, shape: str, mix: str, n_identity: int = 0) -> Path:
    """The path of a file in a cache folder, written now if it is not there."""
    identity = f"-identity{n_identity}" if n_identity else ""
    path = folder / f"synthetic-{shape}-{mix}{identity}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        write(partial, SHAPES[shape], mix, n_identity)
        partial.rename(path)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("mix", help=f"{', '.join(mix_names())}, or two types joined by +")
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, metavar="N", help="instead of those of the shape")
    parser.add_argument(
        "--identity-layers",
        type=int,
        default=0,
        metavar="N",
        help="the last N layers add nothing to the residual",
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    if args.layers is not None:
        shape = replace(shape, n_layers=args.layers)
    begin = time.perf_counter()
    try:
        write(args.path, shape, args.mix, args.identity_layers, args.seed)
    except (ValueError, OSError) as e:
        parser.error(str(e))
    seconds = time.perf_counter() - begin
    print(f"{args.path}: {args.path.stat().st_size / 1e6:.0f} MB in {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
