"""Options that are a number with a unit: bytes and times."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from localllm.errors import ArgumentError

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic in click's type hints, not in every click
else:
    ParamType = click.ParamType

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([KMGT]?)(i?)B?", re.ASCII | re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_MOST = 1 << 60


class ByteSize(ParamType):
    """A number of bytes: 8G, 500MB, 1.5GiB."""

    name = "size"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(str(value).strip())
        if found:
            n_bytes = float(found[1]) * (1024 if found[3] else 1000) ** _POWERS[found[2].upper()]
            if n_bytes <= _MOST:
                return int(n_bytes)
        option = param.opts[-1] if param is not None else "size"
        raise ArgumentError(
            f"{option}: {str(value)[:40]!a} is no number of bytes", "As in 8G, 500M or 1.5GiB."
        )


class KeepAlive(ParamType):
    """See `server.keep_alive`."""

    name = "time"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from localllm.server.keep_alive import seconds

        try:
            return seconds(value)
        except ArgumentError as e:
            raise ArgumentError(f"--{e.message.replace('_', '-', 1)}", e.hint) from None
