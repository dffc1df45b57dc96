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
_HUB = "hf.co/"
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
    Flag("-hff --hf-file", to="FILE"),
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
    "LLAMA_ARG_HF_FILE": "--hf-file",
    "LLAMA_ARG_HOST": "--host",
    "LLAMA_ARG_PORT": "--port",
    "LLAMA_ARG_CTX_SIZE": "--ctx-size",
    "LLAMA_ARG_N_PREDICT": "--n-predict",
    "LLAMA_ARG_BATCH": "--batch-size",
    "LLAMA_ARG_UBATCH": "--ubatch-size",
    "LLAMA_ARG_N_GPU_LAYERS": "--n-gpu-layers",
    "LLAMA_ARG_DEVICE": "--device",
    "LLAMA_ARG_MAIN_GPU": "--main-gpu",
    "LLAMA_ARG_SPLIT_MODE": "--split-mode",
    "LLAMA_ARG_TENSOR_SPLIT": "--tensor-split",
    "LLAMA_ARG_N_PARALLEL": "-np",
    "LLAMA_ARG_THREADS": "-t",
    "LLAMA_ARG_CONT_BATCHING": "--cont-batching",
    "LLAMA_ARG_FLASH_ATTN": "--flash-attn",
    "LLAMA_ARG_KV_UNIFIED": "--kv-unified",
    "LLAMA_ARG_CACHE_RAM": "--cache-ram",
    "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k",
    "LLAMA_ARG_CACHE_TYPE_V": "--cache-type-v",
    "LLAMA_ARG_LOAD_MODE": "--load-mode",
    "LLAMA_ARG_ALIAS": "--alias",
    "LLAMA_ARG_JINJA": "--jinja",
    "LLAMA_ARG_CHAT_TEMPLATE": "--chat-template",
    "LLAMA_ARG_CHAT_TEMPLATE_FILE": "--chat-template-file",
    "LLAMA_ARG_CHAT_TEMPLATE_KWARGS": "--chat-template-kwargs",
    "LLAMA_ARG_THINK": "--reasoning-format",
    "LLAMA_ARG_THINK_BUDGET": "--reasoning-budget",
    "LLAMA_ARG_MMPROJ": "--mmproj",
    "LLAMA_ARG_SPEC_DRAFT_MODEL": "--model-draft",
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": "--spec-draft-n-max",
    "LLAMA_ARG_SPEC_TYPE": "--spec-type",
    "LLAMA_ARG_ENDPOINT_METRICS": "--metrics",
    "LLAMA_ARG_ENDPOINT_SLOTS": "--slots",
    "LLAMA_ARG_TIMEOUT": "--timeout",
    "LLAMA_ARG_SSL_CERT_FILE": "--ssl-cert-file",
    "LLAMA_ARG_SSL_KEY_FILE": "--ssl-key-file",
    "LLAMA_ARG_API_KEY_FILE": "--api-key-file",
    "LLAMA_API_KEY": "--api-key",
}

_BY_NAME = {name: flag for flag in FLAGS for name in flag.names.split()}


@dataclass(frozen=True)
class Translated:
    """Arguments in our own flags, and a line on each flag without a meaning. model: where the
    arguments name none. hub_file: which file of the model's repository is meant, if it is told."""

    args: list[str]
    notes: list[str]
    model: str = ""
    hub_file: str = ""


def translate(args: Sequence[str], environ: Mapping[str, str] | None = None) -> Translated:
    """environ: where `VARIABLES` are looked up; a flag that is given counts more. Raises
    `ArgumentError` for flags that ask for what cannot be done, or lack their value."""
    given = _translated(args)
    return _of_file(_with_variables(given, environ) if environ else given)


def _with_variables(given: Translated, environ: Mapping[str, str]) -> Translated:
    args, notes = list(given.args), list(given.notes)
    options = {word.partition("=")[0] for word in args if word.startswith("-")}
    model, file = given.model, given.hub_file
    for variable, name in VARIABLES.items():
        value = environ.get(variable)
        flag = _BY_NAME.get(name, Flag(name))
        if not value or (not flag.value and value.lower() in ("0", "false", "off", "disabled")):
            continue
        try:
            found = _translated([name, value] if flag.value else [name])
        except ArgumentError as e:
            raise ArgumentError(f"{variable}: {e.message}", e.hint) from None
        notes += [f"{variable}: {flag.say}"] if found.notes else []
        file = file or found.hub_file
        if flag.to == "NAME":
            model = model or found.args[0]
        elif found.args[:1] == [value]:
            raise ArgumentError(f"{variable}: {value[:40]!a} is no value of {name}")
        elif found.args and found.args[0].partition("=")[0] not in options:
            args += found.args
            notes.append(f"{variable} is taken as {name}")
    return Translated(args, notes, model, file)


def _translated(args: Sequence[str]) -> Translated:
    out: list[str] = []
    notes: list[str] = []
    rest, file = list(args), ""
    while rest:
        word = rest.pop(0)
        if word == "--":
            return Translated([*out, word, *rest], notes, hub_file=file)
        name, equals, given = word.partition("=")
        name = name if name in _BY_NAME else name.replace("_", "-")
        flag = _BY_NAME.get(name) if word.startswith("-") else None
        if flag is None:
            out.append(word)
            continue
        values = [given] if equals else _take(flag, name, rest)
        if flag.to == "FILE":
            file = values[0]
            continue
        out += _ours(flag, name, values)
        if flag.say:
            notes.append(f"{name}: {flag.say}")
    return Translated(out, notes, hub_file=file)


def _of_file(given: Translated) -> Translated:
    """The file of a repository in place of its quantization, as llama-server has it."""
    if not given.hub_file:
        return given

    def named(model: str) -> str:
        return f"https://{model.partition(':')[0]}/blob/main/{given.hub_file}"

    at = next((i for i, word in enumerate(given.args) if word.startswith(_HUB)), None)
    if at is None and not given.model.startswith(_HUB):
        raise ArgumentError(
            f"--hf-file {given.hub_file[:80]}: there is no repository that it is of",
            "Give it too: --hf-repo USER/REPO",
        )
    if at is None:
        return Translated(given.args, given.notes, named(given.model))
    args = [*given.args[:at], named(given.args[at]), *given.args[at + 1 :]]
    return Translated(args, given.notes, given.model)


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
        return [f"{_HUB}{values[0]}" if hub else values[0]]
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
