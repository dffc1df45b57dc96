"""Which models of the catalogue suit a machine, and how fast they will answer.

A token of an answer reads every weight that it uses and the keys and values of the text before it,
so its time is bytes / bandwidth, divided by the share of the bandwidth that the engine reaches: the
model's own where it was measured here, else that of a model of like size, else what is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from localllm.store import quantization
from localllm.store.architecture import engine_of
from localllm.store.catalog import Attention, Catalog, Entry, Size
from localllm.store.quantization import Quantization
from localllm.store.ref import Ref
from localllm.store.speeds import Measured, nearest

#: Tokens of context that a conversation needs to be useful, and that speeds are told for.
CONTEXT = 8192
#: Share of the measured read bandwidth in decode: CONTRIBUTING.md, G4, 62 to 70 %; the second
#: engine reaches half of that beside ours.
EFFICIENCY = {"native": 0.65, "llama.cpp": 0.32}
MEASURED, ASSUMED = "measured", "assumed"
#: Slower than people read is too slow to be recommended; from the other speed on, bits come first.
LEAST_TOKENS_PER_S = 5.0
AMPLE_TOKENS_PER_S = 10.0
#: Of the free memory, so that other programs keep a part.
SHARE_OF_FREE = 0.9
#: Buffers of the engine, as a share of weights and cache.
_SCRATCH = 0.05
#: Bytes of keys and values of a token, for a model of which the catalogue knows only the size.
_KV_BYTES_PER_PARAMETER = 1 / 65536
#: Quantizations to choose from, best first.
_LADDER = tuple(Quantization(name) for name in ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M"))


@dataclass(frozen=True)
class Suggestion:
    """A model in a quantization, on this machine."""

    ref: Ref  # to pull by
    description: str
    licence: str
    quantization: str
    n_params: int
    engine: str  # "native" or "llama.cpp"
    weight_bytes: int
    kv_bytes: int  # at n_ctx tokens
    n_ctx: int
    tokens_per_s: float  # predicted, with half of the context filled
    basis: str  # what that rests on: MEASURED, ASSUMED, or the name of a model of like size
    kv_known: bool  # False: estimated from the number of parameters
    quality: float  # for the order alone

    @property
    def memory_bytes(self) -> int:
        return int((self.weight_bytes + self.kv_bytes) * (1 + _SCRATCH))


@dataclass(frozen=True)
class Roof:
    """What is known of this machine's speed."""

    read_gb_per_s: float
    known: tuple[Measured, ...] = ()

    def speed(
        self, ref: Ref, engine: str, weight_bytes: float, kv_bytes: float, depth: int
    ) -> tuple[float, str]:
        """Tokens per second of a model whose token reads so many bytes of weights, and of cache
        behind `depth` tokens; and the basis."""
        own = [each for each in self.known if (each.name, each.engine) == (str(ref), engine)]
        if own:
            return own[-1].at(depth), MEASURED
        share, basis = EFFICIENCY[engine], ASSUMED
        if like := nearest(self.known, engine, weight_bytes):
            # More than the roof is the CPU's cache, which a larger model has nothing of.
            share = min(1.0, like.bytes_per_s / (self.read_gb_per_s * 1e9))
            basis = like.name
        return self.read_gb_per_s * 1e9 * share / (weight_bytes + kv_bytes), basis


def recommend(
    catalog: Catalog,
    read_gb_per_s: float,
    fits: Callable[[Suggestion], bool],
    n_ctx: int = CONTEXT,
    known: Sequence[Measured] = (),
) -> list[Suggestion]:
    """The models that chat, fit and are fast enough, of each family the best one; the best first.

    fits: whether there is room for a model here. known: speeds that were measured on this machine,
    under the names that models are recommended by. Better means more parameters; of a mixture of
    experts the geometric mean of all and of those that a token uses counts. Of a model the most
    bits are taken that leave AMPLE_TOKENS_PER_S, else Q4_K_M.
    """
    best: dict[str, Suggestion] = {}
    for suggestion in _all(catalog, Roof(read_gb_per_s, tuple(known)), fits, n_ctx):
        other = best.get(suggestion.ref.name)
        if other is None or suggestion.quality > other.quality:
            best[suggestion.ref.name] = suggestion
    return sorted(best.values(), key=lambda s: (-s.quality, -s.tokens_per_s, s.ref))


