"""The table of parameters: defaults, ranges, what people type, what files recommend."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from localllm import params
from localllm.errors import ArgumentError
from localllm.params import ALIASES, DEFAULT_ORDER, PARAMETERS, GenerateParams, find, recommended

NUMBERS = [name for name, row in PARAMETERS.items() if row.kind in (int, float)]


def test_every_field_has_a_row_in_the_same_order() -> None:
    assert [field.name for field in dataclasses.fields(GenerateParams)] == list(PARAMETERS)
    for name, row in PARAMETERS.items():
        assert row.name == name and row.help.endswith(".") and row.span
        assert row.checked(row.default) == row.default == getattr(GenerateParams(), name)
        assert type(row.checked(row.default)) is type(row.default)


def test_defaults_are_what_llama_cpp_has() -> None:
    """Written down once more: a changed default changes answers. llama.cpp, common/common.h."""
    assert dataclasses.asdict(GenerateParams()) == {
        "temperature": 0.8, "seed": 0, "max_tokens": None, "stop": (), "top_k": 40,
        "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0, "top_n_sigma": 0.0,
        "xtc_probability": 0.0, "xtc_threshold": 0.1, "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0, "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1,
        "repeat_penalty": 1.0, "repeat_last_n": 64, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "dry_multiplier": 0.0, "dry_base": 1.75,
        "dry_allowed_length": 2, "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ("\n", ":", '"', "*"), "logit_bias": (), "logprobs": None,
        "ignore_eos": False, "samplers": DEFAULT_ORDER,
    }  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_both_ends_of_a_range_are_in_it(name: str) -> None:
    row = PARAMETERS[name]
    ends = row.only or (row.low, row.high)
    for value in ends:
        value = row.kind(value)
        made = getattr(GenerateParams(**{name: value}), name)
        assert made == value and type(made) is row.kind
        assert row.parse(str(value)) == value
    beyond = 1 if row.kind is int else 0.001
    for value in (ends[0] - beyond, ends[-1] + beyond):
        for make in (
            lambda v=value: GenerateParams(**{name: v}),
            lambda v=value: row.parse(str(v)),
        ):
            with pytest.raises(ArgumentError) as e:
                make()
            assert e.value.message.startswith(f"{name}: ") and "is out of range" in e.value.message
            assert row.span in (e.value.hint or "")


#: RELIABILITY: every integer at -1, 0, 2^31, 2^63, 1e308, "1", null.
ODD = [-1, 0, 2**31, 2**63, 2**64, 10**400, -(10**5000), 1e308, -1e308, math.nan, math.inf,
       -math.inf, "1", None, True, [], {}, b"1", 1j, object()]  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("value", ODD, ids=map(str, range(len(ODD))))
def test_odd_values_are_refused_or_in_range(name: str, value: Any) -> None:
    row = PARAMETERS[name]
    try:
        made = getattr(GenerateParams(**{name: value}), name)
    except ArgumentError as e:
        assert e.message.startswith(f"{name}: ") and len(e.message) < 200 and e.hint
        return
    if name in NUMBERS and made is not None:
        assert row.low <= made <= row.high and type(made) is row.kind
    if made is None:
        assert row.optional


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("text", ["", " ", "x", "1e", "nan", "inf", "-inf", "9" * 5000, "0x10",
                                  "1,5", "\x1b[31m", "\u0661x"])  # fmt: skip
def test_texts_that_are_no_number_in_range(name: str, text: str) -> None:
    with pytest.raises(ArgumentError) as e:
        PARAMETERS[name].parse(text)
    assert "\x1b" not in e.value.message and len(e.value.message) < 200


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", " 0.5 ", 0.5),
        ("temperature", "1", 1.0),
        ("seed", "18446744073709551615", 2**64 - 1),
        ("max_tokens", "none", None),
        ("max_tokens", "OFF", None),
        ("logprobs", "default", None),
        ("ignore_eos", "Yes", True),
        ("ignore_eos", "0", False),
        ("stop", "END", ("END",)),
        ("stop", "a, b", ("a, b",)),
        ("stop", '["a", "\\n"]', ("a", "\n")),
        ("stop", '"\\n\\n"', ("\n\n",)),
        ("stop", "", ()),
        ("logit_bias", "5:-1.5, 3:2", ((3, 2.0), (5, -1.5))),
        ("logit_bias", "5:-inf", ((5, -math.inf),)),
        ("logit_bias", "", ()),
        ("samplers", "top_k; temp", ("top_k", "temperature")),
        ("samplers", "", ()),
    ],
)
def test_what_people_type(name: str, text: str, value: Any) -> None:
    assert PARAMETERS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ignore_eos", "maybe"),
        ("stop", '["a"'),
        ("stop", "[1]"),
        ("stop", '[""]'),
        ("stop", "x" * 1025),
        ("stop", json.dumps(["x"] * 65)),
        ("logit_bias", "5"),
        ("logit_bias", "5:101"),
        ("logit_bias", "5:nan"),
        ("logit_bias", "5:inf"),
        ("logit_bias", "-1:1"),
        ("logit_bias", "2147483648:1"),
        ("logit_bias", ",".join(f"{i}:1" for i in range(1025))),
        ("samplers", "top_k,top_k"),
        ("samplers", "top_k,typ_p,typical_p"),
        ("samplers", "top_kk"),
        ("mirostat", "1"),
    ],
)
def test_what_people_mistype(name: str, text: str) -> None:
    with pytest.raises(ArgumentError) as e:
        PARAMETERS[name].parse(text)
    assert name in e.value.message and len(e.value.message) < 200


def test_whole_numbers() -> None:
    assert GenerateParams(top_k=20.0).top_k == 20  # type: ignore[arg-type]
    assert type(GenerateParams(temperature=1).temperature) is float
    for value in (20.5, True, "20"):
        with pytest.raises(ArgumentError, match="top_k"):
            GenerateParams(top_k=value)  # type: ignore[arg-type]


def test_lists_and_pairs() -> None:
    made = GenerateParams(
        stop=["a", "b"],  # type: ignore[arg-type]
        logit_bias={7: 1, 3: -2},  # type: ignore[arg-type]
        samplers=["temp", "top_k"],  # type: ignore[arg-type]
    )
    assert made.stop == ("a", "b")
    assert made.logit_bias == ((3, -2.0), (7, 1.0))
    assert made.samplers == ("temperature", "top_k")
    for bad in ([1], [[1]], [[1, 2, 3]], "ab", 5, [["x", 1]], [[1, "x"]], [[1e400, 1]]):
        with pytest.raises(ArgumentError, match="logit_bias"):
            GenerateParams(logit_bias=bad)  # type: ignore[arg-type]
    hash(made)  # frozen, all the way down


def test_changed_is_json_and_comes_back() -> None:
    assert GenerateParams().changed() == {}
    made = GenerateParams(
        temperature=0.1 + 0.2, seed=2**64 - 1, stop=("\n", "\u4f60"), logit_bias=((1, -100),),
        max_tokens=0, ignore_eos=True, samplers=("top_k",),
    )  # fmt: skip
    again = GenerateParams(**json.loads(json.dumps(made.changed())))
    assert again == made and again.changed() == made.changed()


def test_names_as_people_type_them() -> None:
    assert find(" Top-K ").name == "top_k"
    for alias, name in ALIASES.items():
        assert find(alias) is PARAMETERS[name] and alias not in PARAMETERS
    with pytest.raises(ArgumentError, match="there is no parameter 'temprature'") as e:
        find("temprature")
    assert e.value.hint == "Did you mean temperature?"
    with pytest.raises(ArgumentError) as e:
        find("\x1b" * 500)
    assert "\x1b" not in e.value.message and len(e.value.message) < 400


def test_recommended_by_a_file() -> None:
    found = recommended(
        {
            "general.sampling.temp": 0.6000000238418579,  # a 32-bit float
            "general.sampling.top_k": 20,
            "general.sampling.top_p": 7.5,  # out of range: left out
            "general.sampling.sequence": "top_k;top_p;temp",
            "general.sampling.mirostat": "x",
            "general.name": "m",
        }
    )
    assert found == {
        "temperature": 0.6, "top_k": 20, "samplers": ("top_k", "top_p", "temperature"),
    }  # fmt: skip
    GenerateParams(**found)
    assert recommended({}) == {}
    assert set(params.MODEL_KEYS.values()) <= set(PARAMETERS)


def test_what_is_wrong_in_a_list_is_named() -> None:
    for name, text, words in (
        ("samplers", "top_k,foo", "no sampler 'foo'"),
        ("samplers", "top_k;top_k", "top_k is there twice"),
        ("logit_bias", "7:1,:5", "':5' is out of range"),
        ("stop", "[" * 100_000, "is out of range"),
        ("temperature", "warm", "temperature: 'warm' is no number"),
        ("top_k", "1.5", "top_k: '1.5' is no whole number"),
        ("top_k", "9" * 50, "is out of range"),
    ):
        with pytest.raises(ArgumentError, match=words):
            PARAMETERS[name].parse(text)
    with pytest.raises(ArgumentError) as e:
        PARAMETERS["seed"].parse("-1")
    assert e.value.hint is not None and "Leave it out" in e.value.hint


def test_lists_can_be_emptied() -> None:
    assert PARAMETERS["samplers"].parse("") == ()
    assert PARAMETERS["dry_sequence_breakers"].parse("none") == ()
    assert PARAMETERS["stop"].parse("none") == ("none",)
