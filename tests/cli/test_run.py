"""`localllm run` with the fake session: prompts, options and their ranges, output, reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_ins import small_models
from stand_ins.command_line import cli, is_error

from localllm.cli.main import main
from localllm.params import PARAMETERS, GenerateParams, Parameter


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


HUGE = ["9" * 400, "9" * 9999]
#: Options that are no rows of the table of parameters.
NUMBERS = {"--ctx": (0, 16777216), "--threads": (0, 1024)}


def numbers() -> Iterator[tuple[str, type, float, float]]:
    """(option, kind, low, high) of every option that takes a number."""
    for name, row in PARAMETERS.items():
        if row.kind in (int, float):
            yield "--" + name.replace("_", "-"), row.kind, row.low, row.high
    for option, (low, high) in NUMBERS.items():
        yield option, int, low, high


@pytest.mark.parametrize(
    ("option", "kind", "low", "high"), [*numbers()], ids=[option for option, *_ in numbers()]
)
def test_out_of_range(
    capsys: pytest.CaptureFixture[str], option: str, kind: type, low: float, high: float
) -> None:
    """Every number just outside, far outside, or none at all is refused with its range."""
    beyond = 1 if kind is int else 0.001
    values = [low - beyond, high + beyond, 2**64, -(2**63), "1e308", "-1e308", "nan", "inf", *HUGE]
    for value in map(str, values):
        assert main(["run", "m.gguf", f"{option}={value}", "hi"]) == 2
        stderr = capsys.readouterr().err
        row = PARAMETERS.get(option[2:].replace("-", "_"))
        span = row.span if row else f"from {low} to {high}"
        assert is_error(stderr, f"error: {option}:", value[:20] if kind is int else "", hint=span)
        assert len(stderr) < 300
    for value in ("", "abc", "1.5.2", "null!", "0x10", "\x1b[31m"):
        assert main(["run", "m.gguf", f"{option}={value}", "hi"]) == 2
        stderr = capsys.readouterr().err
        assert "\x1b" not in stderr
        assert is_error(stderr, f"error: {option}:", hint="It may be")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--logit-bias", "5"), ("--logit-bias", "-1:2"), ("--logit-bias", "5:101"),
     ("--samplers", "top_k,top_k"), ("--samplers", "magic"), ("--stop", ""), ("--stop", "a" * 1025),
     ("--mirostat", "1")],
)  # fmt: skip
def test_values_that_are_no_plain_numbers(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert main(["run", "m.gguf", f"{option}={value}", "hi"]) == 2
    assert is_error(capsys.readouterr().err, f"error: {option}:", hint="It may be")


def example(row: Parameter) -> str:
    """A value that is not the default."""
    if row.only:
        return str(row.only[-1])
    words = {"strings": "END", "bias": "7:-2.5", "order": "top_k,temperature"}
    return words.get(row.kind) or str(row.kind(row.low + (min(row.high, 20) - row.low) * 0.75))


def test_every_parameter_reaches_the_session(model: str, tmp_path: Path) -> None:
    """One loop makes the options: each row of the table is there, under its own name."""
    words, expected = [], {}
    for name, row in PARAMETERS.items():
        option = "--" + name.replace("_", "-")
        words.append(option if row.kind is bool else f"{option}={example(row)}")
        expected[name] = True if row.kind is bool else row.parse(example(row))
    given = answered(model, tmp_path, *words, "hi")["params"]
    assert given == GenerateParams(**expected).changed()
    assert len(given) == len(PARAMETERS)


def test_recommended_parameters(model: str, tmp_path: Path) -> None:
    """What the model's file recommends holds unless something else is asked for."""
    env = {"TEST_RECOMMENDED": '{"temperature": 0.6, "top_k": 20}'}
    done = cli("run", model, "--top-k=5", "--seed=1", "hi", home=tmp_path, env=env)
    assert json.loads(done.stdout)["params"] == {"temperature": 0.6, "top_k": 5, "seed": 1}


def test_options_that_repeat(model: str, tmp_path: Path) -> None:
    given = answered(
        model, tmp_path, "--stop", '"', "--stop=a,b", "--logit-bias=1:2,3:4",
        "--logit-bias", "5:-inf", "hi",
    )["params"]  # fmt: skip
    assert given["stop"] == ['"', "a,b"]
    assert given["logit_bias"] == [[1, 2.0], [3, 4.0], [5, float("-inf")]]


