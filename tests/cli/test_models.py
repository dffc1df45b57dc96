"""`pull`, `list`, `show`, `rm` and `doctor` as programs, with made-up models in a wheel folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.command_line import cli, is_error
from stand_ins.small_models import MadeUp


@pytest.fixture
def made(tmp_path: Path) -> MadeUp:
    return small_models.make(tmp_path, n_parts=2)


def run(made: MadeUp, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command whose index is the wheel folder, and whose home lies beside it."""
    base = made.catalog_folder.parent
    env = {"TEST_CATALOG": str(made.catalog_folder), "PIP_FIND_LINKS": str(base / "wheels"), **more}
    return cli(*args, home=base / "home", env=env)


def test_pull_then_list_show_run_rm(made: MadeUp) -> None:
    size = len(made.content)
    assert run(made, "list").stderr.startswith("No models yet.")
    pulled = run(made, "pull", "madeup")
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout.startswith("madeup:1k is ready: ")
    first, facts, room = pulled.stderr.splitlines()[:3]
    assert first.startswith(
        "madeup:1k: madeup-part0 1.0 and 1 more packages of the package index, "
    )
    assert f"{size} B, 64 parameters, F32, licence: CC0" in facts
    assert " free on the disk; 4.3 GB of memory are free, enough to run it" in room

    listed = run(made, "list")
    row = ["madeup:1k", str(size), "B", "F32", "package", "index", "-", "native", "ready"]
    assert listed.stdout.splitlines()[1].split() == row

    shown = json.loads(run(made, "show", "madeup", "--json").stdout)
    assert (shown["architecture"], shown["parameters"], shown["context"]) == ("llama", 64, 2048)
    assert shown["digest"].startswith("sha256:") and "madeup-part0 1.0" in shown["source"]

    answer = json.loads(run(made, "run", "madeup:1k", "--json", "say yes").stdout)
    assert (answer["text"], answer["digest"]) == ("yes", shown["digest"])

    assert run(made, "rm", "madeup:1k").returncode == 2  # nobody to ask
    short = run(made, "rm", "-y", "madeup").stderr
    assert is_error(short, "madeup is not on this machine", hint="Did you mean madeup:1k?")
    gone = run(made, "rm", "-y", "MadeUp:1K", "madeup:1k")
    assert gone.stdout == f"madeup:1k deleted, {size} B freed\n"
    assert is_error(run(made, "rm", "-y", "madeup:1k").stderr, "madeup:1k is not on this machine")


def test_run_pulls_and_says_so(made: MadeUp) -> None:
    done = run(made, "run", "madeup", "say yes")
    assert (done.returncode, done.stdout) == (0, "yes\n"), done.stderr
    assert "madeup:1k is not on this machine yet: pulling it." in done.stderr
    done = run(made, "run", "madeup", "say yes")
    assert (done.returncode, done.stdout, done.stderr) == (0, "yes\n", "")


def test_base_model_continues_the_prompt(tmp_path: Path) -> None:
    made = small_models.make(tmp_path, chat=False)
    assert run(made, "pull", "madeup").returncode == 0
    done = run(made, "run", "madeup", "Once upon")
    assert json.loads(done.stdout)["raw"] == "Once upon"
    assert done.stderr == "note: madeup:1k is a base model: it continues the prompt (as --raw)\n"
    assert run(made, "run", "madeup", "--raw", "Once upon").stderr == ""
    done = run(made, "run", "madeup", "--system", "Be brief.", "Once upon")
    assert done.returncode == 2 and is_error(done.stderr, "--system", "base model")


def test_file_without_a_template_continues_the_prompt(made: MadeUp, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf(template=None))
    done = run(made, "run", str(path), "no template")
    assert json.loads(done.stdout)["raw"] == "no template"
    first, second = done.stderr.splitlines()
    assert first == "note: the file has no template\\x1b"
    assert second == f"note: {path} is a base model: it continues the prompt (as --raw)"
    done = run(made, "run", str(path), "--system", "x", "no template")
    assert done.returncode == 1 and is_error(done.stderr, "no template")


def test_show_does_not_pull(made: MadeUp) -> None:
    done = run(made, "show", "madeup")
    assert done.returncode == 1
    assert is_error(done.stderr, "madeup:1k is not on this machine", hint="localllm pull madeup")


