"""Weights that llama.cpp holds, and what it says of them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localllm.engine.llama_library import Library
from localllm.errors import CancelledError, FileError, UnsupportedError
from localllm.native import path_bytes

MAX_BATCH_TOKENS = 256
MAX_CONTEXT = 1 << 27  # as the native engine

_PART = re.compile(r"-\d{5}-of-(\d{5}\.gguf)$")
_ISAS = (("AVX512 = 1", "avx512"), ("AVX2 = 1", "avx2"), ("NEON = 1", "neon"))


class LlamaModel:
    """A loaded model. Raises `UnsupportedError` for one that llama.cpp cannot load or that makes no
    text, `CancelledError` after Ctrl-C."""

    def __init__(self, library: Library, handle: Any) -> None:
        api = library.api
        self.library, self.handle = library, handle
        self.vocabulary = api.llama_model_get_vocab(handle)
        self.n_vocab = int(api.llama_vocab_n_tokens(self.vocabulary))
        trained = int(api.llama_model_n_ctx_train(handle))  # negative: the file's had 32 bits
        self.n_ctx_train = max(0, min(trained, MAX_CONTEXT))
        self.n_heads = int(api.llama_model_n_head(handle))
        self.window = int(api.llama_model_n_swa(handle))  # in tokens, 0: full attention
        self.n_params = int(api.llama_model_n_params(handle))
        self.weight_bytes = int(api.llama_model_size(handle))
        self.keeps_a_state = bool(  # in place of, or beside, keys and values: it cannot go back
            api.llama_model_is_recurrent(handle) or api.llama_model_is_hybrid(handle)
        )

    @classmethod
    def load(
        cls,
        library: Library,
        path: Path,
        *,
        extra_buffers: bool,
        mapped: bool,
        progress: Callable[[float], None] | None = None,
    ) -> LlamaModel:
        """Loads a file whose header was checked already. extra_buffers: copy the weights into
        the layouts that the fastest kernels want. mapped: other weights stay in the mapped file,
        and whoever cuts it short ends this process; else they are read into memory. progress is
        called with 0.0 .. 1.0 from this thread."""
        api = library.api
        params = api.llama_model_default_params()
        params.use_extra_bufts = extra_buffers
        params.load_mode = api.LLAMA_LOAD_MODE_MMAP if mapped else api.LLAMA_LOAD_MODE_NONE
        done, cancelled = [0.0], threading.Event()

        def on_progress(share: float, _data: Any) -> bool:
            done[0] = share
            return not cancelled.is_set()

        params.progress_callback = api.llama_progress_callback(on_progress)
        name = path_bytes(path)
        result: list[Any] = []
        library.forget_notes()

        def work() -> None:
            result.append(api.llama_model_load_from_file(name, params))

        # The load runs beside this thread, so that Ctrl-C and the progress bar stay alive.
        worker = threading.Thread(target=work, name="llama-load", daemon=True)
        worker.start()
        try:
            runs = True
            while runs:
                worker.join(0.05)
                runs = worker.is_alive()
                if progress is not None:
                    progress(done[0])
        except BaseException:
            cancelled.set()
            worker.join()
            if result and result[0]:
                api.llama_model_free(result[0])
            raise
        if not result or not result[0]:
            if cancelled.is_set():
                raise CancelledError("the load was cancelled")
            reason = library.last_error("no reason given")
            raise UnsupportedError(f"llama.cpp {library.version} cannot load {path}: {reason}")
        model = cls(library, result[0])
        try:
            model._check_makes_text()
        except BaseException:
            model.close()
            raise
        return model

    def _check_makes_text(self) -> None:
        api, handle = self.library.api, self.handle
        if api.llama_model_has_encoder(handle):
            kind = "an encoder-decoder model (as T5)"
        elif api.llama_model_is_diffusion(handle):
            kind = "a diffusion model, which fills in a text in no order"
        elif not api.llama_model_has_decoder(handle) or not self.n_vocab:
            kind = "no text model"
        else:
            return
        raise UnsupportedError(
            f"this is {kind}; conversations need a model that writes one token after another"
        )

    @property
    def isa(self) -> str:
        """The instruction set that this build of llama.cpp uses on this CPU."""
        info = self.library.api.llama_print_system_info().decode()
        return next((name for sign, name in _ISAS if sign in info), "scalar")

    def close(self) -> None:
        """Frees the weights. Contexts of this model must be closed before."""
        if self.handle is not None:
            self.library.api.llama_model_free(self.handle)
            self.handle = None


def first_part(path: Path, n_parts: int) -> Path:
    """The part of a split set that llama.cpp wants to be given. Raises `FileError`."""
    if n_parts < 2:
        return path
    first = path.with_name(_PART.sub(r"-00001-of-\1", path.name))
    if not first.exists():
        raise FileError(f"{path} is one of {n_parts} parts and {first.name} is not beside it")
    return first
