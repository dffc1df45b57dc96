"""The list of conversations: by date, with a filter; what is done to one of them is done here."""

from __future__ import annotations

import datetime
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from localllm.plain_text import escape_line
from localllm.tui.conversations.dates import grouped
from localllm.tui.conversations.kinds import Conversation
from localllm.tui.conversations.store import Conversations
from localllm.tui.keys import bindings
from localllm.tui.widgets.field import Field

REFRESH_S = 2.0  # how soon changes of other programs are seen
_ACTIONS = {
    "rename": "Rename",
    "pin": "Pin",
    "tag": "Tag",
    "delete": "Delete",
    "undelete": "Undo",
    "export": "Export",
}


class ConversationList(OptionList):
    """The list itself. Its keys count only while it has the focus."""

    BINDINGS = bindings("list")

    class Act(Message):
        """An action of the sidebar is wanted."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def action_act(self, name: str) -> None:
        self.post_message(self.Act(name))


class ActionLabel(Static):
    """A word that does what its key does when it is clicked."""

    def __init__(self, name: str) -> None:
        super().__init__(_ACTIONS[name], markup=False, classes="action")
        self._action_name = name

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(ConversationList.Act(self._action_name))


class Sidebar(Vertical):
    """Shows `current`, which its owner sets, with a mark. Call `reload` after a change that was not
    made here."""

    DEFAULT_CSS = """
    Sidebar { width: 32; max-width: 60%; height: 1fr; border-right: solid $primary; }
    Sidebar #filter, Sidebar #entry { height: 1; border: none; padding: 0 1; }
    Sidebar #entry { display: none; background: $boost; }
    Sidebar ConversationList { height: 1fr; border: none; padding: 0; }
    Sidebar ConversationList:focus { border: none; }
    Sidebar #actions { layout: grid; grid-size: 3 2; height: 2; }
    Sidebar .action { width: auto; height: 1; text-style: underline; }
    Sidebar #said { height: auto; max-height: 4; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    class Chosen(Message):
        """A conversation is to be shown."""

        def __init__(self, conversation: int) -> None:
            super().__init__()
            self.conversation = conversation

    class Changed(Message):
        """A conversation has another title, pin or tags, or was restored."""

        def __init__(self, conversation: int) -> None:
            super().__init__()
            self.conversation = conversation

    class Deleted(Message):
        """A conversation was deleted; it may be the one that is shown."""

        def __init__(self, conversation: int) -> None:
            super().__init__()
            self.conversation = conversation

    class ExportWanted(Message):
        """A conversation is to be written to a file."""

        def __init__(self, conversation: int) -> None:
            super().__init__()
            self.conversation = conversation

    class Left(Message):
        """The user wants to go back to the chat."""

    def __init__(self, store: Conversations, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._store = store
        self._shown: dict[int, Conversation] = {}
        self._deleted: list[tuple[int, str]] = []
        self._entering: tuple[str, int] | None = None  # the action and its conversation
        self._asked = ""  # what the entry held before
        self._version = -1
        self.current: int | None = None
        self.list = ConversationList(id="conversations", markup=False)

    def compose(self) -> ComposeResult:
        yield Field(placeholder="Filter: words, #tag", id="filter", compact=True)
        yield self.list
        yield Field(id="entry", compact=True)
        yield Static(id="said", markup=False)
        with Container(id="actions"):
            for name in _ACTIONS:
                yield ActionLabel(name)

    def on_mount(self) -> None:
        self.reload()
        self.set_interval(REFRESH_S, self._look)

    # ---- what is shown

    def reload(self) -> Worker[None]:
        """Reads the list again; the worker that does it."""
        words, tag = [], ""
        for word in self.query_one("#filter", Input).value.split():
            if word.startswith("#") and len(word) > 1:
                tag = word[1:]
            else:
                words.append(word)
        return self._read(" ".join(words), tag)

    def _look(self) -> None:
        if self.display:
            self._look_for_changes()

    @work(thread=True, exclusive=True, group="version", exit_on_error=False)
    def _look_for_changes(self) -> None:
        version = self._store.version()
        if version != self._version:
            self._version = version
            self.app.call_from_thread(self.reload)

    @work(thread=True, exclusive=True, group="list", exit_on_error=False)
    def _read(self, text: str, tag: str) -> None:
        found = self._store.listed(text, tag=tag)
        self.app.call_from_thread(self._show, found)

    def _show(self, found: list[Conversation]) -> None:
        if not self.is_mounted:
            return
        here = self.highlighted
        index = self.list.highlighted or 0
        self._shown = {each.id: each for each in found}
        options: list[Option] = []
        for name, members in grouped(found, datetime.datetime.now()):
            options.append(Option(Content.styled(name, "bold underline"), disabled=True))
            options += [Option(self._line(each), id=str(each.id)) for each in members]
        if not options:
            filtered = self.query_one("#filter", Input).value.strip()
            nothing = "nothing has these words" if filtered else "no conversations yet"
            options.append(Option(Content(nothing), disabled=True))
        self.list.set_options(options)
        if here is None:
            here = self.current
        if here is not None and here in self._shown:
            self.list.highlighted = self.list.get_option_index(str(here))
        elif found:
            self.list.highlighted = min(max(index, 1), len(options) - 1)
            if self.highlighted is None:  # a heading lies there
                self.list.action_cursor_up()

    def _line(self, each: Conversation) -> Content:
        title = each.title or each.draft or "untitled"
        line = Content(escape_line(title[:200]))
        if not each.title and each.draft:
            line = Content("draft: ") + line
        tags = "".join(f" #{escape_line(tag)}" for tag in each.tags)
        mark = "> " if each.id == self.current else "  "
        return Content.assemble(mark, "* " if each.pinned else "", line, (tags, "dim"))

    @property
    def highlighted(self) -> int | None:
        """The conversation that actions are for."""
        option = self.list.highlighted_option
        return int(option.id) if option is not None and option.id else None

    # ---- what is done

    @on(Input.Changed, "#filter")
    def _filtered(self, event: Input.Changed) -> None:
        event.stop()
        self.reload()

    @on(Input.Submitted, "#filter")
    def _to_list(self, event: Input.Submitted) -> None:
        event.stop()
        self.list.focus()

    def on_key(self, event: events.Key) -> None:
        """Down leads from the filter to the list, where up on its first line leads back."""
        focused = self.app.focused
        if event.key == "down" and isinstance(focused, Input) and focused.id == "filter":
            event.stop()
            self.list.focus()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option.id:
            self.post_message(self.Chosen(int(event.option.id)))

    @on(ConversationList.Act)
    def _act(self, event: ConversationList.Act) -> None:
        event.stop()
        if event.name == "leave":
            self.action_leave()
        elif event.name == "filter":
            self.query_one("#filter", Input).focus()
        elif event.name == "undelete":
            self._undelete()
        elif (each := self._shown.get(self.highlighted or 0)) is None:
            self.say("choose a conversation first")
        else:
            self._do(event.name, each)

    def _do(self, name: str, each: Conversation) -> None:
        if name == "pin":
            self._change(each.id, pinned=not each.pinned)
            self.say("unpinned" if each.pinned else "pinned")
        elif name == "delete":
            self._store.delete(each.id)
            self._deleted.append((each.id, each.title))
            self.say(f"deleted {each.title[:40]!a}: u or Undo brings it back")
            self.post_message(self.Deleted(each.id))
            self.reload()
        elif name == "export":
            self.post_message(self.ExportWanted(each.id))
        else:
            value = each.title if name == "rename" else ", ".join(each.tags)
            self._ask(name, each.id, value)

    def _ask(self, name: str, conversation: int, value: str) -> None:
        self._entering = (name, conversation)
        entry = self.query_one("#entry", Input)
        entry.display = True
        entry.placeholder = "Title" if name == "rename" else "Tags, with commas between"
        entry.value = self._asked = escape_line(value)
        entry.cursor_position = len(entry.value)
        entry.focus()
        self.say("Enter keeps it, Esc leaves it as it was")

    @on(Input.Submitted, "#entry")
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        if self._entering is not None and event.value != self._asked:
            name, conversation = self._entering
            if name == "tag":
                self._change(conversation, tags=event.value.split(","))
            elif event.value.strip():
                self._change(conversation, title=event.value)
        self._close_entry()
        self.say("")

    def _close_entry(self) -> None:
        self._entering = None
        self.query_one("#entry", Input).display = False
        self.list.focus()

    def _change(self, conversation: int, **fields: object) -> None:
        self._store.change(conversation, **fields)
        self.post_message(self.Changed(conversation))
        self.reload()

    def _undelete(self) -> None:
        if not self._deleted:
            self.say("nothing was deleted")
            return
        conversation, title = self._deleted.pop()
        self._store.restore(conversation)
        self.say(f"{title[:40]!a} is back")
        self.post_message(self.Changed(conversation))
        self.reload()

    def action_leave(self) -> None:
        """Out of an entry, out of a filter, out of the sidebar."""
        words = self.query_one("#filter", Input)
        if self._entering is not None:
            self._close_entry()
            self.say("")
        elif words.value:
            words.value = ""
            self.list.focus()
        else:
            self.post_message(self.Left())

    def page(self, pages: int) -> None:
        """A page of the list up (-1) or down (1); farther: to its first or last line."""
        names = {-1: "page_up", 1: "page_down"}
        getattr(self.list, f"action_{names.get(pages, 'first' if pages < 0 else 'last')}")()

    def say(self, text: str) -> None:
        """A line below the list."""
        self.query_one("#said", Static).update(Content(escape_line(text)))
