"""The one table of how far the engine may be from other computations of the same thing.

Between our own instruction sets, batches, chunks and threads there is no tolerance: tests compare
with ==. (What scalar kernels may differ from double precision stands in native/tests, beside the
double computation that it is about.)
"""

from __future__ import annotations

from typing import NamedTuple


class Tolerance(NamedTuple):
    """Relative root mean square error of a position's logits: over the positions, and at any."""

    median: float
    worst: float
    why: str


class Bound(NamedTuple):
    value: float
    why: str


# A value next to a rounding border (of an int8 activation, of f16 or s8 keys and values) can fall
# on the other side of it in the engine, whose f32 sums differ in the last bits. One such value
# moves the logits by up to 2e-2, and everything after it in the sequence too. A wrong term shows
# as 1e-1 to 1.
_FLOAT = Tolerance(2e-4, 2e-3, "f32 sums in another order, and now and then a border of f16")
_INT8 = Tolerance(4e-2, 1e-1, "borders of int8 activations; their own noise is 2e-2 to 4e-2")

#: The engine against NumPy, which rounds activations and keys as it does; by type of the weights.
BY_TYPE: dict[str, Tolerance] = {
    **dict.fromkeys(("F32", "F16", "BF16"), _FLOAT),
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), _INT8),
    **dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"), _INT8),
}
Q8_KV = Tolerance(1e-2, 5e-2, "F32 weights; borders of s8 keys and values")
SHORT_DECILE = Bound(3e-6, "a tenth of the prompts of 1 to 3 tokens meet no border: f32 sums alone")

#: llama.cpp against NumPy without roundings of activations, by family of the architecture.
_GELU = Tolerance(5e-3, 5e-3, "llama.cpp looks GELU up in a table of f16")
_SUMS = Tolerance(1e-4, 1e-4, "f32 sums in another order")
LLAMA_BY_FAMILY: dict[str, Tolerance] = {
    "llama": _SUMS, "qwen2": _SUMS, "qwen3": _SUMS, "gemma3": _GELU,
}  # fmt: skip
LLAMA_QUANTIZED = Tolerance(4e-2, 1e-1, "llama.cpp rounds activations in its own way, NumPy not")
ENGINE_AND_LLAMA = Tolerance(5e-3, 5e-3, "F32 weights; our cache is f16, llama.cpp's f32")

ONE_LOGIT = Bound(
    4 * ENGINE_AND_LLAMA.median,
    "a single one, in parts of a position's standard deviation: some times the root mean square",
)

LOGPROB = Bound(1e-5, "log probabilities: f32 logits of about 10, sums in double")
LLAMA_LOGPROB = Bound(1e-3, "log probabilities of the first tokens in F32; f16 and f32 caches")
SYNTHETIC_CORRELATION = Bound(
    0.99, "at least: roundings of random weights; a wrong layout leaves nothing in common"
)

#: Real models, of which llama.cpp runs one in F32 as the measure.
WIRING_KL = Bound(1e-4, "all weights in F32: f32 sums, and a cache of f16")
KL_RATIO = Bound(1.1, "our distance over llama.cpp's own, both quantized; G14 of PERFORMANCE.md")
AGREEMENT_LOSS = Bound(0.005, "greedy tokens of our quantized run against llama.cpp's: noise")
EQUAL_OF_20 = Bound(18, "at least: prompts with equal greedy tokens in F32; two near ties")
