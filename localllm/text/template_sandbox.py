"""Where chat templates run: jinja2's immutable sandbox, with a budget.

The sandbox stops code, not work: a template of 60 bytes can loop for ever or ask for a string of a
gigabyte. Nothing can interrupt one long operation inside Python, so every operation is kept short
and something looks at the clock between any two of them:

* before a template is compiled, a call of `tick` is put before each statement (`guard_tree`);
  calls (macros too) and filters tick as well;
* every operation that can make a text or list much larger than its inputs (`+ * ** % ~`, slices,
  filters, calls, list literals, printing) is checked before it runs, and what it makes is charged
  to the budget (`template_budget`). What is compared is weighed first.

Loading the template itself is bounded by `MAX_SOURCE_CHARS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from localllm.text.template_budget import (
    MAX_ITEMS,
    BudgetError,
    check_binary,
    check_format,
    check_growth,
    check_items,
    check_numbers,
    check_replace,
    current_budget,
    joined,
    weight,
)
from localllm.text.template_filters import (
    TemplateNamespace,
    bounded_filters,
    bounded_range,
    finalize,
    raise_exception,
    strftime_now,
)


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks an answer in training templates; for a prompt
    it is what it contains."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Drops the tag and keeps its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_CHANGING_METHODS = frozenset(
    {
        *("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
        *("setdefault", "update"),
    }
)
_COMPARING_METHODS = frozenset({"count", "index", "remove", "sort"})


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
        check_numbers(arguments)
        if name == "expandtabs":
            check_growth(len(owner) + owner.count("\t") * int(arguments[0] if arguments else 8))
    elif name == "replace" and len(arguments) >= 2:
        check_replace(owner, arguments[0], arguments[1])
    elif name == "translate":
        raise BudgetError("str.translate is not available in templates")


def _checked_change(
    method: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a method of a list or object is called with. What goes in is copied, so that a value
    never holds itself, nor twice what then grows."""
    owner, name = method.__self__, method.__name__
    if name in _COMPARING_METHODS:
        weight([owner, list(arguments)])
    if name not in _CHANGING_METHODS:
        return arguments, named
    if name == "extend" and arguments:
        arguments = (list(itertools.islice(arguments[0], MAX_ITEMS + 1)), *arguments[1:])
        check_items(len(arguments[0]))
        check_items(len(owner) + len(arguments[0]))
    check_items(len(owner) + 1)
    current_budget().charge([list(arguments), named])
    return tuple(_copied(a) for a in arguments), {key: _copied(v) for key, v in named.items()}


def _copied(value: Any) -> Any:
    """A copy of plain data, whose weight was checked."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates. Use it under `budgeted` only."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(lambda parts: current_budget().charge("".join(parts)))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            cache_size=0,
            finalize=finalize,
        )
        self.filters = bounded_filters(self.filters)
        self.globals.pop("lipsum", None)
        self.globals["range"] = bounded_range
        self.globals["namespace"] = TemplateNamespace
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """What jinja2's sandbox allows, and the methods that change lists and objects: everything
        that a template sees is a copy made for it."""
        if isinstance(obj, (list, dict)) and attr in _CHANGING_METHODS:
            return SandboxedEnvironment.is_safe_attribute(self, obj, attr, value)
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operator of `intercepted_binops`."""
        budget = current_budget()
        budget.tick()
        check_binary(operator, left, right)
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
            check_format(text, values)
            return wrapped(*args, **kwargs)

        return bounded

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template: functions, methods, macros."""
        budget = current_budget()
        budget.tick()
        if _is_text_join(__obj) and len(args) == 1:
            return budget.charge(joined(__obj.__self__, args[0]))
        if isinstance(getattr(__obj, "__self__", None), (list, dict)):
            args, kwargs = _checked_change(__obj, args, kwargs)
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
    """Replaces `~` and slices, wraps literals of lists and what is compared."""

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

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        if not any(isinstance(side, nodes.Const) for side in sides):
            # Comparing takes as long as the lighter side, however often it holds the same part.
            node.expr = _filter(node.expr, "guarded compared", [], node.lineno)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        if any(not isinstance(argument, nodes.Const) for argument in node.args):
            node.node = _filter(node.node, "guarded compared", [], node.lineno)
        return node

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
