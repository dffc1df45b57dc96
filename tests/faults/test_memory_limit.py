"""Under a memory limit a model runs, or is refused with the figures; it is never killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
LIMITS_MIB = (60, 100, 150, 250) if not os.environ.get("FULL") else range(60, 420, 20)


@pytest.fixture
def group() -> Iterator[tuple[Path, str]]:
    """A cgroup of our own, and the file of its limit."""
    base, name = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V2, "memory.max")
    folder = base / f"localllm-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / name).write_text(str(1 << 30))
    except OSError as e:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no cgroup with a memory limit can be made here: {e}")
    try:
        yield folder, name
    finally:
        folder.rmdir()


@pytest.mark.parametrize("limit_mib", LIMITS_MIB)
def test_a_limit_never_kills(
    real_model: Callable[[str], Path],
    group: tuple[Path, str],
    limit_mib: int,
    tmp_path: Path,
) -> None:
    done = run_limited(group, limit_mib, real_model("smollm2:135m"), tmp_path)
    assert done.returncode in (0, 1), done.stderr
    if done.returncode:
        assert "error: the model needs" in done.stderr and "are free" in done.stderr
    else:
        assert done.stdout.strip()
    if limit_mib <= 60 or limit_mib >= 200:  # between them it depends on what the system has cached
        assert done.returncode == int(limit_mib <= 60)


def test_a_model_that_ran_before_has_as_much_room(
    real_model: Callable[[str], Path], group: tuple[Path, str], tmp_path: Path
) -> None:
    """What the kernel keeps of the file for next time gives way to the model."""
    path = real_model("smollm2:135m")
    with path.open("rb") as file:  # the group that reads it first is charged for it
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    said = [run_limited(group, 160, path, tmp_path) for _ in range(4)]
    assert [done.returncode for done in said] == [0] * 4, said[-1].stderr
    assert len({done.stdout for done in said}) == 1


def run_limited(
    group: tuple[Path, str], limit_mib: int, path: Path, home: Path
) -> subprocess.CompletedProcess[str]:
    """`localllm run` in a cgroup."""
    folder, name = group
    (folder / name).write_text(str(limit_mib << 20))
    return subprocess.run(
        [
            "sh",
            "-c",
            f'echo $$ > {folder / "cgroup.procs"}; exec "$@"',
            "sh",
            *(sys.executable, "-m", "localllm", "run", str(path), "Hi", "--temperature", "0"),
            *("--max-tokens", "4", "--no-record"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "LOCALLLM_HOME": str(home)},
    )