def test_pull_json_lines(made: MadeUp) -> None:
    done = run(made, "pull", "madeup", "--json")
    assert done.returncode == 0 and done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["stage"] for line in (*lines[:2], lines[-1])] == ["offer", "download", "done"]
    assert (lines[0]["size"], lines[0]["licence"]) == (len(made.content), "CC0")
    assert lines[0]["repository"] == "madeup-part0==1.0 madeup-part1==1.0"
    assert lines[-1]["size"] == len(made.content)
    assert Path(lines[-1]["path"]).read_bytes() == made.content
    for line in lines[1:-1]:
        assert 0 <= line["bytes"] <= line["total_bytes"]
    again = run(made, "pull", "madeup", "--json").stdout.splitlines()
    assert [json.loads(line)["stage"] for line in again] == ["check", "done"]


def test_pull_checks_all_names_first(made: MadeUp) -> None:
    done = run(made, "pull", "madeup", "madep")
    assert done.returncode == 1
    assert is_error(done.stderr, "madep", hint="Did you mean madeup:1k?")
    assert not (made.catalog_folder.parent / "home" / "models").exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a/b/c/d/e:f", "no repository"),
        ("sha256:../../", "no valid port"),
        ("CON", "model name"),
        ("a%2f", "model name"),
        ("e\u0301", "model name"),
        ("a" * 4096, "model name"),
        ("[/red]", "owner of a Hub repository"),
        ("\x1b]0;x\x07", "model name"),
        ("x:", "model name"),
    ],
)
def test_bad_names_are_refused_by_every_command(made: MadeUp, name: str, why: str) -> None:
    for command in ("pull", "rm"):
        done = run(made, command, name)
        assert done.returncode == 2 and is_error(done.stderr, why, hint="")
        assert "\x1b" not in done.stderr and len(done.stderr) < 700


def test_a_path_is_nothing_to_pull_or_delete(made: MadeUp) -> None:
    missing = run(made, "pull", "../x")
    assert missing.returncode == 1 and is_error(missing.stderr, "there is no file ../x")
    of_the_hub = run(made, "pull", "u/tiny:tiny-Q8_0.gguf")
    assert "A file of a repository of the Hub: hf.co/u/tiny:tiny-Q8_0.gguf" in of_the_hub.stderr
    assert is_error(run(made, "rm", "../x").stderr, "../x", "a path")


def test_list_all_and_partial(made: MadeUp) -> None:
    listed = run(made, "list", "--all")
    assert "not here" in listed.stdout
    made.wheels[1].unlink()
    assert run(made, "pull", "madeup").returncode == 1
    assert "partial, " in run(made, "list").stdout
    (row,) = json.loads(run(made, "list", "--json").stdout)
    assert row["state"] == "partial"
    assert row["downloaded"] == made.wheels[0].stat().st_size < row["download_size"]
    assert row["modified"] is not None and ", just now" in run(made, "list").stdout
    assert run(made, "rm", "-y", "madeup:1k").returncode == 0
    assert run(made, "list", "--json").stdout == "[]\n"


def test_own_file_in_the_folder(made: MadeUp) -> None:
    folder = made.catalog_folder.parent / "home" / "models"
    folder.mkdir(parents=True)
    (folder / "mine.gguf").write_bytes(small_models.gguf())
    assert run(made, "list").stdout.splitlines()[1].split()[0] == "mine"
    assert json.loads(run(made, "run", "mine", "--json", "say a").stdout)["digest"] is None
    assert is_error(run(made, "show", "mien").stderr, "mien", hint="Did you mean mine?")


def test_damaged_record_is_named(made: MadeUp) -> None:
    assert run(made, "pull", "madeup").returncode == 0
    record = made.catalog_folder.parent / "home" / "models" / "madeup@1k.json"
    record.write_text("{\x1b")
    done = run(made, "run", "madeup", "say yes")
    assert done.stdout == "yes\n"
    assert "madeup@1k.json is damaged" in done.stderr and "localllm pull madeup:1k" in done.stderr
    assert "is damaged" in run(made, "list").stderr
    doctor = run(made, "doctor")
    assert doctor.returncode == 1 and "problem: madeup:1k: its record" in doctor.stdout
    assert run(made, "pull", "madeup").returncode == 0
    assert run(made, "run", "madeup", "say yes").stderr == ""


