"""Token ids to text, one at a time, for answers that are shown while they are made."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from localllm.text.tokenizer import Tokenizer


class StreamDecoder:
    """Turns a sequence's tokens into text as they come.

    Tokens are bytes, and a character may be spread over several: bytes that may still become a
    character are held back. What `feed` and `finish` return, joined, is what `Tokenizer.decode`
    gives for all the ids at once; U+FFFD stands only for bytes that are no UTF-8 in the whole.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special: bool = True, *, within: bool = False
    ) -> None:
        """within: the tokens go on with a text, whose first space is no matter of theirs."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip = tokenizer.strips_first_space and not within
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """The characters that a token completes; often the empty string."""
        piece = self._tokenizer.token_bytes(token_id)
        if self._tokenizer.is_control(token_id):
            if self._skip_special:
                return ""
        elif self._strip and piece[:1] == b" ":
            piece = piece[1:]
        self._strip = False
        return self._decoder.decode(piece)

    def feed_all(self, token_ids: Iterable[int]) -> str:
        """The characters that several tokens complete."""
        return "".join(map(self.feed, token_ids))

    def finish(self) -> str:
        """What was held back, as U+FFFD: no more tokens come. The decoder then starts anew, in the
        middle of a text."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
