"""Where this program keeps its files: the platform's own folders, or one folder of the user's
choice (`LOCALLLM_HOME`).

| | data | cache | config |
|---|---|---|---|
| LOCALLLM_HOME=H | H | H/cache | H/config |
| Linux, others | $XDG_DATA_HOME/localllm | $XDG_CACHE_HOME/localllm | $XDG_CONFIG_HOME/localllm |
| macOS | ~/Library/Application Support/localllm | ~/Library/Caches/localllm | as data |
| Windows | %LOCALAPPDATA%\\localllm | %LOCALAPPDATA%\\localllm\\cache | %APPDATA%\\localllm |

A variable that is empty counts as unset; a relative XDG folder is ignored, as the XDG base
directory specification asks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localllm.errors import FileError

HOME_VARIABLE = "LOCALLLM_HOME"
APP = "localllm"


@dataclass(frozen=True)
class Paths:
    """The folders of this program. None of them needs to exist yet."""

    data: Path
    cache: Path
    config: Path

    @property
    def models(self) -> Path:
        """Models, each a GGUF file under a readable name beside its record."""
        return self.data / "models"

    @property
    def answers(self) -> Path:
        """Records of answers, which `localllm replay` gives again."""
        return self.data / "answers"

    @property
    def conversations(self) -> Path:
        """What was said in the terminal UI: one SQLite file."""
        return self.data / "conversations.sqlite"

    @property
    def servers(self) -> Path:
        """Where the servers that run now can be asked."""
        return self.cache / "servers"

    @property
    def downloads(self) -> Path:
        """Parts of models that are not complete yet."""
        return self.cache / "downloads"

    @property
    def kv(self) -> Path:
        """What was computed of conversations, by model."""
        return self.cache / "kv"

    @property
    def kept_conversations(self) -> Path:
        """Which of it was computed for which conversation of `chat`."""
        return self.cache / "conversations"


def resolve(platform: str, env: Mapping[str, str]) -> Paths:
    """The folders for a `sys.platform` value and an environment."""
    if chosen := env.get(HOME_VARIABLE):
        try:
            base = Path(chosen).expanduser().absolute()
        except RuntimeError as e:
            raise FileError(
                f"{HOME_VARIABLE} is {chosen[:200]!a}, and there is no such user",
                "Set it to a folder, best with its whole path.",
            ) from e
        return Paths(base, base / "cache", base / "config")
    home = _home(platform, env)
    if platform == "darwin":
        data = home / "Library" / "Application Support" / APP
        return Paths(data, home / "Library" / "Caches" / APP, data)
    if platform == "win32":
        local = Path(env.get("LOCALAPPDATA") or home / "AppData" / "Local") / APP
        roaming = Path(env.get("APPDATA") or home / "AppData" / "Roaming") / APP
        return Paths(local, local / "cache", roaming)
    return Paths(
        _xdg(env, "XDG_DATA_HOME", home / ".local" / "share") / APP,
        _xdg(env, "XDG_CACHE_HOME", home / ".cache") / APP,
        _xdg(env, "XDG_CONFIG_HOME", home / ".config") / APP,
    )


def current() -> Paths:
    """The folders of this process."""
    return resolve(sys.platform, os.environ)


def ensure(folder: Path) -> Path:
    """Makes a folder and its parents. Raises `FileError` if the system refuses."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise FileError(
            f"cannot make the folder {folder}: {e.strerror or e}",
            f"Set {HOME_VARIABLE} to a folder that you can write to.",
        ) from e
    return folder


def _xdg(env: Mapping[str, str], variable: str, default: Path) -> Path:
    value = Path(env.get(variable) or default)
    return value if value.is_absolute() else default


def _home(platform: str, env: Mapping[str, str]) -> Path:
    variable = "USERPROFILE" if platform == "win32" else "HOME"
    if value := env.get(variable):
        return Path(value)
    try:
        return Path.home()
    except RuntimeError as e:
        raise FileError(
            f"this user has no home folder ({variable} is not set)",
            f"Set {HOME_VARIABLE} to a folder that you can write to.",
        ) from e
