"""Command lines of `vllm serve` and `llama-server` in our own flags, by `serve_flag_table.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from localllm.cli.serve_flag_table import FLAGS, VARIABLES, Flag
from localllm.errors import ArgumentError
from localllm.params import PARAMETERS, find

_HUB = "hf.co/"
_BY_NAME = {name: flag for flag in FLAGS for name in flag.names.split()}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
#: What values of parameters of answers mean, by the names of these.
_SAMPLING_WORDS = {
    flag.to.partition(" ")[2]: dict(flag.words)
    for flag in FLAGS
    if flag.to.startswith("--sampling ")
}


@dataclass(frozen=True)
class Translated:
    """Arguments in our own flags, and a line on flags without a meaning. model: where the
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
    without: dict[str, list[str]] = {}
    for variable, name in VARIABLES.items():
        value = environ.get(variable)
        flag = _BY_NAME.get(name, Flag(name))
        if not value or (not flag.value and value.lower() in ("0", "false", "off", "disabled")):
            continue
        try:
            found = _translated([name, value] if flag.value else [name])
        except ArgumentError as e:
            raise ArgumentError(f"{variable}: {e.message}", e.hint) from None
        if found.notes:
            without.setdefault(flag.say, []).append(variable)
        file = file or found.hub_file
        if flag.to == "NAME":
            model = model or found.args[0]
        elif found.args[:1] == [value]:
            raise ArgumentError(f"{variable}: {value[:40]!a} is no value of {name}")
        elif found.args[:1] == ["--sampling"]:
            args = found.args + args  # the last one of a parameter counts
            notes.append(f"{variable} is taken as {name}")
        elif found.args and found.args[0].partition("=")[0] not in options:
            args += found.args
            notes.append(f"{variable} is taken as {name}")
    for variable in sorted(set(environ) - set(VARIABLES)):
        if variable.startswith("LLAMA_ARG_") and environ[variable]:
            notes.append(f"{variable[:80]}: there is no such setting here")
    return Translated(args, notes + _told(without), model, file)


def _translated(args: Sequence[str]) -> Translated:
    out: list[str] = []
    without: dict[str, dict[str, None]] = {}  # flags without a meaning, by why
    rest, file = list(args), ""
    lists: dict[str, list[str]] = {}
    escapes = "--no-escape" not in args
    while rest:
        word = rest.pop(0)
        if word == "--":
            return Translated([*out, word, *rest], _told(without), hub_file=file)
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
        parameter = PARAMETERS.get(flag.to.removeprefix("--sampling "))
        if parameter is not None and parameter.kind in ("strings", "bias"):
            lists.setdefault(parameter.name, []).append(values[0])
            out += _list(parameter.name, name, lists[parameter.name], escapes)
        else:
            out += _ours(flag, name, values)
        if flag.say:
            without.setdefault(flag.say, {})[name] = None
    return Translated(out, _told(without), hub_file=file)


def _told(without: Mapping[str, Iterable[str]]) -> list[str]:
    """Each reason once, whatever number of flags it is of."""
    return [f"{', '.join(names)}: {why}" for why, names in without.items()]


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
    if flag.to.startswith("--sampling"):
        return _sampling(flag, name, values)
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
    if name == "--cors-origins":
        values = values[0].split(",")
    if flag.to.endswith("@"):
        return [f"{flag.to}{value}" for value in values]
    return [word for value in values for word in (flag.to, value)]


def _sampling(flag: Flag, name: str, values: list[str]) -> list[str]:
    words, parameter = dict(flag.words), flag.to.partition(" ")[2]
    if parameter:
        value = words.get(values[0], values[0]) if values else "true"
        if values and not value and values[0]:
            return []
        return _parameter(parameter, value.replace(";", ","), name)
    try:
        given = json.loads(values[0])
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise ArgumentError(f"{name}: {values[0][:40]!a} is no JSON object")
    args = []
    for key, value in given.items():
        key = "max_tokens" if key == "max_new_tokens" else key
        if value is not None:  # as if it were not there
            text = value if isinstance(value, str) else json.dumps(value)
            word = _SAMPLING_WORDS.get(key, {}).get(text, text)
            args += _parameter(key, word, f"{name}: {key}") if word or not text else []
    return args


def _parameter(parameter: str, value: str, flag: str) -> list[str]:
    """Refuses a value by the flag that was typed, not by ours."""
    try:
        find(parameter).parse(value)
    except ArgumentError as e:
        raise ArgumentError(f"{flag}: {e.message.removeprefix(f'{parameter}: ')}", e.hint) from None
    return ["--sampling", f"{parameter}={value}"]


def _list(parameter: str, flag: str, values: list[str], escapes: bool) -> list[str]:
    """All values of a parameter so far: a flag for each, and the last option counts."""
    if PARAMETERS[parameter].kind == "bias":
        pairs = [re.fullmatch(r"(\d+)([+-][^:,]+)", value) for value in values]
        if pairs[-1] is None:
            raise ArgumentError(
                f"{flag}: {values[-1][:40]!a} is no token with its bias",
                "As in 15043+1 or 15043-inf.",
            )
        return _parameter(parameter, ",".join(":".join(p.groups()) for p in pairs if p), flag)
    if PARAMETERS[parameter].cleared_by:
        values = [value for value in values if value != PARAMETERS[parameter].cleared_by]
    if escapes:
        values = [re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), each) for each in values]
    return _parameter(parameter, json.dumps(values) if values else "none", flag)


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
