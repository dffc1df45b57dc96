"""Help that teaches: examples that parse, `help COMMAND`, and the manual page."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from stand_ins.command_line import ROOT, cli, is_error, root

from localllm.cli import manual
from localllm.cli.examples import EXAMPLES
from localllm.cli.main import COMMANDS, LazyGroup
from localllm.cli.main import cli as group

MAN, GROFF = shutil.which("man"), shutil.which("groff")


def command_of(name: str) -> click.Command:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return command


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(COMMANDS)
    assert all(2 <= len(examples) <= 5 for examples in EXAMPLES.values())


@pytest.mark.parametrize(
    ("name", "line"), [(name, e.line) for name, examples in EXAMPLES.items() for e in examples]
)
def test_example_is_a_command_line(name: str, line: str) -> None:
    """The command itself takes the words: every option exists and every value is allowed."""
    parts = [shlex.split(part) for part in line.split(" | ")]
    (words,) = [part for part in parts if part[0] == "localllm"]
    assert words[1] == name and len(line) <= 74
    command = command_of(name)
    context = command.make_context(name, words[2:], parent=root())
    given = [word.partition("=")[0] for word in words[2:] if word.startswith("-")]
    known = {opt for p in command.params for opt in [*p.opts, *p.secondary_opts]}
    assert set(given) <= known and not context.args


def test_an_example_that_is_wrong_is_seen() -> None:
    with pytest.raises(click.NoSuchOption):
        command_of("list").make_context("list", ["--al"], parent=root())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_in_the_examples(name: str) -> None:
    command = command_of(name)
    text = command.get_help(click.Context(command, info_name=name, parent=root()))
    assert text.startswith(f"Usage: localllm {name} ")
    tail = text[text.index("Examples:") :].splitlines()[1:]
    shown = [line.strip() for line in tail]
    assert shown == [part for e in EXAMPLES[name] for part in (e.line, e.text)]
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_help_command(tmp_path: Path) -> None:
    assert cli("help", home=tmp_path).stdout == cli("--help", home=tmp_path).stdout
    for name in ("run", "help"):
        found = cli("help", name, home=tmp_path)
        assert found.returncode == 0
        assert found.stdout == cli(name, "--help", home=tmp_path).stdout
    done = cli("help", "lst", home=tmp_path)
    assert done.returncode == 2 and is_error(done.stderr, "no command 'lst'", hint="mean list?")


@pytest.fixture(scope="module")
def page() -> str:
    assert isinstance(group, LazyGroup)
    return manual.page(group)


def test_page_is_what_the_program_prints(tmp_path: Path, page: str) -> None:
    assert cli("help", "--man", home=tmp_path).stdout == page


def test_structure(page: str) -> None:
    lines = page.splitlines()
    assert lines[0].startswith(".TH LOCALLLM 1 ")
    assert [line[4:] for line in lines if line.startswith(".SH ")] == [
        "NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "ENVIRONMENT", "FILES",
        "EXIT STATUS",
    ]  # fmt: skip
    assert [line[4:] for line in lines if line.startswith(".SS ")] == list(COMMANDS)
    requests = {line.split()[0] for line in lines if line.startswith(".")}
    assert requests <= {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".nf", ".fi"}
    assert page.isascii() and not any(line.startswith("'") for line in lines)
    assert all(lines)  # an empty line is a break that nobody asked for
    # Outside of what we wrote ourselves, no backslash begins an escape but these.
    assert set(re.findall(r"\\(.)", page)) <= {"-", "e", "&", "f", "["}


def test_page_has_every_option_and_example(page: str) -> None:
    for name in COMMANDS:
        for param in command_of(name).params:
            for option in param.opts if isinstance(param, click.Option) else ():
                assert manual.roff(option) in page
        for example in EXAMPLES[name]:
            assert f".B {manual.roff(example.line)}\n{manual.roff(example.text)}\n" in page


def test_roff_takes_text_as_it_is() -> None:
    assert manual.roff(".TH x") == "\\&.TH x"
    assert manual.roff("'x") == "\\&'x"
    assert manual.roff("a\\fBb --c") == "a\\efBb \\-\\-c"
    assert manual.roff("\u00e9\U0001f600") == "\\[u00E9]\\[u1F600]"


@pytest.mark.skipif(not GROFF, reason="no groff")
def test_groff_has_nothing_to_complain_about(page: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", "-b"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not MAN, reason="no man")
def test_man_renders_it(tmp_path: Path, page: str) -> None:
    path = tmp_path / "localllm.1"
    path.write_text(page)
    done = subprocess.run(
        ["man", "-l", str(path)],
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "80", "MANPAGER": "cat", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    text = re.sub(".\b", "", done.stdout)
    if done.returncode == 0 and "minimized" in text:
        pytest.skip("man is a stub on this system")
    assert done.returncode == 0, done.stderr
    for words in ("localllm run smollm2:135m 'Why is the sky blue?'", "LOCALLLM_NO_RECORDS",
                  "--max-tokens N", "EXIT STATUS"):  # fmt: skip
        assert words in text


def test_every_variable_is_documented() -> None:
    """Variables that the package reads stand in the manual page and in docs/COMMAND_LINE.md."""
    used = set()
    for path in (ROOT / "localllm").rglob("*.py"):
        used |= set(re.findall(r"\bLOCALLLM_[A-Z_]+[A-Z]\b", path.read_text("utf-8")))
    assert sorted(used - set(manual.ENVIRONMENT)) == []
    guide = (ROOT / "docs" / "COMMAND_LINE.md").read_text("utf-8")
    assert [name for name in manual.ENVIRONMENT if f"`{name}" not in guide] == []


def test_every_exit_code_is_documented() -> None:
    guide = (ROOT / "docs" / "COMMAND_LINE.md").read_text("utf-8")
    assert re.findall(r"^\| ([0-9]+) \|", guide, re.MULTILINE) == list(manual.EXIT_CODES)


def test_files_of_a_system_package(tmp_path: Path, page: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "packaging" / "shell_files.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    share = tmp_path / "share"
    assert sorted(done.stdout.splitlines()) == sorted(
        str(share / file)
        for file in (
            "bash-completion/completions/localllm",
            "fish/vendor_completions.d/localllm.fish",
            "man/man1/localllm.1",
            "zsh/site-functions/_localllm",
        )
    )
    assert (share / "man" / "man1" / "localllm.1").read_text() == page
    assert "#compdef localllm" in (share / "zsh/site-functions/_localllm").read_text()
