"""Where chat templates run: jinja2's immutable sandbox, with a budget.

The sandbox stops code, not work: a template of 60 bytes can loop for ever or ask for a string of a
gigabyte. Nothing can interrupt one long operation inside Python, so every operation is kept short
and something looks at the clock between any two of them:

* before a template is compiled, a call of `tick` is put before each statement (`guard_tree`);
  calls (macros too) and filters tick as well;
* every operation that can make a text or list much larger than its inputs (`+ * ** % ~`, slices,
  filters, calls, list literals, printing) is checked before it runs, and what it makes is charged
  to the budget. A list weighs what it would print, so sharing parts does not make it light.

A tick reads the thread's CPU clock. Loading the template itself is bounded by `MAX_SOURCE_CHARS`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Environment, nodes, pass_environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

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
"""Of a text given to a filter that takes its time over each word."""
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


def _budget() -> Budget:
    budget = getattr(_current, "budget", None)
    if budget is None:
        raise BudgetError("a template ran outside its budget")
    assert isinstance(budget, Budget)
    return budget


def _check_growth(n_characters: int) -> None:
    if n_characters > MAX_OUTPUT_BYTES:
        raise BudgetError(f"it asked for a text of {n_characters} characters")


def _check_numbers(arguments: Iterable[Any]) -> None:
    for value in arguments:
        if isinstance(value, (int, float)) and abs(value) > MAX_WIDTH:
            raise BudgetError(f"it asked for a width or count of {str(value)[:20]}")


def _check_format(text: str, arguments: Sequence[Any]) -> None:
    """A format may ask for any width, in its text or by an argument."""
    if re.search(r"\d{5}", text):
        raise BudgetError("a format asks for a width of more than 9999")
    _check_numbers(arguments)
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    numbers += [int(abs(a)) for a in arguments if isinstance(a, (int, float))]
    n_fields = text.count("{") + text.count("%") + 1
    _check_growth(n_fields * (sum(map(weight, arguments)) + max(numbers, default=0)))


def _check_binary(operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        for a, n in ((left, right), (right, left)):
            if isinstance(a, (str, bytes)) and isinstance(n, int):
                _check_growth(len(a) * max(n, 0))
            elif isinstance(a, (list, tuple)) and isinstance(n, int):
                _check_items(len(a) * n)
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))
    elif operator == "%" and isinstance(left, str):
        values = list(right.values()) if isinstance(right, dict) else right
        _check_format(left, values if isinstance(values, (tuple, list)) else (right,))
    elif operator == "+" and isinstance(left, str) and isinstance(right, str):
        _check_growth(len(left) + len(right))


def _check_bits(n_bits: int) -> None:
    if n_bits > MAX_INT_BITS:
        raise BudgetError(f"it asked for a number of {n_bits} bits")


def _check_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str):
        old, new = str(old), str(new)
        n = text.count(old) if old else len(text) + 1
        _check_growth(len(text) + n * len(new))


def _joined(separator: str, parts: Iterable[Any]) -> str:
    texts: list[str] = []
    n_characters = 0
    for part in parts:
        texts.append(_printed(part))
        n_characters += len(texts[-1]) + len(separator)
        _check_growth(n_characters)
        _check_items(len(texts))
        if len(texts) % 256 == 0:
            _budget().tick()
    return separator.join(texts)


def _check_items(n_items: int) -> None:
    if n_items > MAX_ITEMS:
        raise BudgetError(f"it asked for a list of {n_items} items")


def _printed(value: Any) -> str:
    if isinstance(value, str):
        return value
    weight(value)
    return str(value)


def _is_text_join(method: Any) -> bool:
    return getattr(method, "__name__", "") == "join" and isinstance(
        getattr(method, "__self__", None), str
    )


def _check_method(method: Any, arguments: tuple[Any, ...]) -> None:
    """Methods of texts that can make much out of little."""
    owner = getattr(method, "__self__", None)
    name = getattr(method, "__name__", "")
    if not isinstance(owner, str):
        return
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        _check_numbers(arguments)
        if name == "expandtabs":
            _check_growth(len(owner) + owner.count("\t") * int(arguments[0] if arguments else 8))
    elif name == "replace" and len(arguments) >= 2:
        _check_replace(owner, arguments[0], arguments[1])
    elif name == "translate":
        raise BudgetError("str.translate is not available in templates")


_WIDTH_FILTERS = frozenset(
    {"center", "indent", "batch", "slice", "truncate", "wordwrap", "round", "tojson"}
)
_SLOW_FILTERS = frozenset({"wordwrap", "title", "wordcount", "escape", "e", "forceescape"})
_DROPPED_FILTERS = ("urlize", "xmlattr", "pprint", "random", "striptags", "filesizeformat")


def _guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that ticks, is checked before and charged after. It keeps jinja2's marks on the
    function (functools.wraps copies them), so it may get a context or environment first."""
    skip = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget = _budget()
        budget.tick()
        values = args[skip:]
        if name in _WIDTH_FILTERS:
            _check_numbers((*values[1:], *kwargs.values()))
        if name in _SLOW_FILTERS and values and len(_printed(values[0])) > MAX_SLOW_CHARS:
            raise BudgetError(f"it gave {name} a text of more than {MAX_SLOW_CHARS} characters")
        if name == "indent" and values and isinstance(values[0], str):
            width = values[1] if len(values) > 1 else kwargs.get("width", 4)
            unit = width if isinstance(width, int) else len(str(width))
            _check_growth(len(values[0]) + unit * (values[0].count("\n") + 1))
        elif name == "replace" and len(values) >= 3:
            _check_replace(values[0], values[1], values[2])
        elif name == "format" and values:
            _check_format(str(values[0]), (*values[1:], *kwargs.values()))
        result = function(*args, **kwargs)
        return result if name == "guarded slice" else budget.charge(result)

    return guarded


