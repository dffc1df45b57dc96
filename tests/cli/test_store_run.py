"""What a model carries into `run`: a Modelfile's settings, those of other programs' models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_ins import small_models
from stand_ins.command_line import cli, is_error

MODELFILE = """FROM ./m.gguf
SYSTEM You are brief.
PARAMETER temperature 0.25
PARAMETER top_k 7
PARAMETER num_ctx 1999
PARAMETER num_thread 1
MESSAGE user hi
MESSAGE assistant hello
"""


def made(tmp_path: Path, text: str = MODELFILE, **content: Any) -> Path:
    """A home with the model `mine`, made of a Modelfile."""
    (tmp_path / "m.gguf").write_bytes(small_models.gguf(**content))
    (tmp_path / "Modelfile").write_text(text)
    home = tmp_path / "home"
    done = cli("create", "mine", "-f", str(tmp_path / "Modelfile"), home=home)
    assert done.returncode == 0, done.stderr
    return home


def given(home: Path, *args: str, name: str = "mine") -> dict[str, Any]:
    done = cli("run", name, "--json", *args, "go", home=home)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return {
        **json.loads(answer["text"]),
        "n_ctx": answer["n_ctx"],
        "n_threads": answer["n_threads"],
    }


def test_settings_hold_unless_the_command_line_says_otherwise(tmp_path: Path) -> None:
    home = made(tmp_path)
    got = given(home)
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    go = {"role": "user", "content": "go"}
    assert got["messages"] == [{"role": "system", "content": "You are brief."}, *talk, go]
    assert (got["params"]["temperature"], got["params"]["top_k"]) == (0.25, 7)
    assert (got["n_ctx"], got["n_threads"]) == (1999, 1)
    got = given(home, "--system", "Sing.", "--temperature", "1.5", "--ctx", "512", "--threads", "2")
    assert got["messages"] == [{"role": "system", "content": "Sing."}, *talk, go]
    assert (got["params"]["temperature"], got["params"]["top_k"]) == (1.5, 7)
    assert (got["n_ctx"], got["n_threads"]) == (512, 2)
    assert given(home, "--raw")["raw"] == "go"


def test_a_conversation_has_them_too(tmp_path: Path) -> None:
    home = made(tmp_path)
    text = b"go\n/show system\n/show parameters\n/clear\nagain\n"
    text += b'/system ""\n/clear\nbare\n/clear\n/set top_k 9\nx\n'
    done = cli("run", "--plain", "mine", home=home, stdin=text)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    first, again, bare, last = answers
    begin = [m["content"] for m in first["messages"]]
    assert begin == ["You are brief.", "hi", "hello", "go"]
    assert [m["content"] for m in again["messages"]] == ["You are brief.", "hi", "hello", "again"]
    assert [m["content"] for m in bare["messages"]] == ["hi", "hello", "bare"]
    assert (first["params"]["top_k"], last["params"]["top_k"]) == (7, 9)
    assert "You are brief." in lines
    assert "temperature            0.25  (set by the model)" in lines


@pytest.mark.parametrize(
    ("template", "own"), [("{{ messages }} mine", None), ("{{ .Prompt }}<|im_end|>", "file's")]
)
def test_the_template_goes_to_the_session(tmp_path: Path, template: str, own: str | None) -> None:
    home = made(tmp_path, f'FROM ./m.gguf\nTEMPLATE """{template}"""\n', template=own)
    assert given(home)["opened"]["beside"] == template
    assert "beside" not in given(home, "--raw")["opened"]


def test_when_it_was_used_is_noted(tmp_path: Path) -> None:
    home = made(tmp_path)
    (row,) = json.loads(cli("list", "--json", home=home).stdout)
    assert row["used"] is None
    given(home)
    (row,) = json.loads(cli("list", "--json", home=home).stdout)
    assert row["used"] is not None
    assert " just now " in cli("list", home=home).stdout


def test_a_model_of_ollama_runs_where_it_lies(tmp_path: Path) -> None:
    data, store = small_models.gguf(), tmp_path / "ollama"
    rows = []
    for role, content in (("model", data), ("system", b"Be kind."), ("params", b'{"top_k": 5}')):
        sha256 = hashlib.sha256(content).hexdigest()
        (store / "blobs").mkdir(parents=True, exist_ok=True)
        (store / "blobs" / f"sha256-{sha256}").write_bytes(content)
        kind = f"application/vnd.ollama.image.{role}"
        rows.append({"mediaType": kind, "digest": f"sha256:{sha256}", "size": len(content)})
    place = store / "manifests/registry.ollama.ai/library/tiny/1b"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"layers": rows}))
    env = {"OLLAMA_MODELS": str(store)}
    home = tmp_path / "home"

    listed = cli("list", home=home, env=env).stdout.splitlines()
    assert listed[1].split()[0] == "ollama/tiny:1b" and " Ollama " in listed[1]
    done = cli("run", "ollama/tiny:1b", "go", home=home, env=env)
    got = json.loads(done.stdout)
    assert got["messages"][0] == {"role": "system", "content": "Be kind."}
    assert got["params"]["top_k"] == 5
    assert not (home / "models").exists()
    gone = cli("rm", "-y", "ollama/tiny:1b", home=home, env=env)
    assert gone.returncode == 2 and is_error(gone.stderr, "belongs to Ollama", hint="Ollama itself")

    assert cli("cp", "ollama/tiny:1b", "mine", home=home, env=env).returncode == 0
    assert json.loads(cli("run", "mine", "go", home=home).stdout)["params"]["top_k"] == 5
    assert cli("rm", "-y", "mine", home=home, env=env).returncode == 0
    assert len(list((store / "blobs").iterdir())) == 3


def test_with_the_real_engine(tmp_path: Path, tiny: Callable[[str, str], Path]) -> None:
    """Templates in Go: of a family, and of none; and where the file has one of its own."""
    model, home = tiny("llama", "Q4_0"), tmp_path / "home"
    real = {"TEST_FAKE_SESSION": ""}

    def create(name: str, template: str) -> None:
        text = f'FROM {model}\nTEMPLATE """{template}"""\nPARAMETER num_ctx 128\n'
        done = cli("create", name, "-f", "-", home=home, stdin=text.encode())
        assert done.returncode == 0, done.stderr

    def run(name: str, *args: str) -> Any:
        return cli("run", name, "--max-tokens", "2", *args, "hi", home=home, env=real)

    create("jinja", "{{ messages[0].content }}!")
    assert run("jinja").returncode == 0
    shown = cli("show", "jinja", "--template", home=home, env=real)
    assert shown.stdout == "{{ messages[0].content }}!\n"
    has_own = "tokenizer.chat_template" in cli("show", str(model), "-v", home=home).stdout
    create("go", "{{ .Prompt }} of nobody's family")
    assert run("go", "--template", "chatml").returncode == 0  # what is asked for holds
    done = run("go")
    if has_own:
        assert done.returncode == 0 and "Go" not in done.stderr
    else:
        assert done.returncode == 1 and is_error(done.stderr, "in Go", hint="--template")
        assert "loading" not in done.stderr
        shown = cli("show", "go", "--template", home=home, env=real)
        assert shown.stdout == "{{ .Prompt }} of nobody's family\n"
        create("chatml", "<|im_start|>{{ .Prompt }}<|im_end|>")
        done = run("chatml")
        assert done.returncode == 0 and "that of the chatml family" in done.stderr
