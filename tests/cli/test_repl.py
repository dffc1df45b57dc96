"""The prompt that stays open: its commands, on a terminal whose screen is looked at."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from stand_ins import small_models

pytest.importorskip("pexpect")
pytest.importorskip("pyte")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")

from stand_ins.terminal_screen import Terminal  # noqa: E402


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    return str(path)


def given(raw: str) -> dict[str, object]:
    """What the fake session was given, as it repeats it."""
    found = json.loads(raw[raw.index("{") : raw.rindex("}") + 1])
    assert isinstance(found, dict)
    return found


def test_a_conversation(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model, columns=200) as t:
        t.until("/help lists the commands")
        assert "hi\r\n" in t.enter("say hi")
        turn = given(t.enter("and now?"))
        assert turn["messages"] == [
            {"role": "user", "content": "say hi"},
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": "and now?"},
        ]
        assert re.search(r"8 of 16 prompt tokens from cache, first token 0\.5 s", t.text)
        assert "16.0 tok/s" not in t.text  # one token has no speed
        assert re.search(r"10 prompt tokens|of \d+ prompt.*, 10 tok/s", t.enter("count 21"))
        t.enter("/clear")
        # Nothing from cache: that was forgotten too.
        assert "\x1b[2m6 prompt tokens, first token" in t.enter("say hi")
        assert len(given(t.enter("new"))["messages"]) == 3  # type: ignore[arg-type]
        assert "\x1b[6n" not in t.raw  # a terminal that does not answer makes no one wait
        t.until_prompt()
        t.type("/bye\r")
        assert t.finish() == 0
    records = list((tmp_path / "answers").iterdir())
    assert len(records) == 5


def test_set_and_show(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", "--top-k=7", model, lines=60) as t:
        t.enter("/set parameter temperature 0.25")
        t.enter("/set seed 99")
        t.enter('/set stop "a b" "c"')
        t.enter('/set system "Be brief."')
        t.enter("/set nothink")
        turn = given(t.enter("x"))
        assert turn["params"] == {
            "temperature": 0.25, "seed": 99, "stop": ["a b", "c"], "top_k": 7,
        }  # fmt: skip
        assert turn["messages"][0] == {"role": "system", "content": "Be brief."}  # type: ignore[index]
        assert turn["think"] is False
        t.enter("/set seed default")
        assert given(t.enter("x"))["seed"] != given(t.enter("x"))["seed"]
        assert "out of range" in t.enter("/set top-k -1") and "from 0 to 2147483647" in t.text
        assert "Did you mean top_k?" in t.enter("/set topk 1")
        assert "--ctx" in t.enter("/set num_ctx 4096")
        assert "top_k is 7" in t.enter("/set top_k")
        t.enter("/set num_predict 12")
        shown = t.enter("/show parameters")
        assert re.search(r"max_tokens +12  \(set\)", shown) and re.search(r"top_p +0\.95\r", shown)
        assert "Be brief." in t.enter("/show system")
        assert "llama" in t.enter("/show info") and "native, 2 threads" in t.text
        assert "CC0" in t.enter("/show license")
        assert "{{ messages }}" in t.enter("/show template")
        assert f"FROM {Path(model).absolute()}" in t.enter("/show modelfile")
        assert "There is: info, license, modelfile" in t.enter("/show files")
        t.enter("/set verbose")
        assert "ended by stop" in t.enter("say x") and "localllm replay " in t.text
        t.enter("/set quiet")
        assert "ended by stop" not in t.enter("say x")
        t.enter("/system Long.")
        assert given(t.enter("x"))["messages"][0]["content"] == "Long."  # type: ignore[index]
        t.enter('/system ""')
        assert given(t.enter("x"))["messages"][0]["role"] == "user"  # type: ignore[index]


def test_recommended_parameters(model: str, tmp_path: Path) -> None:
    env = {"TEST_RECOMMENDED": '{"temperature": 0.6}'}
    with Terminal(tmp_path, "run", "--seed=1", model, columns=120, **env) as t:
        assert "temperature is 0.6  (recommended by the model's file)" in t.enter(
            "/set temperature"
        )
        assert given(t.enter("x"))["params"] == {"temperature": 0.6, "seed": 1}
        t.enter("/set temperature 0.8")  # the usual default, but asked for
        assert given(t.enter("x"))["temperature"] == 0.8
        t.enter("/set temperature default")
        assert given(t.enter("x"))["temperature"] == 0.6


def test_help_and_unknown_commands(model: str, tmp_path: Path) -> None:
    from localllm.cli.repl.commands import COMMANDS

    with Terminal(tmp_path, "run", model, lines=60) as t:
        shown = t.enter("/?")
        assert all(f"/{name}" in shown and row.help in shown for name, row in COMMANDS.items())
        assert "/set temperature 0.2" in t.enter("/help set")
        assert "Did you mean /regenerate?" in t.enter("/regenrate")
        assert "/help lists the commands" in t.enter("/zzzzzzz")
        assert "Did you mean" not in t.enter("/usr/bin is a folder")  # no command: a question
        assert given(t.raw[t.raw.rindex('{"messages') :])["messages"][-1] == {  # type: ignore[index]
            "role": "user", "content": "/usr/bin is a folder",
        }  # fmt: skip


def test_regenerate_and_stats(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", "--seed=5", model) as t:
        assert "nothing" in t.enter("/regenerate") or "no question" in t.text
        assert "no answer yet" in t.enter("/stats")
        assert given(t.enter("hi"))["seed"] == 5
        again = given(t.enter("/regenerate"))
        assert again["seed"] != 5 and len(again["messages"]) == 1  # type: ignore[arg-type]
        assert given(t.enter("/regenerate 77"))["seed"] == 77
        assert "no whole number" in t.enter("/regenerate x")
        assert given(t.enter("hi"))["seed"] == 5
        stats = t.enter("/stats")
        assert re.search(r"answers +4 in 10\.0 s", stats)
        assert re.search(r"context +[\d,]+ of 2,048 tokens in use", stats)


def test_reasoning_is_folded(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model) as t:
        raw = t.enter("think 300")
        assert re.search("\r\x1b\\[Kthinking… [\\d,]+ tokens  ", raw)  # live
        assert re.search(r"thought for 0\.\d s, 300 tokens \(/think show\)", raw)
        assert "thought299" not in raw.rsplit("\x1b[K", 1)[1]  # nothing of it is left
        assert "thinking…" not in t.text
        assert "thought0 thought1 " in t.enter("/think show").replace("\r\n", " ")
        raw = t.enter("think 3")
        assert "\x1b[2mthought0 \x1b[0m" in raw and "thinking…" not in raw
        assert "hidden" in t.enter("/think hide")
        assert "thought" not in t.enter("think 3")
        t.enter("/think fold")
        assert "thought for" in t.enter("think 3")
        for how, value in (("low", "low"), ("on", True), ("off", False)):
            t.enter(f"/think {how}")
            assert given(t.enter("x"))["think"] == value
        assert "It can be on, off" in t.enter("/think hard")
        turn = given(t.enter("x"))  # reasoning goes back with its answer
        reasoned = [m for m in turn["messages"] if "reasoning_content" in m]  # type: ignore[attr-defined]
        assert reasoned[0]["reasoning_content"].startswith("thought0 thought1")


def test_multi_line(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model) as t:
        t.until_prompt()
        for line in ('"""first', "/bye", "third"):
            t.type(line + "\r")
            t.until(line)
        turn = given(t.enter('last"""'))
        assert turn["messages"][-1]["content"] == "first\n/bye\nthird\nlast"  # type: ignore[index]
        turn = given(t.enter("one\x1b\rtwo"))  # Alt-Enter
        assert turn["messages"][-1]["content"] == "one\ntwo"  # type: ignore[index]
        t.until_prompt()
        t.type('/set system """be\r')
        t.until("... ")
        t.enter('kind"""')
        assert given(t.enter("x"))["messages"][0]["content"] == "be\nkind"  # type: ignore[index]


