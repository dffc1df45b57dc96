"""The options of the sampling parameters, made from the one table of them, and the help that
groups them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from localllm.cli.options import ParamType
from localllm.errors import ArgumentError
from localllm.params import COMMON, DEFAULT_WORDS, PARAMETERS, Parameter, find
from localllm.params import THINK as THINK

_METAVARS: dict[Any, str] = {
    int: "N",
    float: "X",
    "strings": "TEXT",
    "bias": "TOKEN:BIAS",
    "order": "NAMES",
}
#: Kinds whose option may come several times.
_REPEATED = ("strings", "bias")
F = TypeVar("F", bound=Callable[..., Any])


class ParameterValue(ParamType):
    """A value of a parameter as typed; the message of a bad one names option and range."""

    def __init__(self, row: Parameter) -> None:
        self.row, self.name = row, row.name

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return _METAVARS[self.row.kind]

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        try:
            cleared = self.row.cleared_by and value == self.row.cleared_by
            if (
                self.row.kind == "strings" and not cleared
            ):  # exactly as typed: it may begin with a quote
                return self.row.checked([value])[0]
            return self.row.parse(value)
        except ArgumentError as e:
            option = param.opts[-1] if param is not None else self.row.name
            message = e.message.removeprefix(self.row.name)
            raise ArgumentError(f"{option}{message}", e.hint) from None


class SamplingDefault(ParamType):
    """NAME=VALUE of any parameter: its name here, and its value."""

    name = "parameter"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, object]:
        if isinstance(value, tuple):
            return value
        option = param.opts[-1] if param is not None else "parameter"
        name, equals, text = str(value).partition("=")
        try:
            row = find(name)
            if not equals or row.name == "logprobs":
                raise ArgumentError(f"{value[:80]!a} is no NAME=VALUE", "As in temperature=0.6.")
            return row.name, row.parse(text)
        except ArgumentError as e:
            raise ArgumentError(f"{option}: {e.message}", e.hint) from None


class SectionOption(click.Option):
    """An option with the section of the help that it belongs to."""

    def __init__(self, *args: Any, section: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.section = section


class RunCommand(click.Command):
    """A command whose help has sections, and where `--think` needs no value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        # click would take the word after it for its value.
        args = ["--think=on" if word == "--think" else word for word in args[:end]] + args[end:]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                section = param.section if isinstance(param, SectionOption) else "Options"
                sections.setdefault(section, []).append(record)
        for title in sorted(sections, key=lambda title: title != "Options"):
            with formatter.section(title):
                formatter.write_dl(sections[title])


def parameter_options(function: F) -> F:
    """Adds one option for every row of PARAMETERS; `chosen` reads their values."""
    names = [*COMMON, *(name for name in PARAMETERS if name not in COMMON)]
    for name in reversed(names):
        row = PARAMETERS[name]
        section = "Sampling" if name in COMMON else "More sampling"
        kind: dict[str, Any] = {"type": ParameterValue(row), "multiple": row.kind in _REPEATED}
        if row.kind is bool:
            kind = {"is_flag": True}
        function = click.option(
            "--" + name.replace("_", "-"),
            name,
            cls=SectionOption,
            section=section,
            help=_help(row),
            **kind,
        )(function)
    return function


def chosen(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that were given, from the values of all these options."""
    given = {}
    for name, value in values.items():
        kind = PARAMETERS[name].kind
        if value is None or value is False or (value == () and kind in _REPEATED):
            continue
        if kind == "bias":
            value = tuple(pair for pairs in value for pair in pairs)
        elif kind == "strings" and () in value:  # cleared
            value = ()
        given[name] = value
    return given


def _help(row: Parameter) -> str:
    text = row.help
    if row.kind in _REPEATED:
        text += " May be given several times."
    default = DEFAULT_WORDS.get(row.name, _default_text(row.default))
    return f"{text} [default: {default}]" if default else text


def _default_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) if all(str(v).isidentifier() for v in value) else ""
    return "" if isinstance(value, bool) or value is None else f"{value:g}"
