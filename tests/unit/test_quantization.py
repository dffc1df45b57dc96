"""Names of quantizations in tags and file names, and which one is taken."""

from __future__ import annotations

import pytest

from localllm.errors import ArgumentError
from localllm.store.quantization import (
    BITS,
    Quantization,
    at_end_of,
    choose,
    find,
    parse,
    quantization_of,
)


def q(*names: str) -> list[Quantization]:
    return [parse(name) for name in names]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("Meta-Llama-3-8B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("phi-4.Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-7b-instruct-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("phi-4-Q4_K.gguf", "Q4_K"),
        ("model_Q8_0.gguf", "Q8_0"),
        ("Qwen3.8-27B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("UD-IQ1_S/x-UD-IQ1_S-00001-of-00003.gguf", "UD-IQ1_S"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Q5_K_S/model-00001-of-00002.gguf", "Q5_K_S"),
        ("F16/model-Q4_0.gguf", "Q4_0"),
        ("gemma-3-1b-it-f16.gguf", "F16"),
        ("bge-m3-FP16.gguf", "F16"),
        ("bge-bf16.gguf", "BF16"),
        ("x-i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("a-TQ1_0.gguf", "TQ1_0"),
        ("a-Q6_K_L.gguf", "Q6_K_L"),
        ("Q8_0-distilled-Q2_K.gguf", "Q2_K"),
        ("phi-4-q4.gguf", None),
        ("model.gguf", None),
        ("xQ4_0.gguf", None),
        ("Q4_0x.gguf", None),
        ("Q4_K_ZZ.gguf", None),
    ],
)
def test_in_file_names(file: str, expected: str | None) -> None:
    found = quantization_of(file)
    assert (str(found) if found else None) == expected


@pytest.mark.parametrize("name", BITS)
def test_every_row_is_found_again(name: str) -> None:
    for text in (name, name.lower(), f"UD-{name}", f"ud_{name.lower()}"):
        found = find(text)
        assert found is not None and found.name == name and find(str(found)) == found
        assert find(found.tag) == found
        if "00" not in text:
            assert quantization_of(f"m-{text}.gguf") == found


@pytest.mark.parametrize("text", ["", "q4", "Q4_K_M ", "x-Q4_K_M", "UD-", "q4_k_m\n", "latest"])
def test_no_names(text: str) -> None:
    assert find(text) is None
    with pytest.raises(ArgumentError, match="no quantization"):
        parse(text)


@pytest.mark.parametrize(
    ("tag", "rest", "expected"),
    [
        ("70b-instruct-q4_K_M", "70b-instruct", "Q4_K_M"),
        ("70b-q4_k_m", "70b", "Q4_K_M"),
        ("30b-a3b-ud-q4_k_xl", "30b-a3b", "UD-Q4_K_XL"),
        ("q8_0", "", "Q8_0"),
        ("70b", "70b", None),
        ("", "", None),
        ("q8_0-70b", "q8_0-70b", None),
    ],
)
def test_at_end_of(tag: str, rest: str, expected: str | None) -> None:
    found = at_end_of(tag)
    assert found[0] == rest and (str(found[1]) if found[1] else None) == expected


@pytest.mark.parametrize(
    ("wanted", "there", "expected", "note"),
    [
        (None, ["Q8_0", "Q4_K_M", "Q2_K"], "Q4_K_M", ""),
        (None, ["Q8_0", "Q5_K_M", "Q4_K_S"], "Q5_K_M", "nearest larger"),
        (None, ["Q4_K", "Q5_K_M"], "Q4_K", "nearest larger"),
        (None, ["Q2_K", "IQ4_XS"], "IQ4_XS", "smaller"),
        (None, ["F16"], "F16", "nearest larger"),
        (None, ["Q4_0_4_4", "Q4_0"], "Q4_0", "smaller"),
        ("Q4_0", ["Q4_0_4_4", "Q5_0"], "Q5_0", "nearest larger"),
        ("Q6_K", ["UD-Q6_K", "Q8_0"], "UD-Q6_K", "nearest larger"),
        ("Q6_K", ["Q6_K", "UD-Q6_K"], "Q6_K", ""),
        ("F32", ["Q4_0", "BF16"], "BF16", "smaller"),
    ],
)
def test_choose(wanted: str | None, there: list[str], expected: str, note: str) -> None:
    choice = choose(parse(wanted) if wanted else None, q(*there))
    assert str(choice.quantization) == expected
    assert note in choice.note and bool(choice.note) == bool(note)


def test_choose_of_nothing() -> None:
    with pytest.raises(ArgumentError, match="no quantization is there"):
        choose(None, [])
