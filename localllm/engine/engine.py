"""What runs tokens for a session: our own engine over paged blocks, or llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from localllm.engine.sampling import Sampled, Sampler


class Engine(Protocol):
    """One conversation at a time over one loaded model.

    The engine keeps the tokens of what it computed last, so that the next prompt that begins alike
    computes only what is new. All calls come from one thread, except `cancel`.
    """

    name: str  # "native" or "llama.cpp"
    n_ctx: int
    kv_bytes: int  # reserved for n_ctx tokens

    @property
    def n_kept(self) -> int:
        """Tokens that are computed and kept."""

    @property
    def progress(self) -> int:
        """A number that changes several times a second while a step computes, however long it
        takes. From any thread."""

    def picture_ids(self, path: Path) -> list[int]:
        """The ids by which a picture file stands in a prompt; those below 0 are its own. Raises
        `UnsupportedError` where pictures cannot be looked at, `FileError`, `ArgumentError`."""

    def begin(self, prompt: Sequence[int]) -> int:
        """Keeps the longest usable beginning of `prompt` that is already computed, at most all but
        the last token, and forgets the rest. Returns its length in tokens."""

    def prefill(
        self,
        tokens: Sequence[int],
        sampler: Sampler,
        n_logprobs: int | None,
        progress: Callable[[int], None],
    ) -> Sampled:
        """Computes the rest of the prompt, in chunks, and samples the token after it. `progress`
        is told how many of `tokens` are done. Raises `CancelledError`: what was computed is
        kept."""

    def decode(
        self,
        token: int,
        k: int,
        sampler: Sampler,
        stop_ids: Sequence[int],
        n_logprobs: int | None,
    ) -> list[Sampled]:
        """Up to k steps from `token` on, each fed the sample of the one before; ends with a token
        of `stop_ids`. At least one. Raises `CancelledError` if the first did not end."""

    def forget(self) -> None:
        """Drops what is kept, and gives its memory back."""

    def cancel(self) -> None:
        """Ends the running call, and every later one until `reset_cancel`. From any thread."""

    def reset_cancel(self) -> None: ...

    def close(self) -> None: ...
