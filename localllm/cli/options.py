"""Parameters that several commands share: numbers with a range, and model names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from localllm.errors import ArgumentError, LocalLLMError

ISAS = ("scalar", "avx2", "avxvnni", "avx512", "amx", "asimd", "neon", "i8mm")
_LONGEST_NUMBER = 80  # characters of a number in a message
_LONG_INT = re.compile(r"\s*[+-]?[0-9]+\s*")

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic in click's type hints, not in every click
else:
    ParamType = click.ParamType


class Number(ParamType):
    """A number from `low` to `high`, both included; the message of a bad one names the range."""

    def __init__(self, kind: type[int] | type[float], low: float, high: float) -> None:
        self.kind, self.low, self.high = kind, low, high
        self.name = "whole number" if kind is int else "number"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N" if self.kind is int else "X"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        option = param.opts[-1] if param is not None else "value"
        span = f"from {self.low} to {self.high}"
        try:
            number = self.kind(value)
        except ValueError:
            if self.kind is int and _LONG_INT.fullmatch(str(value)):
                # Python converts no number of more than some thousand digits.
                raise self._out_of_range(option, value, span) from None
            raise ArgumentError(
                f"{option}: {str(value)[:80]!a} is not a {self.name}", f"It may be {span}."
            ) from None
        # Never true for nan, which no comparison holds for. Both ends are finite.
        if not self.low <= number <= self.high:
            raise self._out_of_range(option, value, span)
        return number

    @staticmethod
    def _out_of_range(option: str, value: Any, span: str) -> ArgumentError:
        text = str(value)
        shown = text if len(text) <= _LONGEST_NUMBER else f"{text[:_LONGEST_NUMBER]}..."
        return ArgumentError(f"{option}: {shown} is out of range", f"It may be {span}.")


def machine_options(function: F) -> F:
    """`--threads` and `--isa`, for commands that load a model."""
    threads = click.option(
        "--threads",
        type=Number(int, 0, 1024),
        default=0,
        help="[default: the CPUs this process may use]",
    )
    isa = click.option(
        "--isa",
        type=click.Choice(ISAS),
        envvar="LOCALLLM_ISA",
        show_envvar=True,
        help="Force an instruction set. [default: the best one]",
    )
    return threads(isa(function))


class ModelName(ParamType):
    """A model name or a path, as typed; completes names."""

    name = "model"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from localllm.store import ref

        if ref.is_path(incomplete):
            return [CompletionItem(incomplete, type="file")]
        from localllm import paths
        from localllm.store import catalog
        from localllm.store.foreign import stores
        from localllm.store.index import Store

        try:
            names = {str(model.ref) for model in Store(paths.current().models).list()}
            names |= {str(name) for name in catalog.load(damaged=lambda e: None).names}
            names |= {str(model.ref) for model in stores.models()}
        except LocalLLMError:
            return []  # a completion has no place for an error
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
