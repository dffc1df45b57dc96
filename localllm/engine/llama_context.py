"""llama.cpp's working memory for one conversation: keys, values and states, and steps over them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from localllm.engine.llama_model import MAX_BATCH_TOKENS, LlamaModel
from localllm.engine.llama_vision import Projector
from localllm.errors import ArgumentError, CancelledError, LocalLLMError, UnsupportedError
from localllm.native import ffi

#: Batches that begin at a multiple of this many tokens, and hold no fewer, give the same results
#: however a prompt is cut into them; a single token's differ a little. (With flash attention they
#: depend on the cut.)
BATCH_STEP = 16
#: The attention scores of a batch may take this much; beyond it flash attention, which never holds
#: them all, is used.
MAX_SCORES_BYTES = 512 << 20

#: Type numbers of ggml.
_KV_TYPES = {"f16": 1, "q8_0": 8}
_ABORTED, _NO_ROOM = 2, 1
#: Of llama.cpp's include/llama.h: only what a window or a state holds.
_WINDOW_ONLY = 1
#: llama.cpp rounds its caches up to this many tokens.
_CACHE_STEP = 256


@dataclass(frozen=True)
class CacheCost:
    """Bytes of a cache: `fixed` for a state that does not grow, and per token of context, in layers
    that see all of it and in layers that see `window` tokens."""

    fixed: int
    per_token: int
    per_window_token: int
    window: int

    def of(self, n_tokens: int) -> int:
        seen = min(n_tokens, -(-(self.window + MAX_BATCH_TOKENS) // _CACHE_STEP) * _CACHE_STEP)
        return self.fixed + n_tokens * self.per_token + seen * self.per_window_token


class CancelFlag:
    """A flag that llama.cpp asks for between the nodes of a graph, and how often it did."""

    def __init__(self) -> None:
        self._cells = ffi.new("int32_t[2]")
        self.address = ctypes.c_void_p(int(ffi.cast("intptr_t", self._cells)))

    def raise_it(self) -> None:
        self._cells[0] = 1

    def lower(self) -> None:
        self._cells[0] = 0

    @property
    def is_raised(self) -> bool:
        return bool(self._cells[0])

    @property
    def n_polls(self) -> int:
        """Changes while a step computes. From any thread."""
        return int(self._cells[1])


class LlamaContext:
    """Room for one sequence of n_ctx tokens, all of it committed.

    Raises UnsupportedError for a model that keeps nothing between steps, ArgumentError for a KV
    type that the model cannot have.
    """

    def __init__(
        self, model: LlamaModel, n_ctx: int, kv_type: str, n_threads: int, cancel: CancelFlag
    ) -> None:
        api = model.library.api
        self.model, self._api, self._cancel = model, api, cancel
        params = api.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = min(n_ctx, MAX_BATCH_TOKENS)
        params.n_outputs_max = 1  # logits of the last token only
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = params.type_v = _KV_TYPES[kv_type]
        params.flash_attn_type = int(needs_flash_attention(model, n_ctx, kv_type))
        params.swa_full = False
        params.abort_callback = model.library.step_poll
        params.abort_callback_data = cancel.address
        model.library.forget_notes()
        self._handle = api.llama_init_from_model(model.handle, params)
        if not self._handle:
            reason = model.library.last_error("the memory may not suffice")
            raise ArgumentError(
                f"llama.cpp makes no context of {n_ctx} tokens with {kv_type} keys and values: "
                f"{reason}",
                hint="Use a smaller --ctx, or --kv-type f16.",
            )
        self._memory = api.llama_get_memory(self._handle)
        if not self._memory:
            self.close()
            raise UnsupportedError(
                "this is a model for embeddings or for filling in; conversations need one that "
                "writes one token after another"
            )
        self._batch = api.llama_batch_init(params.n_batch, 0, 1)
        shape = (params.n_batch,)
        self._tokens = np.ctypeslib.as_array(self._batch.token, shape)
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape)
        self._wanted = np.ctypeslib.as_array(self._batch.logits, shape)
        np.ctypeslib.as_array(self._batch.n_seq_id, shape)[:] = 1
        for i in range(params.n_batch):
            self._batch.seq_id[i][0] = 0

    @property
    def n_computed(self) -> int:
        """Tokens in the cache."""
        return int(self._api.llama_memory_seq_pos_max(self._memory, 0)) + 1

    def roll_back(self, n: int) -> bool:
        """Forgets all but the first n tokens, or all if the cache cannot go back that far, which it
        then tells."""
        if n == self.n_computed:
            return True
        lost = not n or not self._api.llama_memory_seq_rm(self._memory, 0, n, -1)
        if not lost and self.model.window:
            first = int(self._api.llama_memory_seq_pos_min(self._memory, 0))
            lost = first > max(0, n - self.model.window)
        if lost or self.n_computed != n:
            self.clear()
            return n == 0
        return True

    def clear(self) -> None:
        self._api.llama_memory_clear(self._memory, False)

    def step(
        self, tokens: Sequence[int], position: int, want_logits: bool
    ) -> npt.NDArray[np.float32] | None:
        """Computes tokens (at most MAX_BATCH_TOKENS) from a position on. Returns the logits
        [n_vocab] after the last one, valid until the next step, if they are wanted.

        Raises CancelledError: then nothing of this step is kept, and of a model with a state
        nothing at all.
        """
        n = len(tokens)
        self._tokens[:n] = tokens
        self._positions[:n] = np.arange(position, position + n)
        self._wanted[:n] = 0
        self._wanted[n - 1] = want_logits
        self._batch.n_tokens = n
        if self._cancel.is_raised:
            raise CancelledError("the step was cancelled")
        self.model.library.forget_notes()
        status = self._api.llama_decode(self._handle, self._batch)
        if status == _ABORTED:
            if self.model.keeps_a_state:  # some layers have gone on and some have not
                self.clear()
            raise CancelledError("the step was cancelled")
        if status != 0:
            self.clear()
            reason = self.model.library.last_error(f"status {status}")
            if status == _NO_ROOM:
                reason = f"its cache has no room for {n} tokens after {position}"
            raise LocalLLMError(f"llama.cpp could not compute a step: {reason}")
        if not want_logits:
            return None
        logits = self._api.llama_get_logits_ith(self._handle, n - 1)
        return np.ctypeslib.as_array(logits, (self.model.n_vocab,))

    def look(self, projector: Projector, token: int, position: int) -> int:
        """Computes the piece of a picture with this id; returns the position after it. Raises
        CancelledError only before it: a picture is computed whole."""
        if self._cancel.is_raised:
            raise CancelledError("the step was cancelled")
        after = position + projector.n_positions(token)
        try:
            projector.compute(self._handle, token, position)
        except LocalLLMError:
            self.clear()
            raise
        return after

    def state_bytes(self, window_only: bool) -> int:
        """Bytes of what the cache now holds."""
        flags = _WINDOW_ONLY if window_only else 0
        return int(self._api.llama_state_seq_get_size_ext(self._handle, 0, flags))

    def close(self) -> None:
        if self._handle is not None:
            if getattr(self, "_batch", None) is not None:
                # The views on its arrays end with it.
                del self._tokens, self._positions, self._wanted
                self._api.llama_batch_free(self._batch)
                del self._batch
            self._api.llama_free(self._handle)
            self._handle = None


def measure_cost(model: LlamaModel, kv_type: str, n_threads: int) -> CacheCost:
    """What a context takes, asked of llama.cpp itself: kinds of caches are many, and a formula for
    each would be wrong for the next."""
    context = LlamaContext(model, _CACHE_STEP, kv_type, n_threads, CancelFlag())
    tokens = [i % model.n_vocab for i in range(BATCH_STEP)]
    try:
        sizes = []
        for part in (tokens, tokens[:1]):
            context.step(part, context.n_computed, want_logits=True)
            sizes.append((context.state_bytes(False), context.state_bytes(True)))
    finally:
        context.close()
    per_token, in_window = (b - a for a, b in zip(*sizes, strict=True))
    if not model.window or in_window == per_token:
        in_window = 0
    fixed = sizes[0][0] - len(tokens) * per_token
    return CacheCost(max(0, fixed), per_token - in_window, in_window, model.window)


def needs_flash_attention(model: LlamaModel, n_ctx: int, kv_type: str) -> bool:
    """Whether attention must run without all its scores at hand: for long contexts, and for
    quantized values, which llama.cpp reads in no other way. It is less exact, and its results
    depend on how a prompt was cut into batches."""
    scores = 4 * model.n_heads * MAX_BATCH_TOKENS * n_ctx
    return kv_type != "f16" or scores > MAX_SCORES_BYTES


def check_kv_type(kv_type: str) -> None:
    if kv_type not in _KV_TYPES:
        raise ArgumentError(
            f"KV type {kv_type!r} is not known", hint=f"use one of {', '.join(_KV_TYPES)}"
        )
