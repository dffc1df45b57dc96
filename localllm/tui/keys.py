"""Every key of the chat: one table, from which the bindings, the footer, the help screen and the
command palette are made."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType


@dataclass(frozen=True)
class Key:
    """keys: as Textual names them, separated by commas. where: one of `WHERE`. action: empty where
    the key is the widget's own. footer: whether the footer shows it. before: it counts before the
    keys of the widget that has the focus."""

    keys: str
    action: str
    label: str
    where: str = "everywhere"
    footer: bool = False
    before: bool = False
    help: str = ""

    @property
    def shown(self) -> str:
        """The keys as people know them: `Ctrl+N`, `F1 or ?`."""
        return " or ".join(_shown(key) for key in self.keys.split(","))


_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "escape": "Esc",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "pageup": "PgUp",
    "pagedown": "PgDn",
}


def _shown(key: str) -> str:
    return "+".join(
        _NAMES.get(part, part if len(part) == 1 and "+" not in key else part.capitalize())
        for part in key.split("+")
    )


KEYS = (
    Key("f1,question_mark", "help", "Help", footer=True, help="all keys, here"),
    Key("escape", "stop", "Stop", help="the answer; or back to where you type", before=True),
    Key("ctrl+c", "interrupt", "Stop or copy", before=True,
        help="stops the answer, else copies what is selected"),
    Key("ctrl+n", "new_chat", "New chat", footer=True, before=True),
    Key("ctrl+o", "models", "Models", footer=True, before=True,
        help="choose, pull, delete; the conversation goes on with another one"),
    Key("ctrl+b", "sidebar", "Chats", footer=True, before=True,
        help="to the list of conversations; there: hides it"),
    Key("ctrl+f", "search", "Search", footer=True, before=True, help="in all conversations"),
    Key("f2", "parameters", "Settings", before=True,
        help="system prompt, sampling, presets, thinking"),
    Key("f3", "figures", "Figures", help="speed, memory and context over time", before=True),
    Key("f4", "compare", "Compare", help="one question to two models", before=True),
    Key("f5,ctrl+r", "regenerate", "Regenerate", before=True, help="the last answer, once more"),
    Key("f6", "continue", "Continue", help="goes on with an answer that was cut", before=True),
    Key("f7", "undo", "Undo", help="takes the last question and its answer back", before=True),
    Key("f8", "edit_last", "Edit", help="the last question; both branches are kept", before=True),
    Key("f9", "app.theme", "Theme", help="the next colours", before=True),
    Key("ctrl+s", "export", "Export", before=True, help="the conversation, to Markdown or JSON"),
    Key("f10", "import", "Import", help="conversations from a file", before=True),
    Key("ctrl+up", "to_messages", "To messages", before=True,
        help="from where you type to the last message"),
    Key("pageup", "page(-1)", "Scroll up", before=True),
    Key("pagedown", "page(1)", "Scroll down", before=True),
    Key("ctrl+home", "page(-9)", "To the beginning", before=True),
    Key("ctrl+end", "page(9)", "To the end", before=True, help="and follow the answer"),
    Key("ctrl+p", "", "Palette", help="finds all of these, and more, by name"),
    Key("ctrl+q", "app.quit", "Quit", footer=True, before=True, help="what is there is saved"),
    Key("enter", "", "Send", "editor"),
    Key("shift+enter,ctrl+j,alt+enter", "newline", "New line", "editor"),
    Key("up", "", "Earlier text", "editor", help="from the first line"),
    Key("down", "", "Later text", "editor", help="from the last line"),
    Key("tab", "", "Complete", "editor", help="a /command or an @file"),
    Key("backspace", "", "Remove attachment", "editor", help="where nothing is typed"),
    Key("up,k", "to_previous", "Previous", "message"),
    Key("down,j", "to_next", "Next", "message"),
    Key("e", "wanted('edit')", "Edit", "message", True, help="and send again, as a new branch"),
    Key("r", "wanted('regenerate')", "Regenerate", "message", True),
    Key("c", "wanted('copy')", "Copy", "message", True),
    Key("g", "wanted('continue')", "Continue", "message"),
    Key("left,left_square_bracket", "wanted('older')", "Branch before", "message"),
    Key("right,right_square_bracket", "wanted('newer')", "Branch after", "message"),
    Key("t", "wanted('reasoning')", "Reasoning", "message", help="folds it, or opens it"),
    Key("u", "wanted('undo')", "Undo", "message", help="takes this message and all after it back"),
    Key("r", "act('rename')", "Rename", "list", True),
    Key("p", "act('pin')", "Pin", "list", True, help="first in the list, or no longer"),
    Key("t", "act('tag')", "Tag", "list", True),
    Key("d,delete", "act('delete')", "Delete", "list", True),
    Key("u,ctrl+z", "act('undelete')", "Undo delete", "list", True),
    Key("x", "act('export')", "Export", "list", True, help="to Markdown or JSON"),
    Key("slash", "act('filter')", "Filter", "list", True, help="by words of titles, or a #tag"),
    Key("escape", "act('leave')", "Back", "list", True),
    Key("j", "cursor_down", "Next", "list"),
    Key("k", "cursor_up", "Previous", "list"),
    Key("c,y", "wanted('copy')", "Copy code", "code", True),
    Key("s", "wanted('save')", "Save code", "code", True, help="to a file"),
)  # fmt: skip
WHERE = {
    "everywhere": "Everywhere",
    "editor": "Where you type",
    "list": "In the list of conversations (Ctrl+B goes there)",
    "message": "On a message (Tab or Ctrl+Up goes there)",
    "code": "On a block of code (Tab goes there)",
}
PLACES = {"list": "Chats", "message": "Message", "code": "Code"}
"""What the palette calls a place whose actions it can run."""


def bindings(where: str) -> list[BindingType]:
    """The bindings of a place."""
    return [
        Binding(row.keys, row.action, row.label, show=row.footer, priority=row.before)
        for row in KEYS
        if row.where == where and row.action
    ]
