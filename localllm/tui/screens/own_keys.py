"""Screens that show their own keys: in the command palette, and as a page of help on F1."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, Generic

from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.screen import Screen, ScreenResultType

from localllm.tui.keys import Key
from localllm.tui.screens.help import HelpPage


def own_keys(screen: Screen[Any]) -> Iterator[tuple[str, str, str]]:
    """(keys, what they do, action) of a screen and of the widget that has the focus."""
    found: dict[str, tuple[list[str], str]] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        is_own = active.node is screen or (binding.show and active.node is not screen.app)
        if not is_own or not binding.description:
            continue
        action = binding.action
        keys, _ = found.setdefault(action, ([], binding.description))
        if binding.key not in keys:
            keys.append(binding.key)
    for action, (keys, description) in found.items():
        yield Key(",".join(keys), action, description).shown, description, action


class OwnKeys(Provider):
    """The actions of the screen in the command palette, each with its key."""

    async def discover(self) -> Hits:
        for keys, description, action in own_keys(self.screen):
            yield DiscoveryHit(description, partial(self._run, action), help=keys)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for keys, description, action in own_keys(self.screen):
            if score := matcher.match(description):
                yield Hit(
                    score, matcher.highlight(description), partial(self._run, action), help=keys
                )

    async def _run(self, action: str) -> None:
        await self.screen.run_action(action)


class KeyedScreen(Screen[ScreenResultType], Generic[ScreenResultType]):
    """A screen whose bindings are all that can be done on it."""

    COMMANDS: ClassVar = {OwnKeys}
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f1", "keys", "Keys")]

    def action_keys(self) -> None:
        self.app.push_screen(KeysScreen(self))


class KeysScreen(HelpPage):
    """The keys of the screen beneath."""

    def __init__(self, beneath: Screen[Any]) -> None:
        rows = [(keys, what) for keys, what, _ in own_keys(beneath)]
        super().__init__([(beneath.TITLE or "Keys", rows)])
