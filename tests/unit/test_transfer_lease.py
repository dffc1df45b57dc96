"""Who downloads: leases of the living, the dead, the sleeping and of other machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins.transferring import faster

from localllm.store.transfer import lease
from localllm.store.transfer.lease import Holder, Lease, acquire, is_held
from localllm.store.transfer.progress import Progress

KEY = "12" * 32
QUICK = faster(beat_s=0.05, stale_s=1.0, poll_s=0.01)
PATIENT = faster(beat_s=0.05, stale_s=600, poll_s=0.01)


class Waited(Exception):
    """Raised instead of waiting on."""


def refuse(holder: Holder) -> None:
    raise Waited(holder.process)


def write(folder: Path, **more: Any) -> Path:
    """A lease of this process, but for what `more` says."""
    document = {
        "host": "here",
        "machine": lease.machine(),
        "pid": os.getpid(),
        "started": lease.started(os.getpid()),
        "beat": 1,
        "progress": {},
        **more,
    }
    path = folder / f"{KEY}.{'0' * 16}.lease"
    path.write_text(json.dumps(document))
    return path


def test_the_second_waits_and_sees_how_far_the_first_is(tmp_path: Path) -> None:
    first = acquire(tmp_path, KEY, PATIENT, refuse)
    first.note(Progress("a.gguf", 1, 1, 5, 10, 5, 10, 2.5, 2.0, "downloading"))
    seen: list[Holder] = []

    def on_wait(holder: Holder) -> None:
        seen.append(holder)
        if holder.progress.get("n_bytes") == 5:
            first.release()

    second = acquire(tmp_path, KEY, PATIENT, on_wait)
    assert seen[-1].process == f"process {os.getpid()}"
    assert seen[-1].progress["eta_s"] == 2.0
    assert second.held() and not first.confirm()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_leases_of_other_files_do_not_matter(tmp_path: Path) -> None:
    first = acquire(tmp_path, KEY, PATIENT, refuse)
    acquire(tmp_path, "34" * 32, PATIENT, refuse).release()
    assert is_held(tmp_path, KEY) and not is_held(tmp_path, "34" * 32)
    first.release()


def test_a_dead_process_is_followed_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    path = write(tmp_path, pid=int(done.stdout))
    taken = acquire(tmp_path, KEY, PATIENT, refuse)
    assert not path.exists()
    taken.release()


def test_a_process_number_that_came_again_is_another_process(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(Waited):
        acquire(tmp_path, KEY, PATIENT, refuse)
    write(tmp_path, started="12345")
    acquire(tmp_path, KEY, PATIENT, refuse).release()


def test_the_remains_of_a_process_are_no_process(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    began = lease.started(child.pid)
    while lease.started(child.pid) is not None:  # it ends, and nobody has asked how
        time.sleep(0.01)
    write(tmp_path, pid=child.pid, started=began)
    acquire(tmp_path, KEY, PATIENT, refuse).release()
    child.wait()


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"null", b"\xff" * 50, b'{"pid": "x"}'])
def test_a_lease_that_says_nothing_counts_until_it_is_stale(
    tmp_path: Path, document: bytes
) -> None:
    path = write(tmp_path)
    path.write_bytes(document)
    with pytest.raises(Waited, match="another process"):
        acquire(tmp_path, KEY, PATIENT, refuse)
    short = faster(beat_s=0.05, stale_s=0.1, poll_s=0.01)
    acquire(tmp_path, KEY, short, lambda holder: None).release()


def test_another_machine_counts_as_alive_while_its_lease_changes(tmp_path: Path) -> None:
    """Its process number says nothing here: process 1 lives, and so do the numbers of others."""
    path = write(tmp_path, machine="elsewhere", host="elsewhere", pid=999999999)
    with pytest.raises(Waited, match="process 999999999 on elsewhere"):
        acquire(tmp_path, KEY, PATIENT, refuse)
    ended = threading.Event()
    began = time.monotonic()

    def beat() -> None:
        for n in range(30):
            path.write_text(json.dumps({"machine": "elsewhere", "beat": n}))
            if ended.wait(0.05):
                return

    beating = threading.Thread(target=beat)
    beating.start()
    taken = acquire(tmp_path, KEY, QUICK, lambda holder: None)
    assert not beating.is_alive() and time.monotonic() - began > 1.5  # 30 beats, then it was stale
    ended.set()
    taken.release()


def test_a_sleeper_that_wakes_up_has_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(lease, "_now", lambda: clock[0])
    asleep = Lease(tmp_path / f"{KEY}.{'1' * 16}.lease", QUICK)  # never started: it shows nothing
    assert asleep.held()
    other = acquire(tmp_path, KEY, QUICK, lambda holder: None)
    assert asleep.held()  # its last look is fresh, by its clock
    clock[0] += 60
    assert not asleep.held() and not asleep.confirm()
    assert other.confirm()
    other.release()


def test_a_lease_is_held_while_the_disk_is_full_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(lease, "_now", lambda: clock[0])
    path = tmp_path / f"{KEY}.{'1' * 16}.lease"
    mine = Lease(path, QUICK)
    path.unlink()
    path.mkdir()  # refuses to be opened, and is there
    assert mine.confirm()
    clock[0] += QUICK.stale_s
    assert not mine.confirm()


def test_never_two_at_once(tmp_path: Path) -> None:
    inside, most, rounds = 0, 0, 0
    lock = threading.Lock()

    def contend() -> None:
        nonlocal inside, most, rounds
        for _ in range(4):
            mine = acquire(tmp_path, KEY, PATIENT, lambda holder: None)
            with lock:
                inside += 1
                most = max(most, inside)
                rounds += 1
            time.sleep(0.005)
            with lock:
                inside -= 1
            mine.release()

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (rounds, most) == (24, 1)
    assert list(tmp_path.iterdir()) == []