def test_show_text_is_escaped(made: MadeUp, tmp_path: Path) -> None:
    path = tmp_path / "evil.gguf"
    path.write_bytes(
        small_models.gguf(
            title="A\x1b]0;owned\x07\nB\u202e", licence="\x9b31m", template="line\n\x1b[31m"
        )
    )
    for options in ((), ("-v",), ("--template",), ("--json", "-v")):
        done = run(made, "show", str(path), *options)
        assert done.returncode == 0, done.stderr
        assert not set("\x1b\x07\x9b\u202e") & set(done.stdout)
    text = run(made, "show", str(path), "-v").stdout
    assert "A\\x1b]0;owned\\x07\\x0aB\\u202e" in text
    assert "output_norm.weight" in text and "general.architecture" in text
    assert run(made, "show", str(path), "--template").stdout == "line\n\\x1b[31m\n"
    exact = json.loads(run(made, "show", str(path), "--json", "-v").stdout)
    assert exact["title"] == "A\x1b]0;owned\x07\nB\u202e"
    assert exact["tensors"] == [
        {"name": "output_norm.weight", "type": "F32", "shape": [64], "bytes": 256}
    ]


def test_show_without_template(made: MadeUp, tmp_path: Path) -> None:
    path = tmp_path / "base.gguf"
    path.write_bytes(small_models.gguf(template=None))
    assert "none" in run(made, "show", str(path)).stdout
    done = run(made, "show", str(path), "--template")
    assert done.returncode == 2 and is_error(done.stderr, "no chat template", hint="--raw")


def test_show_of_files_that_are_no_models(made: MadeUp, tmp_path: Path) -> None:
    whole = small_models.gguf()
    for content in (b"", b"GGUF", b"<!DOCTYPE html>", whole[:100], whole[:-40]):
        path = tmp_path / "broken.gguf"
        path.write_bytes(content)
        done = run(made, "show", str(path))
        hint = "GGUF format" if content.startswith(b"<") else "download"
        assert done.returncode == 1 and is_error(done.stderr, "broken.gguf", hint=hint)
    done = run(made, "show", str(tmp_path / "gone.gguf"))
    assert done.returncode == 1 and is_error(done.stderr, "gone.gguf", hint="broken.gguf")


@pytest.mark.parametrize("overwrite", [True, False], ids=["overwritten", "truncated"])
def test_pull_replaces_a_damaged_model(made: MadeUp, overwrite: bool) -> None:
    assert run(made, "pull", "madeup").returncode == 0
    path = made.catalog_folder.parent / "home" / "models" / made.file_name
    cut = len(made.content) - 40
    path.write_bytes(made.content[:cut] + (b"\xff" * 40 if overwrite else b""))
    (row,) = json.loads(run(made, "list", "--json").stdout)
    assert row["state"] == ("ready" if overwrite else "damaged")
    if not overwrite:
        assert run(made, "list").stdout.splitlines()[1].endswith("  damaged")
        shown = run(made, "show", "madeup")
        assert is_error(shown.stderr, "madeup@1k.gguf", hint="localllm pull madeup:1k")

    pulled = run(made, "pull", "madeup")
    assert pulled.returncode == 0, pulled.stderr
    assert "madeup:1k is damaged (the " in pulled.stderr and "fetching it again" in pulled.stderr
    assert pulled.stdout.startswith("madeup:1k is ready: ")
    assert path.read_bytes() == made.content
    assert run(made, "list").stdout.splitlines()[1].endswith("  ready")


def test_damaged_model_stays_when_no_new_one_comes(made: MadeUp) -> None:
    assert run(made, "pull", "madeup").returncode == 0
    path = made.catalog_folder.parent / "home" / "models" / made.file_name
    damaged = bytes(len(made.content))
    path.write_bytes(damaged)
    made.wheels[0].unlink()
    lines = run(made, "pull", "madeup", "--json")
    assert lines.returncode == 1 and is_error(lines.stderr, "madeup")
    assert [json.loads(line)["stage"] for line in lines.stdout.splitlines()][1] == "damaged"
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("name", ["/dev/null", "/dev/zero"])
@pytest.mark.skipif(os.name == "nt", reason="no such files")
def test_a_device_is_not_a_model(made: MadeUp, name: str) -> None:
    done = run(made, "show", name)
    assert done.returncode == 1 and is_error(done.stderr, f"{name} is not a regular file")


