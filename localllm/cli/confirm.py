"""The question before something is deleted."""

from __future__ import annotations

import sys

import click

from localllm.cli import output
from localllm.errors import ArgumentError


def confirm_deletion(what: str) -> None:
    """Returns if a person at a terminal says yes. Raises click.Abort on no, and `ArgumentError`
    where nobody can be asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise ArgumentError(
            f"nobody is there to confirm that {what} may be deleted",
            "Add --yes to delete without asking.",
        )
    if not click.confirm(f"Delete {output.escape_line(what)}?", err=True):
        raise click.Abort
