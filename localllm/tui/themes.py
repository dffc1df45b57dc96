"""The colours: Textual's own themes, and those of the user, files in the config folder.

A theme is a file `themes/NAME.toml` with colours as `#rrggbb` or by name:

    dark = true
    primary = "#88c0d0"
    accent = "#b48ead"
    background = "#2e3440"

The theme that was chosen last is kept in the file `theme` beside that folder.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

from localllm.errors import FormatError, LocalLLMError
from localllm.plain_text import escape_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT = "textual-dark"
_COLOURS = (
    *("primary", "secondary", "warning", "error", "success", "accent"),
    *("foreground", "background", "surface", "panel"),
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_MAX_BYTES = 64 << 10


def own_themes(config: Path) -> tuple[list[Theme], list[LocalLLMError]]:
    """The themes of the user, and what is wrong with those that cannot be used."""
    themes, problems = [], []
    for path in sorted((config / "themes").glob("*.toml")):
        try:
            themes.append(_theme(path))
        except LocalLLMError as e:
            problems.append(e)
    return themes, problems


def _theme(path: Path) -> Theme:
    shown = escape_line(str(path))
    if not _NAME.fullmatch(path.stem):
        raise FormatError(f"{shown}: a theme's name has letters, digits, dots, _ and - only")
    try:
        with path.open("rb") as file:
            data: dict[str, Any] = tomllib.loads(file.read(_MAX_BYTES).decode())
    except (OSError, ValueError) as e:
        raise FormatError(f"cannot read the theme {shown}: {e}") from e
    dark = data.pop("dark", True)
    if not isinstance(dark, bool):
        raise FormatError(f"{shown}: dark is {str(dark)[:40]!a}", "It may be true or false.")
    for name, value in data.items():
        if name not in _COLOURS:
            raise FormatError(
                f"{shown}: there is no colour {name[:40]!a}", f"There are: {', '.join(_COLOURS)}"
            )
        try:
            Color.parse(value)
        except (ColorParseError, TypeError, AttributeError, ValueError):
            raise FormatError(
                f"{shown}: {name} is {str(value)[:40]!a}", "Write a colour as #rrggbb."
            ) from None
    if "primary" not in data:
        raise FormatError(f"{shown}: primary is missing", 'primary = "#88c0d0"')
    return Theme(name=path.stem, dark=dark, **data)


def chosen(config: Path) -> str:
    """The name of the theme that was chosen last."""
    try:
        return (config / "theme").read_text(encoding="utf-8")[:60].strip() or DEFAULT
    except (OSError, ValueError):
        return DEFAULT


def choose(config: Path, name: str) -> None:
    """Keeps the choice. Raises `FileError` where it cannot be kept."""
    from localllm import paths
    from localllm.store.durable import replacing

    paths.ensure(config)
    with replacing(config / "theme") as file:
        file.write(f"{name}\n".encode())
