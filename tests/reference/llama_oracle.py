"""llama.cpp through ``llama-cpp-python``'s low-level API: the second oracle of the parity tests.

It is fed token ids, never text, so no tokenizer rule can blur a comparison. Flash attention is off,
so that K and V are used in the type that they are stored in. Extra buffer types (repacked weights,
AMX tiles) are off: GCC 12 compiles the set-up of AMX tiles wrongly, and a llama.cpp built with it
crashes on a machine that has them.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import TracebackType
from typing import Any

# Its threads must not spin while others want the CPU; OpenMP reads this once, when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as lib
from numpy.typing import NDArray

_KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8}


@lib.llama_log_callback
def _no_log(_level: int, _text: bytes, _data: Any) -> None:
    return None


def _quiet() -> None:
    llama_cpp.llama_log_set(_no_log, ctypes.c_void_p(0))


class LlamaOracle:
    """One model and one context with n_seqs sequences of n_ctx tokens each."""

    def __init__(
        self, path: Path, n_ctx: int = 1024, kv: str = "f16", n_seqs: int = 1, n_threads: int = 0
    ) -> None:
        _quiet()
        lib.llama_backend_init()
        mp = lib.llama_model_default_params()
        mp.n_gpu_layers = 0
        mp.use_extra_bufts = False
        self._model = lib.llama_model_load_from_file(os.fsencode(path), mp)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        cp = lib.llama_context_default_params()
        cp.n_ctx = n_ctx * n_seqs
        cp.n_batch = cp.n_ubatch = 512
        cp.n_seq_max = n_seqs
        cp.type_k = cp.type_v = _KV_TYPES[kv]
        cp.flash_attn_type = int(kv == "q8_0")  # it has quantized values with it alone
        cp.swa_full = True
        cp.n_threads = cp.n_threads_batch = n_threads or len(os.sched_getaffinity(0))
        self._ctx = lib.llama_init_from_model(self._model, cp)
        if not self._ctx:
            lib.llama_model_free(self._model)
            raise RuntimeError(f"llama.cpp makes no context for {path}")
        self._vocab = lib.llama_model_get_vocab(self._model)
        self.n_vocab = int(lib.llama_vocab_n_tokens(self._vocab))
        self._batch = lib.llama_batch_init(512, 0, 1)

    def __enter__(self) -> LlamaOracle:
        return self

    def __exit__(
        self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._ctx:
            lib.llama_batch_free(self._batch)
            lib.llama_free(self._ctx)
            lib.llama_model_free(self._model)
            self._ctx = self._model = None

    def tokenize(self, text: str) -> list[int]:
        """Ids of text, begin-of-sequence token included where the file asks for one."""
        raw = text.encode()
        out = (lib.llama_token * (len(raw) + 8))()
        n = lib.llama_tokenize(self._vocab, raw, len(raw), out, len(out), True, True)
        if n < 0:
            raise RuntimeError("llama_tokenize wants more room")
        return list(out[:n])

    def clear(self) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(self._ctx), True)

    def eval(
        self, feeds: list[tuple[int, int, list[int]]], all_logits: bool
    ) -> NDArray[np.float32]:
        """One batch of (sequence, first position, tokens), at most 512 tokens together. Logits
        [n_tokens, n_vocab], or [n_feeds, n_vocab] of the last tokens."""
        n = 0
        rows = []
        for seq, first, tokens in feeds:
            for i, token in enumerate(tokens):
                wanted = all_logits or i == len(tokens) - 1
                self._batch.token[n] = token
                self._batch.pos[n] = first + i
                self._batch.n_seq_id[n] = 1
                self._batch.seq_id[n][0] = seq
                self._batch.logits[n] = wanted
                if wanted:
                    rows.append(n)
                n += 1
        self._batch.n_tokens = n
        rc = lib.llama_decode(self._ctx, self._batch)
        if rc != 0:
            raise RuntimeError(f"llama_decode: {rc}")
        out = np.empty((len(rows), self.n_vocab), dtype=np.float32)
        for j, row in enumerate(rows):
            logits = lib.llama_get_logits_ith(self._ctx, row)
            out[j] = np.ctypeslib.as_array(logits, shape=(self.n_vocab,))
        return out

    def forward(self, tokens: list[int], chunk: int = 512) -> NDArray[np.float32]:
        """Logits [n_tokens, n_vocab] of one fresh sequence."""
        self.clear()
        parts = [
            self.eval([(0, at, tokens[at : at + chunk])], all_logits=True)
            for at in range(0, len(tokens), chunk)
        ]
        return np.concatenate(parts)


def dequantize_file(src: Path, dst: Path) -> Path:
    """Writes src with all weights as F32 to dst unless it is there; returns dst."""
    if not dst.exists():
        _quiet()
        dst.parent.mkdir(parents=True, exist_ok=True)
        part = dst.with_suffix(f".{os.getpid()}.part")
        params = lib.llama_model_quantize_default_params()
        params.ftype = 0
        params.allow_requantize = True
        params.nthread = len(os.sched_getaffinity(0))
        rc = lib.llama_model_quantize(os.fsencode(src), os.fsencode(part), ctypes.byref(params))
        if rc != 0:
            raise RuntimeError(f"llama_model_quantize of {src}: {rc}")
        part.replace(dst)
    return dst