def test_failures_keep_the_text(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", "--ctx=30", model) as t:
        for words, error in (
            ("fail", "the fake failed"),
            ("crash", "internal error: RuntimeError: a fault of ours"),
            ("refuse", "the template refused the messages: \\x1b[2J\\u202e"),
            ("a" * 31, "the prompt has 31 tokens and the context holds 30"),
            ("read @nothere.txt", "there is no file nothere.txt"),
        ):
            assert error in t.enter(words)
            assert t.screen.display[t.screen.cursor.y].rstrip() == ">>>"
            t.type("\x1b[A")
            t.until(f">>> {words}")
            t.enter("\x15")  # Ctrl-U: away with it
        assert t.text.count("The text is kept: Up brings it back, /edit too.") == 1
        assert given(t.enter("hi"))["messages"] == [{"role": "user", "content": "hi"}]
        t.enter("/clear")
        assert "stays as it is" in t.enter("\x1b[A\x1b[A stays as it is") or "hi" in t.text


def test_pictures(model: str, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG\0")
    with Terminal(tmp_path, "run", model, cwd=tmp_path) as t:
        assert "the native engine cannot look at" in t.enter("what is @cat.png")
        assert "The text is kept: Up brings it back" in t.text
    with Terminal(tmp_path, "run", "--engine=llama.cpp", model, cwd=tmp_path) as t:
        assert given(t.enter("what is @cat.png?"))["messages"] == [
            {"role": "user", "content": "what is cat.png?", "images": [str(tmp_path / "cat.png")]}
        ]
        assert "attached cat.png (5 B)" in t.text
        assert "images" in given(t.enter("and why?"))["messages"][0]  # type: ignore[index]


def test_full_context_and_notes(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model, TEST_NOTICE="running it with llama.cpp") as t:
        t.until("note: running it with llama.cpp")
        assert "the context of 2,048 tokens is full: /clear" in t.enter("full")
        assert "note: repaired" in t.enter("note repaired")
        assert "note: repaired" not in t.enter("note repaired").replace("note repaired\r\n", "", 1)


def test_a_conversation_that_fills_the_context(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", "--ctx=30", model, columns=200) as t:
        assert "shorten the prompt" in t.enter("x" * 40)  # a text too long by itself
        t.enter("say " + "y" * 16)
        raw = t.enter("And now?")
        assert "the context holds 30" in raw and "/clear begins a new conversation" in raw
        assert "/regenerate" in raw and "shorten" not in raw
        t.enter("/clear")
        assert "z\r\n" in t.enter("say z")


def test_save_and_load(model: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with Terminal(tmp_path, "run", model, cwd=work) as t:
        t.enter("/system Be brief.")
        t.enter("/set temperature 0.5")
        t.enter("reason because|so")
        assert "saved 2 messages" in t.enter("/save talk")
        t.enter("/save talk.md")
        t.enter("/save ./talk.json")
        assert "cannot be the name" in t.enter("/save ..")
        assert "needs a name" in t.enter("/save")
        (work / "other.json").write_text("mine")
        assert "is there already" in t.enter("/save ./other.json")
        assert (work / "other.json").read_text() == "mine"
    folder = tmp_path / "conversations"
    file = folder / "talk.json"
    assert folder.stat().st_mode & 0o777 == 0o700 and file.stat().st_mode & 0o777 == 0o600
    assert file.read_bytes()[:60] and json.loads(file.read_text())["model"] == model
    assert (work / "talk.json").stat().st_mode & 0o777 == 0o600
    text = (folder / "talk.md").read_text()
    assert "## Question\n\nreason because|so\n\n## Answer\n\n> *Reasoning*\n>\n> because" in text
    other = tmp_path / "n.gguf"
    other.write_bytes(small_models.gguf())
    with Terminal(tmp_path, "run", str(other), cwd=work, columns=300) as t:
        assert f"2 messages of talk, held with {model}" in t.enter("/load talk")
        turn = given(t.enter("more"))
        assert turn["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "reason because|so"},
            {"role": "assistant", "content": "so", "reasoning_content": "because"},
            {"role": "user", "content": "more"},
        ]
        assert turn["temperature"] == 0.5
        assert given(t.enter("/load ./talk.json") + t.enter("x"))["messages"][-1] == {  # type: ignore[index]
            "role": "user", "content": "x",
        }  # fmt: skip
        file.write_text('{"version": 1, "messages": [{"role": "banana"}]}')
        assert "is not a conversation, or damaged" in t.enter("/load talk")
        assert "no model called nosuch" in t.enter("/load nosuch")
        assert given(t.enter("y"))["messages"][-1]["content"] == "y"  # type: ignore[index]


def test_options_win_over_a_conversation(model: str, tmp_path: Path) -> None:
    with Terminal(tmp_path, "run", model) as t:
        for line in ("/set temperature 0.5", "/set top_k 7", "/system Old.", "/think low", "say x"):
            t.enter(line)
        t.enter("/save talk")
    with Terminal(tmp_path, "run", "--temperature=0.25", "--system=New.", "--no-think", model) as t:
        t.enter("/load talk")
        turn = given(t.enter("x"))
        assert (turn["temperature"], turn["params"]["top_k"]) == (0.25, 7)  # type: ignore[index]
        assert turn["messages"][0]["content"] == "New." and turn["think"] is False  # type: ignore[index]


def test_save_overwrites_only_its_own(model: str, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("mine")
    file = tmp_path / "conversations" / "talk.json"
    with Terminal(tmp_path, "run", model, cwd=tmp_path, columns=200) as t:
        assert "the conversation is empty" in t.enter("/save talk")
        t.enter("say x")
        t.enter("/save talk")
        t.enter("say y")
        assert "saved 4 messages" in t.enter("/save talk")  # this run wrote it
        assert "overwrite it: /save --force ./mine.json" in t.enter("/save ./mine.json")
        assert (tmp_path / "mine.json").read_text() == "mine"
        assert "saved 4 messages" in t.enter("/save --force ./mine.json")
        t.enter("/clear")
        assert "the conversation is empty" in t.enter("/save --force talk")
    before = file.read_bytes()
    with Terminal(tmp_path, "run", model, cwd=tmp_path, columns=200) as t:
        t.enter("say z")
        assert "is there already" in t.enter("/save talk")  # another day's
        assert file.read_bytes() == before
        t.enter("/load talk")
        assert "saved 4 messages" in t.enter("/save talk")  # this run loaded it


def test_load_another_model(model: str, tmp_path: Path) -> None:
    other, broken = tmp_path / "n.gguf", tmp_path / "broken.gguf"
    other.write_bytes(b"x")
    broken.write_bytes(b"x")
    with Terminal(tmp_path, "run", model, columns=200) as t:
        t.enter("say hi")
        assert "is given the conversation so far" in t.enter(f"/load {other}")
        stats = t.enter("/stats")
        assert f"last answer   none yet by {other}" in stats and "answers       1 in" in stats
        turn = given(t.enter("who?"))
        assert turn["opened"]["label"] == str(other)  # type: ignore[index]
        assert len(turn["messages"]) == 3  # type: ignore[arg-type]
        assert "cannot be loaded" in t.enter(f"/load {broken}")
        turn = given(t.enter("still?"))
        assert turn["opened"]["label"] == str(other)  # type: ignore[index]


def test_no_model_is_open(model: str, tmp_path: Path) -> None:
    broken, other = tmp_path / "broken.gguf", tmp_path / "n.gguf"
    broken.write_bytes(b"x")
    other.write_bytes(b"x")
    with Terminal(tmp_path, "run", model, columns=300) as t:
        t.enter("say hi")
        Path(model).unlink()
        raw = t.enter(f"/load {broken}")
        assert raw.index("the model cannot be loaded") < raw.index("did not come back: cannot open")
        raw = t.enter("still?")
        assert "no model is open: the model cannot be loaded; " in raw
        assert "No such file" in raw and "/load NAME opens one" in raw
        for line in ("/regenerate", "/stats", "/show info"):
            assert "no model is open: " in t.enter(line)
        assert "top_k is 7" in t.enter("/set top_k 7")
        assert "saved 2 messages" in t.enter("/save talk")
        t.enter("/clear")
        assert "2 messages of talk" in t.enter("/load talk")
        assert "No model is open" in t.enter(f"/load {broken}")
        assert "internal error" not in t.text
        assert "is given the conversation so far" in t.enter(f"/load {other}")
        assert len(given(t.enter("who?"))["messages"]) == 3  # type: ignore[arg-type]
        t.until_prompt()
        t.type("/bye\r")
        assert t.finish() == 0


def test_editor(model: str, tmp_path: Path) -> None:
    script = tmp_path / "my editor"
    script.write_text('#!/bin/sh\nstat -c %a "$2" > "$1"\nprintf "first\\nsecond" >> "$2"\n')
    script.chmod(0o755)
    editor = f"'{script}' {tmp_path / 'mode'}"
    with Terminal(tmp_path, "run", model, EDITOR=editor, VISUAL="") as t:
        turn = given(t.enter("/edit begun "))
        assert turn["messages"][-1]["content"] == "begunfirst\nsecond"  # type: ignore[index]
        assert (tmp_path / "mode").read_text() == "600\n"
    script.write_text('#!/bin/sh\n: > "$2"\n')
    with Terminal(tmp_path, "run", model, EDITOR=editor, VISUAL="") as t:
        assert "nothing was sent" in t.enter("/edit begun")
        script.write_text("#!/bin/sh\nexit 3\n")
        assert "ended with exit code 3" in t.enter("/edit")
        script.unlink()
        assert "cannot start the editor" in t.enter("/edit")


def test_base_model(tmp_path: Path) -> None:
    path = tmp_path / "base.gguf"
    path.write_bytes(b"x")
    with Terminal(tmp_path, "run", str(path)) as t:
        assert given(t.enter("Once upon"))["raw"] == "Once upon"
        assert "is a base model" in t.text
        n = t.text.count("base model")
        assert given(t.enter("There was"))["raw"] == "There was"
        assert t.text.count("base model") == n
