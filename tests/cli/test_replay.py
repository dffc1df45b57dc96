"""`replay` as a program: recorded answers given again and compared, and their records kept."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from stand_ins import small_models
from stand_ins.command_line import RUN_CLI, cli, complete, environment, is_error

from localllm.params import GenerateParams
from localllm.store.answers import Answer, Answers, Fingerprint
from localllm.store.digest import full_digest, sampled_digest

FAKE = {"TEST_FAKE_SESSION": "measured_session"}
REASONING, TEXT = "Hmm.", "Because of\nRayleigh. \u00e9\u4f60"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose store has one model, `mine`."""
    models = tmp_path / "models"
    models.mkdir()
    (models / "mine.gguf").write_bytes(small_models.gguf())
    return tmp_path


def record(home: Path, seed: int = 1, **changes: Any) -> Answer:
    """Saves an answer of `mine`: a token for each character."""
    asked = {
        "model_digest": full_digest(home / "models" / "mine.gguf"),
        "engine": "native",
        "arithmetic": 1,
        "kv_type": "q8_0",
        "params": GenerateParams(seed=seed, temperature=0.5).changed(),
        "prompt_ids": (1, 2, 3),
    }
    asked |= {name: changes.pop(name) for name in list(changes) if name in asked}
    fields = {
        "model": "mine",
        "title": "Why is the sky blue?",
        "created": "2026-11-29T18:00:00+00:00",
        "text": TEXT,
        "reasoning": REASONING,
        "finish_reason": "stop",
        "opened": False,
        "raw": False,
    } | changes
    n_tokens = len(fields["reasoning"]) + len(fields["text"])
    answer = Answer(Fingerprint(**asked), token_ids=tuple(range(10, 10 + n_tokens)), **fields)
    Answers(home / "answers").save(answer)
    return answer


