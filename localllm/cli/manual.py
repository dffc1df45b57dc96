"""The manual page, localllm(1), made of the commands themselves and the tables here.

Macros and escapes: groff_man(7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from localllm import __version__
from localllm.cli.examples import EXAMPLES
from localllm.cli.main import COMMANDS, LazyGroup

#: Variables that this program reads, and what they do.
ENVIRONMENT = {
    "LOCALLLM_HOME": "One folder for models, records, cache and configuration, in place of the "
    "system's.",
    "LOCALLLM_ISA": "Forces an instruction set: scalar, avx2, avxvnni, avx512, amx, asimd, "
    "neon or i8mm.",
    "LOCALLLM_NO_RECORDS": "If it is set, no answer is recorded. Records that are there stay: "
    "localllm replay --delete-all deletes them.",
    "LOCALLLM_NO_HISTORY": "If it is set, what is typed at the prompt of run is not kept.",
    "LOCALLLM_API_KEY": "HOST:PORT=KEY ...: what pull and chat send to a host that asks for a key.",
    "LOCALLLM_DEBUG": "If it is set, internal errors show where they happened.",
    "NO_COLOR": "If it is set, there are no colours and no bars of special characters.",
    "TERM": "With the value dumb nothing on the screen is drawn over.",
}

#: What a command returns.
EXIT_CODES = {
    "0": "Done.",
    "1": "Failed; doctor found a problem; replay found a difference.",
    "2": "Wrong usage, or a value out of range.",
    "130": "Interrupted with Ctrl-C.",
    "141": "Nobody reads the output any more.",
}

#: Folders, below $XDG_DATA_HOME or $XDG_CACHE_HOME on Linux; see localllm/paths.py.
FILES = {
    "~/.local/share/localllm/models": "Models, each a GGUF file and its record.",
    "~/.local/share/localllm/answers": "Records of answers, readable only by their owner.",
    "~/.local/share/localllm/conversations": "Conversations that /save has written.",
    "~/.local/share/localllm/conversations.sqlite": "What was said in chat, for its owner alone.",
    "~/.local/share/localllm/history": "What was typed at the prompt of run.",
    "~/.cache/localllm/downloads": "Parts of models that are not complete yet.",
    "~/.cache/localllm/kv": "What was computed of conversations, so that they go on from there.",
    "~/.cache/localllm/conversations": "Which of it belongs to which conversation of chat.",
}

_DESCRIPTION = (
    "localllm answers prompts with models in GGUF format on this machine. There is no network "
    "traffic unless you ask for a model that is not here.",
    "A model is named as in smollm2:135m, or by the path of a GGUF file, which holds a slash or "
    "ends in .gguf.",
)


def page(group: LazyGroup) -> str:
    """The page as roff, in ASCII."""
    root = click.Context(group, info_name="localllm", **group.context_settings)
    return "".join(f"{line}\n" for line in _lines(group, root))


def _lines(group: LazyGroup, root: click.Context) -> Iterator[str]:
    yield f'.TH LOCALLLM 1 "" "localllm {roff(__version__)}" "User Commands"'
    yield ".SH NAME"
    yield "localllm \\- run large language models on your own machine"
    yield ".SH SYNOPSIS"
    yield ".B localllm"
    yield "[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]"
    yield ".SH DESCRIPTION"
    yield from _paragraphs("\n\n".join(_DESCRIPTION))
    yield ".SH OPTIONS"
    yield from _options(group, root)
    yield ".SH COMMANDS"
    for name in COMMANDS:
        command = group.get_command(root, name)
        assert command is not None  # it is in the table
        yield from _command(command, click.Context(command, info_name=name, parent=root))
    yield ".SH ENVIRONMENT"
    yield from _definitions(ENVIRONMENT)
    yield ".SH FILES"
    yield from _definitions(FILES)
    yield ".SH EXIT STATUS"
    yield from _definitions(EXIT_CODES)


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f".SS {context.info_name}"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"\\fBlocalllm {context.info_name}\\fR {roff(usage)}"
    yield from _paragraphs(command.help or "")
    yield from _options(command, context)
    yield ".PP"
    yield "Examples:"
    for example in EXAMPLES[context.info_name or ""]:
        yield from _definition(example.line, example.text)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if isinstance(param, click.Option) and record is not None:
            yield from _definition(*record)


def _definitions(table: dict[str, str]) -> Iterator[str]:
    for term, text in table.items():
        yield from _definition(term, text)


def _definition(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f".B {roff(term)}"
    yield roff(" ".join(text.split()))


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a click help text; one that begins with \\b keeps its lines."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield ".PP"
        if paragraph.startswith("\b"):
            yield ".nf"
            yield from map(roff, paragraph.lstrip("\b\n").splitlines())
            yield ".fi"
        else:
            yield roff(" ".join(paragraph.split()))


def roff(text: str) -> str:
    """Text as it is, with nothing in it that roff would take for a request or an escape."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return f"\\&{text}" if text.startswith((".", "'")) else text