def test_json_has_no_infinity(model: str, tmp_path: Path) -> None:
    done = cli("run", model, "--json", "--logit-bias=5:-inf", "say x", home=tmp_path)
    report = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert report["params"]["logit_bias"] == [[5, "-inf"]]


def test_lists_can_be_emptied(model: str, tmp_path: Path) -> None:
    given = answered(model, tmp_path, "--samplers=", "--dry-sequence-breakers=none", "hi")["params"]
    assert given["samplers"] == given["dry_sequence_breakers"] == []


def test_help_has_sections(tmp_path: Path) -> None:
    text = cli("run", "--help", home=tmp_path).stdout
    options, sampling, more = (text.index(f"\n{title}:\n") for title in
                               ("Options", "Sampling", "More sampling"))  # fmt: skip
    assert options < sampling < text.index("--top-k") < more < text.index("--dry-base")
    for name, row in PARAMETERS.items():
        assert f"--{name.replace('_', '-')} " in text + " "
        assert row.help.split()[0] in text


@pytest.mark.parametrize(
    ("words", "think"),
    [([], None), (["--think"], True), (["--think=on"], True), (["--no-think"], False),
     (["--think=off"], False), (["--think=low"], "low"), (["--think=high"], "high")],
)  # fmt: skip
def test_think(model: str, tmp_path: Path, words: list[str], think: object) -> None:
    assert answered(model, tmp_path, *words, "hi").get("think") == think


def test_think_takes_no_word_of_the_prompt(model: str, tmp_path: Path) -> None:
    given = answered(model, tmp_path, "--think", "low tide?", "--", "--think")
    assert (given["think"], user_text(given)) == (True, "low tide? --think")
    done = cli("run", model, "--think", "--no-think", "hi", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "--no-think")


def test_reasoning_is_a_line_on_stderr(model: str, tmp_path: Path) -> None:
    done = cli("run", model, "reason \\x1b[2Jhm\\u202e|so", home=tmp_path)
    assert done.stdout == "so\n"
    assert re.fullmatch(r"thought for 0\.\d s, 1 token\n", done.stderr)
    done = cli("run", model, "--hide-thinking", "reason hm|so", home=tmp_path)
    assert (done.stdout, done.stderr) == ("so\n", "")
    done = cli("run", model, "--show-thinking", "reason \\x1b[2Jhm\\u202e|so", home=tmp_path)
    assert done.stdout == "so\n"
    assert done.stderr.startswith("\\x1b[2Jhm\\u202e\nthought for ")
    done = cli("run", model, "--plain", "reason hm|so", home=tmp_path)
    assert done.stdout == "so\n"
    assert re.fullmatch(r"thinking\nthought for .*\nanswer:\n", done.stderr)


def test_an_answer_that_is_only_reasoning(model: str, tmp_path: Path) -> None:
    done = cli("run", "--max-tokens=2", model, "think 9", home=tmp_path)
    assert done.stdout == "" and "note: the tokens ran out while the model reasoned" in done.stderr
    done = cli("run", "--max-tokens=2", "--json", model, "think 9", home=tmp_path)
    assert json.loads(done.stdout)["text"] == "" and done.stderr == ""
    done = cli("run", model, "reason hm|", home=tmp_path)
    assert done.stdout == "" and "note: the model ended while it reasoned" in done.stderr


def test_template_is_a_family_or_a_file(model: str, tmp_path: Path) -> None:
    assert answered(model, tmp_path, "--template=chatml", "hi")["opened"]["template"] == "chatml"
    file = tmp_path / "t.jinja"
    file.write_text("{{ 1 }}")
    given = answered(model, tmp_path, "--template", str(file), "hi")
    assert given["opened"]["template"] == "{{ 1 }}"
    done = cli("run", model, "--template=./none.jinja", "hi", home=tmp_path)
    assert done.returncode == 1 and is_error(done.stderr, "none.jinja", "No such file")
    file.write_bytes(b"\xff")
    done = cli("run", model, "--template", str(file), "hi", home=tmp_path)
    assert is_error(done.stderr, "not UTF-8")
    done = cli("run", model, "--template=~nouser/t", "hi", home=tmp_path)
    assert done.returncode == 1 and is_error(done.stderr, "cannot read the template ~nouser/t: ")
    file.write_bytes(b"a" * (2**20 + 1))
    done = cli("run", model, "--template", str(file), "hi", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "1,048,576 bytes")
    done = cli("run", model, "--raw", "--template=chatml", "hi", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "--template", hint="--raw")


