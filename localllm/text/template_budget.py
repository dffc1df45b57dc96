"""What a chat template may use: time, memory and output, and checks of the operations that could
ask for much at once.

A tick reads the thread's CPU clock. What a template makes is charged to the budget; a list weighs
what it would print, so sharing parts does not make it light.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jinja2.exceptions import SecurityError

MAX_CPU_S = 0.25
MAX_COMPILE_CPU_S = 2.0
"""For what jinja2 computes while it compiles (once per model); parsing itself does not tick."""
MAX_OUTPUT_BYTES = 4 << 20
MAX_SOURCE_CHARS = 1 << 17
"""The largest templates in use have 20,000; jinja2 takes about 1.5 s for the worst of this size."""
MAX_MADE_BYTES = 64 << 20
"""The sum over everything that one rendering makes on its way, freed or not."""
MAX_ITEMS = 20_000
"""Of any list that a template makes, and of `range`."""
MAX_SLOW_CHARS = 1 << 18
"""Of a text given to a filter or format that takes its time over each word."""
MAX_INT_BITS = 4096
MAX_WIDTH = 10_000
"""The largest number that asks a filter or format for padding."""


class BudgetError(SecurityError):
    """A template asked for more time or memory than it may have."""


class RefusedError(Exception):
    """A template called raise_exception."""


class Budget:
    """What one rendering has used."""

    def __init__(self, cpu_s: float) -> None:
        self._cpu_s = cpu_s
        self._deadline = time.thread_time() + cpu_s
        self._made_bytes = 0

    def tick(self) -> None:
        """Raises `BudgetError` when the time is up."""
        if time.thread_time() > self._deadline:
            raise BudgetError(f"it ran for more than {int(self._cpu_s * 1000)} ms")

    def charge(self, value: Any) -> Any:
        """Adds a new value to the bill and returns it."""
        if isinstance(value, (str, list, tuple, dict)):
            self._made_bytes += weight(value)
            if self._made_bytes > MAX_MADE_BYTES:
                raise BudgetError(f"it made more than {MAX_MADE_BYTES >> 20} MiB of text")
        return value


def weight(value: Any) -> int:
    """About the number of characters that a value prints as. Raises `BudgetError` as soon as it
    passes `MAX_OUTPUT_BYTES`."""
    total = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, (str, bytes)):
            total += len(item) + 2
        else:
            total += 16
            if isinstance(item, dict):
                waiting.extend(item.keys())
                waiting.extend(item.values())
            elif isinstance(item, (list, tuple)):
                waiting.extend(item)
        if total + len(waiting) > MAX_OUTPUT_BYTES:
            raise BudgetError(f"it made a value of more than {MAX_OUTPUT_BYTES >> 20} MiB")
    return total


_current = threading.local()


@contextlib.contextmanager
def budgeted(cpu_s: float = MAX_CPU_S) -> Iterator[Budget]:
    """Runs what is inside under a fresh budget of this thread."""
    outer = getattr(_current, "budget", None)
    _current.budget = budget = Budget(cpu_s)
    try:
        yield budget
    finally:
        _current.budget = outer


def current_budget() -> Budget:
    budget = getattr(_current, "budget", None)
    if budget is None:
        raise BudgetError("a template ran outside its budget")
    assert isinstance(budget, Budget)
    return budget


def check_growth(n_characters: int) -> None:
    if n_characters > MAX_OUTPUT_BYTES:
        raise BudgetError(f"it asked for a text of {n_characters} characters")


def check_numbers(arguments: Iterable[Any]) -> None:
    for value in arguments:
        if isinstance(value, (int, float)) and abs(value) > MAX_WIDTH:
            raise BudgetError(f"it asked for a width or count of {str(value)[:20]}")


def check_format(text: str, arguments: Sequence[Any]) -> None:
    """A format may ask for any width, in its text or by an argument."""
    if len(text) > MAX_SLOW_CHARS:
        raise BudgetError(f"it formatted a text of {len(text)} characters")
    if re.search(r"\d{5}", text):
        raise BudgetError("a format asks for a width of more than 9999")
    check_numbers(arguments)
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    numbers += [int(abs(a)) for a in arguments if isinstance(a, (int, float))]
    n_fields = text.count("{") + text.count("%") + 1
    check_growth(n_fields * (sum(map(weight, arguments)) + max(numbers, default=0)))


def check_binary(operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        for a, n in ((left, right), (right, left)):
            if isinstance(a, (str, bytes)) and isinstance(n, int):
                check_growth(len(a) * max(n, 0))
            elif isinstance(a, (list, tuple)) and isinstance(n, int):
                check_items(len(a) * n)
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str):
        values = list(right.values()) if isinstance(right, dict) else right
        check_format(left, values if isinstance(values, (tuple, list)) else (right,))
    elif operator == "+" and isinstance(left, str) and isinstance(right, str):
        check_growth(len(left) + len(right))


def _check_bits(n_bits: int) -> None:
    if n_bits > MAX_INT_BITS:
        raise BudgetError(f"it asked for a number of {n_bits} bits")


def check_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str):
        old, new = str(old), str(new)
        n = text.count(old) if old else len(text) + 1
        check_growth(len(text) + n * len(new))


def joined(separator: str, parts: Iterable[Any]) -> str:
    texts: list[str] = []
    n_characters = 0
    for part in parts:
        texts.append(printed(part))
        n_characters += len(texts[-1]) + len(separator)
        check_growth(n_characters)
        check_items(len(texts))
        if len(texts) % 256 == 0:
            current_budget().tick()
    return separator.join(texts)


def check_items(n_items: int) -> None:
    if n_items > MAX_ITEMS:
        raise BudgetError(f"it asked for a list of {n_items} items")


def printed(value: Any) -> str:
    if isinstance(value, str):
        return value
    weight(value)
    return str(value)
