"""Transfers that are killed, stopped, crowded, or run out of disk."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins.fault_server import FaultServer, gguf_noise
from stand_ins.transferring import Place, faster, remote

from localllm.errors import FileError
from localllm.store.transfer import journal, partials

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals, forks and mounts of POSIX")

BODY = gguf_noise(400_000)
LOOK_BYTES = 4096
TESTS = Path(__file__).parents[1]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        running.add("/a.gguf", BODY)
        yield running


class Driver:
    """The process that forks transfers."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stand_ins.transfer_driver"],
            cwd=TESTS,
            # No certificates: reading those of the system takes longer than a transfer here.
            env={**os.environ, "SSL_CERT_FILE": "", "SSL_CERT_DIR": str(TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, url: str, body: bytes, **more: Any) -> list[int]:
        """Exit codes of transfers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {
            "url": url,
            "sha256": hashlib.sha256(body).hexdigest(),
            "size": len(body),
            "home": str(self.home),
            **more,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())["codes"]
        return codes

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    running = Driver(tmp_path / "home")
    yield running
    running.close()


def test_kill_at_any_step(driver: Driver, server: FaultServer, full: bool) -> None:
    """kill -9 around and within every write, and before every open, rename and delete."""
    final = driver.home / "models" / "model.gguf"
    assert driver.ask(server.url("/a.gguf"), BODY) == [0]
    n_steps = int((driver.home / "steps").read_text())
    assert n_steps > 100
    chance = random.Random(8)
    n_points = 1000 if full else 200
    points = [1 + n_steps * i // n_points for i in range(n_points)]
    kept = verified = n_killed = 0
    for point in points:
        shutil.rmtree(driver.home)
        first, then = f"/{point}-{chance.random()}.gguf", f"/{point}-{chance.random()}.gguf"
        codes = driver.ask(server.add(first, BODY), BODY, die_at=point)
        assert codes in ([-signal.SIGKILL], [0]), point
        n_killed += codes != [0]
        assert not final.exists() or final.read_bytes() == BODY, point
        contents = None
        if not final.exists():
            logs = list(driver.home.glob("downloads/*.journal"))
            contents = journal.load(logs[0]) if logs else None
        here = len(BODY) if final.exists() else contents.n_bytes if contents else 0
        assert driver.ask(server.add(then, BODY), BODY) == [0], point
        assert final.read_bytes() == BODY, point
        left = list((driver.home / "downloads").iterdir())
        assert all(path.suffix == ".tmp" for path in left), point  # swept a minute later
        fetched = server.sent.get(then, 0)
        if fetched:
            fetched -= LOOK_BYTES
        verified += here
        kept += min(here, len(BODY) - fetched)
        del server.files[first], server.files[then]
    assert n_killed > 0.9 * n_points
    assert verified > 0.2 * n_killed * len(BODY) and kept >= 0.95 * verified, (kept, verified)


def test_kill_at_any_step_on_a_slow_link(driver: Driver, server: FaultServer, full: bool) -> None:
    """Chunks come in many pieces, and each is written and noted: killed there too."""
    server.bytes_per_s = 4_000_000  # of each connection
    final = driver.home / "models" / "model.gguf"
    more = {"chunk_bytes": 100_000, "keep_s": 0}
    assert driver.ask(server.url("/a.gguf"), BODY, **more) == [0]
    n_steps = int((driver.home / "steps").read_text())
    n_points = 300 if full else 16
    n_begun = kept = 0
    for i in range(n_points):
        shutil.rmtree(driver.home)
        url = server.add(f"/slow{i}.gguf", BODY)
        codes = driver.ask(url, BODY, die_at=1 + n_steps * i // n_points, **more)
        assert codes in ([-signal.SIGKILL], [0]), i
        logs = list(driver.home.glob("downloads/*.journal"))
        contents = journal.load(logs[0]) if logs and not final.exists() else None
        n_begun += bool(contents and contents.begun)
        url = server.add(f"/then{i}.gguf", BODY)
        assert driver.ask(url, BODY, **more) == [0] and final.read_bytes() == BODY, i
        if contents and (fetched := server.sent.get(f"/then{i}.gguf")):
            assert fetched <= len(BODY) - contents.n_bytes + LOOK_BYTES, i
            kept += contents.n_bytes
    assert n_begun >= n_points // 8 and kept > 0, (n_begun, kept)


def test_eight_at_once_share_the_work(driver: Driver, server: FaultServer) -> None:
    server.bytes_per_s = 200_000
    assert driver.ask(server.url("/a.gguf"), BODY, n=8) == [0] * 8
    assert (driver.home / "models" / "model.gguf").read_bytes() == BODY
    assert server.total_sent <= 1.05 * len(BODY)
    assert list((driver.home / "downloads").iterdir()) == []


def test_when_the_first_of_eight_is_killed_another_goes_on(
    driver: Driver, server: FaultServer
) -> None:
    server.bytes_per_s = 100_000
    codes = driver.ask(server.url("/a.gguf"), BODY, n=8, kill_holder_at=8)
    assert sorted(codes) == [-signal.SIGKILL] + [0] * 7
    assert (driver.home / "models" / "model.gguf").read_bytes() == BODY
    # The ranges that the dead one was reading are read again.
    assert server.total_sent <= 1.05 * len(BODY) + 4 * 64 * 1024


PULL = """
    import sys
    from pathlib import Path
    sys.path[:0] = {path}
    from stand_ins.transferring import Place, faster
    from localllm.store.offer import Location, RemoteFile
    place = Place(Path({home!r}), faster(beat_s=0.1, stale_s=0.8, **{more}))
    file = RemoteFile("model.gguf", {size}, {sha256!r}, lambda: Location({url!r}))
    try:
        print(place.fetch(file, report=lambda p: print(p.n_bytes, p.state, flush=True)).size)
    except KeyboardInterrupt:
        print("interrupted")
        sys.exit(130)
"""


def start_pull(home: Path, url: str, **more: Any) -> subprocess.Popen[str]:
    """A transfer in a process of its own, which prints how far it is."""
    code = PULL.format(
        path=[str(TESTS)],
        home=str(home),
        size=len(BODY),
        sha256=hashlib.sha256(BODY).hexdigest(),
        url=url,
        more=more,
    )
    return subprocess.Popen(
        [sys.executable, "-c", "\n".join(line[4:] for line in code.splitlines())],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for_bytes(pull: subprocess.Popen[str], n_bytes: int) -> None:
    assert pull.stdout is not None
    for line in pull.stdout:
        if int(line.split()[0]) >= n_bytes:
            return
    raise AssertionError("the pull ended")


def test_a_stopped_process_wakes_up_late(server: FaultServer, tmp_path: Path) -> None:
    """It loses its lease while it sleeps; then it waits for the other one and finds the file."""
    server.bytes_per_s = 40_000
    pull = start_pull(tmp_path, server.url("/a.gguf"))
    try:
        wait_for_bytes(pull, 60_000)
        pull.send_signal(signal.SIGSTOP)
        place = Place(tmp_path, faster(beat_s=0.1, stale_s=0.8))
        server.bytes_per_s = 0
        got = place.fetch(remote(server.url("/a.gguf"), BODY))
        assert f"waiting for process {pull.pid}" in place.states()
        assert got.path.read_bytes() == BODY
        pull.send_signal(signal.SIGCONT)
        out, _ = pull.communicate(timeout=60)
        assert pull.returncode == 0 and out.splitlines()[-1] == str(len(BODY))
        assert got.path.read_bytes() == BODY and place.left() == set()
    finally:
        pull.kill()
        pull.communicate()


def test_ctrl_c_keeps_what_has_come(server: FaultServer, tmp_path: Path) -> None:
    server.bytes_per_s = 40_000
    pull = start_pull(tmp_path, server.url("/a.gguf"))
    wait_for_bytes(pull, 150_000)
    pull.send_signal(signal.SIGINT)
    out, _ = pull.communicate(timeout=60)
    assert pull.returncode == 130 and out.splitlines()[-1] == "interrupted"
    place = Place(tmp_path)
    assert place.left() == {".partial", ".journal", ".json"}
    (waiting,) = partials.listing(place.downloads)
    assert waiting.n_bytes >= 100_000 and not waiting.held
    server.bytes_per_s = 0
    server.sent.clear()
    url = server.add("/b.gguf", BODY)
    assert place.fetch(remote(url, BODY)).path.read_bytes() == BODY
    assert server.sent["/b.gguf"] <= len(BODY) - waiting.n_bytes + LOOK_BYTES


@pytest.mark.parametrize(("how", "keep_s"), [("SIGINT", 60), ("SIGKILL", 0.1)])
def test_a_slow_link_loses_next_to_nothing(
    server: FaultServer, tmp_path: Path, how: str, keep_s: float
) -> None:
    """The whole file is one chunk: its bytes are shown as they come, and asked for once."""
    server.bytes_per_s = 100_000
    pull = start_pull(tmp_path, server.url("/a.gguf"), chunk_bytes=1 << 20, keep_s=keep_s)
    wait_for_bytes(pull, 150_000)
    pull.send_signal(signal.Signals[how])
    pull.communicate(timeout=60)
    first = server.sent["/a.gguf"]
    place = Place(tmp_path)
    (waiting,) = partials.listing(place.downloads)
    # 0.1 s, one part in 32 of a chunk, and what is between the server and this process
    assert 150_000 - 10_000 - (1 << 15) - 16384 <= waiting.n_bytes <= first
    server.bytes_per_s = 0
    url = server.add("/b.gguf", BODY)
    assert place.fetch(remote(url, BODY)).path.read_bytes() == BODY
    assert server.sent["/b.gguf"] <= len(BODY) - waiting.n_bytes + LOOK_BYTES
    assert place.reported[0].n_bytes == waiting.n_bytes


def mounted(folder: Path, options: str) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 600 kB."""
    folder = tmp_path / "disk"
    if not mounted(folder, "size=600k"):
        pytest.skip("tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up(server: FaultServer, small_disk: Path) -> None:
    """Told clearly, not tried again; what is there is kept, and goes on when there is space."""
    place, filler = Place(small_disk), small_disk / "filler"

    n_when_full = 0

    def fill(n: int) -> None:
        """Once three chunks are here."""
        nonlocal n_when_full
        logs = list(place.downloads.glob("*.journal"))
        if not n_when_full and logs and logs[0].read_bytes().count(b"\n") > 3:
            n_when_full = n
            try:
                with filler.open("wb", buffering=0) as file:
                    while file.write(bytes(4096)):
                        pass
            except OSError:
                pass

    server.on_request = fill
    server.bytes_per_s = 400_000
    with pytest.raises(FileError, match="No space left on device") as caught:
        place.fetch(remote(server.url("/a.gguf"), BODY))
    assert caught.value.hint is not None and "Free some space" in caught.value.hint
    assert "goes on from there" in caught.value.hint
    n = len(server.seen)
    assert (
        n <= n_when_full + 6
    )  # each connection at its next chunk: a full disk is not tried again and again
    (waiting,) = partials.listing(place.downloads)
    assert waiting.n_bytes > 0 and list(place.models.iterdir()) == []
    server.on_request = lambda n: None
    with pytest.raises(FileError, match=r"not enough space in .* are free|No space left"):
        place.fetch(remote(server.url("/a.gguf"), BODY))
    assert len(server.seen) == n
    filler.unlink()
    url = server.add("/b.gguf", BODY)
    assert place.fetch(remote(url, BODY)).path.read_bytes() == BODY
    assert server.sent["/b.gguf"] <= len(BODY) - waiting.n_bytes + LOOK_BYTES


def test_a_model_folder_on_another_disk(
    server: FaultServer, small_disk: Path, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    place.models = small_disk
    got = place.fetch(remote(server.url("/a.gguf"), BODY))
    assert got.path.read_bytes() == BODY and place.left() == set()
    assert [path.name for path in small_disk.iterdir()] == ["model.gguf"]
    with pytest.raises(FileError, match=f"not enough space in {small_disk}"):
        place.fetch(remote(server.add("/b.gguf", BODY + BODY), BODY + BODY), "other.gguf")


def test_a_disk_that_may_not_be_written(server: FaultServer, small_disk: Path) -> None:
    place = Place(small_disk)
    place.downloads.mkdir()
    place.models.mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(FileError, match="Read-only file system") as caught:
        place.fetch(remote(server.url("/a.gguf"), BODY))
    assert caught.value.hint is not None and str(place.downloads) in caught.value.hint
    assert server.seen == []


def test_a_file_that_gets_too_large(server: FaultServer, tmp_path: Path) -> None:
    """A limit on sizes stands for a quota, which no look at the free space foresees."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    )
    base = PULL.format(
        path=[str(TESTS)],
        home=str(tmp_path),
        size=len(BODY),
        sha256=hashlib.sha256(BODY).hexdigest(),
        url=server.url("/a.gguf"),
        more={},
    )
    done = subprocess.run(
        [sys.executable, "-c", code + "\n".join(line[4:] for line in base.splitlines())],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and "File too large" in done.stderr
    (waiting,) = partials.listing(tmp_path / "downloads")
    assert 0 < waiting.n_bytes <= 200_000
    assert time.time() - waiting.modified < 3600
    assert Place(tmp_path).fetch(remote(server.url("/a.gguf"), BODY)).path.read_bytes() == BODY
