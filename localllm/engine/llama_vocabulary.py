"""llama.cpp's vocabulary as a `Tokenizer`, for kinds of vocabularies that ours cannot read."""

from __future__ import annotations

import ctypes
import re
from itertools import pairwise
from typing import Any

import numpy as np

from localllm.engine.llama_model import LlamaModel
from localllm.errors import ArgumentError, LocalLLMError
from localllm.text import vocabulary
from localllm.text.metadata import Metadata, read_flag
from localllm.text.pre_tokenizers import PRE_NAMES
from localllm.text.tokenizer import Tokenizer
from localllm.text.vocabulary import PREFIX, Vocabulary

#: Bits of enum llama_token_attr in llama.cpp's include/llama.h, and GGUF's types.
_TYPES = (
    (1, vocabulary.UNKNOWN),
    (2, vocabulary.UNUSED),
    (8, vocabulary.CONTROL),
    (16, vocabulary.USER_DEFINED),
    (32, vocabulary.BYTE),
    (4, vocabulary.NORMAL),
)
#: Special tokens by the names in their GGUF keys, and llama.cpp's functions for them.
_IDS = {
    "bos": "llama_vocab_bos",
    "eos": "llama_vocab_eos",
    "eot": "llama_vocab_eot",
    "seperator": "llama_vocab_sep",
    "padding": "llama_vocab_pad",
    "mask": "llama_vocab_mask",
}


class LlamaEncoder:
    """See `Encoder`. Usable until the model is closed. `controls`: texts of control tokens, to
    their ids; some of llama.cpp's tokenizers make them from any text, this one does not."""

    def __init__(self, model: LlamaModel, controls: dict[str, int]) -> None:
        self._model, self._api = model, model.library.api
        self._controls = frozenset(controls.values())
        texts = "|".join(re.escape(text) for text in controls if text)
        self._starts = re.compile(f"(?={texts})") if texts else None

    def encode(self, text: str, after_special: bool) -> list[int]:
        ids = self._encode(text)
        if self._starts is not None and not self._controls.isdisjoint(ids):
            # Cut behind the first character of each name, none is left to be found.
            cuts = [0, *(m.start() + 1 for m in self._starts.finditer(text)), len(text)]
            ids = [i for a, b in pairwise(cuts) for i in self._encode(text[a:b])]
            ids = [i for i in ids if i not in self._controls]  # names of one character
        return ids

    def _encode(self, text: str) -> list[int]:
        data = text.encode()
        size = len(data) + 8
        while True:
            out = (ctypes.c_int32 * size)()
            n = self._api.llama_tokenize(
                self._vocabulary(), data, len(data), out, size, False, False
            )
            if n >= 0:
                return list(out[:n])
            if -n <= size:
                raise LocalLLMError(f"llama.cpp could not encode a text of {len(data)} bytes")
            size = -n

    def piece(self, token_id: int) -> bytes:
        size = 64
        while True:
            out = ctypes.create_string_buffer(size)
            n = self._api.llama_token_to_piece(self._vocabulary(), token_id, out, size, 0, True)
            if n >= 0:
                return out.raw[:n]
            size = -n

    def _vocabulary(self) -> Any:
        if self._model.handle is None:
            raise ArgumentError("the model of this tokenizer has been closed")
        return self._model.vocabulary


def tokenizer_of(model: LlamaModel, metadata: Metadata) -> Tokenizer:
    """A tokenizer that asks llama.cpp how to encode."""
    api, handle, n_vocab = model.library.api, model.vocabulary, model.n_vocab
    tokens = [
        bytes(api.llama_vocab_get_text(handle, i) or b"[EMPTY_%d]" % i) for i in range(n_vocab)
    ]
    ids: dict[str, int | None] = {}
    for name, function in _IDS.items():
        token = int(getattr(api, function)(handle))
        ids[name] = token if 0 <= token < n_vocab else None
    types = np.full(n_vocab, vocabulary.NORMAL, np.int32)
    for i in range(n_vocab):
        kind = api.llama_vocab_get_attr(handle, i)
        types[i] = next((t for bit, t in _TYPES if kind & bit), vocabulary.UNUSED)
    texts = [token.decode("utf-8", "replace") for token in tokens]
    controls = {
        texts[i]: i for i in range(n_vocab) if types[i] in (vocabulary.CONTROL, vocabulary.UNKNOWN)
    }
    return Tokenizer(
        Vocabulary(
            model="llama.cpp",
            pre=PRE_NAMES["default"],
            tokens=tokens,
            texts=texts,
            types=types,
            scores=None,
            ids=ids,
            add_bos=bool(api.llama_vocab_get_add_bos(handle)) and ids["bos"] is not None,
            add_eos=bool(api.llama_vocab_get_add_eos(handle)) and ids["eos"] is not None,
            add_space_prefix=read_flag(metadata, PREFIX + "add_space_prefix", False),
            stop_ids=frozenset(i for i in range(n_vocab) if api.llama_vocab_is_eog(handle, i)),
        ),
        LlamaEncoder(model, controls),
    )