def test_base_model_continues_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "base.gguf"
    path.write_bytes(b"x")
    done = cli("run", str(path), "Once", home=tmp_path)
    assert json.loads(done.stdout)["raw"] == "Once"
    assert "no template\\x1b" in done.stderr and "base model" in done.stderr
    done = cli("run", str(path), "--system=x", "Once", home=tmp_path)
    assert done.returncode == 1 and is_error(done.stderr, "no template\\x1b")


def test_records(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    done = cli("run", model, "-v", "--seed=4", "say x", home=tmp_path)
    records = list(folder.iterdir())
    assert len(records) == 1
    assert f"localllm replay {records[0].stem}\n" in done.stderr
    assert records[0].stat().st_mode & 0o777 == 0o600
    for words, env in ((["--no-record"], {}), ([], {"LOCALLLM_NO_RECORDS": "1"})):
        done = cli("run", model, "-v", *words, "say y", home=tmp_path, env=env)
        assert "localllm replay" not in done.stderr
        assert list(folder.iterdir()) == records
    report = json.loads(cli("run", model, "--json", "--seed=4", "say x", home=tmp_path).stdout)
    assert report["id"] == records[0].stem  # the same question in the same way


def test_a_record_that_fails_is_a_note(model: str, tmp_path: Path) -> None:
    (tmp_path / "answers").write_text("in the way")
    done = cli("run", model, "say x", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "x\n")
    assert done.stderr.startswith("note: the answers have no records for replay: cannot ")
    assert done.stderr.count("\n") == 1


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
    assert (report["engine"], report["cached_tokens"], report["notes"]) == ("native", 0, [])
    assert report["params"] == {"seed": 5} and "logprobs" not in report


def test_json_has_reasoning_logprobs_and_notes(model: str, tmp_path: Path) -> None:
    def ask(*words: str) -> dict[str, Any]:
        done = cli("run", model, "--json", *words, home=tmp_path)
        assert done.stderr == ""
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    report = ask("reason \\x1bhm|so")
    assert (report["text"], report["reasoning"], report["reasoning_tokens"]) == ("so", "\x1bhm", 1)
    assert ask("--logprobs=2", "say x")["logprobs"] == [
        {"text": "x", "logprob": -0.5,
         "top": [{"text": "x", "logprob": -0.5}, {"text": "\x1b", "logprob": -1.5}]}
    ]  # fmt: skip
    assert ask("note a\\x1bb")["notes"] == ["a\x1bb"]
    assert ask("--engine=llama.cpp", "say x")["engine"] == "llama.cpp"


def test_notes_of_the_session(model: str, tmp_path: Path) -> None:
    env = {"TEST_NOTICE": "mamba\x1b[2J: running it with llama.cpp"}
    done = cli("run", model, "note turned\\u202e", home=tmp_path, env=env)
    assert done.stdout == "noted\n"
    assert done.stderr == ("note: mamba\\x1b[2J: running it with llama.cpp\nnote: turned\\u202e\n")


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
    assert is_error(done.stderr, "no model called smolm2:135m", hint="Did you mean smollm2:135m")
    done = cli("run", str(tmp_path) + "/", "hi", home=tmp_path)
    assert is_error(done.stderr, "is a folder")
    done = cli("run", "../../etc/passwd:x", "hi", home=tmp_path)
    assert is_error(done.stderr, "there is no file")
    done = cli("run", "a" * 5000, "hi", home=tmp_path)
    assert is_error(done.stderr, "5000 characters") and len(done.stderr) < 600
    done = cli("run", "./" + "a" * 5000 + ".gguf", "hi", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "at most 4096 are allowed")
    done = cli("run", "./" + "a" * 3000 + ".gguf", "hi", home=tmp_path)
    assert done.returncode == 1 and is_error(done.stderr, "File name too long")
    done = cli("run", "~nouser/m.gguf", "hi", home=tmp_path)
    assert done.returncode == 1 and is_error(done.stderr, "cannot open ~nouser/m.gguf: ")


def test_model_file_without_suffix_gets_a_hint(tmp_path: Path) -> None:
    done = cli("run", "README.md", "hi", home=tmp_path)
    assert is_error(done.stderr, "no model called", hint="./README.md")
