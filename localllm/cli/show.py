"""`localllm show`: what is inside a model file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from localllm.cli import model_parts, output
from localllm.cli.finding import Found, find_model, hints
from localllm.cli.model_parts import FALLBACK
from localllm.cli.options import ModelName
from localllm.errors import ArgumentError
from localllm.params import recommended

if TYPE_CHECKING:
    from localllm.store.inspect import GgufFile

_LONGEST_VALUE = 200  # characters of a metadata value on the screen


@click.command("show")
@click.argument("model", metavar="NAME|PATH", type=ModelName())
@click.option("--verbose", "-v", is_flag=True, help="Also every metadata value and tensor.")
@click.option("--license", "part", flag_value="license", help="Only the text of the licence.")
@click.option("--template", "part", flag_value="template", help="Only the chat template.")
@click.option("--parameters", "part", flag_value="parameters", help="Only what answers begin with.")
@click.option("--system", "part", flag_value="system", help="Only the instructions.")
@click.option(
    "--modelfile", "part", flag_value="modelfile", help="As a Modelfile, to change and create anew."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(model: str, verbose: bool, part: str | None, as_json: bool) -> None:
    """Show architecture, size, context and tokenizer of a model.

    Of several options for a part the last one counts.
    """
    found = find_model(model, may_pull=False)
    from localllm.store.inspect import GgufFile  # numpy and the native reader

    with hints(found), GgufFile(found.path) as file:
        if part is not None:
            text = PARTS[part](found, file)
            if as_json:
                value = _parameter_values(found, file) if part == "parameters" else text
                output.emit(json.dumps({part: value}) + "\n")
            else:
                output.emit(output.escape(text) + ("" if text.endswith("\n") or not text else "\n"))
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
    source, remark = model_parts.template_of(found, file.metadata)
    if remark:
        output.note(remark)
    return source


def _parameter_values(found: Found, file: GgufFile) -> dict[str, Any]:
    """What came with the model, and for the others what its file recommends."""
    return {**recommended(file.metadata), **found.settings.parameters}


def _parameters(found: Found, file: GgufFile) -> str:
    lines = []
    for name, value in _parameter_values(found, file).items():
        own = "" if name in found.settings.parameters else "  (recommended by the model's file)"
        lines.append(f"{name:22} {json.dumps(value, ensure_ascii=False)}{own}")
    if not lines:
        output.say(
            output.escape_line(
                f"{found.label} sets no parameters. The defaults: localllm run --help"
            )
        )
    return "".join(f"{output.escape_line(line)}\n" for line in lines)


def _system(found: Found, file: GgufFile) -> str:
    if not found.settings.system:
        raise ArgumentError(f"{found.label} brings no instructions along")
    return found.settings.system


#: What one option each shows alone, exactly; the caller escapes it.
PARTS: dict[str, Callable[[Found, GgufFile], str]] = {
    "license": lambda found, file: model_parts.licence_of(found, file.metadata),
    "template": _template,
    "parameters": _parameters,
    "system": _system,
    "modelfile": lambda found, file: model_parts.modelfile_of(found),
}


def _facts(found: Found, file: GgufFile) -> dict[str, Any]:
    data = file.metadata
    architecture = file.architecture
    record = found.model.record if found.model else None

    def own(key: str) -> Any:
        return _json_value(file, f"{architecture}.{key}")

    tokens = data.get("tokenizer.ggml.tokens")
    origin, _ = model_parts.used_template(found, data) or ("", "")
    return {
        "model": found.label,
        "path": str(found.path),
        "digest": found.digest,
        "source": record.source if record else found.foreign.program if found.foreign else None,
        "licence": model_parts.licence_name(found, data) or None,
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
        "chat_template": "tokenizer.chat_template" in data,
        "usual_template": origin.removeprefix(FALLBACK) if origin.startswith(FALLBACK) else None,
        "template_from": origin or None,
        "used": found.model.used if found.model and found.model.used else None,
        "settings": found.settings.document(),
    }


def _template_text(facts: dict[str, Any]) -> str:
    if facts["template_from"] == "argument":
        return "one that came beside the file"
    if facts["template_from"] == "go":
        return "in Go, of no known family: run needs --template"
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
        "settings": _settings_text(facts["settings"]),
        "source": facts["source"],
        "digest": facts["digest"],
        "file": facts["path"],
    }
    return "".join(
        f"{name:13} {output.escape_line(str(text))}\n" for name, text in rows.items() if text
    )


def _settings_text(settings: dict[str, Any]) -> str:
    """What comes with the model, each with the option that shows it."""
    shown = {
        "system": "--system",
        "parameters": "--parameters",
        "template": "--template",
        "licence": "--license",
        "messages": "--modelfile",
    }
    return ", ".join(f"{key} ({option})" for key, option in shown.items() if key in settings)


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
