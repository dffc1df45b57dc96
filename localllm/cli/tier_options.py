"""The options that say where computed conversations go beside the pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from localllm.cli.quantities import ByteSize

if TYPE_CHECKING:
    from localllm.server.opening import TierOptions

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--swap-space",
        type=ByteSize(),
        default=0,
        help="Memory for what the pool of keys and values has no room for. [default: none]",
    ),
    click.option(
        "--kv-disk",
        type=ByteSize(),
        help="What computed conversations may take of the disk. "
        "[default: a tenth of what is free, at most 20GiB]",
    ),
    click.option("--no-kv-disk", is_flag=True, help="Nothing of conversations goes to the disk."),
)


def tier_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def tiers_of(options: dict[str, Any]) -> TierOptions:
    from localllm.server.opening import TierOptions

    return TierOptions(
        ram_bytes=options["swap_space"],
        disk=not options["no_kv_disk"],
        disk_bytes=options["kv_disk"],
    )
