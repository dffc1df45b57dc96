"""What a loaded model says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localllm import native
from localllm.native import ffi, lib


@dataclass(frozen=True)
class ModelInfo:
    """What a loaded model is; the counts are those of `llm_model_info`."""

    architecture: str
    isa: str
    n_threads: int
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int
    group_window: tuple[int, ...]  # 0: full attention, else the window in tokens
    group_n_layers: tuple[int, ...]
    n_params: int
    weight_bytes: int
    mapped_bytes: int
    was_refused: bool  # mapped because the system refused memory that was free

    @property
    def n_groups(self) -> int:
        return len(self.group_window)


def read_info(handle: Any, n_threads: int) -> ModelInfo:
    """What a `llm_model *` says of itself, also a plan."""
    raw = ffi.new("llm_model_info *")
    lib.llm_model_get_info(handle, raw)
    groups = range(raw.n_groups)
    same = ("n_layers", "n_embd", "n_heads", "n_kv_heads", "head_dim", "n_vocab", "n_ctx_train")
    sizes = ("n_params", "weight_bytes", "mapped_bytes")
    return ModelInfo(
        was_refused=bool(raw.was_refused),
        architecture=native.text(raw.architecture),
        isa=native.text(raw.isa),
        n_threads=n_threads,
        group_window=tuple(raw.group_window[g] for g in groups),
        group_n_layers=tuple(raw.group_n_layers[g] for g in groups),
        **{name: int(getattr(raw, name)) for name in same + sizes},
    )
