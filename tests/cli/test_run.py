"""`localllm run` with the fake session: prompts, options and their ranges, output, reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stand_ins import small_models
from stand_ins.command_line import cli, is_error

from localllm.cli.main import main


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_models.gguf())
    return str(path)


def answered(model: str, home: Path, *args: str, stdin: bytes = b"") -> dict[str, Any]:
    """What the fake session was given, as it repeats it."""
    done = cli("run", model, *args, home=home, stdin=stdin)
    assert done.returncode == 0, done.stderr
    given: dict[str, Any] = json.loads(done.stdout)
    return given


def user_text(given: dict[str, Any]) -> str:
    return str(given["messages"][-1]["content"])


def test_prompt_from_words(model: str, tmp_path: Path) -> None:
    given = answered(model, tmp_path, "Why", "is", "the sky", "blue?")
    assert given["messages"] == [{"role": "user", "content": "Why is the sky blue?"}]


def test_prompt_from_stdin(model: str, tmp_path: Path) -> None:
    given = answered(model, tmp_path, stdin="häh?\n line two\n".encode())
    assert user_text(given) == "häh?\n line two"


def test_words_come_before_stdin(model: str, tmp_path: Path) -> None:
    given = answered(model, tmp_path, "Sum it up:", stdin=b"a long text\n")
    assert user_text(given) == "Sum it up:\n\na long text"


def test_system_and_raw(model: str, tmp_path: Path) -> None:
    given = answered(model, tmp_path, "--system", "Be brief.", "hi")
    assert given["messages"][0] == {"role": "system", "content": "Be brief."}
    assert answered(model, tmp_path, "--raw", "Once upon")["raw"] == "Once upon"
    done = cli("run", model, "--raw", "--system", "x", "hi", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "--system", hint="--raw")


def test_a_prompt_may_begin_with_a_dash(model: str, tmp_path: Path) -> None:
    assert user_text(answered(model, tmp_path, "--", "--help me")) == "--help me"


@pytest.mark.parametrize("stdin", [b"", b"\n", b" \n\t\n"])
def test_no_prompt(model: str, tmp_path: Path, stdin: bytes) -> None:
    done = cli("run", model, home=tmp_path, stdin=stdin)
    assert done.returncode == 2 and is_error(done.stderr, "prompt", hint="localllm run")


def test_bad_bytes(model: str, tmp_path: Path) -> None:
    done = cli("run", model, home=tmp_path, stdin=b"abc\xe9def")
    assert done.returncode == 2
    assert is_error(done.stderr, "not UTF-8", "0xe9", "position 3", hint="iconv")
    done = cli("run", model, b"abc\xe9def", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "stray byte at character 3")
    done = cli("run", model, "--system", b"\xff", "x", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "--system", "stray byte")


def test_endless_stdin_is_refused(model: str, tmp_path: Path) -> None:
    done = cli("run", model, home=tmp_path, stdin=b"a" * (16 * 2**20 + 1))
    assert done.returncode == 2 and is_error(done.stderr, "16,777,216 bytes")


RANGES = [
    ("--temperature", ["-0.1", "2.1", "1e308", "-1e308", "nan", "inf", "-inf"], "from 0 to 2"),
    (
        "--seed",
        ["-1", "18446744073709551616", "1e99", "9" * 400, "9" * 9999],
        "from 0 to 18446744073709551615",
    ),
    ("--max-tokens", ["-1", "2147483648"], "from 0 to 2147483647"),
    ("--ctx", ["-1", "16777217"], "from 0 to 16777216"),
    ("--threads", ["-1", "1025", "9" * 5000], "from 0 to 1024"),
]


@pytest.mark.parametrize(
    ("option", "value", "span"), [(o, value, s) for o, values, s in RANGES for value in values]
)
def test_out_of_range(
    capsys: pytest.CaptureFixture[str], option: str, value: str, span: str
) -> None:
    assert main(["run", "m.gguf", f"{option}={value}", "hi"]) == 2
    stderr = capsys.readouterr().err
    assert is_error(stderr, f"error: {option}:", value[:20], hint=span)
    assert len(stderr) < 300


@pytest.mark.parametrize("option", [option for option, _, _ in RANGES])
@pytest.mark.parametrize("value", ["", "abc", "1.5.2", "null", "0x10", "\x1b[31m"])
def test_not_a_number(capsys: pytest.CaptureFixture[str], option: str, value: str) -> None:
    assert main(["run", "m.gguf", f"{option}={value}", "hi"]) == 2
    stderr = capsys.readouterr().err
    assert "\x1b" not in stderr
    assert is_error(stderr, option, "is not a", hint="from 0 to")


def test_choices(tmp_path: Path) -> None:
    done = cli("run", "m.gguf", "--kv-type", "q4", "hi", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "--kv-type", "f16", "q8_0")
    done = cli("run", "m.gguf", "--isa", "sse2", "hi", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "--isa", "avx512")


def test_values_reach_the_session(model: str, tmp_path: Path) -> None:
    given = answered(
        model, tmp_path, "--temperature=0", f"--seed={2**64 - 1}", "--max-tokens=7",
        "--kv-type=q8_0", "hi",
    )  # fmt: skip
    assert (given["temperature"], given["seed"], given["max_tokens"]) == (0, 2**64 - 1, 7)
    assert given["kv_type"] == "q8_0"


def test_seed_is_new_each_time_and_reported(model: str, tmp_path: Path) -> None:
    seeds = {answered(model, tmp_path, "hi")["seed"] for _ in range(3)}
    assert len(seeds) == 3


def test_isa_from_the_environment(model: str, tmp_path: Path) -> None:
    done = cli("run", model, "--json", "say x", home=tmp_path, env={"LOCALLLM_ISA": "scalar"})
    assert json.loads(done.stdout)["isa"] == "scalar"
    done = cli("run", model, "say x", home=tmp_path, env={"LOCALLLM_ISA": "mmx"})
    assert done.returncode == 2 and is_error(done.stderr, "--isa", "mmx")


def test_json_report(model: str, tmp_path: Path) -> None:
    done = cli("run", model, "--json", "--seed=5", "--ctx=99", "say a\\x1bb\\u202e", home=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.count("\n") == 1
    report = json.loads(done.stdout)
    assert report["text"] == "a\x1bb\u202e"  # exact
    assert "\x1b" not in done.stdout
    assert report["finish_reason"] == "stop"
    assert (report["seed"], report["n_ctx"], report["digest"]) == (5, 99, None)
    assert report["generated_tokens"] == 1 and report["decode_tokens_per_s"] is None
    assert report["prompt_tokens_per_s"] == report["prompt_tokens"] / 0.5


def test_verbose(model: str, tmp_path: Path) -> None:
    done = cli("run", model, "-v", "--seed=9", "--threads=3", "count 5", home=tmp_path)
    assert done.stdout == "0 1 2 3 4 \n"
    for part in ("load ", "0.250 s", "5 tokens, 2.0 tokens/s, ended by stop", "9, temperature",
                 "3, avx2", "2048 tokens, f16"):  # fmt: skip
        assert part in done.stderr, done.stderr


def test_answer_ends_with_one_new_line(model: str, tmp_path: Path) -> None:
    assert cli("run", model, "say a", home=tmp_path).stdout == "a\n"
    assert cli("run", model, "say a\\n", home=tmp_path).stdout == "a\n"


def test_answer_is_escaped(model: str, tmp_path: Path) -> None:
    done = cli("run", model, "say \\x1b]0;t\\x07 \\x9b31m \\u202eabc \\x0d ok\\tz", home=tmp_path)
    assert done.stdout == "\\x1b]0;t\\x07 \\x9b31m \\u202eabc \\x0d ok\tz\n"


def test_max_tokens(model: str, tmp_path: Path) -> None:
    done = cli("run", model, "--max-tokens=3", "count 10", home=tmp_path)
    assert (done.stdout, done.stderr) == ("0 1 2 \n", "")
    done = cli("run", model, "--max-tokens=0", "--json", "count 10", home=tmp_path)
    report = json.loads(done.stdout)
    assert (report["text"], report["finish_reason"]) == ("", "length")


def test_session_errors(model: str, tmp_path: Path) -> None:
    done = cli("run", model, "fail", home=tmp_path)
    assert done.returncode == 1
    assert is_error(done.stderr, "the fake failed", hint="Do not ask it to.")
    done = cli("run", model, "--isa=neon", "hi", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "neon is not usable")


def test_model_that_is_not_there(tmp_path: Path) -> None:
    done = cli("run", "./nope.gguf", "hi", home=tmp_path)
    assert done.returncode == 1 and is_error(done.stderr, "there is no file ./nope.gguf")
    done = cli("run", "smolm2:135m", "hi", home=tmp_path)
    assert is_error(done.stderr, "no model called smolm2:135m", hint="Did you mean smollm2:135m?")
    done = cli("run", str(tmp_path) + "/", "hi", home=tmp_path)
    assert is_error(done.stderr, "is a folder")
    done = cli("run", "../../etc/passwd:x", "hi", home=tmp_path)
    assert is_error(done.stderr, "there is no file")
    done = cli("run", "a" * 5000, "hi", home=tmp_path)
    assert is_error(done.stderr, "5000 characters") and len(done.stderr) < 600
    done = cli("run", "./" + "a" * 5000 + ".gguf", "hi", home=tmp_path)
    assert done.returncode == 1 and is_error(done.stderr, "File name too long")


def test_model_file_without_suffix_gets_a_hint(tmp_path: Path) -> None:
    done = cli("run", "README.md", "hi", home=tmp_path)
    assert is_error(done.stderr, "no model called", hint="./README.md")