def replay(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return cli("replay", *args, home=home, env={**FAKE, **env})


def test_identical(home: Path) -> None:
    answer = record(home)
    for prefix in (answer.id, answer.id[:4]):
        done = replay(home, prefix)
        assert (done.returncode, done.stdout) == (0, TEXT + "\n"), done.stderr
        assert done.stderr == f"identical: {len(answer.token_ids)} tokens\n"


def test_identical_as_json(home: Path) -> None:
    answer = record(home)
    done = replay(home, answer.id, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and done.stderr == ""
    assert found == {
        "id": answer.id, "model": "mine", "path": str(home / "models" / "mine.gguf"),
        "identical": True, "interrupted": False, "difference": None,
        "identical_tokens": len(answer.token_ids), "recorded_tokens": len(answer.token_ids),
        "text": TEXT, "reasoning": REASONING, "finish_reason": "stop",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("how", "said", "shown"),
    [
        ("token 9", "token 9 of 27 is 19, on record is 18; the text before it ends with 'Beca", 5),
        ("token 1", "token 1 of 27 is 11, on record is 10", 0),
        ("text 9", r"the text differs from character 5 on: '\x1b', on record is 'use of", 5),
        ("text 2", r"the reasoning differs from character 2 on: '\x1b', on record is 'mm.'", 0),
        ("long", "the record ends after 27 tokens, this answer goes on with token 77", 24),
        ("short", "this answer ends after 26 tokens (stop), on record are 27", 22),
        ("finish", "it was ended by length, on record is stop", 23),
    ],
)
def test_first_difference(home: Path, how: str, said: str, shown: int) -> None:
    answer = record(home)
    done = replay(home, answer.id, TEST_REPLAY=how)
    assert done.returncode == 1
    assert done.stderr.startswith("different: ") and said in done.stderr, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    plain = done.stdout.replace("\\x1b", "!")
    assert plain == (TEXT + "!")[:shown].replace("u", "!" if how == "text 9" else "u", 1) + (
        "\n" if shown else ""
    )
    found = json.loads(replay(home, answer.id, "--json", TEST_REPLAY=how).stdout)
    assert not found["identical"] and said in found["difference"]


def test_cancelled_answer_replays_to_where_it_was_cancelled(home: Path) -> None:
    answer = record(home, finish_reason="cancelled", text="Beca")
    done = replay(home, answer.id)
    assert (done.returncode, done.stdout) == (0, "Beca\n")
    assert done.stderr == "identical: 8 tokens, up to where it was cancelled\n"


def test_cancelled_before_the_first_token(home: Path) -> None:
    answer = record(home, finish_reason="cancelled", text="", reasoning="")
    done = replay(home, answer.id)
    assert done.returncode == 2 and is_error(done.stderr, "cancelled before its first token")


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c(home: Path) -> None:
    answer = record(home, text="x" * 400)
    child = subprocess.Popen(
        [sys.executable, str(RUN_CLI), "replay", answer.id],
        env=environment(home, **FAKE, TEST_REPLAY="slow"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.read(1) == "x"
    child.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130 and time.monotonic() - began < 25
    assert set(out) == {"x", "\n"}
    assert err.startswith("stopped: ") and "of 404 tokens were given, all identical" in err


def test_model_was_renamed(home: Path) -> None:
    answer = record(home)
    (home / "models" / "mine.gguf").rename(home / "models" / "other@1b.gguf")
    done = replay(home, answer.id)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("note: mine is now other:1b\nidentical: ")


def test_model_given_by_its_path(home: Path, tmp_path: Path) -> None:
    answer = record(home)
    elsewhere = tmp_path / "elsewhere.gguf"
    (home / "models" / "mine.gguf").rename(elsewhere)
    done = replay(home, answer.id, "--model", str(elsewhere))
    assert done.returncode == 0 and done.stderr.startswith("identical: "), done.stderr


def test_sampled_digest(home: Path) -> None:
    path = home / "models" / "mine.gguf"
    answer = record(home, model_digest=sampled_digest(path), model=str(path))
    assert replay(home, answer.id).stderr.startswith("identical: ")
    path.rename(home / "models" / "other.gguf")
    assert replay(home, answer.id).stderr.startswith(f"note: {path} is now other\nidentical: ")


def test_model_is_gone(home: Path) -> None:
    answer = record(home)
    (home / "models" / "mine.gguf").unlink()
    done = replay(home, answer.id)
    assert done.returncode == 1
    assert is_error(done.stderr, "is not on this machine: mine, sha256:", hint="--model")


def test_model_that_can_be_pulled_again(home: Path) -> None:
    made = small_models.make(home / "made")
    (entry,) = made.catalog
    answer = record(home, model="madeup:1k", model_digest=f"sha256:{entry.sha256}")
    (home / "models" / "mine.gguf").write_bytes(small_models.gguf(title="another"))
    done = replay(home, answer.id, TEST_CATALOG=str(made.catalog_folder))
    assert done.returncode == 1 and is_error(done.stderr, hint="localllm pull madeup:1k")


def test_model_has_changed(home: Path) -> None:
    answer = record(home)
    path = home / "models" / "mine.gguf"
    path.write_bytes(small_models.gguf(title="another"))
    for more in ((), ("--model", "mine"), ("--model", str(path))):
        done = replay(home, answer.id, *more)
        assert done.returncode == 2
        assert is_error(done.stderr, answer.fingerprint.model_digest, full_digest(path))


def test_other_arithmetic_says_both_numbers(home: Path) -> None:
    answer = record(home, arithmetic=7)
    done = replay(home, answer.id)
    assert done.returncode == 2
    assert is_error(done.stderr, "arithmetic 7", "arithmetic 1", hint=f"--show {answer.id}")


def test_other_engine(home: Path) -> None:
    answer = record(home, engine="llama.cpp 1", arithmetic=0)
    assert replay(home, answer.id).returncode == 0
    done = replay(home, answer.id, TEST_REPLAY="refuse")
    assert done.returncode == 2 and is_error(done.stderr, "llama.cpp 1, this is 2")
    done = replay(home, answer.id, TEST_ENGINES="native")
    assert done.returncode == 1 and is_error(done.stderr, "not installed", hint="localllm[compat]")


def test_damaged_record(home: Path) -> None:
    answer = record(home)
    path = home / "answers" / f"{answer.id}.json"
    path.write_text("{\x1b")
    done = replay(home, answer.id)
    assert done.returncode == 1
    assert is_error(done.stderr, "is damaged", hint=f"localllm replay --delete {answer.id}")
    assert "\x1b" not in done.stderr
    done = replay(home, "--list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "note: the record " in done.stderr and "is damaged" in done.stderr
    assert replay(home, "--delete", answer.id).stdout == f"{answer.id} deleted\n"
    assert not path.exists()


def test_no_records(home: Path) -> None:
    done = replay(home, "--list")
    assert (done.returncode, done.stdout) == (0, "") and "No answers on record" in done.stderr
    assert replay(home, "--list", "--json").stdout == "[]\n"
    done = replay(home, "abcd")
    assert done.returncode == 2
    assert is_error(done.stderr, "there is no answer abcd", hint="LOCALLLM_NO_RECORDS")
    assert replay(home, "--delete-all", "--yes").stdout == "0 records deleted\n"


@pytest.mark.parametrize("text", ["../../etc/passwd", "abc", "zzzz", "\x1b[31mabcd", "a" * 5000])
def test_ids_that_are_none(home: Path, text: str) -> None:
    record(home)
    for args in ((text,), ("--show", text), ("--delete", text)):
        done = replay(home, *args)
        assert done.returncode == 2 and is_error(done.stderr, "is no id", hint="--list")
        assert "\x1b" not in done.stderr and len(done.stderr) < 400


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "There is no ID"),
        (("--show",), "There is no ID"),
        (("--list", "abcd"), "--list takes no ID"),
        (("--delete-all", "abcd"), "--delete-all takes no ID"),
        (("--list", "--delete-all"), "exclude each other"),
        (("--show", "--delete", "abcd"), "exclude each other"),
    ],
)
def test_wrong_usage_deletes_nothing(home: Path, args: tuple[str, ...], said: str) -> None:
    record(home)
    done = replay(home, *args)
    assert done.returncode == 2 and is_error(done.stderr, said)
    assert len(list((home / "answers").iterdir())) == 1


def test_list(home: Path) -> None:
    answers = [
        record(home, seed=n, title=title)
        for n, title in enumerate(["plain", "\u4f60\u597d", "\x1b]0;owned\x07\u202e two\nlines"])
    ]
    for n, answer in enumerate(answers):
        os.utime(home / "answers" / f"{answer.id}.json", (n, n))
    lines = replay(home, "--list").stdout.splitlines()
    assert lines[0].split() == ["ID", "AGE", "MODEL", "TOKENS", "QUESTION"]
    assert [line.split()[0] for line in lines[1:]] == [a.id for a in reversed(answers)]
    assert r"\x1b]0;owned\x07\u202e two\x0alines" in lines[1]
    assert lines[3].split()[-3:] == ["mine", "27", "plain"] and len(lines) == 4
    rows = json.loads(replay(home, "-l", "--json").stdout)
    assert [row["id"] for row in rows] == [a.id for a in reversed(answers)]
    assert rows[0]["title"] == answers[2].title and rows[0]["tokens"] == 27
    assert set(rows[0]) == {
        "id", "created", "model", "model_digest", "engine", "tokens", "finish_reason", "title",
    }  # fmt: skip


def test_show(home: Path) -> None:
    answer = record(home, text="a \x1b[31mred\x1b[0m word", title="\x1btitle\nx", seed=5)
    done = replay(home, "--show", answer.id[:5])
    assert done.returncode == 0 and "\x1b" not in done.stdout
    assert r"a \x1b[31mred\x1b[0m word" in done.stdout and r"\x1btitle\x0ax" in done.stdout
    assert "temperature 0.5, seed 5" in done.stdout and "native, arithmetic 1" in done.stdout
    document = json.loads(replay(home, "--show", "--json", answer.id).stdout)
    again = {**dataclasses.asdict(answer), "id": answer.id}
    assert document == json.loads(json.dumps(again))


def test_show_of_a_banned_token_is_json(home: Path) -> None:
    params = GenerateParams(logit_bias=((5, float("-inf")),)).changed()
    answer = record(home, params=params)
    out = replay(home, "--show", "--json", answer.id).stdout
    document = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document["fingerprint"]["params"] == {"logit_bias": [[5, "-inf"]]}


def test_delete_all(home: Path) -> None:
    for seed in (1, 2):
        record(home, seed=seed)
    done = replay(home, "--delete-all")
    assert done.returncode == 2 and is_error(done.stderr, "nobody is there", hint="--yes")
    assert len(list((home / "answers").iterdir())) == 2
    assert replay(home, "--delete-all", "-y").stdout == "2 records deleted\n"
    assert list((home / "answers").iterdir()) == []


def test_tab_key_offers_ids(home: Path) -> None:
    one, other = record(home, title="a\nb\x1b"), record(home, seed=2)
    found = complete(home, "localllm replay ", "zsh")
    assert found[:2] in (["plain", one.id], ["plain", other.id])
    assert sorted(found[1::3]) == sorted([one.id, other.id])
    assert r"a\x0ab\x1b" in found
    assert complete(home, f"localllm replay {one.id[:5]}", "bash") == [f"plain,{one.id}"]
