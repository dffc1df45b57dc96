"""The filters and functions of chat templates: jinja2's and Hugging Face's, each with its work
bounded by the budget."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.utils import Namespace

from localllm.text.template_budget import (
    MAX_ITEMS,
    MAX_SLOW_CHARS,
    BudgetError,
    RefusedError,
    check_format,
    check_growth,
    check_items,
    check_numbers,
    check_replace,
    current_budget,
    joined,
    printed,
    weight,
)

_WIDTH_FILTERS = frozenset(
    {"center", "indent", "batch", "slice", "truncate", "wordwrap", "round", "tojson"}
)
_COMPARING_FILTERS = frozenset(
    {"sort", "unique", "min", "max", "groupby", "select", "reject", "selectattr", "rejectattr"}
)
_SLOW_FILTERS = frozenset({"wordwrap", "title", "wordcount", "escape", "e", "forceescape"})
_UNCHARGED = frozenset({"guarded slice", "guarded compared"})
_DROPPED_FILTERS = ("urlize", "xmlattr", "pprint", "random", "striptags", "filesizeformat")


def _guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that ticks, is checked before and charged after. It keeps jinja2's marks on the
    function (functools.wraps copies them), so it may get a context or environment first."""
    skip = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.tick()
        values = args[skip:]
        if name in _WIDTH_FILTERS:
            check_numbers((*values[1:], *kwargs.values()))
        if name in _SLOW_FILTERS and values and len(printed(values[0])) > MAX_SLOW_CHARS:
            raise BudgetError(f"it gave {name} a text of more than {MAX_SLOW_CHARS} characters")
        if name == "indent" and values and isinstance(values[0], str):
            width = values[1] if len(values) > 1 else kwargs.get("width", 4)
            unit = width if isinstance(width, int) else len(str(width))
            check_growth(len(values[0]) + unit * (values[0].count("\n") + 1))
        elif name == "replace" and len(values) >= 3:
            check_replace(values[0], values[1], values[2])
        elif name == "format" and values:
            check_format(str(values[0]), (*values[1:], *kwargs.values()))
        if name in _COMPARING_FILTERS and values:
            if isinstance(values[0], str):
                check_items(len(values[0]))
            elif isinstance(values[0], Iterator):
                values = (_list(values[0]), *values[1:])
                args = (*args[:skip], *values)
            weight(list(values))
        result = function(*args, **kwargs)
        return result if name in _UNCHARGED else budget.charge(result)

    return guarded


def _tick(_value: object) -> str:
    current_budget().tick()
    return ""


def finalize(value: Any) -> Any:
    """What every `{{ }}` passes through."""
    current_budget().tick()
    return printed(value)


def _concat(parts: list[Any]) -> str:
    return joined("", parts)


def bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    check_items(len(numbers))
    return numbers


def _literal(value: Any) -> Any:
    return value


def _compared(value: Any) -> Any:
    weight(value)
    return value


def _list(value: Iterable[Any]) -> list[Any]:
    items = list(itertools.islice(value, MAX_ITEMS + 1))
    check_items(len(items))
    return items


@pass_environment
def _join(
    environment: Environment, value: Iterable[Any], d: str = "", attribute: str | None = None
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return joined(str(d), value)


@pass_environment
def _sum(
    environment: Environment, iterable: Iterable[Any], attribute: str | None = None, start: Any = 0
) -> Any:
    if attribute is not None:
        iterable = map(make_attrgetter(environment, attribute), iterable)
    total = start
    for item in iterable:
        if not isinstance(item, (int, float)) or not isinstance(total, (int, float)):
            raise TypeError("sum takes numbers")
        total += item
    return total


def _slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
    return value[start:stop:step]


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's transformers defines it for chat templates: no HTML escapes."""
    weight(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: object = "") -> None:
    raise RefusedError(str(message))


def strftime_now(format: str) -> str:
    if len(format) > 200 or re.search(r"%[^a-zA-Z%]", format):
        raise BudgetError("strftime_now takes plain formats of at most 200 characters")
    return datetime.now().strftime(format)


_OWN_FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": _tojson,
    "from_json": json.loads,
    "list": _list,
    "join": _join,
    "sum": _sum,
    "string": printed,
    "guarded concat": _concat,
    "guarded slice": _slice,
    "guarded literal": _literal,
    "guarded compared": _compared,
}


def bounded_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """jinja2's filters with those of chat templates, each within the budget, and the internal ones
    that `guard_tree` puts into a template (their names cannot be written in one)."""
    kept = {name: f for name, f in filters.items() if name not in _DROPPED_FILTERS}
    guarded = {name: _guard_filter(name, f) for name, f in {**kept, **_OWN_FILTERS}.items()}
    return {**guarded, "tick": _tick}


class TemplateNamespace(Namespace):
    """`namespace()` without names that begin with an underscore, which reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args  # so that a template may call an attribute "self"
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have {name!r:.60}")
