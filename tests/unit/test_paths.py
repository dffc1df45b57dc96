"""The folders of every platform."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from localllm.errors import FileError
from localllm.paths import Paths, current, ensure, resolve


@pytest.mark.parametrize(
    ("platform", "env", "data", "cache", "config"),
    [
        (
            "linux",
            {"HOME": "/h"},
            "/h/.local/share/localllm",
            "/h/.cache/localllm",
            "/h/.config/localllm",
        ),
        (
            "linux",
            {"HOME": "/h", "XDG_DATA_HOME": "/d", "XDG_CACHE_HOME": "/c", "XDG_CONFIG_HOME": "/e"},
            "/d/localllm",
            "/c/localllm",
            "/e/localllm",
        ),
        (
            "freebsd14",
            {"HOME": "/h", "XDG_DATA_HOME": "", "XDG_CACHE_HOME": "relative/folder"},
            "/h/.local/share/localllm",
            "/h/.cache/localllm",
            "/h/.config/localllm",
        ),
        (
            "darwin",
            {"HOME": "/Users/x", "XDG_DATA_HOME": "/ignored"},
            "/Users/x/Library/Application Support/localllm",
            "/Users/x/Library/Caches/localllm",
            "/Users/x/Library/Application Support/localllm",
        ),
        (
            "win32",
            {"USERPROFILE": "/u", "LOCALAPPDATA": "/u/L", "APPDATA": "/u/R"},
            "/u/L/localllm",
            "/u/L/localllm/cache",
            "/u/R/localllm",
        ),
        (
            "win32",
            {"USERPROFILE": "/u"},
            "/u/AppData/Local/localllm",
            "/u/AppData/Local/localllm/cache",
            "/u/AppData/Roaming/localllm",
        ),
        ("linux", {"LOCALLLM_HOME": "/x", "XDG_DATA_HOME": "/d"}, "/x", "/x/cache", "/x/config"),
        ("darwin", {"LOCALLLM_HOME": "/x"}, "/x", "/x/cache", "/x/config"),
        ("win32", {"LOCALLLM_HOME": "/x"}, "/x", "/x/cache", "/x/config"),
    ],
)
def test_folders(platform: str, env: dict[str, str], data: str, cache: str, config: str) -> None:
    assert resolve(platform, env) == Paths(Path(data), Path(cache), Path(config))


def test_own_home_may_be_relative_or_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert resolve("linux", {"LOCALLLM_HOME": "~/llm"}).data == Path("/home/me/llm")
    assert resolve("linux", {"LOCALLLM_HOME": "llm"}).data == Path.cwd() / "llm"


def test_derived_folders() -> None:
    paths = resolve("linux", {"LOCALLLM_HOME": "/x"})
    assert paths.models == Path("/x/models")
    assert paths.downloads == Path("/x/cache/downloads")


def test_nothing_is_created_by_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path / "new"))
    assert current().models == tmp_path / "new" / "models"
    assert not (tmp_path / "new").exists()


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(FileError) as caught:
        resolve("linux", {})
    assert "HOME is not set" in caught.value.message and "LOCALLLM_HOME" in (
        caught.value.hint or ""
    )


def test_ensure(tmp_path: Path) -> None:
    assert ensure(tmp_path / "a" / "b").is_dir()
    ensure(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError) as caught:
        ensure(tmp_path / "file" / "b")
    assert str(tmp_path / "file") in caught.value.message
    assert os.strerror(20) in caught.value.message or os.name == "nt"


def test_a_user_who_is_not_there() -> None:
    with pytest.raises(FileError, match="no such user"):
        resolve("linux", {"LOCALLLM_HOME": "~nobody-of-that-name/x", "HOME": "/h"})
