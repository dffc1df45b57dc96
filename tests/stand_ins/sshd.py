"""A real sshd on the loopback address that lets one key in, and the ssh that has it."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
_SSHD = shutil.which("sshd", path=_PATH)
IS_HERE = bool(_SSHD and shutil.which("ssh") and shutil.which("ssh-keygen"))
WAIT_S = 60.0


class Sshd:
    """It runs, as who tests, until the block ends; its keys and its log lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("host", "mine"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True)
        shutil.copy(folder / "mine.pub", folder / "authorized")
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        (folder / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/authorized\nPidFile none\nStrictModes no\n"
            "UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin prohibit-password\nPrintMotd no\nPrintLastLog no\n"
        )

    def __enter__(self) -> Sshd:
        assert _SSHD is not None
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # of its privilege separation
        command = [_SSHD, "-D", "-e", "-f", str(self._folder / "config")]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
        ends = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                assert self._process.poll() is None and time.monotonic() < ends, self.log
                time.sleep(0.02)

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def command(self, program: Sequence[str], folder: Path, env: dict[str, str]) -> list[str]:
        """What runs a program there, on a terminal of its own. Its pid is in `remote-pid`."""
        options = {
            "IdentityFile": f"{self._folder}/mine",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": f"{self._folder}/known",
            "StrictHostKeyChecking": "no",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
        }
        told = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        variables = shlex.join(f"{name}={value}" for name, value in env.items())
        line = f"cd {shlex.quote(str(folder))}; echo $$ > remote-pid; "
        line += f"exec env {variables} {shlex.join(program)}"
        line = f"exec sh -c {shlex.quote(line)}"
        return ["ssh", "-F", "none", "-tt", "-p", str(self.port), *told, "127.0.0.1", line]
