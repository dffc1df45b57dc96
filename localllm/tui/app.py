"""The application: the model that is open, the conversations, and the screens over them."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import App, SystemCommand
from textual.driver import Driver
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.worker import Worker, get_current_worker

from localllm import paths
from localllm.errors import CancelledError, LocalLLMError
from localllm.plain_text import escape, escape_line
from localllm.tui import themes
from localllm.tui.conversations.store import Conversations
from localllm.tui.keys import KEYS, PLACES
from localllm.tui.opening import AnySession, Beginning, Described, LoadOptions, Opener
from localllm.tui.terminal_driver import lasting

if TYPE_CHECKING:
    from localllm.tui.library import Library
    from localllm.tui.pulls import Pull, Pulls


LEAST = Size(16, 4)
"""Of less room the widgets make nothing, or an endless layout."""


def short_label(label: str) -> str:
    """A model's name for people, escaped; of a path its last part."""
    return escape_line((label.rpartition("/")[2] if label.startswith("/") else label)[:80])


class ChatApp(App[None]):
    """Answers come from `session`, which `load` replaces in the background."""

    TITLE = "localllm"
    CSS_PATH = "tui.tcss"
    ENABLE_COMMAND_PALETTE = True

    class Painted(Message):
        """The first screen is there: what may take long begins."""

    class Opened(Message):
        """A conversation is there: what was typed until now is for it."""

    class Loading(Message):
        """How far the load of a model is, from 0 to 1."""

        def __init__(self, label: str, share: float) -> None:
            super().__init__()
            self.label, self.share = label, share

    class Loaded(Message):
        """Another model answers from now on."""

    class LoadFailed(Message):
        """A model could not be opened. The one before is open again, if there was one."""

        def __init__(self, name: str, error: LocalLLMError) -> None:
            super().__init__()
            self.name, self.error = name, error

    class Said(Message):
        """A plain line on what was chosen when a model was loaded."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class PullEnded(Message):
        """A pull is over, and the screen that shows it may be gone."""

        def __init__(self, pull: Pull) -> None:
            super().__init__()
            self.pull = pull

    class StoreChanged(Message):
        """The conversations have trouble, or have it no longer, or there is a note on them."""

    def __init__(
        self,
        opener: Opener,
        store: Conversations,
        beginning: Beginning | None = None,
        *,
        conversation: int | None = None,
        config: Path | None = None,
        library: Library | None = None,
        pulls: Pulls | None = None,
    ) -> None:
        super().__init__()
        self._library, self._pulls = library, pulls
        if pulls is not None:
            pulls.watch(self._pull_changed)
        self.opener, self.store = opener, store
        self.beginning = beginning or Beginning()
        self.options: LoadOptions = self.beginning.options
        self.config = config or paths.current().config
        self.session: AnySession | None = None
        self.described: Described | None = None
        self.model = ""  # the name of the open one, or of the one that is being opened
        self.loading = False
        self._last: tuple[str, LoadOptions] | None = None  # the model that was open last
        self._one_load = threading.Lock()
        self._is_painted = False
        self._early: list[events.Event] | None = []  # what was typed before `Opened`
        self._conversation = conversation

    # ---- the beginning and the end

    def get_driver_class(self) -> type[Driver]:
        """See `terminal_driver`."""
        return lasting(super().get_driver_class())

    def on_mount(self) -> None:
        from localllm.tui.screens.chat import ChatScreen

        found, problems = themes.own_themes(self.config)
        for theme in found:
            self.register_theme(theme)
        name = themes.chosen(self.config)
        self.theme = name if name in self.available_themes else themes.DEFAULT
        self.push_screen(ChatScreen(self._conversation))
        for problem in problems:
            self.notify(escape_line(problem.message), severity="warning", markup=False)
        self._watch_signals()
        self.store.watch(lambda: self._tell(self.StoreChanged()))  # post_message takes any thread
        self.loading = True  # a question that comes before the model waits for it

    def _display(self, screen: Screen[Any], renderable: Any) -> None:
        super()._display(screen, renderable)
        if not (self._is_painted or self._batch_count or renderable is None):
            self._is_painted = True
            self._tell(self.Painted())

    @property
    def fault(self) -> Exception | None:
        """What ended the application, if that was a fault of it: its caller tells of it."""
        return self._exception

    def _fatal_error(self) -> None:
        # Textual's own would print a page with the values of all variables, texts among them.
        self._close_messages_no_wait()
        if self.session is not None:
            self.session.cancel()  # or its thread would hold up the end

    async def on_event(self, event: events.Event) -> None:
        """What is pasted is escaped before any field shows it; the editor of messages takes it as
        it is, for its attachments. Smaller than `LEAST` no screen is laid out: it is cut."""
        from localllm.tui.widgets.composer import Editor

        typed = isinstance(event, (events.InputEvent, events.Paste)) and not event.is_forwarded
        if typed and self._early is not None:
            self._early.append(event)
            return
        if isinstance(event, events.Paste) and not isinstance(self.focused, Editor):
            event.text = escape(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        elif isinstance(event, events.Resize):
            size = Size(max(event.size.width, LEAST.width), max(event.size.height, LEAST.height))
            if size != event.size:
                event = events.Resize(size, size)
        await super().on_event(event)

    async def on_chat_app_opened(self, event: Opened) -> None:
        early, self._early = self._early or [], None
        for each in early:  # here, so that nothing that came later overtakes it
            await self.on_event(each)

    def begin_load(self) -> None:
        """Opens the model to begin with. Called when the first screen is painted: what a load
        imports would hold it up."""
        if not gc.isenabled():  # the beginning was made without
            gc.freeze()
            gc.enable()
        self.run_worker(self._load_default, thread=True, group="load", exit_on_error=False)

    def _watch_signals(self) -> None:
        """A terminal that is closed ends the program in order."""
        import asyncio

        loop = asyncio.get_running_loop()
        for name in ("SIGHUP", "SIGTERM"):
            if hasattr(signal, name):
                with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.add_signal_handler(
                        getattr(signal, name), lambda: self.run_worker(self.action_quit())
                    )

    async def action_quit(self) -> None:
        """Leaves: an answer that runs is ended, what is there of it is kept."""
        from localllm.tui.screens.chat import ChatScreen

        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen):
                await screen.end_answer()
        if self._pulls is not None:
            self._pulls.close()
        self.exit()

    # ---- the model

    @property
    def library(self) -> Library:
        """The models that there are."""
        if self._library is None:
            from localllm.tui.library import LocalLibrary, ServedLibrary

            local = self.opener.is_local
            self._library = (
                LocalLibrary(paths.current(), self._held_bytes)
                if local
                else ServedLibrary(self.opener)
            )
        return self._library

    def _held_bytes(self) -> int:
        """Memory that is given back when the open model is closed, at the least."""
        session = self.session
        return session.info.weight_bytes if session is not None else 0

    @property
    def pulls(self) -> Pulls | None:
        """The pulls of this program; None where nothing can be pulled."""
        if self._pulls is None and self.opener.is_local:
            from localllm.tui.pulls import Pulls, StoreBring

            self._pulls = Pulls(StoreBring(paths.current()))
            self._pulls.watch(self._pull_changed)
        return self._pulls

    def _pull_changed(self, pull: Pull) -> None:
        """From a pull's thread."""
        if pull.is_over:
            self.post_message(self.PullEnded(pull))

    def on_chat_app_pull_ended(self, event: PullEnded) -> None:
        from localllm.tui.screens.models import ModelsScreen

        if not any(isinstance(screen, ModelsScreen) for screen in self.screen_stack):
            self.notify(
                escape_line(event.pull.sentence)[:600],
                severity="error" if event.pull.error else "information",
                timeout=15 if event.pull.error else 5,
                markup=False,
            )

    @property
    def pull_line(self) -> str:
        """What is said of the pulls beside other figures."""
        return self._pulls.line() if self._pulls is not None else ""

    @property
    def model_label(self) -> str:
        """The open model's name for people, escaped; of a path its last part."""
        return short_label(self.described.label if self.described else self.model)

    def load(self, name: str, options: LoadOptions | None = None) -> None:
        """Opens a model in the background; `Loaded` or `LoadFailed` follows."""
        if options is not None:
            self.options = options
        self.loading = True
        self.run_worker(
            lambda: self._load(name, self.options), thread=True, group="load", exclusive=True,
            exit_on_error=False,
        )  # fmt: skip

    def _load_default(self) -> None:
        try:
            name = self.opener.default()
        except LocalLLMError as e:
            self.loading = False
            self._post(self.LoadFailed("", e))
            return
        if get_current_worker().is_cancelled:  # another model was asked for meanwhile
            return
        if name is None:
            self.loading = False
            self.call_from_thread(self.choose_model)
        else:
            self.call_from_thread(self.load, name)

    @property
    def can_answer(self) -> bool:
        """Whether a model is open that can be asked."""
        return self.session is not None and not self.session.is_lost

    def open_again(self) -> None:
        """Opens the model that was open last, if one was; else shows the models."""
        if self._last is not None:
            self.load(*self._last)
        else:
            self.choose_model()

    def choose_model(self) -> None:
        """Shows the models."""
        chat = self.screen_stack[-1] if self.screen_stack else None
        action = getattr(chat, "action_models", None)
        if action is not None:
            action()

    def _load(self, name: str, options: LoadOptions) -> None:
        worker = get_current_worker()
        with self._one_load:  # the one before was cancelled, and may still end
            if worker.is_cancelled:
                return
            try:
                described = self.opener.describe(name)
                self._post(self.Loading(described.label, 0.0))
                old, self.session = self.session, None
                if old is not None:
                    old.close()
                session = self._opened(name, described, options)
            except Exception as e:
                if not worker.is_cancelled:
                    self._load_failed(name, options, e)
                return
            self.call_from_thread(self._take, worker, session, name, described, options)

    def _opened(self, name: str, described: Described, options: LoadOptions) -> AnySession:
        worker = get_current_worker()
        return self.opener.open(
            name,
            options,
            progress=lambda share: self._post(self.Loading(described.label, share)),
            notice=lambda text: self._post(self.Said(text)),
            cancelled=lambda: worker.is_cancelled,
        )

    def _load_failed(self, name: str, options: LoadOptions, error: Exception) -> None:
        """The model that was open last comes back."""
        worker, last = get_current_worker(), self._last
        if self.session is None and last is not None and last != (name, options):
            with contextlib.suppress(LocalLLMError):
                described = self.opener.describe(last[0])
                session = self._opened(last[0], described, last[1])
                self.call_from_thread(self._take, worker, session, last[0], described, last[1])
        if worker.is_cancelled:
            return
        self.loading = False
        if not isinstance(error, LocalLLMError):
            error = LocalLLMError(f"internal error: {type(error).__name__}: {error}")
        if not isinstance(error, CancelledError):
            self._post(self.LoadFailed(name, error))

    def _take(
        self,
        worker: Worker[Any],
        session: AnySession,
        name: str,
        described: Described,
        options: LoadOptions,
    ) -> None:
        """A model that was opened answers from now on, unless another one was asked for."""
        if worker.is_cancelled:
            self.run_worker(session.close, thread=True, group="close", exit_on_error=False)
            return
        self.session, self.described, self.model = session, described, name
        self._last, self.loading = (name, options), False
        self._tell(self.Loaded())

    def _post(self, message: Message) -> None:
        """From a worker: tells the chat."""
        self.call_from_thread(self._tell, message)

    def _tell(self, message: Message) -> None:
        from localllm.tui.screens.chat import ChatScreen

        for screen in self.screen_stack:
            if isinstance(screen, ChatScreen):
                screen.post_message(message)

    # ---- the palette and the colours

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Every action of the table of keys that the screen has."""
        from localllm.tui.screens.chat import ChatScreen

        for row in KEYS:
            if row.action and row.where == "everywhere":
                name = row.action.removeprefix("app.").partition("(")[0]
                if hasattr(screen, f"action_{name}") or hasattr(self, f"action_{name}"):
                    yield SystemCommand(
                        row.label,
                        f"{row.help or row.label} ({row.shown})",
                        lambda action=row.action: self.run_worker(screen.run_action(action)),
                    )
            elif row.action and row.where in PLACES and isinstance(screen, ChatScreen):
                yield SystemCommand(
                    f"{PLACES[row.where]}: {row.label}",
                    f"{row.help or row.label} ({row.shown})",
                    lambda row=row: self.run_worker(screen.run_at(row.where, row.action)),
                )
        for name in sorted(self.available_themes):
            yield SystemCommand(
                f"Theme: {name}", "Changes the colours", lambda name=name: self.use_theme(name)
            )

    def action_theme(self) -> None:
        """The next theme."""
        names = sorted(self.available_themes)
        self.use_theme(names[(names.index(self.theme) + 1) % len(names)])

    def use_theme(self, name: str) -> None:
        """Changes the colours, also for the next time."""
        self.theme = name
        self.notify(f"Theme: {name}", timeout=2, markup=False)
        self.run_worker(lambda: self._keep_theme(name), thread=True, exit_on_error=False)

    def _keep_theme(self, name: str) -> None:
        try:
            themes.choose(self.config, name)
        except (LocalLLMError, OSError) as e:
            self.call_from_thread(
                self.notify, f"the choice is not kept: {e}", severity="warning", markup=False
            )
