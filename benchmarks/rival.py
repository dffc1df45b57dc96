"""The engine to compare with: llama.cpp through the low-level API of ``llama-cpp-python``.

Batched, with the same threads. Text never enters: tokens are numbers, so files without a tokenizer
work. `benchmarks/rival_process.py` runs it in a process of its own.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt

from benchmarks.ours import STEP_TRIES, prompt

_quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
_KV_TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}


def features() -> str:
    """What the rival's build and this CPU have in common: AVX512_VNNI, AMX_INT8 and so on."""
    text: str = llama_cpp.llama_print_system_info().decode()
    words = (part.split("=") for part in text.replace("CPU :", "").split("|") if "=" in part)
    return " ".join(name.strip() for name, value in words if value.strip() == "1")


class Rival:
    """A loaded model with one context. Sequences filled to a depth are held from one call to the
    next; what a timed call adds is cut off again. Raises RuntimeError when llama.cpp refuses."""

    def __init__(
        self,
        path: Path,
        *,
        n_threads: int,
        n_ctx_tokens: int = 4096,
        max_batch_tokens: int = 512,
        max_sequences: int = 1,
        flash_attention: bool = True,
        repack: bool = True,
        kv_type: str = "f16",
    ) -> None:
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = repack
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp refused {path}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = n_ctx_tokens
        options.n_batch = options.n_ubatch = max_batch_tokens
        options.n_seq_max = max_sequences
        options.n_threads = options.n_threads_batch = n_threads
        options.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if flash_attention
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        options.type_k = options.type_v = _KV_TYPES[kv_type]
        options.kv_unified = True
        options.swa_full = False  # a window costs no more than a window
        options.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            llama_cpp.llama_model_free(self._model)
            raise RuntimeError(f"llama.cpp made no context for {path}")
        self._max_batch = max_batch_tokens
        self._batch = llama_cpp.llama_batch_init(max_batch_tokens, 0, 1)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(vocab)
        self._held: dict[int, int] = {}  # tokens by sequence

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    @property
    def holds_much(self) -> bool:
        """Whether the held sequences would take long to fill again."""
        return sum(self._held.values()) >= 2048

    def _cut(self, sequence: int, n_tokens: int) -> None:
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, sequence, n_tokens, -1)

    def _hold(self, n_sequences: int, depth: int) -> None:
        """Makes sequences 0 .. n_sequences - 1 hold exactly `depth` tokens, and no others any."""
        if not depth or len(self._held) > n_sequences:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
            self._held.clear()
        for sequence in range(n_sequences if depth else 0):
            have = self._held.get(sequence, 0)
            if have > depth:
                self._cut(sequence, depth)
            if have < depth:
                self._prefill(sequence, have, prompt(depth)[have:])
            self._held[sequence] = depth

    def _prefill(self, sequence: int, first: int, tokens: Sequence[int]) -> None:
        for begin in range(0, len(tokens), self._max_batch):
            part = tokens[begin : begin + self._max_batch]
            self.step([(sequence, first + begin, part)])

    def step(
        self, feeds: Sequence[tuple[int, int, Sequence[int]]], all_logits: bool = False
    ) -> None:
        """Runs (sequence, first position, tokens) feeds; logits of the last token of each, or of
        every token."""
        batch, n = self._batch, 0
        for sequence, first, tokens in feeds:
            for i, token in enumerate(tokens):
                batch.token[n] = token
                batch.pos[n] = first + i
                batch.n_seq_id[n] = 1
                batch.seq_id[n][0] = sequence
                batch.logits[n] = all_logits or i == len(tokens) - 1
                n += 1
        batch.n_tokens = n
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def logits(self, i: int = -1) -> npt.NDArray[np.float32]:
        """Logits [n_vocab] of batch entry i of the last step; a view, valid until the next."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, i)
        return np.ctypeslib.as_array(pointer, (self.n_vocab,))

    def time_prefill(self, n_tokens: int, depth: int = 0) -> float:
        """Seconds to run n_tokens behind `depth` others, logits of the last one included."""
        self._hold(1, depth)
        tokens = prompt(n_tokens)
        begin = time.perf_counter()
        self._prefill(0, depth, tokens)
        self.logits()
        seconds = time.perf_counter() - begin
        self._cut(0, depth)
        return seconds

    def time_decode(self, n_steps: int, depth: int, n_sequences: int = 1) -> float:
        """Seconds of n_steps greedy steps of sequences with `depth` tokens each."""
        self._hold(n_sequences, depth)
        last = [1] * n_sequences
        begin = time.perf_counter()
        for step in range(n_steps):
            self.step([(s, depth + step, [last[s]]) for s in range(n_sequences)])
            last = [int(self.logits(i).argmax()) for i in range(n_sequences)]
        seconds = time.perf_counter() - begin
        for sequence in range(n_sequences):
            self._cut(sequence, depth)
        return seconds

    def time_step(self, n_tokens: int, depth: int, n_sequences: int = 1) -> float:
        """Seconds of one step of n_tokens in each sequence, with logits for every token. The
        shortest of `STEP_TRIES`."""
        self._hold(n_sequences, depth)
        tokens, best = prompt(n_tokens), float("inf")
        for _ in range(STEP_TRIES):
            begin = time.perf_counter()
            self.step([(s, depth, tokens) for s in range(n_sequences)], all_logits=True)
            self.logits()
            best = min(best, time.perf_counter() - begin)
            for sequence in range(n_sequences):
                self._cut(sequence, depth)
        return best
