"""One chat template, compiled and run: variables in, text out, and what of it is the template's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from localllm.errors import ArgumentError, ChatTemplateError, LocalLLMError
from localllm.text.chat_messages import texts_in
from localllm.text.prompt import TrustedText
from localllm.text.tokenizer import Tokenizer, checked_text

if TYPE_CHECKING:
    from jinja2 import Template

    from localllm.text.template_marks import LiteralMarker

MAX_COMPILED = 4
MAX_ERROR_CHARACTERS = 500
_SPECIAL_VARIABLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
}


class UnrepairableError(ChatTemplateError):
    """A template that cannot be compiled or used up its budget: other messages would not help."""


class TemplateRenderer:
    """Threads may share it."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._special_texts = _template_only(tokenizer, source)
        self._template_only = frozenset(self._special_texts.values())
        self._compiled: dict[int, tuple[Template, LiteralMarker]] = {}

    def render(self, variables: Mapping[str, Any]) -> TrustedText:
        """The text that the template writes.

        Raises `ChatTemplateError` with the template's own words if it refuses the messages, or if
        it fails; `UnrepairableError` if it cannot be compiled or exceeds its budget.
        """
        from localllm.text import template_budget as budgets
        from localllm.text.template_marks import MARKS

        texts = [self.source, *texts_in(dict(variables))]
        pair = next((i for i, m in enumerate(MARKS) if not _any_has(texts, m)), None)
        if pair is None:
            raise ArgumentError(
                f"the messages use all of {2 * len(MARKS)} private-use characters from U+10F000",
                "Leave out private-use characters.",
            )
        template, marker = self._compile(pair)
        try:
            # Templates may change lists that they are given.
            own = {name: _copied(value) for name, value in variables.items()}
            own.update(self._special_variables(marker))
            with budgets.budgeted() as budget:
                _check_size(own)
                context = template.new_context(own)
                parts: list[str] = []
                n_characters = 0
                for part in template.root_render_func(context):
                    budget.tick()
                    n_characters += len(part)
                    if n_characters > budgets.MAX_OUTPUT_BYTES:
                        raise budgets.BudgetError(f"it wrote more than {n_characters} characters")
                    parts.append(part)
            text, trusted = marker.split("".join(parts))
        except budgets.RefusedError as e:
            raise ChatTemplateError(f"the chat template refused: {_clipped(e)}") from None
        except budgets.BudgetError as e:
            raise UnrepairableError(f"the chat template was stopped: {_clipped(e)}") from None
        except LocalLLMError:
            raise
        except Exception as e:
            raise _failed(e) from e
        if len(text.encode("utf-8", "replace")) > budgets.MAX_OUTPUT_BYTES:
            limit = budgets.MAX_OUTPUT_BYTES >> 20
            raise UnrepairableError(f"the chat template wrote more than {limit} MiB")
        return TrustedText(text, bytes(trusted), self._template_only)

    def _compile(self, pair: int) -> tuple[Template, LiteralMarker]:
        """The compiled template with one of the pairs of marks."""
        compiled = self._compiled.get(pair)
        if compiled is not None:
            return compiled
        from localllm.text import template_budget as budgets
        from localllm.text.template_marks import MARKS, LiteralMarker
        from localllm.text.template_sandbox import TemplateSandbox, guard_tree

        if len(self.source) > budgets.MAX_SOURCE_CHARS:
            raise UnrepairableError(
                f"the chat template has {len(self.source)} characters, "
                f"at most {budgets.MAX_SOURCE_CHARS} are allowed"
            )
        try:
            environment = TemplateSandbox()
            marker = LiteralMarker(self._special_texts, MARKS[pair])
            environment.filters["mark literal"] = marker.mark_constant
            environment.filters["without marks"] = marker.without_marks
            with budgets.budgeted(budgets.MAX_COMPILE_CPU_S):
                tree = environment.parse(checked_text(self.source, "the chat template"))
                marker.mark_tree(tree)
                guard_tree(tree)
                compiled = environment.from_string(tree), marker
        except budgets.BudgetError as e:
            raise UnrepairableError(f"the chat template was stopped: {_clipped(e)}") from None
        except LocalLLMError:
            raise
        except Exception as e:
            raise UnrepairableError(_failed(e).message) from e
        while len(self._compiled) >= MAX_COMPILED:
            self._compiled.pop(next(iter(self._compiled)), None)
        self._compiled[pair] = compiled
        return compiled

    def _special_variables(self, marker: LiteralMarker) -> dict[str, str]:
        """bos_token and its like, as Hugging Face's templates expect them."""
        out = {"bos_token": "", "eos_token": ""}
        for name, variable in _SPECIAL_VARIABLES.items():
            token_id = self._tokenizer.special_id(name)
            if token_id is not None:
                text = self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
                out[variable] = marker.mark_text(text)
        return out


def _template_only(tokenizer: Tokenizer, source: str) -> dict[str, int]:
    """The tokens that only the template may make: control tokens, tokens that look like them, and
    user-defined tokens that the template writes (`<think>`), except spaces."""
    return {
        text: i
        for text, i in tokenizer.special_texts().items()
        if tokenizer.is_structural(i) or (text in source and text.strip(" \t\r\n▁"))
    }


def _check_size(variables: dict[str, Any]) -> None:
    from localllm.text import template_budget as budgets

    try:
        budgets.weight(variables)
    except budgets.BudgetError:
        limit = budgets.MAX_OUTPUT_BYTES >> 20
        raise UnrepairableError(
            f"the conversation has more than {limit} MiB of text",
            "No context holds that much: send a part of it.",
        ) from None


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _any_has(texts: Sequence[str], characters: tuple[str, str]) -> bool:
    return any(character in text for character in characters for text in texts)


def _failed(error: Exception) -> ChatTemplateError:
    kind = type(error).__name__
    return ChatTemplateError(f"the chat template failed ({kind}): {_clipped(error)}")


def _clipped(error: Exception) -> str:
    """An error's text, short enough for an error message."""
    text = str(error)
    limit = MAX_ERROR_CHARACTERS
    return text if len(text) <= limit else text[:limit] + "..."
