"""What an answer may be asked for: one table of parameters with their ranges.

The command line, the prompt of `run`, files and servers all read this table, so a parameter has
one name, one default, one range and one explanation everywhere. Names are llama.cpp's and
Ollama's where these agree; ALIASES holds the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from localllm.errors import ArgumentError

#: The chain's order unless told otherwise; llama.cpp's.
DEFAULT_ORDER = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
MAX_LOGIT_BIAS = 1024
MAX_STRINGS = 64
MAX_STRING_CHARACTERS = 1024


@dataclass(frozen=True)
class GenerateParams:
    """temperature 0 is greedy. max_tokens None: until the model stops or the context is full.
    The same seed gives the same text. The other fields are explained in PARAMETERS."""

    temperature: float = 0.8
    seed: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False
    samplers: tuple[str, ...] = DEFAULT_ORDER

    def __post_init__(self) -> None:
        for name, parameter in PARAMETERS.items():
            object.__setattr__(self, name, parameter.checked(getattr(self, name)))

    def changed(self) -> dict[str, Any]:
        """The fields that differ from the defaults, as JSON can hold them."""
        return {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }


@dataclass(frozen=True)
class Parameter:
    """A row of the table. kind: int, float, bool, "strings", "bias" or "order"."""

    name: str
    kind: Any
    help: str
    low: float = 0
    high: float = 0
    optional: bool = False  # None is a value
    cleared_by: str = ""  # the word for no value, where that is no value itself
    advice: str = ""  # what to do in place of a value out of range
    only: tuple[int, ...] = ()  # the values there are, where a range would mislead

    @property
    def default(self) -> Any:
        return GenerateParams.__dataclass_fields__[self.name].default

    @property
    def span(self) -> str:
        """The values allowed, in words."""
        if self.only:
            return " or ".join(map(str, self.only))
        if self.kind is bool:
            return "true or false"
        if self.kind == "strings":
            return f"at most {MAX_STRINGS} texts of 1 to {MAX_STRING_CHARACTERS} characters"
        if self.kind == "bias":
            return f"at most {MAX_LOGIT_BIAS} pairs of a token id and {self.low} to {self.high}"
        if self.kind == "order":
            return "each at most once of " + ", ".join(DEFAULT_ORDER)
        return f"from {self.low} to {self.high}"

    def parse(self, text: str) -> Any:
        """The value of a text that a person typed. Lists are separated by commas; strings of more
        characters come as JSON. Raises `ArgumentError`."""
        text = text.strip()
        if self.optional and text.lower() in ("none", "off", "null", "default"):
            return None
        if self.cleared_by and text.lower() == self.cleared_by:
            return ()
        try:
            return self.checked(_PARSERS[self.kind](text))
        except (ValueError, RecursionError):
            raise self._refused(text, self._unlike(text)) from None

    def text(self, value: Any) -> str:
        """A value as a person would type it: `parse` gives the value again."""
        if value is None:
            return "none"
        if self.kind == "order":
            return ",".join(value)
        if self.kind == "bias":
            return ",".join(f"{token}:{bias!r}" for token, bias in self.checked(value))
        if self.kind == "strings":
            return _strings_text(tuple(value), self.cleared_by)
        return str(value).lower() if self.kind is bool else repr(value)

    def checked(self, value: Any) -> Any:
        """The value in its own type. Raises `ArgumentError` with the name, the value and the
        range."""
        if value is None and self.optional:
            return None
        checker = _CHECKS.get(self.kind)
        if checker is not None:
            return checker(self, value)
        if self.kind is bool:
            if not isinstance(value, bool):
                raise self._refused(value)
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._refused(value)
        if self.kind is int and value != _whole(value):
            raise self._refused(value)
        # Never true for nan, which no comparison holds for.
        if not self.low <= value <= self.high or (self.only and value not in self.only):
            raise self._refused(value)
        return int(value) if self.kind is int else float(value)

    def _unlike(self, text: str) -> str:
        if self.kind is float:
            return "no number"
        is_whole = text.removeprefix("-").isdigit()  # and then too long
        return "no whole number" if self.kind is int and not is_whole else "out of range"

    def _refused(self, value: Any, why: str = "out of range") -> ArgumentError:
        if isinstance(value, int) and value.bit_length() > 256:
            shown = f"a number of {value.bit_length()} bits"  # Python writes no longer ones
        else:
            shown = ascii(value)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}..."
        hint = f"It may be {self.span}. {self.advice}".rstrip()
        return ArgumentError(f"{self.name}: {shown} is {why}", hint)

    def _strings(self, value: Any) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(s, str) for s in items):
            raise self._refused(value)
        if len(items) > MAX_STRINGS or any(not 1 <= len(s) <= MAX_STRING_CHARACTERS for s in items):
            raise self._refused(value)
        return tuple(items)

    def _bias(self, value: Any) -> tuple[tuple[int, float], ...]:
        pairs = value.items() if isinstance(value, Mapping) else value
        if not isinstance(pairs, Iterable) or isinstance(pairs, str):
            raise self._refused(value)
        out: dict[int, float] = {}
        for pair in pairs:
            try:
                token, bias = pair
                token, bias = int(token), float(bias)
            except (TypeError, ValueError, OverflowError):
                typed = isinstance(pair, list) and all(isinstance(part, str) for part in pair)
                raise self._refused(":".join(pair) if typed else value) from None
            banned = bias == -math.inf
            if not 0 <= token < 2**31 or not (banned or self.low <= bias <= self.high):
                raise self._refused(value)
            out[token] = bias
        if len(out) > MAX_LOGIT_BIAS:
            raise self._refused(value)
        return tuple(sorted(out.items()))

    def _order(self, value: Any) -> tuple[str, ...]:
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)):
            raise self._refused(value)
        if not all(isinstance(name, str) for name in names):
            raise self._refused(value)
        names = tuple(ALIASES.get(name, name) for name in names)
        for name in names:
            if name not in DEFAULT_ORDER:
                raise ArgumentError(
                    f"{self.name}: there is no sampler {str(name)[:40]!a}",
                    f"It may be {self.span}.",
                )
            if names.count(name) > 1:
                raise ArgumentError(
                    f"{self.name}: {name} is there twice", f"It may be {self.span}."
                )
        return names


_CHECKS: dict[Any, Any] = {
    "strings": Parameter._strings,
    "bias": Parameter._bias,
    "order": Parameter._order,
}


def _whole(value: float) -> int | None:
    if isinstance(value, int):
        return value  # which may be too long for a float
    return int(value) if math.isfinite(value) else None


def _parse_int(text: str) -> int:
    if len(text) > 40:  # Python converts no number of more than some thousand digits
        raise ValueError
    return int(text)


def _parse_bool(text: str) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True}
    words |= {"false": False, "no": False, "off": False, "0": False}
    if text.lower() not in words:
        raise ValueError
    return words[text.lower()]


def _parse_strings(text: str) -> Any:
    if text.startswith(("[", '"')):
        import json

        return json.loads(text)
    return [text] if text else []


def _strings_text(strings: tuple[str, ...], cleared_by: str) -> str:
    if not strings:
        return cleared_by
    alone = strings[0] if len(strings) == 1 else ""
    typed = alone and alone == alone.strip() and alone.isprintable()
    if typed and not alone.startswith(("[", '"')) and alone.lower() != cleared_by:
        return alone
    import json

    return json.dumps(list(strings))


def _parse_bias(text: str) -> Any:
    return [pair.split(":", 1) for pair in text.split(",")] if text else []


def _parse_order(text: str) -> Any:
    return [name.strip() for name in text.replace(";", ",").split(",")] if text else []


_PARSERS: dict[Any, Any] = {
    int: _parse_int,
    float: float,
    bool: _parse_bool,
    "strings": _parse_strings,
    "bias": _parse_bias,
    "order": _parse_order,
}

_ROWS = (
    Parameter("temperature", float, "0 always takes the likeliest token.", 0, 2),
    Parameter(
        "seed",
        int,
        "Repeats an answer.",
        0,
        2**64 - 1,
        advice="Leave it out for a new one each time.",
    ),
    Parameter("max_tokens", int, "Longest answer.", 0, 2**31 - 1, optional=True),
    Parameter("stop", "strings", "Ends the answer before this text."),
    Parameter("top_k", int, "Only the K likeliest tokens; 0: all.", 0, 2**31 - 1),
    Parameter("top_p", float, "Only the likeliest tokens that reach this share.", 0, 1),
    Parameter("min_p", float, "Only tokens at least this share of the likeliest.", 0, 1),
    Parameter("typical_p", float, "Only the most typical tokens that reach this share.", 0, 1),
    Parameter("top_n_sigma", float, "Only logits within N deviations of the best; 0: all.", 0, 100),
    Parameter("xtc_probability", float, "How often the likeliest choices are left out.", 0, 1),
    Parameter("xtc_threshold", float, "Share from which XTC leaves tokens out.", 0, 1),
    Parameter("dynatemp_range", float, "The temperature varies by this with entropy.", 0, 2),
    Parameter("dynatemp_exponent", float, "How entropy maps to temperature.", 0.01, 10),
    Parameter("mirostat", int, "2: keep the surprise at mirostat_tau.", 0, 2, only=(0, 2)),
    Parameter("mirostat_tau", float, "Surprise that mirostat aims at, in bits.", 0, 20),
    Parameter("mirostat_eta", float, "How fast mirostat corrects.", 0, 1),
    Parameter("repeat_penalty", float, "Divides the logits of repeated tokens.", 0.1, 10),
    Parameter("repeat_last_n", int, "Tokens looked back on; -1: all, 0: none.", -1, 2**31 - 1),
    Parameter("presence_penalty", float, "Taken from tokens that were used.", -2, 2),
    Parameter("frequency_penalty", float, "Taken from tokens for each use.", -2, 2),
    Parameter("dry_multiplier", float, "Strength of DRY against repeats; 0: off.", 0, 100),
    Parameter("dry_base", float, "Growth of DRY with the repeat's length.", 1, 10),
    Parameter("dry_allowed_length", int, "Longest repeat that DRY allows.", 1, 2**31 - 1),
    Parameter("dry_penalty_last_n", int, "Tokens DRY looks back on; -1: all.", -1, 2**31 - 1),
    Parameter(
        "dry_sequence_breakers",
        "strings",
        "Texts that end a repeat for DRY; none: no text does.",
        cleared_by="none",
    ),
    Parameter("logit_bias", "bias", "TOKEN:BIAS pairs added to the logits.", -100, 100),
    Parameter("logprobs", int, "Log probabilities of this many tokens.", 0, 20, optional=True),
    Parameter("ignore_eos", bool, "Goes on where the model would end."),
    Parameter("samplers", "order", "The samplers in the order they run."),
)
PARAMETERS = {row.name: row for row in _ROWS}
#: The parameters that most people ever need, in the order of the help.
COMMON = (
    "temperature",
    "seed",
    "max_tokens",
    "stop",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
)
#: Defaults that a value of the table does not explain.
DEFAULT_WORDS = {
    "seed": "a new one each time",
    "max_tokens": "until the model ends",
    "logprobs": "none",
}
#: How people say whether, and how much, a model should reason.
THINK: dict[str, bool | str] = {
    "on": True,
    "off": False,
    "low": "low",
    "medium": "medium",
    "high": "high",
}

#: Other programs' names of these parameters.
ALIASES = {
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "repetition_penalty": "repeat_penalty",
    "typical": "typical_p",
    "typ_p": "typical_p",
    "temp": "temperature",
    "top_nsigma": "top_n_sigma",
    "mirostat_lr": "mirostat_eta",
    "mirostat_ent": "mirostat_tau",
    "sampler_seq": "samplers",
}

#: Keys by which the maker of a GGUF file recommends values (llama.cpp, pull request 17120).
MODEL_KEYS = {
    f"general.sampling.{key}": name
    for key, name in (
        ("sequence", "samplers"),
        ("temp", "temperature"),
        ("top_k", "top_k"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("xtc_probability", "xtc_probability"),
        ("xtc_threshold", "xtc_threshold"),
        ("penalty_last_n", "repeat_last_n"),
        ("penalty_repeat", "repeat_penalty"),
        ("mirostat", "mirostat"),
        ("mirostat_tau", "mirostat_tau"),
        ("mirostat_eta", "mirostat_eta"),
    )
}


def recommended(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a model's file recommends; values out of range are left out."""
    found = {}
    for key, name in MODEL_KEYS.items():
        value = metadata.get(key)
        if value is None:
            continue
        row = PARAMETERS[name]
        if isinstance(value, float):
            value = float(f"{value:.6g}")  # 0.95 as a 32-bit float is 0.949999988
        with contextlib.suppress(ArgumentError):
            found[name] = row.parse(value) if isinstance(value, str) else row.checked(value)
    return found


def find(name: str) -> Parameter:
    """The row of a name as people type it (`top-k`, `top_k`, `num_predict`). Raises
    `ArgumentError` with the nearest name."""
    key = name.strip().lower().replace("-", "_")
    key = ALIASES.get(key, key)
    row = PARAMETERS.get(key)
    if row is None:
        import difflib

        near = difflib.get_close_matches(key, PARAMETERS, n=1)
        hint = f"Did you mean {near[0]}?" if near else "They are: " + ", ".join(PARAMETERS)
        raise ArgumentError(f"there is no parameter {name[:80]!a}", hint)
    return row


def _plain(value: Any) -> Any:
    return (
        [list(v) if isinstance(v, tuple) else v for v in value]
        if isinstance(value, tuple)
        else value
    )
