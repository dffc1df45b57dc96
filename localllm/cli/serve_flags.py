"""Flags of `vllm serve` and `llama-server` that `localllm serve` understands: one table.

A flag becomes one of ours, or says in one line why it has no meaning here. One that asks for what
this server cannot do is an error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from localllm.errors import ArgumentError


@dataclass(frozen=True)
class Flag:
    """A row. to: our option that takes its value. value: "" for none, "one", "many" (up to the
    next flag), "maybe" (a word of `words`). say: why it has no meaning. fails: why it cannot be
    done. words: values and what they mean for `to`."""

    names: str
    value: str = "one"
    to: str = ""
    say: str = ""
    fails: str = ""
    words: tuple[tuple[str, str], ...] = ()


_TYPES = tuple((w, "f16") for w in ("auto", "f16", "float16", "bfloat16", "bf16")) + tuple(
    (w, "q8_0") for w in ("q8_0", "fp8", "fp8_e4m3", "fp8_e5m2", "int8")
)
_SWITCH = (("on", ""), ("off", ""), ("auto", ""), ("0", ""), ("1", ""))
_CPU = "the model is computed on the CPU"
_BATCH = "the engine chooses the size of its batches itself"
_SPECULATION = "there is no speculation yet; answers are the same without"
_QUANTIZED = "a GGUF file says itself how it is quantized"
_CACHE = "what was computed of a prompt is kept as long as there is room"
_TOOLS = "tools are not served yet; a request with tools is refused"

FLAGS: tuple[Flag, ...] = (
    # Ours under another name
    Flag("--max-model-len -c --ctx-size", to="--ctx"),
    Flag("--kv-cache-dtype -ctk --cache-type-k -ctv --cache-type-v", to="--kv-type", words=_TYPES),
    Flag("--served-model-name", "many", to="--name"),
    Flag("--alias -a", to="--name"),
    Flag("--api-key-file", to="--api-key=@"),
    Flag("--chat-template --chat-template-file", to="--template"),
    Flag("--allowed-origins", to="--cors-origin"),
    Flag("--ssl-certfile --ssl-cert-file", to="--tls-cert"),
    Flag("--ssl-keyfile --ssl-key-file", to="--tls-key"),
    Flag("-t", to="--threads"),
    Flag("--swap-space", to="--swap-space"),
    Flag("--max-num-seqs -np", to="--parallel"),
    Flag("-m --model -hf -hfr --hf-repo", to="NAME"),
    # Without a meaning here
    Flag("--gpu-memory-utilization", say=f"{_CPU}; localllm plan shows the memory it takes"),
    Flag("-ngl --gpu-layers --n-gpu-layers", say=_CPU),
    Flag("--device --main-gpu -mg --split-mode -sm --tensor-split -ts", say=_CPU),
    Flag("--max-num-batched-tokens -b --batch-size -ub --ubatch-size", say=_BATCH),
    Flag("--enable-chunked-prefill -cb --cont-batching --no-cont-batching", "", say=_BATCH),
    Flag("--enable-prefix-caching", "", say=_CACHE),
    Flag("--no-enable-prefix-caching", "", say=f"{_CACHE}; a request can send store: false"),
    Flag("-kvu --kv-unified", "", say="there is one pool for all requests"),
    Flag("-cram --cache-ram", say=_CACHE),
    Flag("--slot-save-path", say="there are no slots to save"),
    Flag("--block-size", say="blocks hold 32 tokens"),
    Flag("--speculative-model --num-speculative-tokens --speculative-config", say=_SPECULATION),
    Flag("-md --model-draft --spec-type --spec-draft-n-max --draft-max", say=_SPECULATION),
    Flag("--quantization -q --dtype --load-format", say=_QUANTIZED),
    Flag("--seed", say="a request says its seed, or gets a new one"),
    Flag("-tb --threads-batch", say="--threads counts for prompts too"),
    Flag("-fa --flash-attn", "maybe", say="there is one kind of attention", words=_SWITCH),
    Flag("--jinja --no-jinja", "", say="chat templates are always run as they are"),
    Flag("--reasoning-format --reasoning-parser", say="reasoning comes as reasoning_content"),
    Flag("--reasoning-budget", say="a request says its reasoning_effort"),
    Flag("--chat-template-kwargs", say="a request sends its chat_template_kwargs"),
    Flag("--metrics --no-webui --no-ui", "", say="/metrics is always there, a web UI never"),
    Flag("--no-mmap", "", say="weights are read into memory unless --mmap is given"),
    Flag("--mlock", "", say="memory is not locked"),
    Flag("--load-mode", say="weights are read into memory unless --mmap is given"),
    Flag("--trust-remote-code", "", say="no code that comes with a model is run"),
    Flag("--enforce-eager", "", say="there are no graphs to capture"),
    Flag("--disable-log-requests --no-enable-log-requests --disable-log-stats", "",
         say="prompts are never logged"),
    Flag("--uvicorn-log-level", say="there is no log of requests"),
    Flag("--enable-auto-tool-choice", "", say=_TOOLS),
    Flag("--tool-call-parser", say=_TOOLS),
    Flag("--tensor-parallel-size -tp", words=(("1", ""),), say="there is one machine",
         fails="above 1 it needs the vLLM engine, which this build does not have"),
    Flag("--pipeline-parallel-size -pp", words=(("1", ""),), say="there is one machine",
         fails="above 1 it needs the vLLM engine, which this build does not have"),
    Flag("--data-parallel-size -dp", words=(("1", ""),), say="there is one machine",
         fails="above 1 it needs the vLLM engine, which this build does not have"),
    # What cannot be done
    Flag("--lora --lora-modules --lora-scaled", fails="there are no adapters yet"),
    Flag("--mmproj -mm", fails="pictures are not served yet"),
)  # fmt: skip

_BY_NAME = {name: flag for flag in FLAGS for name in flag.names.split()}


@dataclass(frozen=True)
class Translated:
    """Arguments in our own flags, and a line on each flag without a meaning."""

    args: list[str]
    notes: list[str]


def translate(args: Sequence[str]) -> Translated:
    """Raises `ArgumentError` for flags that ask for what cannot be done, or lack their value."""
    out: list[str] = []
    notes: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return Translated([*out, word, *rest], notes)
        name, equals, given = word.partition("=")
        name = name if name in _BY_NAME else name.replace("_", "-")
        flag = _BY_NAME.get(name) if word.startswith("-") else None
        if flag is None:
            out.append(word)
            continue
        values = [given] if equals else _take(flag, name, rest)
        out += _ours(flag, name, values)
        if flag.say:
            notes.append(f"{name}: {flag.say}")
    return Translated(out, notes)


def _take(flag: Flag, name: str, rest: list[str]) -> list[str]:
    values: list[str] = []
    if flag.value == "maybe" and rest and rest[0] in dict(flag.words):
        values.append(rest.pop(0))
    elif flag.value == "one":
        if not rest:
            raise ArgumentError(f"{name} needs a value")
        values.append(rest.pop(0))
    while flag.value == "many" and rest and not rest[0].startswith("-"):
        values.append(rest.pop(0))
    return values


def _ours(flag: Flag, name: str, values: list[str]) -> list[str]:
    words = dict(flag.words)
    if flag.fails and not (values and values[0] in words):
        shown = " ".join([name, *values])[:80]
        raise ArgumentError(f"{shown}: {flag.fails}")
    if not flag.to:
        return []
    if flag.to == "NAME":
        hub = name in ("-hf", "-hfr", "--hf-repo")
        return [f"hf.co/{values[0]}" if hub else values[0]]
    if words and values and values[0] not in words:
        raise ArgumentError(
            f"{name}: {values[0][:40]!a} is not a type of the cache here",
            f"It may be {', '.join(words)}.",
        )
    values = [words.get(value, value) for value in values]
    if name in ("--alias", "-a"):
        values = [part.strip() for value in values for part in value.split(",")]
    if name == "--swap-space":  # vLLM's number is in GiB
        values = [f"{value}GiB" if value[-1:].isdigit() else value for value in values]
    if name == "--allowed-origins":
        values = _json_list(name, values[0])
    if flag.to.endswith("@"):
        return [f"{flag.to}{value}" for value in values]
    return [word for value in values for word in (flag.to, value)]


def _json_list(name: str, value: str) -> list[str]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = [value]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ArgumentError(f"{name}: {value[:40]!a} is no list of origins")
    return found
