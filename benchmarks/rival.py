"""The engine to compare with: llama.cpp through the low-level API of ``llama-cpp-python``.

Batched, the same threads, flash attention and repacked weights on or off, whichever is faster. Text
never enters: tokens are numbers, so files without a tokenizer work. `RivalProcess` runs it in a
process of its own: its waiting threads spin, and some builds crash (gcc 12 on a CPU with AMX).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from benchmarks.ours import prompt

_quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
_KV_TYPES = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0}


def features() -> str:
    """What the rival's build and this CPU have in common: AVX512_VNNI, AMX_INT8 and so on."""
    text: str = llama_cpp.llama_print_system_info().decode()
    words = (part.split("=") for part in text.replace("CPU :", "").split("|") if "=" in part)
    return " ".join(name.strip() for name, value in words if value.strip() == "1")


class Rival:
    """A loaded model with one context; each call runs one batch from the given positions."""

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
        options.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            llama_cpp.llama_model_free(self._model)
            raise RuntimeError(f"llama.cpp made no context for {path}")
        self._batch = llama_cpp.llama_batch_init(max_batch_tokens, 0, 1)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(vocab)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def clear(self) -> None:
        """Forgets all sequences."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def step(self, feeds: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """Runs (sequence, first position, tokens) feeds; logits of the last token of each."""
        batch, n = self._batch, 0
        for sequence, first, tokens in feeds:
            for i, token in enumerate(tokens):
                batch.token[n] = token
                batch.pos[n] = first + i
                batch.n_seq_id[n] = 1
                batch.seq_id[n][0] = sequence
                batch.logits[n] = i == len(tokens) - 1
                n += 1
        batch.n_tokens = n
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")

    def logits(self, i: int = -1) -> npt.NDArray[np.float32]:
        """Logits [n_vocab] of batch entry i of the last step; a view, valid until the next."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, i)
        return np.ctypeslib.as_array(pointer, (self.n_vocab,))

    def time_prefill(self, tokens: Sequence[int]) -> float:
        """Seconds to run tokens from an empty cache, logits of the last one included."""
        self.clear()
        begin = time.perf_counter()
        self.step([(0, 0, tokens)])
        self.logits()
        return time.perf_counter() - begin

    def time_decode(self, n_steps: int, first: int, n_sequences: int = 1) -> float:
        """Seconds of n_steps greedy steps from position first, filled with a prefill before."""
        self.clear()
        for sequence in range(n_sequences):
            self.step([(sequence, 0, prompt(first))])
        last = [1] * n_sequences
        begin = time.perf_counter()
        for step in range(n_steps):
            self.step([(s, first + step, [last[s]]) for s in range(n_sequences)])
            last = [int(self.logits(i).argmax()) for i in range(n_sequences)]
        return time.perf_counter() - begin


Variant = tuple[bool, bool]  # flash attention, repacked weights
_VARIANTS: list[Variant] = [(True, True), (False, True), (True, False), (False, False)]


class _Variants:
    """One variant of a rival in memory at a time, unless two of them win for different tests."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self._path, self._options = path, options
        self._loaded: dict[Variant, Rival] = {}
        self._best: dict[str, Variant] = {}

    def time(self, method: str, args: tuple[Any, ...]) -> float:
        """Seconds of a `Rival` method; the first call of each kind tries all variants twice."""
        kind = f"{method}{args[1:]}"
        if kind not in self._best:
            tries = {v: self._try(v, method, args) for v in _VARIANTS}
            self._best[kind] = min(_VARIANTS, key=tries.__getitem__)
        seconds: float = getattr(self._rival(self._best[kind]), method)(*args)
        return seconds

    def _try(self, variant: Variant, method: str, args: tuple[Any, ...]) -> float:
        rival = self._rival(variant)
        seconds: float = min(getattr(rival, method)(*args) for _ in range(2))
        if variant not in self._best.values():
            self._loaded.pop(variant).close()
        return seconds

    def _rival(self, variant: Variant) -> Rival:
        if variant not in self._loaded:
            flash, repack = variant
            self._loaded[variant] = Rival(
                self._path, flash_attention=flash, repack=repack, **self._options
            )
        return self._loaded[variant]


def _serve(pipe: Connection, path: Path, options: dict[str, Any]) -> None:
    """The child: times what the parent asks for."""
    variants = _Variants(path, options)
    pipe.send(features())
    while (request := pipe.recv()) is not None:
        try:
            pipe.send(variants.time(*request))
        except RuntimeError as e:
            pipe.send(e)


class RivalProcess:
    """A rival in a child process, in the variant that is fastest for each kind of run."""

    def __init__(self, path: Path, **options: Any) -> None:
        """options: those of `Rival`, but the variant. Raises RuntimeError if it crashes."""
        context = multiprocessing.get_context("spawn")
        self._pipe, child = context.Pipe()
        self._process = context.Process(target=_serve, args=(child, path, options), daemon=True)
        self._process.start()
        child.close()
        self.features: str = self._receive()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join(10)
            raise RuntimeError(
                f"llama.cpp died (exit code {self._process.exitcode}); a build by gcc 12 on a CPU "
                "with AMX needs CMAKE_ARGS='-DCMAKE_CXX_FLAGS=-mno-amx-tile "
                "-DCMAKE_C_FLAGS=-mno-amx-tile'"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def time(self, method: str, *args: Any) -> float:
        """Seconds of a `Rival` method. Raises RuntimeError if the rival refuses or crashes."""
        self._pipe.send((method, args))
        seconds: float = self._receive()
        return seconds

    def close(self) -> None:
        if self._process.is_alive():
            self._pipe.send(None)
            self._process.join(10)
        self._pipe.close()
