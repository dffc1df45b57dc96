"""Where a message is written: the editor, what is attached, and what could complete a word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from localllm import attachments, slash
from localllm.plain_text import escape, escape_line
from localllm.tui.conversations.kinds import Attachment
from localllm.tui.keys import bindings

LONG_LINES, LONG_CHARACTERS = 20, 2000
"""A paste that is longer becomes an attachment."""
_MOST_OFFERED = 50


@dataclass(frozen=True)
class Offer:
    """A completion: it replaces so many characters before the cursor."""

    n_typed: int
    text: str
    label: str


class Chip(Static, can_focus=True):
    """An attachment of the message that is being written."""

    BINDINGS: ClassVar = [Binding("delete,backspace,enter", "remove_chip", "Remove", show=True)]

    class Removed(Message):
        """It is not to be sent."""

        def __init__(self, chip: Chip) -> None:
            super().__init__()
            self.chip = chip

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        n = attachment.text.removesuffix("\n").count("\n") + 1
        size = f"{n:,} lines" if attachment.kind == "text" else attachment.kind
        super().__init__(
            Content(f"⊕ {escape_line(attachment.name[:40])}, {size} ✕"), classes="chip"
        )

    def action_remove_chip(self) -> None:
        self.post_message(self.Removed(self))

    def on_click(self) -> None:
        self.action_remove_chip()


class Editor(TextArea):
    """Text of several lines. Enter sends it.

    All that its keys do is done when their turn comes, and by no message: those that were typed
    right behind would overtake it. wanted: does "send", "complete", "older", "newer", "unchip".
    pasted: takes a text that is too long to be shown where it is pasted."""

    BINDINGS = bindings("editor")

    def __init__(self, wanted: Callable[[str], None], pasted: Callable[[str], None]) -> None:
        self._wanted, self._pasted = wanted, pasted
        super().__init__(
            soft_wrap=True,
            show_line_numbers=False,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="Ask anything. Enter sends, Ctrl+J begins a new line, / has commands",
        )

    def action_newline(self) -> None:
        """Begins a new line."""
        self.insert("\n")

    async def on_key(self, event: events.Key) -> None:
        what = ""
        if event.key == "enter":
            what = "send"
        elif event.key == "tab":
            what = "complete"
        elif event.key == "up" and self.cursor_at_first_line:
            what = "older"
        elif event.key == "down" and self.cursor_at_last_line:
            what = "newer"
        elif event.key == "backspace" and not self.text:
            what = "unchip"
        if what:
            self._wanted(what)
        elif event.is_printable or not await self._run_binding(event.key):
            return
        event.stop()
        event.prevent_default()

    async def _run_binding(self, key: str) -> bool:
        """Textual asks its bindings when a key has come up to the application; whether one ran."""
        for binding in self._bindings.key_to_bindings.get(key, ()):
            if not binding.priority and await self.app.run_action(binding.action, self):
                return True
        return False

    async def on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) > LONG_CHARACTERS or text.count("\n") > LONG_LINES:
            self._pasted(text)
        elif result := self._replace_via_keyboard(escape(text), *self.selection):
            self.move_cursor(result.end_location)


class Composer(Vertical):
    """The editor with all that belongs to it."""

    class Submitted(Message):
        """A text is to be sent. It was taken: who cannot send it gives it back (`give_back`)."""

        def __init__(self, text: str, attachments: tuple[Attachment, ...]) -> None:
            super().__init__()
            self.text, self.attachments = text, attachments

    class Changed(Message):
        """What is typed is another text now."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self) -> None:
        super().__init__(id="composer")
        self.history: list[str] = []  # what was sent, the oldest first
        self._at: int | None = None  # what of it is shown
        self._typed = ""  # what was there before
        self._exact = ""  # what was put there: the editor shows it escaped
        self._offers: list[Offer] = []
        self._offered_for = ("", "")  # the text and what of it is before the cursor
        self._n_pastes = 0
        self._held: list[Chip] = []  # the attachments: widgets that are removed stay for a while
        self._editor = Editor(self._do, self._attach_paste)
        self._chips = Horizontal(id="chips")
        self._list = OptionList(id="offers", markup=False)
        self._list.can_focus = False

    def compose(self) -> ComposeResult:
        yield self._list
        yield self._chips
        yield self._editor

    def on_mount(self) -> None:
        self._list.display = self._chips.display = False

    @property
    def editor(self) -> Editor:
        return self._editor

    @property
    def text(self) -> str:
        """What is typed; what was put there stays exact as long as nobody changes it."""
        text = self._editor.text
        return self._exact if text == escape(self._exact) else text

    @property
    def offers(self) -> Sequence[Offer]:
        """What is offered to complete the word at the cursor."""
        return self._offers

    @property
    def attached(self) -> tuple[Attachment, ...]:
        """What goes with it."""
        return tuple(chip.attachment for chip in self._held)

    def show(self, text: str, attached: Sequence[Attachment] = ()) -> None:
        """Replaces what is there."""
        self._put(text)
        for chip in list(self._held):
            self._drop(chip)
        self.attach(attached)
        self._at = None

    def give_back(self, text: str, attached: Sequence[Attachment] = ()) -> None:
        """What was taken stands in front of what was typed since."""
        if text or attached:
            parts = (text, self.text)
            self.show("\n\n".join(part for part in parts if part), (*attached, *self.attached))

    def _put(self, text: str) -> None:
        """The one way in for texts that nobody typed: a terminal obeys what is not escaped."""
        self._exact = text
        self._editor.load_text(escape(text))
        self._editor.move_cursor(self._editor.document.end)

    def attach(self, attached: Sequence[Attachment]) -> None:
        """Adds attachments."""
        if attached:
            chips = [Chip(each) for each in attached]
            self._held += chips
            self._chips.mount_all(chips)
        self._chips.display = bool(self._held)

    def _drop(self, chip: Chip) -> None:
        if chip in self._held:
            self._held.remove(chip)
            chip.remove()
        self._chips.display = bool(self._held)

    def take(self) -> tuple[str, tuple[Attachment, ...]]:
        """What is there, which leaves an empty editor."""
        text, attached = self.text, self.attached
        if text.strip() and (not self.history or self.history[-1] != text):
            self.history.append(text)
        self.show("")
        return text, attached

    def dismiss_offers(self) -> bool:
        """Closes the list of completions; whether it was open."""
        shown = bool(self._list.display)
        self._offer([])
        return shown

    def _do(self, what: str) -> None:
        if self._offered_for[0] != self._editor.text:  # what is typed came right before
            self._look()
        if self._offered_for != (self._editor.text, self._before):
            self._offer([])  # of another place
        getattr(self, f"_{what}")()

    @property
    def _before(self) -> str:
        return self._editor.get_text_range((0, 0), self._editor.cursor_location)

    def _send(self) -> None:
        if self._offers and self._list.display:
            self._complete()
        elif self.text.strip() or self.attached:
            self.post_message(self.Submitted(*self.take()))

    def _older(self) -> None:
        if self._offers:
            self._list.action_cursor_up()
        elif self.history and self._at != 0:
            if self._at is None:
                self._typed, self._at = self.text, len(self.history)
            self._recall(self._at - 1)

    def _newer(self) -> None:
        if self._offers:
            self._list.action_cursor_down()
        elif self._at is not None:
            self._recall(self._at + 1)

    def _recall(self, at: int) -> None:
        self._at = at if at < len(self.history) else None
        self._put(self._typed if self._at is None else self.history[at])

    def _unchip(self) -> None:
        if self._held:
            self._drop(self._held[-1])

    def _complete(self) -> None:
        if not self._offers:
            self.screen.focus_next()
            return
        self._take_offer(self._list.highlighted or 0)

    def _take_offer(self, index: int) -> None:
        offer = self._offers[index]
        end = self._editor.cursor_location
        begin = (end[0], end[1] - offer.n_typed)
        self._offer([])
        self._editor.replace(escape(offer.text), begin, end)

    def on_chip_removed(self, event: Chip.Removed) -> None:
        event.stop()
        self._drop(event.chip)
        self._editor.focus()

    def _attach_paste(self, text: str) -> None:
        self._n_pastes += 1
        self.attach([Attachment(f"pasted-{self._n_pastes}.txt", "text", text)])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take_offer(event.option_index)
        self._editor.focus()

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(self.text))
        if self._offered_for[0] != self._editor.text:
            self._look()

    def _look(self) -> None:
        """Looks for what could complete the word at the cursor."""
        before = self._before
        if self.text.startswith("/") and before.startswith("/") and not set(before) & set(" \n"):
            names = slash.known_in(slash.CHAT)
            self._offer(
                [
                    Offer(len(before), f"/{name} ", f"/{name} {row.usage}  {row.help}")
                    for name, row in names.items()
                    if name.startswith(before[1:].lower()) and before[1:].lower() != name
                ]
            )
        elif "@" in before.rpartition("\n")[2]:
            self._look_for_files(before.rpartition("\n")[2])
        else:
            self._offer([])

    @work(thread=True, exclusive=True, group="files", exit_on_error=False)
    def _look_for_files(self, line: str) -> None:
        n_typed, found = attachments.completions(line)
        offers = [
            Offer(n_typed, text, name)
            for text, name in found
            if text != line[len(line) - n_typed :]
        ]
        self.app.call_from_thread(self._offer_files, line, offers)

    def _offer_files(self, line: str, offers: list[Offer]) -> None:
        if self._before.rpartition("\n")[2] == line:  # nothing was typed meanwhile
            self._offer(offers)

    def _offer(self, offers: list[Offer]) -> None:
        self._offers = offers[:_MOST_OFFERED]
        self._offered_for = (self._editor.text, self._before)
        self._list.display = bool(self._offers)
        self._list.clear_options()
        if self._offers:
            self._list.add_options(
                [Option(Content(escape_line(each.label))) for each in self._offers]
            )
            self._list.highlighted = 0
