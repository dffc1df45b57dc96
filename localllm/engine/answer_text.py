"""From the tokens of an answer to its pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from localllm.engine.exchange import Chunk, TokenLogprobs
from localllm.engine.sampling import Sampled
from localllm.params import GenerateParams
from localllm.text.answer_stream import AnswerStream
from localllm.text.reasoning import ReasoningFormat
from localllm.text.tokenizer import Tokenizer


class AnswerText:
    """The text side of one answer. room: tokens of the context behind the prompt."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: GenerateParams,
        room: int,
        *,
        reasoning: ReasoningFormat | None,
        opened: bool,
        within: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._stream = AnswerStream(
            tokenizer, reasoning=reasoning, opened=opened, within=within, stop=params.stop
        )
        self._limit = room if params.max_tokens is None else min(room, params.max_tokens)
        self.n_generated = 0
        self.n_reasoning = 0
        self._untold: deque[tuple[int, Sampled]] = deque()  # where their text begins

    @property
    def n_left(self) -> int:
        """The most tokens that may still come."""
        return self._limit - self.n_generated

    def feed(self, sampled: Sequence[Sampled], *, cancelled: bool = False) -> Chunk:
        """What sampled tokens add. An end in the midst of them drops the ones behind."""
        text, reasoning, reason = "", "", None
        tokens: list[int] = []
        for each in sampled:
            self.n_generated += 1
            tokens.append(each.token)
            if each.logprob is not None:
                self._untold.append((self._stream.n_read, each))
            if each.token in self._tokenizer.stop_ids:
                reason = "stop"
                break
            delta = self._stream.feed(each.token)
            text += delta.text
            reasoning += delta.reasoning
            self.n_reasoning += bool(delta.reasoning)
            if delta.stopped:
                reason = "stop"
                break
        if reason is None and self.n_left <= 0:
            reason = "length"
        if reason is None and cancelled:
            reason = "cancelled"
        if reason is not None:
            delta = self._stream.finish()
            text, reasoning = text + delta.text, reasoning + delta.reasoning
            reason = "stop" if delta.stopped else reason
        logprobs = self._settled(all_stay=reason is not None and not delta.stopped)
        return Chunk(text, tuple(tokens), reason, reasoning, logprobs)

    def _settled(self, *, all_stay: bool) -> tuple[TokenLogprobs, ...]:
        """Of the tokens that have not been told, those whose text stays, if only its beginning."""
        settled = []
        while self._untold and (all_stay or self._untold[0][0] < self._stream.n_settled):
            settled.append(self._untold.popleft()[1])
        return told(self._tokenizer, settled)


def told(tokenizer: Tokenizer, sampled: Sequence[Sampled]) -> tuple[TokenLogprobs, ...]:
    """Log probabilities in texts, of the tokens that have some."""

    def piece(token: int) -> str:
        return tokenizer.token_bytes(token).decode("utf-8", "replace")

    return tuple(
        TokenLogprobs(
            each.token,
            piece(each.token),
            each.logprob,
            tuple((piece(token), value) for token, value in each.top),
        )
        for each in sampled
        if each.logprob is not None
    )
