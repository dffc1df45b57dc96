"""`search` and `recommend` as programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from stand_ins import small_models
from stand_ins.command_line import cli, is_error
from stand_ins.hub_server import HubServer, Repo


def test_search_the_catalogue(tmp_path: Path) -> None:
    done = cli("search", "QWEN", "coder", home=tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == "" and lines[0].startswith("NAME")
    assert [line.split()[0] for line in lines[1:3]] == ["qwen2.5-coder:0.5b", "qwen2.5-coder:1.5b"]
    rows = json.loads(cli("search", "--json", home=tmp_path).stdout)
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names)) >= 80 and "smollm2:135m" in names
    assert {tuple(row) for row in rows} == {
        ("name", "description", "architecture", "parameters", "context", "licence", "kind",
         "variants", "repositories", "draft"),
    }  # fmt: skip
    assert len(json.loads(cli("search", "--json", "--limit=3", home=tmp_path).stdout)) == 3


def test_nothing_found(tmp_path: Path) -> None:
    done = cli("search", "\x1b[31mno such", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Nothing in the catalogue matches" in done.stderr and "\x1b" not in done.stderr
    assert json.loads(cli("search", "zzzz", "--json", home=tmp_path).stdout) == []


def test_search_the_hub(tmp_path: Path) -> None:
    repos = {
        "u/Gemma-GGUF": Repo({"a.gguf": b"1", "b.gguf": b"2"}),
        "v/gemma\x1b]0;x": Repo({"a.gguf": b"1"}, gated=True),
    }
    with HubServer(repos) as server:
        env = {"HF_ENDPOINT": server.url, "HF_HUB_CACHE": str(tmp_path), "HF_TOKEN": ""}
        done = cli("search", "--hub", "gemma", home=tmp_path, env=env)
        lines = [line.split() for line in done.stdout.splitlines()]
        assert lines[1] == ["hf.co/u/Gemma-GGUF", "20", "2", "2026-01-01", "open"]
        assert lines[2][0] == r"hf.co/v/gemma\x1b]0;x" and lines[2][-1] == "gated"
        rows = json.loads(cli("search", "--hub", "gemma", "--json", home=tmp_path, env=env).stdout)
        assert rows[0]["name"] == "hf.co/u/Gemma-GGUF" and rows[1]["gated"] is True
        assert all(seen.path == "/api/models" for seen in server.seen)
    gone = cli("search", "--hub", "gemma", home=tmp_path, env=env)
    assert gone.returncode == 1 and is_error(gone.stderr, "cannot be reached", hint="HF_ENDPOINT")
    env["HF_HUB_OFFLINE"] = "1"
    done = cli("search", "--hub", "gemma", home=tmp_path, env=env)
    assert done.returncode == 1 and is_error(done.stderr, "HF_HUB_OFFLINE is set")


def test_search_values(tmp_path: Path) -> None:
    done = cli("search", "--hub", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "needs a word")
    done = cli("search", "x" * 300, home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "300 characters")
    assert cli("search", "--limit=0", home=tmp_path).returncode == 2


def test_recommend(tmp_path: Path) -> None:
    done = cli("recommend", home=tmp_path)  # the fake machine: 4 GiB free, 12.5 GB/s
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:7] == [
        "NAME", "PARAMETERS", "DOWNLOAD", "MEMORY", "TOKENS/S", "SPEED", "IS",
    ]  # fmt: skip
    assert {line.split()[7] for line in lines[1:]} == {"assumed"}, lines
    assert 2 <= len(lines) <= 11
    assert "12.5 GB/s, measured here" in done.stderr and "65% with native" in done.stderr
    found = json.loads(cli("recommend", "--json", home=tmp_path).stdout)
    assert found["usable_bytes"] == int(0.9 * (4 << 30)) and found["read_gb_per_s"] == 12.5
    for model in found["models"]:
        assert model["memory_bytes"] <= found["usable_bytes"] and model["tokens_per_s"] >= 5
        assert model["here"] is False
    assert [model["name"] for model in found["models"]] == [line.split()[0] for line in lines[1:]]


def test_recommend_uses_what_was_measured(tmp_path: Path) -> None:
    """By a bench; only for the file that is here, and as it runs by default."""
    file = tmp_path / "models" / "llama3.2@3b-q4_k_m.gguf"
    file.parent.mkdir()
    file.write_bytes(small_models.gguf())
    env = {"TEST_FAKE_SESSION": "measured_session", "TIMES": ""}
    assert cli("bench", "llama3.2:3b-q4_k_m", home=tmp_path, env=env).returncode == 0
    (kept,) = json.loads((tmp_path / "cache" / "speeds.json").read_text())["models"]
    assert (kept["tokens_per_s"], kept["depth"]) == (pytest.approx(100, 0.1), 1024)
    assert kept["by"] in ("bench", "run")  # how busy this machine is decides
    kept["weight_bytes"] = 2e9  # as if the file were a whole one

    def bases(**changed: object) -> dict[str, str]:
        document = {"version": 1, "models": [{**kept, **changed}]}
        (tmp_path / "cache" / "speeds.json").write_text(json.dumps(document))
        done = cli("recommend", "--json", "--limit=100", home=tmp_path)
        return {m["name"]: m["basis"] for m in json.loads(done.stdout)["models"]}

    mine = bases()
    assert mine["llama3.2:3b-q4_k_m"] == "measured"
    assert "llama3.2:3b-q4_k_m" in set(mine.values())  # of like size
    for other in ({"isa": "scalar"}, {"n_threads": 1}):
        assert set(bases(**other).values()) == {"assumed"}


def test_a_disk_that_is_full_is_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stand_ins import fake_session

    from localllm.cli import recommend
    from localllm.cli.main import main

    monkeypatch.setenv("LOCALLLM_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "localllm.session", fake_session)
    for free, n in ((1 << 40, 2), (1_000_000_000, 1), (1000, 0)):
        monkeypatch.setattr(recommend, "free_disk", lambda folder, free=free: free)
        assert main(["recommend", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["disk_free_bytes"] == free
        assert all(model["weight_bytes"] <= free for model in found["models"])
        assert (len(found["models"]) >= n) if n else not found["models"]
    assert main(["recommend"]) == 0
    assert "tokens, and 1.0 kB of disk are free." in capsys.readouterr().err


def test_recommend_marks_what_is_here(tmp_path: Path) -> None:
    name = json.loads(cli("recommend", "--json", home=tmp_path).stdout)["models"][0]["name"]
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / f"{name.replace(':', '@')}.gguf").write_bytes(b"GGUF")
    models = json.loads(cli("recommend", "--json", home=tmp_path).stdout)["models"]
    assert [model["here"] for model in models][:2] == [True, False]


def test_recommend_with_a_long_context(tmp_path: Path) -> None:
    few = json.loads(cli("recommend", "--json", "--ctx=1048576", home=tmp_path).stdout)["models"]
    assert {model["n_ctx"] for model in few} <= {1 << k for k in range(8, 21)} | {40960}
    one = json.loads(cli("recommend", "--json", "--limit=1", home=tmp_path).stdout)
    assert len(one["models"]) == 1
    assert cli("recommend", "--ctx=1", home=tmp_path).returncode == 2


@pytest.mark.parametrize("args", [("--help",), ("search",), ("list",)])
def test_heavy_libraries_stay_out(tmp_path: Path, args: tuple[str, ...]) -> None:
    """Only what asks the Hub pays for its client, and only what computes for NumPy."""
    done = cli(*args, home=tmp_path, env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "localllm.cli.main" in loaded
    assert not loaded & {"huggingface_hub", "httpx2", "httpx", "numpy", "localllm.native"}
