"""Checks file and function lengths and file names. Usage: check_sizes.py [ROOT]

Exceptions stand in scripts/size_exceptions.txt, one `path what limit` a line, where `what` is
`file` or a function's name. The list may only shrink: a line that is no longer needed is an error.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from sources import source_files

FILE_LIMITS = {".py": 500, ".c": 700, ".h": 250, ".cu": 800, ".m": 800, ".metal": 800}
KERNEL_FILE_LIMIT = 800
FUNCTION_LIMIT = 80
LONG_FUNCTION_LIMIT = 150
KERNEL_FOLDER = "native/src/backend/cpu/"
FORWARD = re.compile(r"native/src/(model|exec)/forward\w*\.c$")
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
EXCEPTIONS = "scripts/size_exceptions.txt"

_LABEL = re.compile(r"\w+:$")
_NAME = re.compile(r"(\w+)\(")


def file_limit(path: str) -> int | None:
    """The most lines that this file may have, None if it is of no kind that has a limit."""
    suffix = Path(path).suffix
    if path.startswith(KERNEL_FOLDER) and suffix == ".c":
        return KERNEL_FILE_LIMIT
    return FILE_LIMITS.get(suffix)


def function_limit(path: str) -> int:
    """The most lines that a function in this file may have."""
    long = path.startswith(KERNEL_FOLDER) or FORWARD.match(path)
    return LONG_FUNCTION_LIMIT if long else FUNCTION_LIMIT


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function of a C file laid out by clang-format: it begins at column 0
    and ends with a brace alone at column 0."""
    start, first = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line == "}":
            name = _NAME.search(first)
            if name:
                yield name[1], number - start + 1
        elif line and line[0] not in " \t#/{}" and not _LABEL.match(line):
            start, first = number, line


def violations(root: Path) -> list[str]:
    """One line for each broken limit."""
    found: dict[tuple[str, str], int] = {}
    problems = []
    for relative in source_files(root):
        path = relative.as_posix()
        if relative.stem.lower() in VAGUE_NAMES:
            problems.append(f"{path}: a file name must say what the file holds")
        limit = file_limit(path)
        if limit is None:
            continue
        text = (root / relative).read_text(encoding="utf-8")
        n_lines = text.count("\n")
        if n_lines > limit:
            found[path, "file"] = n_lines
        functions = python_functions(text) if relative.suffix == ".py" else c_functions(text)
        for name, lines in functions:
            if lines > function_limit(path):
                found[path, name] = lines
    return problems + compare(found, allowed(root))


def allowed(root: Path) -> dict[tuple[str, str], int]:
    """The exceptions: (path, what) to lines."""
    table = {}
    file = root / EXCEPTIONS
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        if line and not line.startswith("#"):
            path, what, lines = line.split()
            table[path, what] = int(lines)
    return table


def compare(found: dict[tuple[str, str], int], table: dict[tuple[str, str], int]) -> list[str]:
    """What exceeds its limit and is not excepted, and exceptions that can go or shrink."""
    problems = []
    for (path, what), lines in found.items():
        limit = file_limit(path) if what == "file" else function_limit(path)
        if lines > table.get((path, what), 0):
            problems.append(f"{path}: {what} has {lines} lines, the limit is {limit}")
    for (path, what), lines in table.items():
        if found.get((path, what), 0) < lines:
            problems.append(f"{EXCEPTIONS}: {path} {what} {lines} can be removed or lowered")
    return problems


def main(root: Path) -> int:
    """Prints the violations; 1 if there are any."""
    problems = violations(root)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()))