def _tick(_value: object) -> str:
    _budget().tick()
    return ""


def _finalize(value: Any) -> Any:
    """What every `{{ }}` passes through."""
    _budget().tick()
    return _printed(value)


def _concat(parts: list[Any]) -> str:
    return _joined("", parts)


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    _check_items(len(numbers))
    return numbers


def _literal(value: Any) -> Any:
    return value


def _list(value: Iterable[Any]) -> list[Any]:
    items = list(itertools.islice(value, MAX_ITEMS + 1))
    _check_items(len(items))
    return items


@pass_environment
def _join(
    environment: Environment, value: Iterable[Any], d: str = "", attribute: str | None = None
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return _joined(str(d), value)


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


def _raise_exception(message: object = "") -> None:
    raise RefusedError(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > 200 or re.search(r"%[^a-zA-Z%]", format):
        raise BudgetError("strftime_now takes plain formats of at most 200 characters")
    return datetime.now().strftime(format)


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks an answer in training templates; for a prompt
    it is what it contains."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Drops the tag and keeps its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates. Use it under `budgeted` only."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(lambda parts: _budget().charge("".join(parts)))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            cache_size=0,
            finalize=_finalize,
        )
        filters: dict[str, Callable[..., Any]] = {**self.filters, "tojson": _tojson}
        filters.update(from_json=json.loads, list=_list, join=_join, sum=_sum, string=_printed)
        for name in _DROPPED_FILTERS:
            del filters[name]
        guarded = {name: _guard_filter(name, function) for name, function in filters.items()}
        for name, function in (
            ("concat", _concat),
            ("slice", _slice),
            ("literal", _literal),
        ):
            guarded[f"guarded {name}"] = _guard_filter(f"guarded {name}", function)
        guarded["tick"] = _tick
        self.filters = guarded
        self.globals.pop("lipsum", None)
        self.globals["range"] = _range
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operator of `intercepted_binops`."""
        budget = _budget()
        budget.tick()
        _check_binary(operator, left, right)
        return budget.charge(self.binop_table[operator](left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The sandbox's stand-in for `str.format` and `str.format_map`, with its work bounded."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__

        def bounded(*args: Any, **kwargs: Any) -> str:
            values = [*args, *kwargs.values()]
            for item in args:
                if isinstance(item, dict):
                    values.extend(item.values())
            _check_format(text, values)
            return wrapped(*args, **kwargs)

        return bounded

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template: functions, methods, macros."""
        budget = _budget()
        budget.tick()
        if _is_text_join(__obj) and len(args) == 1:
            return budget.charge(_joined(__obj.__self__, args[0]))
        _check_method(__obj, args)
        return budget.charge(super().call(__context, __obj, *args, **kwargs))


def guard_tree(tree: nodes.Template) -> None:
    """Puts ticks before all statements, and turns the operators that jinja2 compiles without a
    hook (`~` and slices) into guarded filters."""
    _GuardOperators().visit(tree)
    for node in [tree, *tree.find_all(nodes.Stmt)]:
        for name in ("body", "else_"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                ticked = [part for s in statements for part in (_tick_statement(s.lineno), s)]
                setattr(node, name, ticked)


def _filter(value: nodes.Expr, name: str, arguments: list[nodes.Expr], line: int) -> nodes.Filter:
    return nodes.Filter(value, name, arguments, [], None, None, lineno=line)


def _tick_statement(line: int) -> nodes.ExprStmt:
    nothing = nodes.Const(None, lineno=line)
    return nodes.ExprStmt(_filter(nothing, "tick", [], line), lineno=line)


class _GuardOperators(NodeTransformer):
    """Replaces `~` and slices, wraps literals of lists."""

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._literal(node, node.items) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._literal(node, [pair.value for pair in node.items])

    def _literal(self, node: nodes.Expr, items: list[nodes.Expr]) -> nodes.Node:
        constant = all(isinstance(item, nodes.Const) for item in items)
        self.generic_visit(node)
        return node if constant else _filter(node, "guarded literal", [], node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return _filter(parts, "guarded concat", [], node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        none = nodes.Const(None, lineno=node.lineno)
        bounds = [part or none for part in (node.arg.start, node.arg.stop, node.arg.step)]
        return _filter(node.node, "guarded slice", bounds, node.lineno)
