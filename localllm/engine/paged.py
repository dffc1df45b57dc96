"""Our own engine for one conversation: a kept sequence over the paged KV pool.

What was computed stays in the pool between turns; a prompt that begins alike goes on from there.
Layer groups with a window forget what left it, so a sequence can be rolled back only a little: for
such models a fork of the sequence at the end of its last prompt is kept, too. It shares its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localllm.engine.blocks import SequenceState
from localllm.engine.runner import Feed, Model, Runner
from localllm.engine.sampling import Sampled, Sampler
from localllm.errors import UnsupportedError


@dataclass
class _Kept:
    """A sequence in the pool and the tokens it holds."""

    sequence: SequenceState
    tokens: list[int]

    def rolls_back_to(self, prompt: Sequence[int]) -> int:
        """Length of the longest usable beginning of `prompt`, at most all but its last token: the
        logits of that one are wanted."""
        n = 0
        for mine, wanted in zip(self.tokens, prompt[:-1], strict=False):
            if mine != wanted:
                break
            n += 1
        return n if self.sequence.table.reaches(n) else 0


class PagedEngine:
    """See `Engine`."""

    name = "native"

    def __init__(self, model: Model, runner: Runner, n_ctx: int) -> None:
        self.n_ctx, self.kv_bytes = n_ctx, runner.kv_bytes
        self.model, self.runner = model, runner
        self._live = _Kept(runner.new_sequence(), [])
        self._at_prompt: _Kept | None = None

    @property
    def n_kept(self) -> int:
        return len(self._live.tokens)

    @property
    def progress(self) -> int:
        return self.runner.progress

    def picture_ids(self, path: Path) -> list[int]:
        raise UnsupportedError(
            f"{path.name} is a picture, which the native engine cannot look at",
            "A model with vision runs on: localllm run NAME --engine llama.cpp",
        )

    def begin(self, prompt: Sequence[int]) -> int:
        n = self._live.rolls_back_to(prompt)
        older = self._at_prompt
        if older is not None:
            n_older = older.rolls_back_to(prompt)
            if n_older > n:
                self.runner.free(self._live.sequence)
                self._live, n = older, n_older
            else:
                self.runner.free(older.sequence)
            self._at_prompt = None
        self._live.sequence.truncate(n)
        del self._live.tokens[n:]
        return n

    def prefill(
        self,
        tokens: Sequence[int],
        sampler: Sampler,
        n_logprobs: int | None,
        progress: Callable[[int], None],
    ) -> Sampled:
        size, live = self.runner.max_batch_tokens, self._live
        for begin in range(0, len(tokens), size):
            progress(begin)
            part = tokens[begin : begin + size]
            last = begin + size >= len(tokens)
            feed = Feed(live.sequence, part, sample=last, sampler=sampler if last else None)
            result = self.runner.step([feed], n_logprobs=n_logprobs if last else None)
            live.tokens += part
        progress(len(tokens))
        if any(self.model.info.group_window):
            self._at_prompt = _Kept(self.runner.fork(live.sequence), list(live.tokens))
        return result.sampled(0)

    def decode(
        self,
        token: int,
        k: int,
        sampler: Sampler,
        stop_ids: Sequence[int],
        n_logprobs: int | None,
    ) -> list[Sampled]:
        feed = Feed(self._live.sequence, [token], sampler=sampler)
        sampled = self.runner.decode([feed], k, stop_ids, n_logprobs=n_logprobs)[0]
        self._live.tokens += [token, *(s.token for s in sampled[:-1])]
        return sampled

    def forget(self) -> None:
        for kept in (self._live, self._at_prompt):
            if kept is not None:
                self.runner.free(kept.sequence)
        self._live, self._at_prompt = _Kept(self.runner.new_sequence(), []), None
        self.runner.release_idle()

    def cancel(self) -> None:
        self.runner.cancel()

    def reset_cancel(self) -> None:
        self.runner.reset_cancel()

    def close(self) -> None:
        self.runner.close()
        self.model.close()
