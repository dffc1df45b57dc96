"""Identifiers that come from outside, as types: a value exists only if it has the right form, so
what holds one need not check it again."""

from __future__ import annotations

import re
from dataclasses import dataclass

from localllm.errors import ArgumentError

# The Hub's own rules: validate_repo_id in https://huggingface.co/docs/huggingface_hub
_OWNER = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?", re.ASCII)
#: The digits of a hash, as every file of ours has them.
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", re.ASCII)


@dataclass(frozen=True, order=True)
class Repository:
    """A model repository of the Hub, `user/repo`, spelled as its owner does."""

    owner: str
    name: str

    def __post_init__(self) -> None:
        for what, part in (("owner", self.owner), ("name", self.name)):
            if not _OWNER.fullmatch(part) or ".." in part or "--" in part:
                raise ArgumentError(
                    f"the {what} of a Hub repository cannot be {_shown(part)}",
                    "A repository looks like bartowski/Llama-3.2-1B-Instruct-GGUF: letters, "
                    "digits, '-', '_' and '.', at most 96 in each part.",
                )

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}"

    @staticmethod
    def parse(text: str) -> Repository:
        """`user/repo`. Raises `ArgumentError`."""
        owner, slash, name = text.partition("/")
        if not slash:
            raise ArgumentError(f"{_shown(text)} is not of the form user/repo")
        return Repository(owner, name)


@dataclass(frozen=True)
class Revision:
    """A branch, a tag, `refs/pr/N` or a commit of a repository."""

    text: str

    def __post_init__(self) -> None:
        if not _REVISION.fullmatch(self.text) or ".." in self.text or "//" in self.text:
            raise ArgumentError(
                f"the revision {_shown(self.text)} is no branch, tag or commit",
                "It may hold letters, digits, '.', '_', '-' and '/', at most 128.",
            )

    def __str__(self) -> str:
        return self.text

    @property
    def is_commit(self) -> bool:
        """Whether it can never mean something else."""
        return _COMMIT.fullmatch(self.text) is not None


@dataclass(frozen=True)
class Digest:
    """The sha256 of a content: `sha256:` and 64 lower-case hexadecimal digits."""

    text: str

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.text):
            raise ArgumentError(
                f"{_shown(self.text)} is no digest",
                "A digest is sha256: and 64 digits from 0 to 9 and a to f.",
            )

    def __str__(self) -> str:
        return self.text

    @property
    def hexadecimal(self) -> str:
        return self.text.removeprefix("sha256:")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    import ipaddress  # only addresses need it

    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 128 else f"{text[:128]}...")
