"""This engine, timed the same way as the rival: token numbers in, seconds out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from localllm.engine.runner import Feed, Model, Runner, SequenceState


class Ours:
    """A loaded model with one runner."""

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
        )

    def close(self) -> None:
        self.runner.close()
        self.model.close()

    def time_prefill(self, tokens: Sequence[int]) -> float:
        """Seconds to run tokens from an empty cache, the next token sampled."""
        sequence = self.runner.new_sequence()
        begin = time.perf_counter()
        self.runner.step([Feed(sequence, tokens)])
        seconds = time.perf_counter() - begin
        self.runner.free(sequence)
        return seconds

    def time_decode(self, n_steps: int, first: int, n_sequences: int = 1) -> float:
        """Seconds of n_steps greedy steps from position first, filled with a prefill before."""
        sequences: list[SequenceState] = []
        for _ in range(n_sequences):
            sequences.append(self.runner.new_sequence())
            self.runner.prefill(Feed(sequences[-1], prompt(first)))
        begin = time.perf_counter()
        self.runner.decode([Feed(s, [1]) for s in sequences], n_steps)
        seconds = time.perf_counter() - begin
        for sequence in sequences:
            self.runner.free(sequence)
        return seconds


def prompt(n_tokens: int) -> list[int]:
    """Token numbers that any vocabulary of the benchmarks has."""
    return [1 + (7 * i) % 1000 for i in range(n_tokens)]
