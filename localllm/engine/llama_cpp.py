"""The second engine: llama.cpp computes, everything else is ours.

Tokenizer, chat template and sampler are those of the native engine, so a parameter means the same
on both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from localllm.engine.llama_context import (
    BATCH_STEP,
    CacheCost,
    CancelFlag,
    LlamaContext,
)
from localllm.engine.llama_model import MAX_BATCH_TOKENS, LlamaModel
from localllm.engine.llama_trial import tried, verdicts
from localllm.engine.llama_vision import Projector, find_projector
from localllm.engine.sampling import Sampled, Sampler
from localllm.errors import ArgumentError, CancelledError, LocalLLMError

NAME = "llama.cpp"

Logits = Any  # float32 [n_vocab], or None where none were wanted


class LlamaCppEngine:
    """See `Engine`. path: the model's file."""

    name = NAME

    def __init__(
        self, model: LlamaModel, *, path: Path, n_ctx: int, kv_type: str, n_threads: int,
        cost: CacheCost,
    ) -> None:  # fmt: skip
        self.model, self.n_ctx, self.kv_bytes = model, n_ctx, cost.of(n_ctx)
        self._kv_type, self._n_threads = kv_type, n_threads
        self._path = path
        self._projector: Projector | None = None  # made when a picture comes
        self._cancel = CancelFlag()
        self._kept: list[int] = []
        self._batched = (0, 0)  # first and last position of what was last computed in batches
        self._context: LlamaContext | None = self._new_context()

    @property
    def n_kept(self) -> int:
        """Tokens that are computed and kept."""
        return len(self._kept)

    @property
    def progress(self) -> int:
        return self._cancel.n_polls

    def picture_ids(self, path: Path) -> list[int]:
        if self._projector is None:
            file = find_projector(self._path)
            tried(
                self.model.library, self._path, kv_type=self._kv_type, n_threads=self._n_threads,
                may_copy=False, cache_folder=verdicts(), progress=lambda share: None,
                projector=file,
            )  # fmt: skip
            self._projector = Projector(self.model, file, self._n_threads)
        return self._projector.ids_of(path)

    def begin(self, prompt: Sequence[int]) -> int:
        if self._context is None:
            self._context = self._new_context()
        n = 0
        for mine, wanted in zip(self._kept, prompt[:-1], strict=False):
            if mine != wanted:
                break
            n += 1
        first, last = self._batched
        if first < n <= last and not self.model.keeps_a_state:
            # Cut where a batch could have been: then what follows comes out as it did before, and
            # the same seed gives the same text.
            n = first + max(0, min(n, len(prompt) - 1 - BATCH_STEP) - first)
            n -= (n - first) % BATCH_STEP
        n = self._before_picture(n)
        if not self._context.roll_back(n):
            n = 0
        del self._kept[n:]
        self._batched = (first if first < n <= last else n, len(prompt) - 1)
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
        if tokens[-1] < 0:
            raise ArgumentError("the prompt ends with a picture, and a text must follow")
        at, logits = 0, None
        for picture, run in groupby(tokens, key=lambda token: min(token, 0)):
            rest = len(list(run))
            if picture:
                step = self._projector_for(picture).n_positions(picture)
                if rest % step:
                    raise ArgumentError(f"the prompt holds {rest} of a picture's {step} positions")
                sizes = [step] * (rest // step)
            else:
                sizes = batches(rest) if at + rest == len(tokens) else batches(rest + 1)[:-1]
            for n in sizes:
                progress(at)
                at += n
                if picture:
                    self._look(picture)
                else:
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
        if self._projector is not None:
            self._projector.close()
            self._projector = None
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

    def _look(self, picture: int) -> None:
        """Computes the piece of a picture after the kept tokens."""
        if self._context is None:
            raise ArgumentError("prefill and decode need a `begin` before")
        try:
            after = self._context.look(self._projector_for(picture), picture, len(self._kept))
        except LocalLLMError:
            del self._kept[self._context.n_computed :]
            raise
        self._kept += [picture] * (after - len(self._kept))

    def _projector_for(self, picture: int) -> Projector:
        if self._projector is None:
            raise ArgumentError(
                "the prompt holds a picture that this session has not seen",
                "An answer about a picture can be given again only by asking again.",
            )
        return self._projector

    def _before_picture(self, n: int) -> int:
        """n, or the beginning of the piece of a picture in whose middle it lies."""
        first, picture = n, self._kept[n - 1] if n else 0
        if picture >= 0:
            return n
        while first and self._kept[first - 1] == picture:
            first -= 1
        return n - (n - first) % self._projector_for(picture).n_positions(picture)

    def _sample(self, logits: Logits, sampler: Sampler, n_logprobs: int | None) -> Sampled:
        """The token after the kept ones; noise is keyed by its position, as it is natively."""
        token = sampler.pick(logits, len(self._kept))
        if token < 0:
            raise LocalLLMError(
                "the model's output is not a number (NaN) for this sequence",
                hint="the file may be damaged: check it, or pull it again",
            )
        sampler.accept([token])
        if n_logprobs is None:
            return Sampled(token)
        return Sampled(token, *sampler.logprobs(logits, token, n_logprobs))


def batches(n_tokens: int) -> list[int]:
    """Sizes of the steps for a prompt's new tokens. The last token goes alone, as it must when all
    before it is kept; every other step begins at a multiple of BATCH_STEP and none is shorter, if
    there are that many tokens."""
    sizes, rest = [], n_tokens - 1
    while rest > MAX_BATCH_TOKENS:
        room = (rest - BATCH_STEP) // BATCH_STEP * BATCH_STEP
        sizes.append(min(MAX_BATCH_TOKENS, room))
        rest -= sizes[-1]
    return [*sizes, *([rest] if rest else []), 1]
