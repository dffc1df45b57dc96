"""`pull` from a Hub, a registry and a share on this machine, what follows it, and hostile names."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins import oci_registry, small_models
from stand_ins.command_line import RUN_CLI, cli, environment, is_error
from stand_ins.hub_server import HubServer, Repo
from stand_ins.oci_registry import OciRegistry

from localllm.store.index import Store
from localllm.store.record import Record
from localllm.store.ref import Ref
from localllm.store.settings import Settings

CATALOG = """name = "teeny"
description = "made up"
architecture = "llama"
licence = "CC0"
context = 2048
[[size]]
size = "1k"
default = true
parameters = 64
[size.variants]
instruct = ["me/Teeny-GGUF"]
"""


@contextlib.contextmanager
def a_hub(files: dict[str, bytes]) -> Iterator[tuple[HubServer, dict[str, str]]]:
    with HubServer({"me/Teeny-GGUF": Repo(files)}) as hub:
        yield hub, {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": os.devnull, "HF_TOKEN_PATH": os.devnull}


def ok(home: Path, *args: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = cli(*args, home=home, env=env)
    assert done.returncode == 0, done.stderr
    return done


def test_a_plan_of_what_is_not_here(tmp_path: Path, tiny: Callable[[str, str], Path]) -> None:
    data, home = tiny("llama", "Q4_0").read_bytes(), tmp_path / "home"
    with a_hub({"Teeny-Q4_0.gguf": data}) as (hub, env):
        env["TEST_FAKE_SESSION"] = ""
        far = ok(home, "plan", "me/Teeny-GGUF:Q4_0", "--json", env=env)
        assert not list(home.rglob("*.gguf"))
        ok(home, "pull", "me/Teeny-GGUF:Q4_0", env=env)
        n_seen = len(hub.seen)
        near = ok(home, "plan", "me/Teeny-GGUF:Q4_0", "--json", env=env)
        assert len(hub.seen) == n_seen
    here, there = json.loads(near.stdout), json.loads(far.stdout)
    assert there["model"] == here["model"] and there["plans"] != []
    for plan, other in zip(here["plans"], there["plans"], strict=True):
        assert {**plan, "fits": 0} == {**other, "fits": 0}
    env["HF_HUB_OFFLINE"] = "1"
    away = cli("plan", "me/Teeny-GGUF:Q4_0", home=tmp_path / "other", env=env)
    assert away.returncode == 1 and is_error(away.stderr, "HF_HUB_OFFLINE")


def test_from_a_hub_to_an_answer(tmp_path: Path, tiny: Callable[[str, str], Path]) -> None:
    data, home = tiny("llama", "Q4_0").read_bytes(), tmp_path / "home"
    with a_hub({"Teeny-Q4_0.gguf": data, "Teeny-Q8_0.gguf": data + b"\0"}) as (hub, env):
        env["TEST_FAKE_SESSION"] = ""
        pulled = ok(home, "pull", "me/Teeny-GGUF:Q4_0", env=env)
        assert pulled.stdout.startswith("hf.co/me/teeny-gguf:q4_0 is ready: ")
        place = home / "models" / "hf.co" / "me" / "teeny-gguf@q4_0.gguf"
        assert place.read_bytes() == data
        n_seen = len(hub.seen)
        done = ok(home, "run", "me/Teeny-GGUF:Q4_0", "--max-tokens", "3", "hi", env=env)
        assert len(hub.seen) == n_seen  # nothing is asked of anybody
        assert done.returncode == 0
        assert ok(home, "verify", env=env).stdout == "hf.co/me/teeny-gguf:q4_0: ok\n"
        (row,) = json.loads(ok(home, "list", "--json", env=env).stdout)
        assert (row["source"], row["quantization"]) == ("me/Teeny-GGUF", "Q4_0") and row["used"]

        assert "as its source has it" in ok(home, "outdated", env=env).stderr
        assert "as its source has it" in ok(home, "pull", "--all", env=env).stderr
        own = home / "models" / "own.gguf"
        own.write_bytes(data)
        said = ok(home, "pull", "--all", env=env).stderr
        assert "1 are as their source has them, 1 have no source" in said
        hub.broken["/api"] = 500
        failed = cli("pull", "--all", home=home, env=env)
        assert failed.returncode == 1
        assert is_error(failed.stderr, "no model here could be asked about", hint="outdated")
        hub.broken.clear()
        own.unlink()
        newer = small_models.gguf()
        hub.repos["me/Teeny-GGUF"].files["Teeny-Q4_0.gguf"] = newer
        assert "another file" in ok(home, "outdated", env=env).stdout
        (row,) = json.loads(ok(home, "outdated", "--json", env=env).stdout)
        assert row["name"] == "hf.co/me/teeny-gguf:q4_0" and row["news"]
        assert place.read_bytes() == data
        ok(home, "pull", "--all", env=env)
        assert place.read_bytes() == newer
        hub.broken["/api"] = 503
    (row,) = json.loads(ok(home, "outdated", "--json", env=env).stdout)
    assert row["error"] and not row["news"]


def test_a_name_of_the_users_catalogue(tmp_path: Path) -> None:
    home, data = tmp_path / "home", small_models.gguf()
    folder = home / "config" / "catalog"
    folder.mkdir(parents=True)
    (folder / "teeny.toml").write_text(CATALOG)
    with a_hub({"Teeny-Q4_K_M.gguf": data, "Teeny-Q8_0.gguf": data + b"\0"}) as (_, env):
        done = ok(home, "pull", "teeny", env=env)
        assert "me/Teeny-GGUF" in done.stderr
        assert done.stdout.startswith("teeny:1k-q4_k_m is ready: ")
        for name in ("teeny", "teeny:1k", "teeny:1k-Q4_K_M", "TEENY:1K-q4_K_m"):
            assert cli("run", name, "say yes", home=home, env=env).stdout == "yes\n"
        ok(home, "pull", "teeny:1k-q8_0", env=env)
        text = b"FROM me/Teeny-GGUF:Q8_0\nSYSTEM Be brief.\n"
        made = cli("create", "mine", "-f", "-", home=home, env=env, stdin=text)
        assert made.returncode == 0 and "hf.co/me/teeny-gguf:q8_0" in made.stderr, made.stderr
        answer = json.loads(ok(home, "run", "mine", "go", env=env).stdout)
        assert answer["messages"][0] == {"role": "system", "content": "Be brief."}
        ok(home, "rm", "-y", "hf.co/me/teeny-gguf:q8_0", env=env)
        assert cli("run", "mine", "say yes", home=home, env=env).stdout == "yes\n"
        ok(home, "rm", "-y", "mine", env=env)
        assert ok(home, "rm", "-y", "teeny:1k", env=env).stdout.startswith(
            "teeny:1k-q4_k_m deleted"
        )
        assert [r["name"] for r in json.loads(ok(home, "list", "--json", env=env).stdout)] == [
            "teeny:1k-q8_0"
        ]


@pytest.mark.skipif(os.name == "nt", reason="kill -9")
def test_killed_in_the_middle(tmp_path: Path) -> None:
    data = small_models.gguf(n_floats=24 << 18)  # 24 MB
    home = tmp_path / "home"
    with a_hub({"Teeny-Q4_0.gguf": data}) as (_, env):
        command = [sys.executable, str(RUN_CLI), "pull", "me/Teeny-GGUF:Q4_0", "--json"]
        for sent in (signal.SIGKILL, signal.SIGINT):
            child = subprocess.Popen(
                command, env=environment(home, **env), stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert child.stdout is not None
            for line in child.stdout:
                if json.loads(line).get("bytes", 0) > 0:
                    break
            child.send_signal(sent)
            last = child.communicate()[0].splitlines()[-1:]
            if child.returncode == 0:
                pytest.skip("this machine was faster than the signal")
            assert sent == signal.SIGKILL or json.loads(last[0])["stage"] == "interrupted"
        assert not list((home / "models").rglob("*.gguf"))
        (row,) = json.loads(ok(home, "list", "--json", env=env).stdout)
        assert row["name"] == "hf.co/me/teeny-gguf:q4_0" and row["state"] == "partial"
        ok(home, "pull", "me/Teeny-GGUF:Q4_0", env=env)
        assert (home / "models/hf.co/me/teeny-gguf@q4_0.gguf").read_bytes() == data
        (row,) = json.loads(ok(home, "list", "--json", env=env).stdout)
        assert row["state"] == "ready"


def test_json_ends_with_a_failure(tmp_path: Path) -> None:
    with a_hub({"Teeny-Q4_0.gguf": small_models.gguf()}) as (_, env):
        done = cli("pull", "me/Teeny-GGUF:Q8_0", "--json", home=tmp_path, env=env)
        assert done.returncode == 1 and is_error(done.stderr, "has no Q8_0")
        last = json.loads(done.stdout.splitlines()[-1])
        assert (last["stage"], last["names"]) == ("failed", ["me/Teeny-GGUF:Q8_0"])
        assert "has no Q8_0, only Q4_0" in last["error"] and last["hint"] and last["exit_code"] == 1
        done = cli("pull", "--json", home=tmp_path, env=env)
        assert json.loads(done.stdout)["error"] == "no model was named"


@pytest.mark.skipif(not oci_registry.is_here(), reason="docker-registry is not installed")
def test_from_a_registry(tmp_path: Path) -> None:
    kind, home = "application/vnd.ollama.image.", tmp_path / "home"
    evil = b"Be kind.\x1b]0;x\x07"
    layers = [
        (f"{kind}model", small_models.gguf()),
        (f"{kind}system", evil),
        (f"{kind}license", b"Licence \x9b31m"),
        (f"{kind}params", b'{"top_k": 4}'),
        (f"{kind}template", b"<|im_start|>{{ .Prompt }}<|im_end|>"),
    ]
    folder = tmp_path / "registry"
    folder.mkdir()
    with OciRegistry(folder) as registry:
        registry.push("library/tiny", "1b", layers)
        name = f"{registry.address}/library/tiny:1b"
        ok(home, "pull", name, env={})
    answer = json.loads(ok(home, "run", name, "go", env={}).stdout)
    assert answer["messages"][0] == {"role": "system", "content": evil.decode()}
    assert answer["params"]["top_k"] == 4
    for option in ("--license", "--system", "--modelfile"):
        assert not set("\x1b\x07\x9b") & set(ok(home, "show", name, option, env={}).stdout)


@contextlib.contextmanager
def sharing(home: Path, *args: str) -> Iterator[tuple[str, list[str]]]:
    """The address of a share, and the lines that it has said at its end."""
    child = subprocess.Popen(
        [sys.executable, str(RUN_CLI), "share", "--port", "0", *args],
        env=environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert child.stderr is not None
    said = [child.stderr.readline()]
    match = re.search(r"http://[0-9.]+:[0-9]+", said[0])
    assert match is not None, said
    try:
        yield match[0], said
    finally:
        child.send_signal(signal.SIGINT)
        said += child.communicate(timeout=30)[1].splitlines()
    assert child.returncode == 0, said


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_from_a_share(tmp_path: Path) -> None:
    theirs, ours, data = tmp_path / "theirs", tmp_path / "ours", small_models.gguf(template=None)
    (theirs / "models").mkdir(parents=True)
    for name in ("a", "b"):
        (theirs / "models" / f"{name}.gguf").write_bytes(data)
    settings = Settings(template="{{ .Prompt }} of nobody's family")
    Store(theirs / "models").record(
        Ref("a"), Record(size=len(data), sha256="", source="x", added="x", settings=settings)
    )
    with sharing(theirs, "a") as (address, said):
        assert f"localllm pull {address}/a\n" in said[0]
        done = ok(ours, "pull", f"{address}/a", env={})
        assert done.stdout.startswith("a is ready: ")
        assert "note: the model's template is in Go" in done.stderr and "--template" in done.stderr
        lines = ok(ours, "pull", f"{address}/a", "--json", env={}).stdout.splitlines()
        assert "is in Go" in json.loads(lines[-1])["notes"][0]
        done = cli("pull", f"{address}/b", home=ours)
        assert done.returncode == 1 and is_error(done.stderr, "shares no model called b")
    assert (ours / "models" / "a.gguf").read_bytes() == data
    assert f"Ended. {len(data)} B were sent." in said[-1] or "Ended." in "".join(said)
    key = tmp_path / "key"
    key.write_text("a-long-random-key\n")
    with sharing(theirs, "--api-key", f"@{key}") as (address, _):
        done = cli("pull", f"{address}/b", home=ours)
        assert done.returncode == 1 and is_error(done.stderr, "key", hint="LOCALLLM_API_KEY")
        variable = {"LOCALLLM_API_KEY": f"{address.partition('://')[2]}=a-long-random-key"}
        ok(ours, "pull", f"{address}/b", env=variable)
        ok(ours, "rm", "--yes", "b", env={})
        ok(ours, "pull", f"{address}/b", "--api-key", f"@{key}", env={})
        two = (f"{address}/b", "http://127.0.0.1:9/a")
        done = cli("pull", *two, "--api-key", "12345678", home=ours)
        assert done.returncode == 2 and is_error(done.stderr, "one share, and the names are of 2")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--host", "0.0.0.0"), "--api-key"),
        (("--host", "192.168.1.1"), "--api-key"),
        (("--host", "::"), "--api-key"),
        (("--api-key", "short"), "the key has 5 characters"),
        (("--api-key", "with a space"), "the key has 12 characters"),
        (("--api-key", "@/nowhere/key"), "/nowhere/key"),
        (("nobody",), "nobody"),
        (("--port", "65536"), "65536"),
    ],
)
def test_shares_that_are_refused(tmp_path: Path, args: tuple[str, ...], why: str) -> None:
    done = cli("share", *args, home=tmp_path)
    assert done.returncode in (1, 2) and is_error(done.stderr, why)


def test_hostile_repositories_reach_the_screen_escaped(tmp_path: Path) -> None:
    evil = "\x1b]0;x\x07\u202e"
    card: dict[str, Any] = {"license": f"mit{evil}"}
    data = small_models.gguf()
    with HubServer({"me/Teeny-GGUF": Repo({f"Teeny{evil}-Q4_0.gguf": data}, card=card)}) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": os.devnull}
        done = cli("pull", "me/Teeny-GGUF", home=tmp_path, env=env)
        listed = cli("list", home=tmp_path, env=env)
        found = cli("search", "--hub", "teeny", home=tmp_path, env=env)
    for each in (done, listed, found):
        assert not set("\x1b\x07\u202e") & set(each.stdout + each.stderr)
        assert "Traceback" not in each.stderr
    for path in (tmp_path / "models").rglob("*"):
        assert path.name.isascii() and path.name.isprintable()


def test_whether_it_will_run_is_told_before(tmp_path: Path) -> None:
    for architecture, said in (
        ("alienarch", "no engine here knows its architecture, alienarch"),
        ("granitehybrid", "its architecture, granitehybrid, runs with llama.cpp"),
    ):
        data, home = small_models.gguf(architecture=architecture), tmp_path / architecture
        with a_hub({"Teeny-Q4_0.gguf": data}) as (_, env):
            env["TEST_FAKE_SESSION"] = "1"
            plan = ok(home, "plan", "me/Teeny-GGUF:Q4_0", env=env)
            assert architecture in plan.stdout and "An estimate" in plan.stdout
            done = ok(home, "pull", "me/Teeny-GGUF:Q4_0", env=env)
            assert said in done.stderr
            assert ("enough to run it (about " in done.stderr) and "tokens)" in done.stderr


def test_a_plan_of_the_package_index(tmp_path: Path) -> None:
    env = {"TEST_FAKE_SESSION": ""}
    plan = json.loads(ok(tmp_path, "plan", "smollm2:135m", "--json", env=env).stdout)
    assert plan["estimate"] and plan["chosen"]["weight_bytes"] == 98362432
    assert plan["plans"][0]["kv_bytes"] == 2 * 30 * 3 * 64 * 2 * 2048


def test_errors_of_a_plan_name_the_model(tmp_path: Path) -> None:
    with a_hub({"Teeny-Q4_0.gguf": b"GGUF" + b"\xff" * 5000}) as (_, env):
        env["TEST_FAKE_SESSION"] = ""
        done = cli("plan", "me/Teeny-GGUF:Q4_0", home=tmp_path, env=env)
        assert done.returncode == 1 and "localllm-plan-" not in done.stderr
        assert is_error(done.stderr, "hf.co/me/teeny-gguf:q4_0: GGUF version 4294967295")


def test_a_damaged_record_is_mended_by_a_pull(tmp_path: Path) -> None:
    name, data = "me/Teeny-GGUF:Q4_0", small_models.gguf()
    with a_hub({"Teeny-Q4_0.gguf": data}) as (_, env):
        ok(tmp_path, "pull", name, env=env)
        folder = tmp_path / "models" / "hf.co" / "me"
        file, record = folder / "teeny-gguf@q4_0.gguf", folder / "teeny-gguf@q4_0.json"
        record.write_text("")
        done = cli("verify", name, home=tmp_path, env=env)
        assert done.returncode == 1 and "as models.lock.json has it" in done.stdout, done.stdout
        file.write_bytes(data[:-1] + b"\xff")
        for _ in range(2):
            done = cli("verify", name, home=tmp_path, env=env)
            assert done.returncode == 1 and "in models.lock.json is" in done.stdout, done.stdout
        ok(tmp_path, "pull", name, env=env)
        assert file.read_bytes() == data and json.loads(record.read_text())["kind"] == "hub"
        assert ok(tmp_path, "verify", name, env=env).stdout.endswith(": ok\n")
