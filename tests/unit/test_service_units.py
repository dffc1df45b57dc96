"""The units for systemd and launchd: their syntax, what they start, and what they may do."""

from __future__ import annotations

import configparser
import plistlib
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from stand_ins.command_line import root

from localllm.cli.serve import command
from localllm.server import listen

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
UNIT = PACKAGING / "localllm.service"


def check(words: list[str], grace_s: int) -> None:
    context = command.make_context("serve", words, parent=root())
    assert context.params["host"] == "127.0.0.1" and context.params["models"] == ()
    assert grace_s > listen.DRAIN_S + 5


def test_systemd() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text())
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[:2] == ["/usr/bin/localllm", "serve"]
    check(words[2:], int(service["TimeoutStopSec"]))
    assert service["DynamicUser"] == service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict" and service["CapabilityBoundingSet"] == ""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_it(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/usr/bin/localllm", shutil.which("true") or "/bin/true")
    (tmp_path / UNIT.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / UNIT.name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "Unknown" not in done.stderr, done.stderr


def test_launchd() -> None:
    plist = plistlib.loads((PACKAGING / "localllm.serve.plist").read_bytes())
    words = plist["ProgramArguments"]
    assert words[:3] == ["/usr/bin/env", "localllm", "serve"]
    check(words[3:], plist["ExitTimeOut"])
    assert plist["Umask"] == 0o077 and plist["RunAtLoad"]
