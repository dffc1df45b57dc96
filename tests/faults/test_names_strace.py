"""Hostile names through `pull` and `run`: strace sees no file opened outside the store."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_ins.command_line import ROOT, environment

STRACE = shutil.which("strace")
N_NAMES, N_SHORT = 1000, 24
MARK = "/names-begin-here"
_PATHS = re.compile(r'"((?:[^"\\]|\\.)*)"')
#: Calls that open, make, rename or delete: not those that only look.
_CHANGING = re.compile(
    r"(?:\d+ +)?(open|openat|creat|rename\w*|link\w*|symlink\w*|unlink\w*|mkdir\w*|rmdir|truncate"
    r"|chmod|chown|mknod\w*)\("
)
#: What a child runs: `import` of everything first, then a mark in the trace, then the names.
CHILD = """
import os, sys
from localllm.cli.main import main
names = sys.stdin.buffer.read().decode("utf-8", "surrogateescape").split("\\0")
def silently(*args):
    main(args)
for first in ("smollm2:135m", "hf.co/a/b:q4_0", "127.0.0.1:9/a/b:c", "https://127.0.0.1:9/a.gguf",
              "http://127.0.0.1:9/a", "CON"):
    silently("pull", first)
    silently("run", first, "hi")
try:
    os.stat(sys.argv[1])
except OSError:
    pass
for name in names:
    silently("pull", "--", name)
    silently("run", "--", name, "hi")
"""
_PIECES = (
    "..", "...", ".", "/", "//", "\\", "%2e%2e", "%2f", "%00", ":", "@", "a", "b1", "q4_0", "etc",
    "passwd", "-", "--yes", "~", "~root", "$HOME", "`id`", ";", "|", "\n", "\r", "\t", "\x1b[2J",
    "\u202e", "\uff0e\uff0e", "\u2215", "e\u0301", "C:", "\\\\host\\share", "CON", "NUL.gguf",
    "aux", "sha256:", "0" * 64, "hf.co", "127.0.0.1:9", "localhost:9", "https://", "http://", "file://",
    "file:///etc/passwd", "https://127.0.0.1:9/../../x.gguf", ".gguf", ".json", ".partial", ".tmp",
    "-00001-of-00002", "a" * 97, "a" * 300, "[/red]", "", " ", "*", "?", "<", ">", '"', "'",
    "\udcff",
)  # fmt: skip
_FIXED = (
    "../../../etc/passwd:x", "a/../../../etc:x", "hf.co/../../x", "hf.co/a/..:q4_0", "a:../../x",
    "127.0.0.1:9/../../etc/x:1", "127.0.0.1:9/a/b:../../../x", "sha256:../../", "x@../../y",
    "hf.co/a/b@../../x:q4_0", "https://127.0.0.1:9/..%2f..%2fx.gguf", "http://127.0.0.1:9/../x",
    "hf.co/a/b:../../x.gguf", "a/b:/etc/passwd.gguf", "ollama/../../x", "lm-studio/../..:x",
)  # fmt: skip


def names(n: int) -> list[str]:
    """Names made of what has fooled others; paths are left out, which the user may open."""
    from localllm.store.ref import is_path

    pick = random.Random(5)
    made = list(_FIXED)
    while len(made) < n:
        text = "".join(pick.choice(_PIECES) for _ in range(pick.randint(1, 6)))
        if "\0" not in text and not is_path(text):
            made.append(text)
    return made[:n]


def opened(trace: Path) -> Iterator[str]:
    """The paths that were opened, made, renamed or deleted behind the mark."""
    behind = False
    for line in trace.read_text("utf-8", "replace").splitlines():
        behind = behind or (MARK in line and "execve(" not in line)
        if behind and _CHANGING.match(line):
            yield from _PATHS.findall(line)


def allowed(home: Path) -> tuple[str, ...]:
    """Where a process opens files whatever the name: its own code, the system's, its store."""
    system = ("/usr/", "/lib/", "/lib64/", "/proc/", "/sys/", "/dev/null", "/dev/urandom",
              "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf",
              "/etc/gai.conf", "/etc/services", "/etc/ssl/", "/etc/ld.so", "/etc/localtime",
              "/etc/protocols", "/etc/mime.types", "/etc/apache2/mime.types",
              "/etc/httpd/", "/run/systemd/resolve")  # fmt: skip
    code = {str(ROOT), sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    code |= {str(Path(each).resolve()) for each in sys.path if each}
    return (str(home), *system, *code)


def traced(home: Path, hostile: list[str], trace: Path) -> subprocess.CompletedProcess[bytes]:
    env = environment(
        home,
        TEST_FAKE_SESSION="",
        HF_ENDPOINT="http://127.0.0.1:9",
        HF_HOME=str(home / "hf"),
        HOME=str(home),
        OLLAMA_MODELS=str(home / "ollama"),
        PYTHONDONTWRITEBYTECODE="1",
        TMPDIR=str(home),
    )
    assert STRACE is not None
    return subprocess.run(
        [STRACE, "-f", "-s", "4096", "-e", "trace=file", "-o", str(trace), sys.executable, "-c",
         CHILD, MARK],
        input="\0".join(hostile).encode("utf-8", "surrogateescape"),
        env=env, cwd=home, capture_output=True, check=False, timeout=1800,
    )  # fmt: skip


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_nothing_outside_is_opened(tmp_path: Path, full: bool) -> None:
    home = tmp_path / "home"
    home.mkdir()
    trace = tmp_path / "trace"
    hostile = names(N_NAMES if full else N_SHORT)
    done = traced(home, hostile, trace)
    said = done.stderr.decode("utf-8", "replace")
    assert done.returncode == 0, said[-2000:]
    assert said.count("error: ") >= 2 * len(hostile) and "internal error" not in said, said
    assert not set("\x1b\x07\u202e") & set(said)
    places = allowed(home)
    paths = [os.path.normpath(path) if path.startswith("/") else path for path in opened(trace)]
    outside = [path for path in paths if path.startswith("/") and not path.startswith(places)]
    assert outside == []
    relative = {path for path in paths if not path.startswith("/")}
    assert {path for path in relative if ".." in path.split("/")} == set(), relative
    assert list(home.rglob("*.gguf")) == []


@pytest.mark.skipif(STRACE is None, reason="strace is not installed")
def test_a_file_outside_would_be_seen(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    code = f"import os\ntry: os.stat({MARK!r})\nexcept OSError: pass\nopen('/etc/passwd').close()"
    subprocess.run(
        [str(STRACE), "-f", "-e", "trace=file", "-o", str(trace), sys.executable, "-c", code],
        check=True, timeout=60,
    )  # fmt: skip
    assert "/etc/passwd" in list(opened(trace))
    assert not "/etc/passwd".startswith(allowed(tmp_path))
