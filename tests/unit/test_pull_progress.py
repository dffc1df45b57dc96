"""What a pull says of memory: the limit of this process, not that of the whole machine."""

from __future__ import annotations

import dataclasses

import pytest

from localllm import session
from localllm.cli import pull_progress

GB = 10**9


@pytest.mark.parametrize(
    ("memory", "free", "said"),
    [
        (4 * GB, 2 * GB, "this machine has 4.0 GB of memory, less than the model"),
        (8 * GB, 2 * GB, "only 2.0 GB of memory are free"),
        (8 * GB, 6 * GB, "6.0 GB of memory are free, enough to run it"),
        (8 * GB, 0, "not known"),
        (0, 0, "not known"),
    ],
)
def test_whether_it_fits_is_told_from_the_memory_of_the_cgroup(
    memory: int, free: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = dataclasses.replace(session.machine_facts(), memory_bytes=memory, free_bytes=free)
    monkeypatch.setattr(session, "machine_facts", lambda: limited)
    assert said in pull_progress.room(5 * GB, 9 * GB)
    full = pull_progress.room(5 * GB, 3 * GB)
    assert full.startswith("only 3.0 GB are free on the disk, the whole model takes more; ")
    assert "it fits" not in full
