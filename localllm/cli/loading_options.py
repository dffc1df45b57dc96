"""The options that `run` and `chat` share beside the sampling parameters: the instructions, whether
the model reasons, and how it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from localllm.cli import prompt_text
from localllm.cli.generation_options import THINK
from localllm.cli.options import Number, machine_options
from localllm.errors import ArgumentError, FileError
from localllm.store import ref

ENGINES = ("auto", "native", "llama.cpp")
MAX_TEMPLATE_BYTES = 1 << 20

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Opening:
    """How a session is opened, as the options of `run` say. 0 is the default."""

    engine: str = "auto"
    n_threads: int = 0
    n_ctx: int = 0
    kv_type: str = "f16"
    isa: str | None = None
    template: str | None = None
    raw: bool = False  # no template is needed
    mmap: bool = False
    server: bool = False  # a running server that has the model may be asked instead
    store: bool = True  # what it computes may stay there

    @property
    def asks_for_a_load(self) -> bool:
        """Whether it says how the model is to be loaded."""
        return replace(self, raw=False, kv_type="f16", server=False, store=True) != Opening()


_SYSTEM = click.option("--system", metavar="TEXT", help="Instructions that come before the prompt.")
_THINK = click.option(
    "--think",
    type=click.Choice(list(THINK)),
    metavar="[=low|medium|high|off]",
    help="Let the model reason first, if it can. [default: the model's]",
)
_NO_THINK = click.option("--no-think", is_flag=True, help="Answer without reasoning.")
_LOADING = (
    click.option(
        "--template",
        metavar="FAMILY|FILE",
        help="A chat template in place of the model's: a family such as chatml, or a file.",
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default="auto",
        show_default=True,
        help="auto: llama.cpp where the native engine lacks something.",
    ),
    click.option(
        "--ctx",
        type=Number(int, 0, 2**24),
        default=0,
        help="Tokens of context. [default: the model's, or what fits]",
    ),
    click.option(
        "--kv-type",
        type=click.Choice(["f16", "q8_0"]),
        default="f16",
        show_default=True,
        help="How the context is kept in memory.",
    ),
    click.option("--mmap", is_flag=True, help="Read weights from the file as needed: slower."),
    machine_options,
    click.option(
        "--no-server", is_flag=True, help="Load the model here, also where a running server has it."
    ),
)


def beginning_options(function: F) -> F:
    """`--system`, `--think` and `--no-think`; `think_of` and `system_of` read them."""
    return _SYSTEM(_THINK(_NO_THINK(function)))


def loading_options(function: F) -> F:
    """How a model is loaded; `opening_of` reads it."""
    for option in reversed(_LOADING):
        function = option(function)
    return function


def system_of(options: dict[str, Any]) -> str | None:
    """Takes it from the options. Raises `ArgumentError` for what is no text."""
    system: str | None = options.pop("system")
    if system is not None:
        prompt_text.require_text("--system", system)
    return system


def think_of(options: dict[str, Any]) -> bool | str | None:
    """Takes it from the options."""
    think, no_think = options.pop("think"), options.pop("no_think")
    if no_think and think not in (None, "off"):
        raise ArgumentError("--think and --no-think exclude each other")
    return False if no_think else None if think is None else THINK[think]


def opening_of(options: dict[str, Any], *, raw: bool = False) -> Opening:
    """Takes it from the options. Raises `FileError` for a template that cannot be read."""
    template = options.pop("template")
    return Opening(
        engine=options.pop("engine"),
        n_threads=options.pop("threads"),
        n_ctx=options.pop("ctx"),
        kv_type=options.pop("kv_type"),
        isa=options.pop("isa"),
        template=None if template is None else template_text(template),
        raw=raw,
        mmap=options.pop("mmap"),
        server=not options.pop("no_server"),
    )


def template_text(text: str) -> str:
    """The text of a template file; a family's name stays as it is."""
    try:
        path = Path(text).expanduser()
        if "/" not in text and not ref.is_path(text) and not path.is_file():
            return text
        with path.open("rb") as file:
            data = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(data) > MAX_TEMPLATE_BYTES:
            raise ArgumentError(f"--template: {text} is longer than {MAX_TEMPLATE_BYTES:,} bytes")
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise FileError(f"cannot read the template {text[:200]}: it is not UTF-8 text") from e
    except (OSError, ValueError, RuntimeError) as e:  # a NUL, ~ without such a user
        reason = getattr(e, "strerror", None) or e
        raise FileError(f"cannot read the template {text[:200]}: {reason}") from e
