"""`localllm chat` where there is nothing to draw on, and with options that exclude each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins.command_line import cli, is_error
from stand_ins.terminal_screen import Terminal


def test_without_a_terminal_there_is_a_hint(tmp_path: Path) -> None:
    done = cli("chat", home=tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert is_error(done.stderr, "chat needs a terminal", hint="localllm run NAME")


def test_a_dumb_terminal_gets_a_hint(tmp_path: Path) -> None:
    with Terminal(tmp_path, "chat", TERM="dumb") as terminal:
        assert terminal.finish() == 2
        assert "TERM is dumb" in terminal.raw and "--plain" in terminal.raw
        assert "\x1b[?1049h" not in terminal.raw


@pytest.mark.parametrize(
    ("args", "words", "hint"),
    [
        (("--url", "http://a b"), "is no address of a server", "As in http://"),
        (("--url", "http://127.0.0.1:9", "--ctx", "512"), "is not asked from here", "--ctx"),
        (("--url", "http://127.0.0.1:9", "--kv-type", "q8_0"), "is not asked from here", ""),
        (("--api-key", "sk-secret-key"), "--api-key is for a server", "--url"),
        (("--url", "http://127.0.0.1:9", "--api-key", "@/nowhere"), "cannot read the key", ""),
        (("--url", "http://127.0.0.1:9", "--api-key", "short"), "the key has 5 characters", ""),
        (("--think=low", "--no-think"), "exclude each other", ""),
        (("--temperature", "9"), "--temperature: 9", ""),
        (("--template", "/nowhere/x"), "cannot read the template", ""),
    ],
)
def test_wrong_options(tmp_path: Path, args: tuple[str, ...], words: str, hint: str) -> None:
    done = cli("chat", *args, home=tmp_path)
    assert done.returncode in (1, 2)
    assert is_error(done.stderr, words, hint=hint or None)
    assert "sk-secret-key" not in done.stderr


def test_a_model_that_is_not_there_is_an_error_of_the_command_line(tmp_path: Path) -> None:
    with Terminal(tmp_path, "chat", "nonsense:1b") as terminal:
        assert terminal.finish() == 1
        assert "there is no model called nonsense:1b" in terminal.raw
        assert "\x1b[?1049h" not in terminal.raw


def test_a_key_comes_from_an_option_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localllm.cli.chat import _endpoint
    from localllm.cli.loading_options import Opening

    def key(given: str | None) -> str:
        found = _endpoint("http://127.0.0.1:9", given, Opening(server=True))
        assert found is not None
        return found.key

    file = tmp_path / "key"
    file.write_text("sk-of-the-file\n")
    monkeypatch.setenv("LOCALLLM_API_KEY", "127.0.0.1:8=sk-of-another 127.0.0.1:9=sk-of-the-env")
    assert key("sk-of-the-option") == "sk-of-the-option"
    assert key(f"@{file}") == "sk-of-the-file"
    assert key(None) == "sk-of-the-env"
    monkeypatch.setenv("LOCALLLM_API_KEY", "127.0.0.1:8=sk-of-another")
    assert key(None) == ""


def test_a_fault_of_the_chat_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from localllm.cli import main
    from localllm.tui.app import ChatApp

    def run(app: ChatApp) -> None:
        app._exception = ZeroDivisionError("nobody thought of this")

    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    monkeypatch.delenv("LOCALLLM_DEBUG", raising=False)
    monkeypatch.setattr(ChatApp, "run", run)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main.main(["chat", "--url", "http://127.0.0.1:9/v1"]) == 1
    said = capsys.readouterr().err
    assert "internal error: ZeroDivisionError: nobody thought of this" in said
    assert "LOCALLLM_DEBUG" in said and "Traceback" not in said
