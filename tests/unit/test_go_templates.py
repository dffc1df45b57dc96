from __future__ import annotations

import pytest

from localllm.text.go_templates import _SIGNS, family_of, is_go
from localllm.text.template_fallbacks import FALLBACKS


def test_every_family_has_a_jinja_template() -> None:
    assert {family for family, _ in _SIGNS} <= {row.name for row in FALLBACKS}


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}", "chatml"),
        ("{{- range .Messages }}<|start_header_id|>{{ .Role }}<|eot_id|>{{ end }}", "llama3"),
        ("<start_of_turn>user\n{{ if .System }}{{ .System }} {{ end }}<end_of_turn>", "gemma"),
        ("[INST] <<SYS>>{{ .System }}<</SYS>> {{ .Prompt }} [/INST]", "llama2"),
        ("[INST] {{ .Prompt }} [/INST]", "mistral-v3"),
        ("{{ .Prompt }}", None),
    ],
)
def test_families(template: str, family: str | None) -> None:
    assert is_go(template) and family_of(template) == family


def test_jinja_is_no_go() -> None:
    for row in FALLBACKS:
        assert not is_go(row.source), row.name
    assert not is_go("{{ messages[0].content }}{% if x.Role %}y{% endif %}")
