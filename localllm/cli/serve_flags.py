"""Flags of `vllm serve` and `llama-server` that `localllm serve` understands: one table.

A flag becomes one of ours, or says in one line why it has no meaning here. One that asks for what
this server cannot do is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    Flag("--parallel --max-num-seqs -np", to="--parallel", words=(("-1", ""), ("auto", ""))),
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
    Flag("--enable-expert-parallel --disable-custom-all-reduce --async-scheduling "
         "--no-async-scheduling --disable-frontend-multiprocessing", "",
         say="there is one machine"),
    Flag("--distributed-executor-backend --cpu-offload-gb --num-gpu-blocks-override "
         "--compilation-config -cc -O --max-seq-len-to-capture --attention-backend", say=_CPU),
    Flag("--tokenizer --tokenizer-mode --config-format --hf-overrides --revision --task --runner "
         "--generation-config --override-generation-config", say="a GGUF file holds all of it"),
    Flag("--download-dir", say="models lie where LOCALLLM_HOME says"),
    Flag("--language-model-only", "", say="only text is served yet"),
    Flag("--limit-mm-per-prompt --mm-processor-kwargs", say="only text is served yet"),
    Flag("--default-chat-template-kwargs", say="a request sends its chat_template_kwargs"),
    Flag("--chat-template-content-format", say="texts and lists of parts are both taken"),
    Flag("--enable-reasoning", "", say="reasoning comes as reasoning_content"),
    Flag("--guided-decoding-backend --structured-outputs-config",
         say="constrained output is not served yet; a request for it is refused"),
    Flag("--enable-log-requests --enable-log-outputs", "", say="prompts are never logged"),
    Flag("--max-log-len --middleware", say="prompts are never logged, and no code is added"),
    Flag("--disable-uvicorn-access-log --enable-prompt-tokens-details", "",
         say="there is no log of requests, and cached tokens are always counted"),
    Flag("-n --predict --n-predict", say="a request says its max_tokens"),
    Flag("--slots --no-slots --no-warmup --warmup", "", say="there are no slots and no warmup"),
    Flag("--log-disable -v --verbose --log-verbose", "", say="--log-format says what is logged"),
    Flag("--max-logprobs", say="a request may ask for as many as OpenAI's API allows"),
    Flag("-to --timeout", say="slow clients are let go after a time that is fixed"),
    # What cannot be done
    Flag("--enable-lora", "", fails="there are no adapters yet"),
    Flag("--lora --lora-modules --lora-scaled", fails="there are no adapters yet"),
    Flag("--mmproj -mm", fails="pictures are not served yet"),
)  # fmt: skip

#: Variables of llama-server, each with the flag that it stands for.
VARIABLES = {
    "LLAMA_ARG_MODEL": "--model",
    "LLAMA_ARG_HF_REPO": "--hf-repo",
    "LLAMA_ARG_HOST": "--host",
    "LLAMA_ARG_PORT": "--port",
    "LLAMA_ARG_CTX_SIZE": "--ctx-size",
    "LLAMA_ARG_N_PARALLEL": "-np",
    "LLAMA_ARG_THREADS": "-t",
    "LLAMA_ARG_ALIAS": "--alias",
    "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k",
    "LLAMA_ARG_CHAT_TEMPLATE": "--chat-template",
    "LLAMA_ARG_CHAT_TEMPLATE_FILE": "--chat-template-file",
    "LLAMA_ARG_SSL_CERT_FILE": "--ssl-cert-file",
    "LLAMA_ARG_SSL_KEY_FILE": "--ssl-key-file",
    "LLAMA_API_KEY": "--api-key",
}

_BY_NAME = {name: flag for flag in FLAGS for name in flag.names.split()}


@dataclass(frozen=True)
class Translated:
    """Arguments in our own flags, and a line on each flag without a meaning. model: where the
    arguments name none."""

    args: list[str]
    notes: list[str]
    model: str = ""


def translate(args: Sequence[str], environ: Mapping[str, str] | None = None) -> Translated:
    """environ: where `VARIABLES` are looked up; a flag that is given counts more. Raises
    `ArgumentError` for flags that ask for what cannot be done, or lack their value."""
    if environ:
        return _with_variables(_translated(args), environ)
    return _translated(args)


def _with_variables(given: Translated, environ: Mapping[str, str]) -> Translated:
    args, notes = list(given.args), list(given.notes)
    options = {word.partition("=")[0] for word in args if word.startswith("-")}
    model = given.model
    for variable, name in VARIABLES.items():
        value = environ.get(variable)
        if not value:
            continue
        found = _translated([name, value])
        if found.args and not found.args[0].startswith("-"):
            model = model or found.args[0]
        elif found.args and found.args[0] not in options:
            args += found.args
            notes.append(f"{variable} is taken as {name}")
    return Translated(args, notes, model)


def _translated(args: Sequence[str]) -> Translated:
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
    if flag.to == "--ctx":
        return _context(flag, values[0])
    if flag.to == "--parallel":  # -1 and auto are what it is anyway
        return [] if values[0] in words else [flag.to, *values]
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


def _context(flag: Flag, value: str) -> list[str]:
    """As vLLM has it: -1 and auto are what fits, 32k are 32,000 and 32K are 32,768."""
    if value in ("-1", "auto"):
        return []
    units = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
    if value[-1:] in units and value[:-1].isdecimal() and len(value) < 12:
        return [flag.to, str(int(value[:-1]) * units[value[-1]])]
    return [flag.to, value]


def _json_list(name: str, value: str) -> list[str]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = [value]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ArgumentError(f"{name}: {value[:40]!a} is no list of origins")
    return found
