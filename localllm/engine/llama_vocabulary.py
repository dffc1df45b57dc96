"""llama.cpp's vocabulary with the interface of our own `Tokenizer`, for kinds that ours lacks."""

from __future__ import annotations

import ctypes

from localllm.engine.llama_model import LlamaModel, special_ids, token_piece
from localllm.errors import ArgumentError, LocalLLMError
from localllm.text.metadata import Metadata, read_flag
from localllm.text.special_split import Allow, SpecialSplitter
from localllm.text.special_tokens import looks_like_control
from localllm.text.tokenizer import checked_text

# Of enum llama_token_attr in llama.cpp's include/llama.h.
_UNKNOWN, _CONTROL, _USER_DEFINED = 1, 8, 16


class LlamaVocabulary:
    """Valid as long as its model is. What a method does is told by its namesake in `Tokenizer`."""

    def __init__(self, model: LlamaModel, metadata: Metadata) -> None:
        api, vocabulary = model.library.api, model.vocabulary
        self._model, self._api, self.n_vocab = model, api, model.n_vocab
        kinds = [api.llama_vocab_get_attr(vocabulary, i) for i in range(self.n_vocab)]
        self._ids = special_ids(model)
        self._controls = frozenset(i for i, k in enumerate(kinds) if k & (_UNKNOWN | _CONTROL))
        self.stop_ids = frozenset(
            i for i in range(self.n_vocab) if api.llama_vocab_is_eog(vocabulary, i)
        )
        written = {i for i, kind in enumerate(kinds) if kind & _USER_DEFINED}
        texts = {i: self._name(i) for i in sorted(self._controls | written)}
        self._texts = {i: text for i, text in texts.items() if text}
        self._full = SpecialSplitter({text: i for i, text in self._texts.items()})
        self._plain = SpecialSplitter({t: i for i, t in self._texts.items() if i in written})
        self.add_bos = bool(api.llama_vocab_get_add_bos(vocabulary)) and "bos" in self._ids
        self._add_eos = bool(api.llama_vocab_get_add_eos(vocabulary)) and "eos" in self._ids
        self.strips_first_space = read_flag(metadata, "tokenizer.ggml.add_space_prefix", False)
        self._pieces: dict[int, bytes] = {}

    @property
    def bos_id(self) -> int | None:
        return self._ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        return self._ids.get("eos")

    @property
    def eot_id(self) -> int | None:
        return self._ids.get("eot")

    def special_id(self, name: str) -> int | None:
        return self._ids.get(name)

    def is_control(self, token_id: int) -> bool:
        self._check(token_id)
        return token_id in self._controls

    def is_structural(self, token_id: int) -> bool:
        return self.is_control(token_id) or looks_like_control(self._texts.get(token_id, ""))

    def special_texts(self) -> dict[str, int]:
        return {text: i for i, text in self._texts.items()}

    def token_bytes(self, token_id: int) -> bytes:
        piece = self._pieces.get(token_id)
        if piece is None:
            self._check(token_id)
            text = self._texts.get(token_id)
            piece = text.encode() if text is not None else token_piece(self._model, token_id)
            self._pieces[token_id] = piece
        return piece

    def encode(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = False,
        allow: Allow | None = None,
    ) -> list[int]:
        checked_text(text)
        ids = [self._ids["bos"]] if add_special and self.add_bos else []
        for piece in (self._full if parse_special else self._plain).pieces(text, allow):
            ids.extend([piece] if isinstance(piece, int) else self._encode(piece.encode()))
        if add_special and self._add_eos:
            ids.append(self._ids["eos"])
        return ids

    def _encode(self, data: bytes) -> list[int]:
        size = len(data) + 8
        while True:
            out = (ctypes.c_int32 * size)()
            n = self._api.llama_tokenize(
                self._model.vocabulary, data, len(data), out, size, False, False
            )
            if n >= 0:
                return list(out[:n])
            if -n <= size:
                raise LocalLLMError(f"llama.cpp could not encode a text of {len(data)} bytes")
            size = -n

    def _name(self, token_id: int) -> str:
        raw = self._api.llama_vocab_get_text(self._model.vocabulary, token_id) or b""
        return bytes(raw).decode("utf-8", "replace")

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.n_vocab:
            raise ArgumentError(f"token id {token_id} is outside the vocabulary of {self.n_vocab}")