def _all(
    catalog: Catalog, roof: Roof, fits: Callable[[Suggestion], bool], n_ctx: int
) -> Iterable[Suggestion]:
    packaged = {entry.ref for entry in catalog if entry.chat}
    attentions = {size.ref: size.attention for size in catalog.sizes}
    for entry in catalog:
        if entry.chat:
            found = suggest_entry(entry, attentions.get(entry.ref), roof, n_ctx)
            if fits(found) and found.tokens_per_s >= LEAST_TOKENS_PER_S:
                yield found
    for size in catalog.sizes:
        if size.kind != "chat" or size.ref in packaged or size.variants[0].name == "base":
            continue
        ladder = (size.published,) if size.published else _LADDER
        fitting = [
            found
            for each in ladder
            if fits(found := suggest(size, each, roof, n_ctx))
            and found.tokens_per_s >= LEAST_TOKENS_PER_S
        ]
        if fitting:
            ample = [found for found in fitting if found.tokens_per_s >= AMPLE_TOKENS_PER_S]
            yield ample[0] if ample else fitting[-1]


def suggest(size: Size, quant: Quantization, roof: Roof, n_ctx: int = CONTEXT) -> Suggestion:
    """A size in a quantization, whether it fits or not."""
    n_ctx = min(n_ctx, size.n_ctx) if size.n_ctx else n_ctx
    kv_full, kv_half = (kv_bytes(size.attention, size.n_params, n) for n in (n_ctx, n_ctx // 2))
    engine = engine_of(size.architecture) or "llama.cpp"
    ref = Ref(size.family, f"{size.size}-{quant.tag}")
    speed, basis = roof.speed(ref, engine, size.n_active * quant.bits / 8, kv_half, n_ctx // 2)
    return Suggestion(
        ref=ref,
        description=size.description,
        licence=size.licence,
        quantization=str(quant),
        n_params=size.n_params,
        engine=engine,
        weight_bytes=int(size.n_params * quant.bits / 8),
        kv_bytes=kv_full,
        n_ctx=n_ctx,
        tokens_per_s=speed,
        basis=basis,
        kv_known=size.attention is not None,
        quality=(size.n_params * size.n_active) ** 0.5,
    )


def suggest_entry(
    entry: Entry, attention: Attention | None, roof: Roof, n_ctx: int = CONTEXT
) -> Suggestion:
    """A model of the package index, whether it fits or not."""
    n_ctx = min(n_ctx, entry.n_ctx)
    kv_full, kv_half = (kv_bytes(attention, entry.n_params, n) for n in (n_ctx, n_ctx // 2))
    engine = engine_of(entry.architecture) or "llama.cpp"
    quant = quantization.find(entry.quantization)
    speed, basis = roof.speed(entry.ref, engine, entry.size, kv_half, n_ctx // 2)
    return Suggestion(
        ref=entry.ref,
        description=entry.description,
        licence=entry.licence,
        quantization=str(quant) if quant else entry.quantization,
        n_params=entry.n_params,
        engine=engine,
        weight_bytes=entry.size,
        kv_bytes=kv_full,
        n_ctx=n_ctx,
        tokens_per_s=speed,
        basis=basis,
        kv_known=attention is not None,
        quality=float(entry.n_params),
    )


def kv_bytes(attention: Attention | None, n_params: int, n_ctx: int) -> int:
    """Of n_ctx tokens in f16."""
    if attention is None:
        return int(n_params * _KV_BYTES_PER_PARAMETER * n_ctx)
    return attention.kv_bytes(n_ctx)
