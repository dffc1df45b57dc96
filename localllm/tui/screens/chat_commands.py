"""The `/` commands of the chat: what each name of `localllm.slash` does here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from textual.content import Content

from localllm import slash
from localllm.errors import ArgumentError, LocalLLMError
from localllm.params import PARAMETERS, THINK, Parameter, find
from localllm.plain_text import escape
from localllm.tui.dialogue import known, last_question

if TYPE_CHECKING:
    from localllm.tui.screens.chat import ChatScreen

_MOST_SHOWN = 100_000  # characters of a page: longer ones hold the screen up for seconds


async def run(chat: ChatScreen, name: str, argument: str) -> bool:
    """Runs a command; whether it could be done. What speaks against it is said in the chat."""
    try:
        result = DONE_BY[slash.find(name, slash.CHAT)](chat, argument)
        if inspect.isawaitable(result):
            await result
    except LocalLLMError as e:
        chat.say(e)
        return False
    except Exception as e:  # a fault of ours must not end the chat
        chat.say(
            LocalLLMError(
                f"/{name} failed: {type(e).__name__}: {str(e)[:200]}",
                "This is a fault in localllm. The conversation is kept.",
            )
        )
        return False
    return True


def _help(chat: ChatScreen, argument: str) -> None:
    if not argument:
        chat.action_help()
        return
    name = slash.find(argument.split()[0].lstrip("/").lower(), slash.CHAT)
    row = slash.ROWS[name]
    chat.say_line(f"/{name} {row.usage}: {row.help}")


def _set(chat: ChatScreen, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if name == "parameter":
        name, _, value = value.strip().partition(" ")
    name, value = name.lower(), value.strip()
    if name == "system":
        _system(chat, value)
        return
    if name in ("think", "nothink"):
        _think(chat, value or ("on" if name == "think" else "off"))
        return
    if not name:
        _show_parameters(chat)
        return
    row, conversation = find(name), chat.renew()
    params = dict(conversation.params)
    if value.lower() == "default":
        params.pop(row.name, None)
    elif value:
        params[row.name] = row.parse(value)
    if value:
        chat.app.store.change(conversation.id, params=params)
    chat.say_line(f"{row.name} is {_current(chat, row)}. {row.help} It may be {row.span}.")


def _system(chat: ChatScreen, argument: str) -> None:
    conversation = chat.renew()
    if argument:
        chat.app.store.change(conversation.id, system=argument.strip('"'))
        chat.say_line("the instructions hold from now on")
        return
    own = chat.app.described.system if chat.app.described else ""
    text = own if conversation.system is None else conversation.system
    chat.say_line(text or "there are no instructions")


def _think(chat: ChatScreen, argument: str) -> None:
    conversation, how = chat.renew(), argument.lower()
    if how in THINK:
        chat.app.store.change(conversation.id, think=THINK[how])
        chat.say_line(f"reasoning: {how}")
    elif how in ("show", "fold"):
        for view in chat.transcript.views:
            view.fold(how == "fold")
    elif how:
        raise ArgumentError(
            f"/think cannot be {argument[:40]!a}", f"It can be {', '.join(THINK)}, show, fold."
        )
    else:
        words = {None: "as the model does", True: "on", False: "off"}
        think: Any = conversation.think
        chat.say_line(f"reasoning: {words.get(think, think)}")


async def _show(chat: ChatScreen, argument: str) -> None:
    session, what = chat.app.session, slash.shown(argument)
    if what == "parameters":
        _show_parameters(chat)
    elif what == "system":
        _system(chat, "")
    elif session is None:
        raise ArgumentError("no model is open", "Ctrl+O shows the models.")
    elif what in slash.OF_MODEL:
        await _show_page(chat, what)
    else:
        info = session.info
        chat.say_line(
            f"{chat.app.model_label}: {info.description}, {info.architecture}, "
            f"engine {info.engine}, {info.n_threads} threads, context of {info.n_ctx:,} tokens"
        )


def _show_parameters(chat: ChatScreen) -> None:
    chat.say_line("\n".join(f"{row.name}: {_current(chat, row)}" for row in PARAMETERS.values()))


def _current(chat: ChatScreen, row: Parameter) -> str:
    """The value that the next answer gets, and where it comes from if it is not the default."""
    session, described = chat.app.session, chat.app.described
    for values, origin in (
        (chat.renew().params, ""),
        (described.sampling if described else {}, "  (set by the model)"),
        (session.info.recommended if session else {}, "  (recommended by the model's file)"),
    ):
        if row.name in values:
            return f"{values[row.name]}{origin}"
    return "a new one for each answer" if row.name == "seed" else str(row.default)


async def _show_page(chat: ChatScreen, what: str) -> None:
    """A text of the model, which may be long."""
    import asyncio

    from localllm.tui.screens.help import Page

    text = await asyncio.to_thread(chat.app.opener.text_of, chat.app.model, what)
    if len(text) > _MOST_SHOWN:
        cut = f"[{len(text) - _MOST_SHOWN:,} characters more: localllm show --{what}]"
        text = f"{text[:_MOST_SHOWN]}\n\n{cut}"
    chat.app.push_screen(Page(Content(escape(text))))


def _stats(chat: ChatScreen, argument: str) -> None:
    assert chat.conversation is not None
    answers = [m.stats for m in chat.app.store.path(chat.conversation.id) if m.role == "assistant"]
    if not answers:
        chat.say_line("there is no answer yet")
        return
    total = {
        name: sum(known(stats).get(name, 0) for stats in answers)
        for name in ("prompt_tokens", "cached_tokens", "generated_tokens")
    }
    chat.say_line(
        f"{len(answers)} answers: {total['generated_tokens']:,} tokens generated, "
        f"{total['prompt_tokens']:,} read, {total['cached_tokens']:,} of them from cache"
    )


async def _regenerate(chat: ChatScreen, argument: str) -> None:
    assert chat.conversation is not None
    question = last_question(chat.app.store.path(chat.conversation.id))
    if question is None:
        raise ArgumentError("there is no question yet")
    seed = {"seed": PARAMETERS["seed"].parse(argument)} if argument else {}
    await chat.regenerate(question.id, seed)


def _copy(chat: ChatScreen, argument: str) -> None:
    assert chat.conversation is not None
    answers = [m for m in chat.app.store.path(chat.conversation.id) if m.role == "assistant"]
    if not answers:
        raise ArgumentError("there is no answer yet")
    chat.copy(answers[-1].content)


async def _edit(chat: ChatScreen, argument: str) -> None:
    """A text in $EDITOR, which then stands where it was typed."""
    import os
    import shlex
    import subprocess
    import tempfile
    from pathlib import Path

    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="localllm-") as folder:
        path = Path(folder) / "message.md"
        path.write_text(argument, encoding="utf-8")
        try:
            with chat.app.suspend():
                code = subprocess.call([*shlex.split(command), str(path)])
            text = path.read_text(encoding="utf-8")
        except Exception as e:  # no such program, a terminal that cannot be lent, no text
            raise ArgumentError(
                f"{command[:80]!a} cannot be used: {e}", "Set EDITOR to an editor you have."
            ) from e
    if code == 0:
        chat.composer.give_back(text.rstrip("\n"))


def _search(chat: ChatScreen, argument: str) -> None:
    chat.action_search(argument)


def _load(chat: ChatScreen, argument: str) -> None:
    if not argument:
        chat.action_models()
        return
    chat.app.load(argument)


async def _bye(chat: ChatScreen, argument: str) -> None:
    await chat.app.action_quit()


DONE_BY: dict[str, Callable[[ChatScreen, str], Any]] = {
    "help": _help,
    "set": _set,
    "show": _show,
    "system": _system,
    "think": _think,
    "stats": _stats,
    "regenerate": _regenerate,
    "continue": lambda chat, argument: chat.action_continue(),
    "undo": lambda chat, argument: chat.action_undo(),
    "copy": _copy,
    "edit": _edit,
    "clear": lambda chat, argument: chat.action_new_chat(),
    "save": lambda chat, argument: chat.action_export(argument.removeprefix("--force").strip()),
    "load": _load,
    "models": lambda chat, argument: chat.action_models(),
    "search": _search,
    "compare": lambda chat, argument: chat.action_compare(),
    "bye": _bye,
}
