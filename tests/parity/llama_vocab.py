"""llama.cpp's tokenizer (a model loaded with `vocab_only`), as the oracle of tokenizer tests."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as lib

_STRING_OVERRIDE = 3


@lib.llama_log_callback
def _no_log(_level: int, _text: bytes, _data: Any) -> None:
    return None


class LlamaVocab:
    """The vocabulary of a GGUF file; `pre` overrides its pre-tokenizer type."""

    def __init__(self, path: Path, pre: str | None = None) -> None:
        lib.llama_log_set(_no_log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        parameters = lib.llama_model_default_params()
        parameters.vocab_only = True
        if pre is not None:
            overrides = (lib.llama_model_kv_override * 2)()
            overrides[0].tag = _STRING_OVERRIDE
            overrides[0].key = b"tokenizer.ggml.pre"
            overrides[0].value.val_str = pre.encode()
            parameters.kv_overrides = overrides
            self._overrides = overrides  # llama.cpp keeps a pointer while it loads
        self._model = lib.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load the vocabulary of {path} (pre {pre})")
        self._vocab = lib.llama_model_get_vocab(self._model)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self._vocab))

    def close(self) -> None:
        lib.llama_model_free(self._model)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 16
        ids = (lib.llama_token * room)()
        n = lib.llama_tokenize(self._vocab, data, len(data), ids, room, add_special, parse_special)
        assert n >= 0
        return list(ids[:n])

    def is_stop(self, token_id: int) -> bool:
        return bool(lib.llama_vocab_is_eog(self._vocab, token_id))

    def piece(self, token_id: int) -> bytes:
        buffer = ctypes.create_string_buffer(4096)
        n = lib.llama_token_to_piece(self._vocab, token_id, buffer, len(buffer), 0, True)
        assert n >= 0
        return buffer.raw[:n]
