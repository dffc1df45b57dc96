"""The second engine: llama.cpp computes, everything else is ours.

Tokenizer, chat template and sampler are those of the native engine, so a parameter means the same
on both. llama.cpp commits a cache when it makes it, so the default context is smaller here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localllm import paths
from localllm.engine import llama_library, machine
from localllm.engine.llama_context import (
    MAX_BATCH_TOKENS,
    MIN_BATCH_TOKENS,
    CacheCost,
    CancelFlag,
    LlamaContext,
    check_kv_type,
)
from localllm.engine.llama_model import LlamaModel, first_part
from localllm.engine.llama_trial import tried
from localllm.engine.llama_vocabulary import LlamaVocabulary
from localllm.engine.sampling import Sampled, Sampler
from localllm.errors import (
    ArgumentError,
    CancelledError,
    FormatError,
    LocalLLMError,
    OutOfMemoryError,
    UnsupportedError,
)
from localllm.store.inspect import GgufFile
from localllm.text.tokenizer import Tokenizer

Logits = Any  # float32 [n_vocab], or None where none were wanted

NAME = "llama.cpp"
#: The default context takes at most this much, and this share of the memory that is free.
MAX_DEFAULT_KV_BYTES = 1 << 30
KV_SHARE_OF_FREE_MEMORY = 0.5
MIN_CONTEXT = 512


class LlamaCppEngine:
    """See `Engine`. n_sampled: only token ids below it are sampled, the tokenizer's size."""

    name = NAME

    def __init__(
        self, model: LlamaModel, *, n_ctx: int, kv_type: str, n_threads: int, n_sampled: int,
        cost: CacheCost,
    ) -> None:  # fmt: skip
        self.model, self.n_ctx, self.kv_bytes = model, n_ctx, cost.of(n_ctx)
        self._kv_type, self._n_threads, self._n_sampled = kv_type, n_threads, n_sampled
        self._cancel = CancelFlag()
        self._kept: list[int] = []
        self._context: LlamaContext | None = self._new_context()

    @property
    def n_kept(self) -> int:
        """Tokens that are computed and kept."""
        return len(self._kept)

    def begin(self, prompt: Sequence[int]) -> int:
        if self._context is None:
            self._context = self._new_context()
        n = 0
        for mine, wanted in zip(self._kept, prompt[:-1], strict=False):
            if mine != wanted:
                break
            n += 1
        rest = len(prompt) - 1 - n
        if rest < MIN_BATCH_TOKENS and not self.model.keeps_a_state:
            # Fewer would be computed a little differently than the first time, and the same seed
            # would not give the same text.
            n = max(0, len(prompt) - 1 - MIN_BATCH_TOKENS)
        if not self._context.roll_back(n):
            n = 0
        del self._kept[n:]
        return n

    def prefill(
        self,
        tokens: Sequence[int],
        sampler: Sampler,
        n_logprobs: int | None,
        progress: Callable[[int], None],
    ) -> Sampled:
        if not tokens or len(self._kept) + len(tokens) > self.n_ctx:
            raise ArgumentError(
                f"{len(tokens)} tokens after {len(self._kept)}: at least one is needed, and the "
                f"context holds {self.n_ctx}"
            )
        at = 0
        for n in batches(len(tokens)):
            progress(at)
            at += n
            logits = self._step(tokens[at - n : at], want_logits=at == len(tokens))
        progress(at)
        return self._sample(logits, sampler, n_logprobs)

    def decode(
        self,
        token: int,
        k: int,
        sampler: Sampler,
        stop_ids: Sequence[int],
        n_logprobs: int | None,
    ) -> list[Sampled]:
        out: list[Sampled] = []
        while len(out) < k and not (out and token in stop_ids):
            try:
                logits = self._step([token], want_logits=True)
            except CancelledError:
                if not out:
                    raise
                break
            out.append(self._sample(logits, sampler, n_logprobs))
            token = out[-1].token
        return out

    def forget(self) -> None:
        self._kept.clear()
        if self._context is not None:
            self._context.close()
            self._context = None

    def cancel(self) -> None:
        self._cancel.raise_it()

    def reset_cancel(self) -> None:
        self._cancel.lower()

    def close(self) -> None:
        self.forget()
        self.model.close()

    def _new_context(self) -> LlamaContext:
        return LlamaContext(self.model, self.n_ctx, self._kv_type, self._n_threads, self._cancel)

    def _step(self, tokens: Sequence[int], want_logits: bool) -> Logits:
        """Computes tokens after the kept ones. Logits [n_vocab] after the last, if wanted."""
        if self._context is None:
            raise ArgumentError("prefill and decode need a `begin` before")
        try:
            logits = self._context.step(tokens, len(self._kept), want_logits)
        except LocalLLMError:
            del self._kept[self._context.n_computed :]
            raise
        self._kept += tokens
        return logits

    def _sample(self, logits: Logits, sampler: Sampler, n_logprobs: int | None) -> Sampled:
        """The token after the kept ones; noise is keyed by its position, as it is natively."""
        row = logits[: self._n_sampled]
        token = sampler.pick(row, len(self._kept))
        if token < 0:
            raise LocalLLMError(
                "the model's output is not a number (NaN) for this sequence",
                hint="the file may be damaged: check it, or pull it again",
            )
        sampler.accept([token])
        if n_logprobs is None:
            return Sampled(token)
        return Sampled(token, *sampler.logprobs(row, token, n_logprobs))


