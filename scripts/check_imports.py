"""Checks that imports inside the package point one way. Usage: check_imports.py [ROOT]

cli, tui -> session -> server -> engine -> text, store -> config, errors, paths, params. A layer
imports itself and lower layers. The native module has its own rule: see NATIVE_USERS.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

#: Higher imports lower. Two parts of one rank do not see each other, except through ALSO.
RANKS = {
    "cli": 6,
    "tui": 6,
    "remote_session": 5,
    "pooled_session": 5,
    "openai_session": 5,
    "session": 5,
    "server": 4,
    "engine": 4,
    "quantize": 4,
    "text": 3,
    "store": 2,
    "native": 1,
    "attachments": 1,
    "slash": 1,
    "config": 0,
    "errors": 0,
    "moments": 0,
    "paths": 0,
    "plain_text": 0,
    "params": 0,
    "_native": 0,
}
ALSO = {
    ("config", "errors"),
    ("config", "paths"),
    ("paths", "errors"),
    ("moments", "errors"),
    ("params", "errors"),
    ("server", "engine"),
    ("remote_session", "session"),
    ("pooled_session", "session"),
    ("openai_session", "session"),
    ("cli", "tui"),
}
#: Only these touch the native module; only localllm/native.py touches the compiled one.
NATIVE_USERS = ("localllm/engine/", "localllm/store/inspect.py", "localllm/text/")
FORBIDDEN_IN_FRONT = {"engine", "text", "native"}  # the CLI and the TUI see only the session


def imports(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """(line, part of localllm) for each import of the package in a file; lazy ones count."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [base])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "localllm" and len(parts) > 1:
                yield node.lineno, parts[1]


def violations(root: Path) -> list[str]:
    """One line for each import against the rules."""
    problems = []
    for path in sorted((root / "localllm").rglob("*.py")):
        relative = path.relative_to(root)
        own = relative.parts[1].removesuffix(".py")
        package = ".".join(relative.parts[:-1])
        for line, part in imports(path, package):
            reason = broken_rule(relative.as_posix(), own, part)
            if reason:
                problems.append(f"{relative}:{line}: {reason}")
    return problems


def broken_rule(path: str, own: str, part: str) -> str | None:
    """Why this file may not import this part of the package; None if it may."""
    if part == own or part.startswith("__"):
        return None
    if own not in RANKS and own != "__init__" and own != "__main__":
        return f"localllm.{own} has no rank in scripts/check_imports.py"
    if part not in RANKS:
        return None  # a name of localllm/__init__.py
    if part == "_native" and path != "localllm/native.py":
        return "only localllm/native.py imports the compiled module"
    if part == "native" and not path.startswith(NATIVE_USERS):
        return "only engine, text and store/inspect.py import localllm.native"
    if own in ("cli", "tui") and part in FORBIDDEN_IN_FRONT:
        return f"{own} reaches localllm.{part} only through the session"
    if own in RANKS and RANKS[part] >= RANKS[own] and (own, part) not in ALSO:
        return f"{own} must not import localllm.{part}"
    return None


def main(root: Path) -> int:
    """Prints the violations; 1 if there are any."""
    problems = violations(root)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
