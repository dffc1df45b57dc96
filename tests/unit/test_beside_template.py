from __future__ import annotations

import pytest

from localllm.errors import UnsupportedError
from localllm.text.beside_template import Choice, choose

GO = "<|im_start|>{{ .Prompt }}<|im_end|>"
OWN = {"tokenizer.chat_template": "{{ messages }}"}


def test_jinja_holds() -> None:
    assert choose(OWN, "{{ messages[0] }}") == Choice("{{ messages[0] }}")
    assert choose({}, "{{ messages[0] }}") == Choice("{{ messages[0] }}")


def test_go_gives_way_to_the_files_own() -> None:
    assert choose(OWN, GO) == Choice(None)
    assert choose(OWN, "{{ .Prompt }}") == Choice(None)


def test_go_of_a_family() -> None:
    choice = choose({}, GO)
    assert choice.template == "chatml" and "chatml" in choice.note and "\n" not in choice.note


def test_go_of_nobody() -> None:
    with pytest.raises(UnsupportedError, match="in Go") as e:
        choose({}, "{{ .Prompt }}")
    assert e.value.hint is not None and "--template" in e.value.hint


def test_nothing() -> None:
    assert choose({}, "") == Choice(None)
