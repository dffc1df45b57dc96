"""Messages to a prompt, by the chat template in the model's file.

Templates are code from a stranger: they run in `template_sandbox` with at most 250 ms of CPU time
and 4 MiB of output. Words of users never become control tokens: `render_to_ids` takes control
tokens only from the template's own text (`template_marks`), and encodes the rest as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from localllm.errors import ArgumentError, ChatTemplateError, LocalLLMError, UnsupportedError
from localllm.text.metadata import Metadata, read_text
from localllm.text.template_fallbacks import find_fallback
from localllm.text.tokenizer import Tokenizer, checked_text

if TYPE_CHECKING:
    from jinja2 import Template

    from localllm.text.template_marks import LiteralMarker

KEY = "tokenizer.chat_template"
MAX_DEPTH = 100
"""How deeply messages and tools may be nested."""
MAX_COMPILED = 4

Message = Mapping[str, Any]


class ChatTemplate:
    """A model's chat template. Threads may share it."""

    def __init__(self, source: str, tokenizer: Tokenizer, origin: str = "file") -> None:
        """`origin`: where the template comes from, for messages: "file" or "fallback:<format>"."""
        self.source = source
        self.origin = origin
        self._tokenizer = tokenizer
        self._special_texts = _template_only(tokenizer, source)
        self._compiled: dict[int, tuple[Template, LiteralMarker]] = {}
        self._takes_parts = (
            re.search(r"is (not )?(string|iterable|sequence|mapping)|\btype\b", source) is not None
        )

    @classmethod
    def from_metadata(
        cls, metadata: Metadata, tokenizer: Tokenizer, name: str | None = None
    ) -> ChatTemplate:
        """The template of a GGUF file; `name` picks one of several, such as "tool_use", if the
        file has it. A file without a template gets the usual one of its family.

        Raises `UnsupportedError` if there is no template and nothing tells the family.
        """
        source = read_text(metadata, f"{KEY}.{name}") if name else None
        source = source or read_text(metadata, KEY)
        if source:
            return cls(source, tokenizer)
        fallback = find_fallback(metadata, tokenizer.special_texts())
        if fallback is None:
            raise UnsupportedError(
                f"the file has no {KEY}, and its vocabulary is of no known chat format",
                "It may be a base model: give it a plain prompt instead of a conversation.",
            )
        return cls(fallback.source, tokenizer, f"fallback:{fallback.name}")

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> str:
        """The prompt as text. `options` are further variables of the template.

        Raises `ChatTemplateError` with the template's own words if it refuses the messages, or if
        it fails or exceeds its budget; `ArgumentError` for messages that are no plain data.
        """
        return self._render(messages, tools, add_generation_prompt, options)[0]

    def render_to_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> list[int]:
        """The prompt as token ids, with the beginning-of-sequence token if the model asks for one
        and the template did not write it. Errors: as `render`."""
        text, trusted = self._render(messages, tools, add_generation_prompt, options)
        allow = _Allow(text, trusted, frozenset(self._special_texts.values()))
        ids = self._tokenizer.encode(text, add_special=False, parse_special=True, allow=allow)
        bos = self._tokenizer.bos_id
        if self._tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        options: Mapping[str, Any],
    ) -> tuple[str, bytearray]:
        """The text and, for each of its characters, whether it is the template's own (1 or 0)."""
        from localllm.text import template_sandbox as sandbox
        from localllm.text.template_marks import MARKS

        variables: dict[str, Any] = {
            "messages": self._prepared(messages),
            "tools": _plain(tools, "tools"),
            "add_generation_prompt": add_generation_prompt,
            **_plain(options, "options"),
        }
        texts = [self.source, *_strings(variables)]
        pair = next((i for i, m in enumerate(MARKS) if not _any_has(texts, m)), None)
        if pair is None:
            raise ArgumentError(
                f"the messages use all of {2 * len(MARKS)} private-use characters from U+10F000",
                "Leave out private-use characters.",
            )
        try:
            template, marker = self._compile(pair)
            variables.update(self._special_variables(marker))
            with sandbox.budgeted() as budget:
                sandbox.weight(variables)
                context = template.new_context(variables)
                parts: list[str] = []
                n_characters = 0
                for part in template.root_render_func(context):
                    budget.tick()
                    n_characters += len(part)
                    if n_characters > sandbox.MAX_OUTPUT_BYTES:
                        raise sandbox.BudgetError(f"it wrote more than {n_characters} characters")
                    parts.append(part)
            text, trusted = marker.split("".join(parts))
        except sandbox.RefusedError as e:
            raise ChatTemplateError(f"the chat template refused: {_clipped(e)}") from None
        except sandbox.BudgetError as e:
            raise ChatTemplateError(f"the chat template was stopped: {_clipped(e)}") from None
        except LocalLLMError:
            raise
        except Exception as e:
            raise ChatTemplateError(
                f"the chat template failed ({type(e).__name__}): {_clipped(e)}"
            ) from e
        if _n_bytes(text) > sandbox.MAX_OUTPUT_BYTES:
            limit = sandbox.MAX_OUTPUT_BYTES >> 20
            raise ChatTemplateError(f"the chat template wrote more than {limit} MiB")
        return text, trusted

    def _compile(self, pair: int) -> tuple[Template, LiteralMarker]:
        """The compiled template with one of the pairs of marks."""
        compiled = self._compiled.get(pair)
        if compiled is not None:
            return compiled
        from localllm.text import template_sandbox as sandbox
        from localllm.text.template_marks import MARKS, LiteralMarker

        if len(self.source) > sandbox.MAX_SOURCE_CHARS:
            raise ChatTemplateError(
                f"the chat template has {len(self.source)} characters, "
                f"at most {sandbox.MAX_SOURCE_CHARS} are allowed"
            )
        environment = sandbox.TemplateSandbox()
        marker = LiteralMarker(self._special_texts, MARKS[pair])
        environment.filters["mark literal"] = marker.mark_constant
        with sandbox.budgeted(sandbox.MAX_COMPILE_CPU_S):
            tree = environment.parse(checked_text(self.source, "the chat template"))
            marker.mark_tree(tree)
            sandbox.guard_tree(tree)
            compiled = environment.from_string(tree), marker
        while len(self._compiled) >= MAX_COMPILED:
            self._compiled.pop(next(iter(self._compiled)), None)
        self._compiled[pair] = compiled
        return compiled

    def _special_variables(self, marker: LiteralMarker) -> dict[str, str]:
        """bos_token and its like, as Hugging Face's templates expect them."""
        names = (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"))
        out = {}
        for name, variable in (*names, ("padding", "pad_token")):
            token_id = self._tokenizer.special_id(name)
            if token_id is not None:
                text = self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
                out[variable] = marker.mark_text(text)
        out.setdefault("bos_token", "")
        out.setdefault("eos_token", "")
        return out

    def _prepared(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """A deep copy of the messages in the form that templates expect: the arguments of tool
        calls as objects, and texts instead of lists of parts if the template knows no parts."""
        copies = _plain(list(messages), "messages")
        for i, message in enumerate(copies):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise ArgumentError(f"messages[{i}] has no role")
            content = message.get("content")
            if isinstance(content, list) and not self._takes_parts:
                message["content"] = "".join(
                    part["text"]
                    for part in content
                    if isinstance(part, dict) and isinstance(part.get("text"), str)
                )
            for call in message.get("tool_calls") or ():
                function = call.get("function") if isinstance(call, dict) else None
                if isinstance(function, dict):
                    function["arguments"] = _as_object(function.get("arguments"))
        return list(copies)


class _Allow:
    """Which special tokens may be taken where: see `Allow` in special_split."""

    def __init__(self, text: str, trusted: bytearray, template_only: frozenset[int]) -> None:
        self._text = text
        self._trusted = trusted
        self._template_only = template_only

    def __call__(self, token_id: int, start: int, end: int) -> bool:
        if token_id not in self._template_only:
            return True
        trusted = self._trusted
        first = trusted.find(0, start, end)
        if first < 0:
            return True
        # A role's name between two of the template's own texts, as in '<|' + role + '|>'.
        last = trusted.rfind(0, start, end)
        if first == start or last == end - 1 or trusted.find(1, first, last) >= 0:
            return False
        from localllm.text.template_marks import ROLES

        return self._text[first : last + 1].lower() in ROLES


def _template_only(tokenizer: Tokenizer, source: str) -> dict[str, int]:
    """The tokens that only the template may make: control tokens, tokens that look like them, and
    user-defined tokens that the template writes (`<think>`), except spaces."""
    return {
        text: i
        for text, i in tokenizer.special_texts().items()
        if tokenizer.is_structural(i) or (text in source and text.strip(" \t\r\n▁"))
    }


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """A deep copy of plain data. Raises `ArgumentError` naming the place of what is not."""
    if depth > MAX_DEPTH:
        raise ArgumentError(f"{where[:100]} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return checked_text(value, where[:100])
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ArgumentError(f"{where[:100]} has a key that is no text: {key!r:.60}")
        return {
            checked_text(key, f"a key of {where[:100]}"): _plain(
                item, f"{where}.{key}" if depth < 8 else where, depth + 1
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            _plain(item, f"{where}[{i}]" if depth < 8 else where, depth + 1)
            for i, item in enumerate(value)
        ]
    raise ArgumentError(f"{where[:100]} is a {type(value).__name__}, expected plain data")


def _strings(value: Any) -> Iterator[str]:
    """Every text in plain data, keys too."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting.extend(item.keys())
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _any_has(texts: Sequence[str], characters: tuple[str, str]) -> bool:
    return any(character in text for character in characters for text in texts)


def _as_object(arguments: Any) -> Any:
    """Arguments of a tool call as an object if they are one written as text."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments


def _clipped(error: Exception) -> str:
    """An error's text, short enough for an error message."""
    text = str(error)
    return text if len(text) <= 500 else text[:500] + "..."


def _n_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
