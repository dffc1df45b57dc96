"""Runs command lines in forks of one process that has imported the program, so that a test does not
pay for a Python that starts. Each fork has its own environment, folder and standard files, and ends
as a program does.

As a program (`fork_server.py SOCKET`) it is that process. It takes requests from a socket: a JSON
line with three descriptors; it answers with the process id, then with the exit code.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MOST_STDIN = 60_000  # bytes that every pipe holds
_REQUEST = 1 << 20
#: These are read when Python starts.
_FIXED = ("PYTHON", "LC_", "LANG", "LD_", "COLUMNS")


class ForkServer:
    """The process, as tests see it. It ends with the one that started it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.environment = dict(os.environ)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
            )
        self.socket = ours

    def run(
        self, args: list[str], stdin: bytes, env: dict[str, str], timeout: float
    ) -> tuple[int, bytes, bytes]:
        """Exit code, stdout and stderr. Raises `subprocess.TimeoutExpired`."""
        request = json.dumps({"args": args, "env": env, "cwd": str(Path.cwd())}).encode()
        assert len(request) < _REQUEST
        read, write = os.pipe()
        os.write(write, stdin)
        os.close(write)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            # A socket gives a long message in pieces: its length goes first.
            head = len(request).to_bytes(4, "big")
            socket.send_fds(self.socket, [head], [read, out.fileno(), err.fileno()])
            os.close(read)
            self.socket.sendall(request)
            pid = int.from_bytes(_exactly(self.socket, 4), "big")
            self.socket.settimeout(timeout)
            try:
                code = int.from_bytes(_exactly(self.socket, 4), "big", signed=True)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self.socket.settimeout(None)
                _exactly(self.socket, 4)
                raise subprocess.TimeoutExpired(args, timeout) from None
            finally:
                self.socket.settimeout(None)
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()


_servers = threading.local()


def can_run(args: tuple[str | bytes, ...], stdin: bytes, env: dict[str, str]) -> bool:
    """Whether a fork does the same as a new process would. The real engine always gets its own."""
    fixed = {k: v for k, v in env.items() if k.startswith(_FIXED)}
    usual = {k: v for k, v in os.environ.items() if k.startswith(_FIXED)}
    usual["PYTHONPATH"] = str(ROOT)
    return (
        hasattr(os, "fork")
        and bool(env.get("TEST_FAKE_SESSION"))
        and fixed == usual
        and len(stdin) <= _MOST_STDIN
        and all(isinstance(arg, str) and not _is_odd(arg) for arg in args)
    )


def run(
    args: list[str], stdin: bytes, env: dict[str, str], timeout: float
) -> tuple[int, bytes, bytes]:
    """See `ForkServer.run`; every thread has a server of its own."""
    server: ForkServer | None = getattr(_servers, "mine", None)
    if server is None or server.process.poll() is not None:
        server = _servers.mine = ForkServer()
    return server.run(args, stdin, env, timeout)


def _is_odd(text: str) -> bool:
    """Whether a text holds bytes that are no UTF-8, which JSON has no place for."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return "\0" in text


def _exactly(connection: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        piece = connection.recv(n - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _serve(connection: socket.socket) -> list[str]:
    """Forks for every request; returns the arguments in a fork. Exits when nobody asks any more."""
    while True:
        try:
            head, files, _, _ = socket.recv_fds(connection, 4, 3)
            request = json.loads(_exactly(connection, int.from_bytes(head, "big")))
        except (EOFError, ValueError):
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            connection.close()
            for target, file in enumerate(files):
                os.dup2(file, target)
                os.close(file)
            os.environ.clear()
            os.environ.update(request["env"])
            os.chdir(request["cwd"])
            return list(request["args"])
        for file in files:
            os.close(file)
        with contextlib.suppress(OSError):
            connection.sendall(pid.to_bytes(4, "big"))
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            connection.sendall(code.to_bytes(4, "big", signed=True))


if __name__ == "__main__":
    sys.path[0] = str(ROOT / "tests")
    from stand_ins import fake_session as fake_session
    from stand_ins import run_cli

    for path in sorted((ROOT / "localllm").glob("[cs][lt]*/*.py")):  # cli and store
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert "localllm.session" not in sys.modules  # a stand-in takes its place
    gc.freeze()  # forks share the memory of what is loaded until they touch it
    sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    code = run_cli.main()
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as an exit does
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # taking the interpreter down costs more than most commands
