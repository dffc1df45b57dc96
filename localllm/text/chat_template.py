"""Messages to a prompt, by the chat template in the model's file.

Templates are code from a stranger: they run in `template_sandbox` with at most 250 ms of CPU time
and 4 MiB of output. Words of users never become control tokens: a `Prompt` takes control tokens
only from the template's own text (`template_marks`), and encodes the rest as plain text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from localllm.errors import ArgumentError, ChatTemplateError, UnsupportedError
from localllm.text.chat_messages import Message, plain, prepared, texts_in
from localllm.text.metadata import Metadata, read_text
from localllm.text.prompt import Prompt, TrustedText
from localllm.text.reasoning import ReasoningFormat, detect_reasoning, opens_reasoning
from localllm.text.template_fallbacks import FALLBACKS, find_fallback
from localllm.text.template_rendering import TemplateRenderer, UnrepairableError
from localllm.text.template_repairs import repaired
from localllm.text.tokenizer import Tokenizer

KEY = "tokenizer.chat_template"
_ENDS = range(0x10E000, 0x10F000)  # private use: one of them marks where a text ends
SYSTEM_TEXT = "system_text"
"""The option of `prompt` that is no variable of the template: a text that ends the system message,
as some models are told not to think (`/no_think`)."""


class ChatTemplate:
    """A model's chat template. Threads may share it."""

    def __init__(self, source: str, tokenizer: Tokenizer, origin: str = "file") -> None:
        """`origin`: where the template comes from, for messages: "file", "argument" or
        "fallback:<format>"."""
        self.source = source
        self.origin = origin
        self._tokenizer = tokenizer
        self._renderer = TemplateRenderer(source, tokenizer)

    @classmethod
    def from_metadata(
        cls, metadata: Metadata, tokenizer: Tokenizer, chat_template: str | None = None
    ) -> ChatTemplate:
        """The template of a GGUF file. A file without one gets the usual one of its family.

        `chat_template` takes another one: the name of one of several in the file ("tool_use"), the
        name of a family ("chatml"), or the text of a template.

        Raises `ArgumentError` for a name that is neither, `UnsupportedError` if there is no
        template and nothing tells the family.
        """
        if chat_template is not None:
            return cls._chosen(metadata, tokenizer, chat_template)
        source = read_text(metadata, KEY)
        if source:
            return cls(source, tokenizer)
        fallback = find_fallback(metadata, tokenizer.special_texts())
        if fallback is None:
            raise UnsupportedError(
                f"the file has no {KEY}, and its vocabulary is of no known chat format",
                "It may be a base model: give it a plain prompt instead of a conversation.",
            )
        return cls(fallback.source, tokenizer, f"fallback:{fallback.name}")

    @classmethod
    def _chosen(cls, metadata: Metadata, tokenizer: Tokenizer, choice: str) -> ChatTemplate:
        if "{{" in choice or "{%" in choice:
            return cls(choice, tokenizer, "argument")
        source = read_text(metadata, f"{KEY}.{choice}")
        if source:
            return cls(source, tokenizer)
        for fallback in FALLBACKS:
            if fallback.name == choice:
                return cls(fallback.source, tokenizer, f"fallback:{fallback.name}")
        own = [key.removeprefix(KEY + ".") for key in metadata if key.startswith(KEY + ".")]
        names = dict.fromkeys([*own, *(fallback.name for fallback in FALLBACKS)])
        raise ArgumentError(
            f"there is no chat template {choice!r:.60}; known are {', '.join(names)}",
            "A template may also be given as its text.",
        )

    @functools.cached_property
    def reasoning(self) -> ReasoningFormat | None:
        """How the model marks its reasoning; None if nothing tells that it reasons."""
        return detect_reasoning(self.source, self._tokenizer.special_texts())

    def prompt(
        self,
        messages: Sequence[Message],
        /,  # a template may have a variable of any name
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        go_on: bool = False,
        **options: Any,
    ) -> Prompt:
        """The prompt for a conversation. `options` are further variables of the template, and
        `SYSTEM_TEXT`. Messages that the template refuses are repaired (`template_repairs`).
        go_on: the last message is an answer, and the prompt ends where its text does (that of its
        reasoning, if it has no other).

        Raises `ChatTemplateError` with the template's own words if it refuses the messages in
        every form, or if it fails or exceeds its budget; `ArgumentError` for messages that are no
        plain data, say nothing or have a role that nobody knows, and if there is no answer to go
        on with.
        """
        system_text = options.pop(SYSTEM_TEXT, None)
        conversation = prepared(messages, self.source)
        if system_text:
            conversation = _with_system_text(conversation, system_text)
        variables = {
            "tools": plain(tools, "tools"),
            "add_generation_prompt": add_generation_prompt,
            **plain(options, "options"),
        }
        if go_on:
            return self._open_prompt(conversation, variables)
        rendering, repairs = self._rendered(conversation, variables)
        opens = (
            add_generation_prompt
            and self.reasoning is not None
            and opens_reasoning(self.reasoning, rendering.text)
        )
        return Prompt(rendering, self._tokenizer, repairs, opens)

    def _open_prompt(self, conversation: list[dict[str, Any]], variables: dict[str, Any]) -> Prompt:
        """The prompt up to the end of the last answer's text, which a mark tells that no message
        holds. Where the template leaves that text out, it stands behind the call for an answer."""
        last = conversation[-1]
        keys = ("content",) if last.get("content") else ("reasoning_content", "thinking")
        text = last.get(keys[0])
        if last["role"] != "assistant" or not isinstance(text, str) or not text:
            raise ArgumentError("the last message is no answer with a text to go on with")
        is_reasoning = keys[0] != "content"
        said = [self.source, *texts_in(conversation)]
        mark = next(m for m in map(chr, _ENDS) if not any(m in each for each in said))
        marked = [*conversation[:-1], {**last, **dict.fromkeys(keys, text + mark)}]
        rendering, repairs = self._rendered(marked, {**variables, "add_generation_prompt": False})
        end = rendering.text.find(mark)
        if end >= 0:
            open_text, trusted = rendering.text[:end], rendering.trusted[:end]
        else:
            before = {**variables, "add_generation_prompt": True}
            rendering, repairs = self._rendered(conversation[:-1], before)
            row, opening = self.reasoning, ""
            if is_reasoning and row is not None and not opens_reasoning(row, rendering.text):
                opening = row.openings[0] + "\n"
            open_text = rendering.text + opening + text
            trusted = rendering.trusted + bytes([1]) * len(opening) + bytes(len(text))
        source = dataclasses.replace(rendering, text=open_text, trusted=trusted)
        return Prompt(source, self._tokenizer, repairs, is_reasoning, goes_on=True)

    def _rendered(
        self, conversation: list[dict[str, Any]], variables: dict[str, Any]
    ) -> tuple[TrustedText, tuple[str, ...]]:
        def render(messages: list[dict[str, Any]]) -> TrustedText:
            return self._renderer.render({"messages": messages, **variables})

        try:
            return repaired(conversation, self.source, render)
        except UnrepairableError:
            raise
        except ChatTemplateError:
            if variables["tools"] is not None:
                raise
            # Templates for the use of tools may count on a list of them.
            variables["tools"] = []
            with contextlib.suppress(ChatTemplateError):
                return repaired(conversation, self.source, render)
            raise


def _with_system_text(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The messages with a text at the end of the system message, which is added if there is
    none."""
    first = messages[0]
    if first["role"] != "system" or not isinstance(first.get("content"), str):
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first['content']}\n{text}".lstrip()}, *messages[1:]]
