"""What a model's matrices cost per token: the least that any engine has to read and to compute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from localllm.store.inspect import GgufFile, TensorInfo


@dataclass(frozen=True)
class Work:
    """layer_ops: operations (a multiply and an add are two) per token in the layers; head_ops: for
    the logits of one token; step_bytes: weights that a decode step reads. Attention is left out: it
    depends on the context."""

    layer_ops: float
    head_ops: float
    step_bytes: float


def work_of(path: Path) -> Work:
    """Counts the matrices of a file; a tied embedding is the head, and of experts only those
    count that run. Raises the errors of `GgufFile`."""
    with GgufFile(path) as file:
        tensors = file.tensors()
        used = file.metadata.get(f"{file.architecture}.expert_used_count")
        total = file.metadata.get(f"{file.architecture}.expert_count")
    share = used / total if isinstance(used, int) and isinstance(total, int) and total else 1.0
    tied = all(t.name != "output.weight" for t in tensors)
    head_name = "token_embd.weight" if tied else "output.weight"
    head = sum(t.n_elements for t in tensors if t.name == head_name)
    layers = sum(
        _share(t, share) * t.n_elements
        for t in tensors
        if t.name.startswith("blk.") and len(t.shape) > 1
    )
    read = sum(
        _share(t, share) * t.n_bytes for t in tensors if tied or t.name != "token_embd.weight"
    )
    return Work(2.0 * layers, 2.0 * head, float(read))


def _share(tensor: TensorInfo, of_experts: float) -> float:
    return of_experts if "_exps." in tensor.name else 1.0