def batches(n_tokens: int) -> list[int]:
    """Sizes of the steps for a prompt's new tokens. The last token goes alone, as it does when all
    before it is kept, and no other step is small: so the logits after it are always the same."""
    sizes, rest = [], n_tokens - 1
    while rest > MAX_BATCH_TOKENS:
        sizes.append(min(MAX_BATCH_TOKENS, rest - MIN_BATCH_TOKENS))
        rest -= sizes[-1]
    return [*sizes, *([rest] if rest else []), 1]


@dataclass(frozen=True)
class LlamaCppParts:
    """What `open_llama_cpp` gives; the fields are those of `Parts`."""

    engine: LlamaCppEngine
    tokenizer: Tokenizer | LlamaVocabulary
    metadata: dict[str, Any]  # scalars only
    name: str
    quantization: str
    n_ctx: int
    architecture: str
    isa: str
    n_threads: int
    n_params: int
    weight_bytes: int


def open_llama_cpp(
    path: Path,
    *,
    n_threads: int = 0,
    n_ctx: int = 0,
    kv_type: str = "f16",
    progress: Callable[[float], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> LlamaCppParts:
    """Loads a model file into llama.cpp for one conversation at a time; see `Session.open`.

    The file goes through our own checks, and through a trial in a process of its own, because
    llama.cpp ends its process on some broken files.
    Raises FileError, FormatError, UnsupportedError (the package is missing, or llama.cpp cannot run
    the model), ArgumentError, OutOfMemoryError, CancelledError.
    """
    check_kv_type(kv_type)
    library = llama_library.load()
    n_threads = n_threads or machine.facts().n_threads
    report = progress or (lambda _share: None)
    with GgufFile(path) as file:
        first = first_part(path, file.n_parts)
        verdict = tried(
            library,
            first,
            kv_type=kv_type,
            n_threads=n_threads,
            weight_bytes=file.weight_bytes,
            cache_folder=paths.current().cache / "llama.cpp",
            progress=lambda share: report(share / 2),
        )
        model = LlamaModel.load(
            library,
            first,
            extra_buffers=verdict.extra_buffers,
            progress=lambda share: report(0.5 + share / 2),
        )
        try:
            tokenizer = _tokenizer(file, model)
            asked, n_ctx = n_ctx, context_that_fits(verdict.cost, model.n_ctx_train, n_ctx)
            engine = LlamaCppEngine(
                model,
                n_ctx=n_ctx,
                kv_type=kv_type,
                n_threads=n_threads,
                n_sampled=tokenizer.n_vocab,
                cost=verdict.cost,
            )
            metadata, name = _scalars(file), str(file.metadata.get("general.name") or path.stem)
            architecture, quantization = file.architecture, file.quantization
        except BaseException:
            model.close()
            raise
    if not asked and n_ctx < model.n_ctx_train and notice is not None:
        notice(f"context {n_ctx} of {model.n_ctx_train} tokens; a larger --ctx takes more memory")
    return LlamaCppParts(
        engine=engine,
        tokenizer=tokenizer,
        metadata=metadata,
        name=name,
        quantization=quantization,
        n_ctx=n_ctx,
        architecture=architecture,
        isa=model.isa,
        n_threads=n_threads,
        n_params=model.n_params,
        weight_bytes=model.weight_bytes,
    )


def context_that_fits(cost: CacheCost, n_ctx_train: int, asked: int) -> int:
    """Tokens of context: what was asked for, or the trained length cut to what memory allows.

    Raises OutOfMemoryError with the numbers when `asked` tokens cannot fit, and ArgumentError when
    they are more than the model was trained on.
    """
    if asked > n_ctx_train > 0:
        raise ArgumentError(
            f"the context is {asked} tokens, the model was trained on {n_ctx_train}",
            hint=f"use --ctx {n_ctx_train} or less",
        )
    free = machine.facts().free_bytes
    if asked:
        if free and cost.of(asked) > free:
            raise OutOfMemoryError(
                f"a context of {asked} tokens needs {cost.of(asked) >> 20} MiB, "
                f"{free >> 20} MiB are free",
                hint="use a smaller --ctx, or --kv-type q8_0, which takes about half",
            )
        return asked
    limit = MAX_DEFAULT_KV_BYTES
    if free:
        limit = min(limit, int(free * KV_SHARE_OF_FREE_MEMORY))
    n = n_ctx_train or MIN_CONTEXT
    while n > MIN_CONTEXT and cost.of(n) > limit:
        n = max(MIN_CONTEXT, n - max(n // 16, 1))
    return n


def _scalars(file: GgufFile) -> dict[str, Any]:
    """The metadata that is not vocabulary."""
    metadata = file.metadata
    return {key: metadata[key] for key in metadata if not metadata.type_of(key).endswith("[]")}


def _tokenizer(file: GgufFile, model: LlamaModel) -> Tokenizer | LlamaVocabulary:
    """Ours, or for a kind of vocabulary that it does not know, llama.cpp's."""
    try:
        ours = Tokenizer.from_metadata(
            file.metadata, cache_folder=paths.current().cache / "tokenizers"
        )
    except UnsupportedError:
        return LlamaVocabulary(model, file.metadata)
    if ours.n_vocab > model.n_vocab:
        raise FormatError(f"the tokenizer has {ours.n_vocab} tokens, llama.cpp {model.n_vocab}")
    return ours
