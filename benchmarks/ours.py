"""This engine, timed the same way as the rival: token numbers in, seconds out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localllm.engine.blocks import SequenceState
from localllm.engine.runner import Feed, Model, Runner

#: Of a step that is timed alone, the shortest counts: the first ones after a sleep are slow.
STEP_TRIES = 4


class Ours:
    """A loaded model with one runner.

    Sequences filled to a depth (a multiple of 32, so that no block is shared in part) are held from
    one call to the next; a timed call runs on forks of them.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_threads: int,
        n_ctx_tokens: int = 4096,
        max_batch_tokens: int = 512,
        max_sequences: int = 1,
        kv_type: str = "f16",
    ) -> None:
        self.model = Model.load(path, n_threads=n_threads)
        self.runner = Runner(
            self.model,
            kv_type=kv_type,
            n_ctx_tokens=n_ctx_tokens,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            n_forks=max_sequences,
        )
        self._kv_type = kv_type
        self._held: list[SequenceState] = []

    def close(self) -> None:
        self.runner.close()
        self.model.close()

    def kv_bytes(self, depth: int) -> float:
        """Bytes of keys and values that a token at this depth reads."""
        return sum(
            min(depth, window or depth) * self.model.kv_block_bytes(self._kv_type, group) / 32
            for group, window in enumerate(self.model.info.group_window)
        )

    @contextmanager
    def _sequences(self, n: int, depth: int) -> Iterator[list[SequenceState]]:
        """n sequences whose first `depth` tokens are computed, forgotten afterwards."""
        for extra in self._held[n if depth else 0 :]:
            self.runner.free(extra)
        del self._held[n if depth else 0 :]
        for i in range(n if depth else 0):
            if i == len(self._held):
                self._held.append(self.runner.new_sequence())
            held = self._held[i]
            if held.n_computed > depth:
                self.runner.free(held)
            if held.n_computed < depth:
                tokens = prompt(depth)[held.n_computed :]
                self.runner.prefill(Feed(held, tokens, sample=False))
        made = [self.runner.fork(s) for s in self._held]
        made += [self.runner.new_sequence() for _ in range(n - len(made))]
        try:
            yield made
        finally:
            for sequence in made:
                self.runner.free(sequence)

    def time_prefill(self, n_tokens: int, depth: int = 0) -> float:
        """Seconds to run n_tokens behind `depth` others, the next token sampled."""
        with self._sequences(1, depth) as (sequence,):
            begin = time.perf_counter()
            self.runner.prefill(Feed(sequence, prompt(n_tokens)))
            return time.perf_counter() - begin

    def time_decode(self, n_steps: int, depth: int, n_sequences: int = 1) -> float:
        """Seconds of n_steps greedy steps of sequences with `depth` tokens each."""
        with self._sequences(n_sequences, depth) as sequences:
            begin = time.perf_counter()
            self.runner.decode([Feed(s, [1]) for s in sequences], n_steps)
            return time.perf_counter() - begin

    def time_step(self, n_tokens: int, depth: int, n_sequences: int = 1) -> float:
        """Seconds of one step of n_tokens in each sequence, with logits for every token: what the
        check of a draft takes. The shortest of `STEP_TRIES`."""
        best = float("inf")
        for _ in range(STEP_TRIES):
            with self._sequences(n_sequences, depth) as sequences:
                feeds = [Feed(s, prompt(n_tokens)) for s in sequences]
                begin = time.perf_counter()
                self.runner.step(feeds, all_logits=n_tokens > 1)
                best = min(best, time.perf_counter() - begin)
        return best


def prompt(n_tokens: int) -> list[int]:
    """Token numbers that any vocabulary of the benchmarks has."""
    return [1 + (7 * i) % 1000 for i in range(n_tokens)]
