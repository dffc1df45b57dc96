"""Which characters of a rendered prompt came from the template's own text.

Only the template may put control tokens into a prompt. Before a template is compiled, each of its
literals that can be part of a control token, and that stands where it is printed, is put between
two marks (private-use characters that occur nowhere in the input). After rendering the marks are
taken out and what stood between them is trusted. Everything else, whatever road it took through
the template, is text: a part of the template that this file fails to recognize costs a control
token, and never gives one away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from jinja2 import nodes

from localllm.text.special_split import SpecialSplitter

MARKS = tuple((chr(0x10F000 + 2 * i), chr(0x10F001 + 2 * i)) for i in range(512))
"""Pairs of an opening and a closing mark. A rendering uses one that its input does not hold."""

_NEVER_PRINTED = frozenset({"raise_exception", "strftime_now", "range"})
_PRINTED_ARGUMENTS = frozenset({"default", "d", "join", "format"})
_SPACES = " \t\r\n"
_PLACEHOLDER = re.compile(r"(%[-+ #0-9.*]*(?:\(\w+\))?[a-zA-Z%]|\{[^{}]*\})")


class LiteralMarker:
    """Marks the literals of one template."""

    def __init__(self, special_texts: Iterable[str], marks: tuple[str, str]) -> None:
        """`special_texts`: texts of the tokens that only a template may make."""
        self._open, self._close = marks
        self._mark_of = re.compile(f"[{self._open}{self._close}]")
        self._marked = re.compile(f"{self._open}([^{self._open}{self._close}]*){self._close}")
        texts = [text for text in special_texts if text]
        self._whole = SpecialSplitter({text: i for i, text in enumerate(texts)})
        self._heads = {text[:n] for text in texts for n in range(1, len(text))}
        self._tails = {text[n:] for text in texts for n in range(1, len(text))}
        self._longest = max(map(len, texts), default=0)
        self._inspected: frozenset[str] = frozenset()
        self.literals: set[str] = set()
        """Every text that was put between marks."""

    def mark_text(self, text: str) -> str:
        """`text` with its printing part between marks if a control token may touch it."""
        core = text.strip(_SPACES)
        if not core or not self._matters(core):
            return text
        self.literals.add(core)
        start = text.index(core)
        return text[:start] + self._open + core + self._close + text[start + len(core) :]

    def mark_tree(self, tree: nodes.Template) -> None:
        """Marks the literals of a template in place."""
        self._inspected = frozenset(_inspected_names(tree))
        for output in tree.find_all(nodes.Output):
            output.nodes = list(self._mark_all(output.nodes))
        for assign in tree.find_all(nodes.Assign):
            name = assign.target.name if isinstance(assign.target, nodes.Name) else None
            # A constant that the template also compares with must stay as it is; it is marked
            # where it is printed.
            if not (name in self._inspected and isinstance(assign.node, nodes.Const)):
                assign.node = self._mark(assign.node)
        for macro in tree.find_all(nodes.Macro):
            macro.defaults = self._mark_all(macro.defaults)
        # What a macro wrote, or a variable that holds such text, is compared without marks.
        for compare in tree.find_all(nodes.Compare):
            compare.expr = self._unmarked(compare.expr)
            for operand in compare.ops:
                operand.expr = self._unmarked(operand.expr)

    def split(self, marked: str) -> tuple[str, bytearray]:
        """A rendered text without its marks, and for each of its characters 1 if the template's
        own text stands there, else 0."""
        parts: list[str] = []
        trusted = bytearray()
        at = 0
        for match in self._marked.finditer(marked):
            # A filter may have cut a mark off, so only a whole literal of the template counts.
            parts += [self._mark_of.sub("", marked[at : match.start()]), match[1]]
            trusted += bytes(len(parts[-2]))
            trusted += bytes([int(match[1] in self.literals)]) * len(match[1])
            at = match.end()
        parts.append(self._mark_of.sub("", marked[at:]))
        trusted += bytes(len(parts[-1]))
        return "".join(parts), trusted

    def mark_constant(self, value: object) -> object:
        """The filter that marks a variable where it is printed, if it holds a constant."""
        return self.mark_text(value) if isinstance(value, str) else value

    def without_marks(self, value: object) -> object:
        """The filter for what is compared."""
        if isinstance(value, str) and (self._open in value or self._close in value):
            return self._mark_of.sub("", value)
        return value

    def _unmarked(self, node: nodes.Expr) -> nodes.Expr:
        texts: Any = (nodes.Name, nodes.Call, nodes.Add, nodes.Concat, nodes.Filter)
        return _filter(node, "without marks") if isinstance(node, texts) else node

    def _matters(self, core: str) -> bool:
        if any(isinstance(piece, int) for piece in self._whole.pieces(core)):
            return True
        lengths = range(1, min(len(core), self._longest) + 1)
        return any(core[-n:] in self._heads or core[:n] in self._tails for n in lengths)

    def _mark(self, node: Any) -> Any:
        """Marks the literals in an expression that is printed."""
        if isinstance(node, nodes.TemplateData):
            node.data = self.mark_text(node.data)
        elif isinstance(node, nodes.Const):
            if isinstance(node.value, str):
                node.value = self.mark_text(node.value)
        elif isinstance(node, (nodes.Add, nodes.Mul, nodes.Or, nodes.And)):
            node.left, node.right = self._mark(node.left), self._mark(node.right)
        elif isinstance(node, nodes.Mod):
            node.left = self._mark_format(node.left)
        elif isinstance(node, nodes.Concat):
            node.nodes = self._mark_all(node.nodes)
        elif isinstance(node, nodes.CondExpr):
            node.expr1 = self._mark(node.expr1)
            node.expr2 = self._mark(node.expr2) if node.expr2 is not None else None
        elif isinstance(node, nodes.Filter):
            if node.node is not None:
                mark = self._mark_format if node.name == "format" else self._mark
                node.node = mark(node.node)
            if node.name in _PRINTED_ARGUMENTS:
                node.args = self._mark_all(node.args)
        elif isinstance(node, nodes.Call):
            self._mark_call(node)
        elif isinstance(node, (nodes.List, nodes.Tuple)):
            node.items = self._mark_all(node.items)
        elif isinstance(node, nodes.Dict):
            for pair in node.items:
                pair.value = self._mark(pair.value)
        elif isinstance(node, nodes.Getitem):
            if isinstance(node.node, (nodes.Dict, nodes.List, nodes.Tuple)):
                node.node = self._mark(node.node)
        elif isinstance(node, nodes.Name) and node.name in self._inspected:
            return _filter(node, "mark literal")
        return node

    def _mark_format(self, node: Any) -> Any:
        """Marks a text with placeholders: what stands between them comes out as it is."""
        if isinstance(node, nodes.Const) and isinstance(node.value, str):
            parts = _PLACEHOLDER.split(node.value)
            node.value = "".join(
                part if i % 2 else self.mark_text(part) for i, part in enumerate(parts)
            )
            return node
        return self._mark(node)

    def _mark_all(self, parts: Sequence[Any]) -> list[Any]:
        return [self._mark(part) for part in parts]

    def _mark_call(self, node: nodes.Call) -> None:
        """Texts given to macros and to `namespace` are printed; those given to methods of other
        texts (split, startswith, ...) are compared with."""
        if isinstance(node.node, nodes.Name) and node.node.name not in _NEVER_PRINTED:
            node.args = self._mark_all(node.args)
            for keyword in node.kwargs:
                keyword.value = self._mark(keyword.value)
        elif isinstance(node.node, nodes.Getattr):
            if node.node.attr in ("join", "format"):
                mark = self._mark_format if node.node.attr == "format" else self._mark
                node.node.node = mark(node.node.node)
                node.args = self._mark_all(node.args)
            elif isinstance(node.node.node, (nodes.Add, nodes.Concat, nodes.CondExpr)):
                node.node.node = self._mark(node.node.node)


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    arguments: list[nodes.Expr] = []
    return nodes.Filter(node, name, arguments, [], None, None, lineno=node.lineno)


def _inspected_names(tree: nodes.Template) -> set[str]:
    """Names of variables that only ever hold constants and that the template compares with."""
    constants: set[str] = set()
    others: set[str] = set()
    for assign in tree.find_all(nodes.Assign):
        names = constants if isinstance(assign.node, nodes.Const) else others
        names.update(_names(assign.target))
    binders: Any = (nodes.For, nodes.AssignBlock)
    for node in tree.find_all(binders):
        others.update(_names(node.target))
    callables: Any = (nodes.Macro, nodes.CallBlock)
    for macro in tree.find_all(callables):
        others.update(name for argument in macro.args for name in _names(argument))
    looked_at: set[str] = set()
    tests: Any = (nodes.Compare, nodes.Test)
    for compare in tree.find_all(tests):
        looked_at.update(_names(compare))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr):
            looked_at.update(name for argument in call.args for name in _names(argument))
    return (constants - others) & looked_at


def _names(node: nodes.Node) -> list[str]:
    """The variables in an expression."""
    own = [node.name] if isinstance(node, nodes.Name) else []
    return own + [name.name for name in node.find_all(nodes.Name)]
