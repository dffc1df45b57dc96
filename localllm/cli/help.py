"""`localllm help`: the help of a command, and the whole manual as a page for man."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from localllm.cli import output
from localllm.cli.main import COMMANDS, LazyGroup
from localllm.cli.options import ParamType


class CommandName(ParamType):
    """The name of a command."""

    name = "command"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [
            CompletionItem(name, help=row.help)
            for name, row in COMMANDS.items()
            if name.startswith(incomplete)
        ]


@click.command("help")
@click.argument("name", metavar="[COMMAND]", required=False, type=CommandName())
@click.option("--man", is_flag=True, help="The whole manual as a page for man.")
@click.pass_context
def command(ctx: click.Context, name: str | None, man: bool) -> None:
    """Explain a command, or list all of them."""
    root = ctx.find_root()
    group = root.command
    assert isinstance(group, LazyGroup)
    if man:
        from localllm.cli.manual import page

        output.emit(page(group))
        return
    if name is None:
        output.emit(root.get_help() + "\n")
        return
    group.require(name)
    named = group.get_command(root, name)
    assert named is not None  # require has looked
    output.emit(named.get_help(click.Context(named, info_name=name, parent=root)) + "\n")
