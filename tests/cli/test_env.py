"""`localllm env`: settings that their tools can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stand_ins.command_line import cli, is_error

from localllm.cli.tool_settings import TOOLS

URL, NAME = "http://127.0.0.1:9/v1", "hf.co/user/repo:Q4_K_M"


@pytest.mark.parametrize("tool", [tool.name for tool in TOOLS])
def test_each_tool(tool: str, tmp_path: Path) -> None:
    done = cli("env", tool, "--url", URL, "--model", NAME, home=tmp_path)
    assert done.returncode == 0 and done.stderr.startswith("For ")
    assert URL in done.stdout and NAME in done.stdout
    if done.stdout.startswith("{"):
        assert URL in json.dumps(json.loads(done.stdout))
    if "import" in done.stdout:
        compile(done.stdout, tool, "exec")


def test_without_a_server_and_what_cannot_be_written(tmp_path: Path) -> None:
    assert "http://127.0.0.1:8000/v1" in cli("env", "openai", home=tmp_path).stdout
    for args in (("--model", "a'b"), ("--url", "http://x/$(y)"), ("--model", "a\nb")):
        done = cli("env", "aider", *args, home=tmp_path)
        assert done.returncode == 2 and is_error(done.stderr, args[0])
