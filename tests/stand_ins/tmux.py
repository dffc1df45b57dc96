"""A program inside tmux, on a server of its own: keys go in, the screen comes out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stand_ins.command_line import ROOT, RUN_CLI

IS_HERE = shutil.which("tmux") is not None
WAIT_S = 60.0  # for what should be there at once


class Tmux:
    """`localllm`, or another program, with arguments. The server, and with it the program, ends
    with the block."""

    def __init__(
        self, home: Path, *args: str, columns: int = 100, lines: int = 30,
        program: Sequence[str] = (), **more: str,
    ) -> None:  # fmt: skip
        kept = {k: v for k, v in os.environ.items() if k not in ("TMUX", "LOCALLLM_ISA")}
        self._env = {
            **kept,
            "LOCALLLM_HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            **more,
        }
        home.mkdir(parents=True, exist_ok=True)
        self._columns, self._lines, self._program = columns, lines, program
        self.files = home  # where it is noted how the program fares; also its working folder
        # A path of a socket has few characters, and pytest's folders have many.
        self._socket = f"/tmp/localllm-tmux-{os.getpid()}-{time.monotonic_ns()}"
        self._args = args
        self.pid = 0

    def __enter__(self) -> Tmux:
        self.start()
        return self

    @property
    def _code(self) -> Path:
        return self.files / "exit-code"

    def start(self, *args: str) -> None:
        """Begins the program, again if it has ended."""
        self._code.unlink(missing_ok=True)
        program = [*(self._program or (sys.executable, str(RUN_CLI))), *(args or self._args)]
        pid, code = self.files / "pid", shlex.quote(str(self._code))
        pid.unlink(missing_ok=True)
        line = f'sh -c \'echo $$ > {shlex.quote(str(pid))}; exec "$0" "$@"\' {shlex.join(program)}'
        line = f"{line}; echo $? > {code}.part; mv {code}.part {code}; exec sleep 1000"
        size = ("-x", str(self._columns), "-y", str(self._lines))
        if self.pid:
            self._tmux("respawn-window", "-k", "-t", "main", "sh", "-c", line)
        else:
            self._tmux("-f", os.devnull, "new-session", "-d", "-s", "main", *size, "sh", "-c", line)
        self.until(lambda: pid.is_file() and pid.read_text().strip() != "")
        self.pid = int(pid.read_text())

    def __exit__(self, *exception: object) -> None:
        self._tmux("kill-server", check=False)
        Path(self._socket).unlink(missing_ok=True)

    def _tmux(self, *args: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *args],
            capture_output=True,
            env=self._env,
            cwd=self.files,
            timeout=60,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"tmux {args[0]}: {done.stderr.decode()}\n{self.ended()}")
        return done.stdout.decode("utf-8", "replace")

    def close(self) -> None:
        """The terminal goes, as when its window is closed: the program gets SIGHUP."""
        self._tmux("kill-server")

    def asked(self, what: str) -> str:
        """What tmux knows of the window, such as `#{pane_title}`."""
        return self._tmux("display-message", "-p", "-t", "main", what).strip()

    def clipboard(self) -> str:
        return self._tmux("show-buffer", check=False)

    def keys(self, *names: str) -> None:
        """As tmux calls them: Enter, Escape, C-n, F1."""
        self._tmux("send-keys", "-t", "main", *names)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-t", "main", "-l", text)

    def resize(self, columns: int, lines: int) -> None:
        self._tmux("resize-window", "-t", "main", "-x", str(columns), "-y", str(lines))

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-t", "main", check=False)

    def lines(self) -> list[str]:
        return self.screen().splitlines()

    def raw(self) -> str:
        """With the sequences for colours."""
        return self._tmux("capture-pane", "-p", "-e", "-t", "main", check=False)

    def until(self, *wanted: str | Callable[[], bool], seconds: float = WAIT_S) -> str:
        """Waits until the screen has all of some texts at once, or something is so. Returns the
        screen. What is drawn arrives in pieces: a part of it says nothing of the rest."""
        ends = time.monotonic() + seconds
        texts = [each for each in wanted if isinstance(each, str)]
        tests = [each for each in wanted if not isinstance(each, str)]
        while True:
            screen = self.screen() if self.pid or texts else ""
            if all(text in screen for text in texts) and all(test() for test in tests):
                return screen
            assert time.monotonic() < ends, f"{wanted} did not come:\n{screen}"
            time.sleep(0.03)

    def gone(self, text: str) -> str:
        """Waits until the screen has a text no more."""
        self.until(lambda: text not in self.screen())
        return self.screen()

    def ended(self) -> int | None:
        """The exit code, once there is one."""
        return int(self._code.read_text()) if self._code.is_file() else None

    def exit_code(self) -> int:
        """Waits for the end."""
        self.until(lambda: self.ended() is not None)
        code = self.ended()
        assert code is not None
        return code
