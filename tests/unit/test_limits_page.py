"""docs/LIMITS.md: every number on the page is the one in the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "LIMITS.md"
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ROWS = re.findall(
    r"^\| .* \| ([\d,.]+) ?(\w*) \| `(localllm[\w.]+)\.(\w+)` \|$", PAGE.read_text(), re.MULTILINE
)


@pytest.mark.parametrize(("number", "unit", "module", "name"), ROWS)
def test_a_bound_is_the_codes(number: str, unit: str, module: str, name: str) -> None:
    value = getattr(importlib.import_module(module), name)
    assert float(number.replace(",", "")) * UNITS[unit] == value


def test_every_constant_on_the_page_was_read() -> None:
    assert len(ROWS) == len(re.findall(r"`localllm\.", PAGE.read_text())) >= 30


def test_the_servers_own_bounds_are_all_on_the_page() -> None:
    """A new `MAX_...` of the server or of what it keeps gets its row."""
    root, named = PAGE.parents[1] / "localllm", {name for *_, name in ROWS}
    inner = {"MAX_NAME"}  # of a name, which is part of a body
    for file in (root / "server").rglob("*.py"):
        for name in re.findall(r"^(MAX_\w+)\b.*=", file.read_text(), re.MULTILINE):
            assert name in named | inner, (file.name, name)