def test_missing_part_of_a_split_model(made: MadeUp, tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(small_models.gguf(n_parts=2))
    done = run(made, "show", str(path))
    assert done.returncode == 1
    assert is_error(done.stderr, "m-00002-of-00002.gguf", hint="one folder")


def test_missing_file_is_named_as_typed(made: MadeUp) -> None:
    done = run(made, "show", "./sha256:../../")
    assert is_error(done.stderr, "no file ./sha256:../../\n", hint="localllm list")


def test_empty_name(made: MadeUp) -> None:
    done = run(made, "run", "", "say yes")
    assert done.returncode == 2 and is_error(done.stderr, "the model name is empty")


def test_unusable_instruction_set(made: MadeUp, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    done = run(made, "run", str(path), "--isa=neon", "hi")
    assert done.returncode == 2 and is_error(done.stderr, "neon", hint="localllm doctor")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_model(made: MadeUp, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    path.chmod(0)
    assert is_error(run(made, "show", str(path)).stderr, "m.gguf", "Permission denied")


def test_doctor(made: MadeUp) -> None:
    done = run(made, "doctor")
    assert done.returncode == 0, done.stdout
    for part in ("avx2 (also: scalar)", "avx2 fma", "2: this process may use 4 of ",
                 "cgroup allows 2.5, rounded down", "4.3 GB free of 8.6 GB",
                 "12.5 GB/s read, 346 Gop/s int8",
                 "built from abc1234, arithmetic 1, KV blocks of 32 tokens",
                 "No problems found."):  # fmt: skip
        assert part in done.stdout, done.stdout
    facts = json.loads(run(made, "doctor", "--json").stdout)
    assert facts["engine"]["roofs"]["read_gb_per_s"] == 12.5
    assert facts["files"]["catalogue"] == ["madeup:1k"] and facts["problems"] == []
    facts = json.loads(run(made, "doctor", "--json", "--no-roofs").stdout)
    assert facts["engine"]["roofs"] is None


def test_doctor_counts_a_shared_file_once(made: MadeUp) -> None:
    assert run(made, "pull", "madeup").returncode == 0
    assert run(made, "cp", "madeup:1k", "another").returncode == 0
    files = json.loads(run(made, "doctor", "--json", "--no-roofs").stdout)["files"]
    assert (files["n_models"], files["model_bytes"]) == (2, len(made.content))


def test_doctor_goes_on_where_home_is_a_file(made: MadeUp) -> None:
    home = made.catalog_folder.parent / "home"
    home.write_bytes(b"")
    done = run(made, "doctor", "--json")
    assert done.returncode == 1 and done.stderr == ""
    facts = json.loads(done.stdout)
    assert facts["engine"]["isa"] == "avx2"
    (problem,) = facts["problems"]
    assert str(home) in problem and "LOCALLLM_HOME" in problem


@pytest.mark.parametrize(
    ("file", "data", "what", "advice"),
    [
        ("models.lock.json", b"{", "models.lock.json is damaged", "Repair it, or delete it"),
        ("models.lock.json", b"\xff\xfe", "models.lock.json is damaged", "Repair it, or delete it"),
        ("catalog/x.toml", b"name = 1", "x.toml: name must be", "move it away."),
        ("catalog/x.toml", b"a = " + b"[" * 5000, "cannot read the catalogue", "move it away."),
    ],
)
def test_doctor_says_which_file_is_damaged(
    made: MadeUp, file: str, data: bytes, what: str, advice: str
) -> None:
    """And the commands that look after what is here work all the same."""
    path = made.catalog_folder.parent / "home" / "config" / file
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    done = run(made, "doctor", "--json", "--no-roofs")
    assert (done.returncode, done.stderr) == (1, "")
    (problem,) = json.loads(done.stdout)["problems"]
    assert what in problem and advice in problem and str(path.parent) in problem
    for args in (("list", "--all"), ("gc", "--dry-run")):
        assert run(made, *args).returncode == 0
    gone = run(made, "rm", "-y", "madeup:1k")
    assert gone.returncode == 1 and is_error(gone.stderr, "madeup:1k is not on this machine")
    assert ("note: " in gone.stderr) == file.endswith("toml")


def test_doctor_warns_of_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from types import SimpleNamespace

    from localllm.cli import doctor

    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    for free, expected in ((1 << 30, 0), ((1 << 30) - 1, 1)):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("shutil.disk_usage", lambda folder, usage=usage: usage)
        problems: list[str] = []
        doctor._files(problems)
        assert len(problems) == expected
    assert "only 1.1 GB of disk are free" in problems[0]


def test_doctor_finds_a_broken_engine(made: MadeUp, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "numpy").mkdir(parents=True)
    (broken / "numpy" / "__init__.py").write_text("raise ImportError('numpy is broken')")
    root = os.pathsep.join([str(broken), str(Path(__file__).resolve().parents[2])])
    done = run(made, "doctor", PYTHONPATH=root, TEST_FAKE_SESSION="")
    assert done.returncode == 1
    assert "problem: the engine cannot be loaded: numpy is broken. Reinstall" in done.stdout
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    done = run(made, "run", str(path), "hi", PYTHONPATH=root, TEST_FAKE_SESSION="")
    assert done.returncode == 1
    assert is_error(done.stderr, "cannot be loaded: numpy is broken", hint="localllm doctor")
