"""The chat screen: where the other screens and panels are reached from."""

from __future__ import annotations

from localllm.tui.keys import bindings
from localllm.tui.screens.chat_actions import Actions


class ChatScreen(Actions):
    """The screen that is always there."""

    BINDINGS = bindings("everywhere")
