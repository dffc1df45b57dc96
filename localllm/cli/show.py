"""`localllm show`: what is inside a model file."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click

from localllm.cli import output
from localllm.cli.options import Found, ModelName, find_model, hints
from localllm.errors import ArgumentError, LocalLLMError

if TYPE_CHECKING:
    from localllm.store.inspect import GgufFile

_LONGEST_VALUE = 200  # characters of a metadata value on the screen


@click.command("show")
@click.argument("model", metavar="NAME|PATH", type=ModelName())
@click.option("--verbose", "-v", is_flag=True, help="Also every metadata value and tensor.")
@click.option("--template", is_flag=True, help="Only the chat template, as it is in the file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(model: str, verbose: bool, template: bool, as_json: bool) -> None:
    """Show architecture, size, context and tokenizer of a model."""
    found = find_model(model, may_pull=False)
    from localllm.store.inspect import GgufFile  # numpy and the native reader

    with hints(found), GgufFile(found.path) as file:
        if template:
            output.emit(_template(found, file))
            return
        facts = _facts(found, file)
        if as_json:
            if verbose:
                facts["metadata"] = {key: _json_value(file, key) for key in file.metadata}
                facts["tensors"] = [
                    {"name": t.name, "type": t.type, "shape": t.shape, "bytes": t.n_bytes}
                    for t in file.tensors()
                ]
            output.emit(json.dumps(facts) + "\n")
            return
        output.emit(_text(facts))
        if verbose:
            output.emit(_metadata_text(file) + _tensors_text(file))


def _template(found: Found, file: GgufFile) -> str:
    template = file.metadata.get("tokenizer.chat_template")
    if not isinstance(template, str):
        usual = _usual_template(found)
        if usual is None:
            raise ArgumentError(
                f"{found.label} has no chat template", "It is a base model: localllm run --raw ..."
            )
        family, template = usual
        output.note(f"the file has no template; that of the {family} family is used")
    return output.escape(template) + ("" if template.endswith("\n") else "\n")


def _usual_template(found: Found) -> tuple[str, str] | None:
    """The family and the template that `run` takes for a file without one."""
    from localllm.session import usual_template

    try:
        return usual_template(found.path)
    except LocalLLMError:
        return None  # no tokenizer that could tell: `run` says what is wrong


def _facts(found: Found, file: GgufFile) -> dict[str, Any]:
    data = file.metadata
    architecture = file.architecture
    record = found.model.record if found.model else None

    def own(key: str) -> Any:
        return _json_value(file, f"{architecture}.{key}")

    tokens = data.get("tokenizer.ggml.tokens")
    has_template = "tokenizer.chat_template" in data
    usual = None if has_template else _usual_template(found)
    return {
        "model": found.label,
        "path": str(found.path),
        "digest": found.digest,
        "source": record.source if record else None,
        "licence": record.licence if record else _json_value(file, "general.license"),
        "title": _json_value(file, "general.name"),
        "architecture": architecture,
        "parameters": file.n_params,
        "quantization": file.quantization,
        "bytes_by_type": file.bytes_by_type(),
        "file_bytes": file.file_bytes,
        "n_parts": file.n_parts,
        "gguf_version": file.version,
        "context": own("context_length"),
        "layers": own("block_count"),
        "embedding": own("embedding_length"),
        "heads": own("attention.head_count"),
        "kv_heads": own("attention.head_count_kv"),
        "window": own("attention.sliding_window"),
        "tokenizer": _json_value(file, "tokenizer.ggml.model"),
        "pre_tokenizer": _json_value(file, "tokenizer.ggml.pre"),
        "vocabulary": len(tokens) if isinstance(tokens, list) else None,
        "chat_template": has_template,
        "usual_template": usual[0] if usual is not None else None,
    }


def _template_text(facts: dict[str, Any]) -> str:
    if facts["chat_template"]:
        return "yes"
    if facts["usual_template"] is not None:
        return f"none in the file: that of the {facts['usual_template']} family is used"
    return "none: it continues text (run --raw)"


def _text(facts: dict[str, Any]) -> str:
    types = ", ".join(
        f"{name} {output.size_text(size)}" for name, size in facts["bytes_by_type"].items()
    )
    heads = f"{facts['heads']} heads" if facts["heads"] is not None else "heads not given"
    if facts["kv_heads"] is not None:
        heads += f", {facts['kv_heads']} for keys and values"
    tokenizer = "/".join(str(facts[key]) for key in ("tokenizer", "pre_tokenizer") if facts[key])
    rows = {
        "model": facts["model"],
        "title": facts["title"],
        "architecture": facts["architecture"],
        "parameters": f"{output.count_text(facts['parameters'])} ({facts['parameters']})",
        "quantization": f"{facts['quantization']} ({types})",
        "size": output.size_text(facts["file_bytes"])
        + (f" in {facts['n_parts']} files" if facts["n_parts"] > 1 else ""),
        "context": None if facts["context"] is None else f"{facts['context']} tokens",
        "window": None if facts["window"] is None else f"{facts['window']} tokens",
        "layers": f"{facts['layers']} of width {facts['embedding']}, {heads}",
        "tokenizer": tokenizer
        and tokenizer + (f", {facts['vocabulary']} tokens" if facts["vocabulary"] else ""),
        "template": _template_text(facts),
        "licence": facts["licence"],
        "source": facts["source"],
        "digest": facts["digest"],
        "file": facts["path"],
    }
    return "".join(
        f"{name:13} {output.escape_line(str(text))}\n" for name, text in rows.items() if text
    )


def _json_value(file: GgufFile, key: str) -> Any:
    """A metadata value as JSON has it: arrays by type and length, no infinities."""
    value = file.metadata.get(key)
    if value is None or isinstance(value, (str, int)):  # a bool is an int
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return f"{len(value)} x {file.metadata.type_of(key).removesuffix('[]')}"


def _metadata_text(file: GgufFile) -> str:
    lines = ["", "metadata"]
    for key in file.metadata:
        value = str(_json_value(file, key))
        if len(value) > _LONGEST_VALUE:
            value = f"{value[:_LONGEST_VALUE]}... ({len(value)} characters)"
        lines.append(f"  {output.escape_line(key)}  {output.escape_line(value)}")
    return "\n".join(lines) + "\n"


def _tensors_text(file: GgufFile) -> str:
    lines = ["", "tensors"]
    for t in file.tensors():
        shape = " x ".join(map(str, t.shape))
        lines.append(f"  {output.escape_line(t.name):40} {t.type:8} {shape}")
    return "\n".join(lines) + "\n"
