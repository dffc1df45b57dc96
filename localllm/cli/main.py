"""The command line's front: one table of commands, each imported only when it is called, and the
one place where errors become text and exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage or value, 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from localllm import __version__
from localllm.cli import output
from localllm.errors import FileError, LocalLLMError, OutOfMemoryError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

EXIT_INTERRUPTED = 130
DEBUG_VARIABLE = "LOCALLLM_DEBUG"


@dataclass(frozen=True)
class Row:
    """A command: the module that holds it as `command`, and its line in the help."""

    module: str
    help: str


COMMANDS = {
    "run": Row("localllm.cli.run", "Answer a prompt with a model."),
    "chat": Row("localllm.cli.chat", "Talk with models on the whole terminal."),
    "pull": Row("localllm.cli.pull", "Bring models to this machine."),
    "search": Row("localllm.cli.search", "Find models to pull."),
    "recommend": Row("localllm.cli.recommend", "Recommend models for this machine."),
    "list": Row("localllm.cli.list", "List the models on this machine."),
    "show": Row("localllm.cli.show", "Show what is inside a model."),
    "plan": Row("localllm.cli.plan", "Show the memory that a model takes."),
    "outdated": Row("localllm.cli.outdated", "Show which models have news at their source."),
    "rm": Row("localllm.cli.rm", "Delete models from this machine."),
    "cp": Row("localllm.cli.cp", "Give a model a second name."),
    "import": Row("localllm.cli.import_model", "Give a file or folder of your own a name."),
    "create": Row("localllm.cli.create", "Make a model of another one and a Modelfile."),
    "serve": Row("localllm.cli.serve", "Serve a model to other programs."),
    "ps": Row("localllm.cli.ps", "Show what running servers have loaded."),
    "stop": Row("localllm.cli.stop", "Unload a model from running servers."),
    "env": Row("localllm.cli.env", "Print settings of other tools for the server."),
    "share": Row("localllm.cli.share", "Let others in the network pull models from here."),
    "verify": Row("localllm.cli.verify", "Check every byte of the models here."),
    "gc": Row("localllm.cli.gc", "Clear away what belongs to no model."),
    "replay": Row("localllm.cli.replay", "Give a recorded answer again, and compare it."),
    "bench": Row("localllm.cli.bench", "Measure how fast a model runs here."),
    "doctor": Row("localllm.cli.doctor", "Check this machine and this installation."),
    "completion": Row("localllm.cli.completion", "Complete commands with the Tab key."),
    "help": Row("localllm.cli.help", "Explain a command with examples."),
}


class LazyGroup(click.Group):
    """A group whose help and completion need no command's module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        command = importlib.import_module(row.module).command
        assert isinstance(command, click.Command)
        if command.epilog is None:
            from localllm.cli import examples

            command.epilog = examples.epilog(cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-"):
            self.require(args[0])
        return super().resolve_command(ctx, args)

    def require(self, name: str) -> None:
        """Raises `CommandError` with the nearest name where there is no such command."""
        if name not in COMMANDS:
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            raise CommandError(
                f"there is no command {name[:80]!a}",
                f"Did you mean {near[0]}?" if near else "See: localllm --help",
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=row.help)
            for name, row in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in COMMANDS.items()])


class CommandError(LocalLLMError):
    """A command line that cannot be understood."""

    exit_code = 2


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: localllm run smollm2:135m 'Why is the sky blue?'\n\n"
    "Each command's help ends with examples: localllm help COMMAND",
)
@click.version_option(__version__, prog_name="localllm", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run large language models on your own machine."""
    if ctx.invoked_subcommand is None:
        output.emit(ctx.get_help() + "\n")


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code. Every error ends here."""
    output.setup_streams()
    try:
        if sys.stdout is None:
            raise FileError("cannot write the answer: stdout is closed")
        result = cli.main(args, prog_name="localllm", standalone_mode=False)
        output.emit("")  # what click printed may still wait
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, click.Abort):
        output.say("")
        return EXIT_INTERRUPTED
    except output.ReaderGone as e:
        _abandon_stdout()
        return e.exit_code
    except click.ClickException as e:
        error: LocalLLMError = _usage_error(e)
    except LocalLLMError as e:
        error = e
    except OSError as e:
        _abandon_stdout()
        named = f" {e.filename}" if e.filename else ""
        error = FileError(f"the system refused a file{named}: {e.strerror or e}")
    except ImportError as e:
        error = LocalLLMError(
            f"a part of this installation cannot be loaded: {e}",
            "Reinstall localllm. `localllm doctor` says what else may be wrong.",
        )
    except Exception as e:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        error = _unexpected_error(e)
    output.print_error(error)
    with contextlib.suppress(AttributeError):  # there is no stdout
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            _abandon_stdout()
    return error.exit_code


def _unexpected_error(e: Exception) -> LocalLLMError:
    if isinstance(e, RuntimeError) and "can't start new thread" in str(e):  # CPython's own text
        return OutOfMemoryError(
            f"the system refused a thread to this process{_thread_limits()}",
            "A thread needs address space for its stack: raise `ulimit -v`, or lower `ulimit -s`. "
            "If neither is limited, too many threads run (`ulimit -u`, pids.max of the cgroup).",
        )
    return LocalLLMError(
        f"internal error: {type(e).__name__}: {e}",
        f"This is a fault in localllm. Set {DEBUG_VARIABLE}=1 to see where it happens.",
    )


def _thread_limits() -> str:
    """The limits that were set of those that a thread can break, as the end of a sentence."""
    try:
        import resource
    except ImportError:  # Windows
        return ""
    texts = []
    for what, which in (
        ("address space", resource.RLIMIT_AS),
        ("a stack", resource.RLIMIT_STACK),
        ("processes and threads", resource.RLIMIT_NPROC),
    ):
        limit = resource.getrlimit(which)[0]
        if limit != resource.RLIM_INFINITY:
            counted = which == resource.RLIMIT_NPROC
            texts.append(f"{what} {limit if counted else output.size_text(limit)}")
    return f"; its limits: {', '.join(texts)}" if texts else ""


def _usage_error(e: click.ClickException) -> CommandError:
    message = e.format_message().rstrip(".")
    if isinstance(e, click.MissingParameter):
        message = " ".join(message.split())  # click lists the choices on lines of their own
    hint = None
    if isinstance(e, click.NoSuchOption):
        message = f"there is no option {e.option_name}"
        if e.possibilities:
            hint = f"Did you mean {' or '.join(e.possibilities)}?"
    if hint is None and isinstance(e, click.UsageError) and e.ctx is not None:
        hint = f"See: {e.ctx.command_path} --help"
    return CommandError(message[0].lower() + message[1:], hint)


def _abandon_stdout() -> None:
    """Keeps the interpreter from failing once more when it flushes a stdout that is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
