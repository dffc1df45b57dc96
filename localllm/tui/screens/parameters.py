"""What is asked of answers: instructions, reasoning, sampling parameters, and presets of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Button, Input, Select, Static, TextArea

from localllm.errors import LocalLLMError
from localllm.params import COMMON, PARAMETERS, THINK
from localllm.plain_text import escape, escape_line
from localllm.tui.presets import Presets, Wishes
from localllm.tui.screens.confirm import ConfirmScreen
from localllm.tui.screens.own_keys import KeyedScreen
from localllm.tui.widgets.field import Field
from localllm.tui.widgets.key_line import KeyLine
from localllm.tui.widgets.parameter_field import ParameterField

_AS_MODEL = "as the model does"


class ParametersScreen(KeyedScreen[Wishes | None]):
    """Ends with the wishes, or with None where nothing is to change."""

    TITLE = "Settings of this conversation"
    AUTO_FOCUS = "TextArea"
    DEFAULT_CSS = """
    ParametersScreen .heading { height: 1; padding: 0 1; background: $panel; }
    ParametersScreen TextArea { height: 4; border: none; padding: 0 1; background: $surface; }
    ParametersScreen .line { height: 1; padding: 0 1; }
    ParametersScreen .line Static { width: auto; margin-right: 1; }
    ParametersScreen #origin { width: 1fr; color: $text-muted; }
    ParametersScreen Select { width: 1fr; max-width: 30; }
    ParametersScreen #name { width: 1fr; max-width: 30; height: 1; border: none; padding: 0 1; }
    ParametersScreen Button { min-width: 8; margin-left: 1; }
    ParametersScreen VerticalScroll { height: 1fr; }
    ParametersScreen #told { height: 2; padding: 0 1; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Cancel"),
        Binding("ctrl+s", "apply", "Use", priority=True),
        Binding("f5", "reset_field", "Reset field", priority=True),
        Binding("f6", "reset_all", "Reset all", priority=True),
        Binding("f7", "save_preset", "Save preset", priority=True),
        Binding("f8", "delete_preset", "Delete preset", priority=True),
    ]

    class PresetsRead(Message):
        """The presets, and the one to show as chosen."""

        def __init__(self, presets: dict[str, Wishes], chosen: str) -> None:
            super().__init__()
            self.presets, self.chosen = presets, chosen

    class Failed(Message):
        """What could not be done with the presets."""

        def __init__(self, error: LocalLLMError) -> None:
            super().__init__()
            self.error = error

    def __init__(
        self,
        wishes: Wishes,
        presets: Presets,
        *,
        own_system: str = "",
        usual: Mapping[str, Any] | None = None,
        can_think: bool = True,
    ) -> None:
        """own_system: the instructions that come with the model. usual: the parameters that count
        where none are set, beside the defaults."""
        super().__init__()
        self._wishes, self._presets, self._own_system = wishes, presets, own_system
        self._usual, self._can_think = dict(usual or {}), can_think
        self._kept: dict[str, Wishes] = {}
        self._is_own, self._exact = True, own_system  # what the field shows
        self._saved = ""  # the preset that the list will tell of next

    def compose(self) -> ComposeResult:
        with Horizontal(classes="line heading"):
            yield Static("Instructions", markup=False)
            yield Static("", id="origin", markup=False)
            yield Button("reset", id="own", compact=True)
        yield TextArea(id="system", compact=True, tab_behavior="focus")
        with Horizontal(classes="line"):
            yield Static("Reasoning", markup=False)
            yield Select(
                [(_AS_MODEL, ""), *((name, name) for name in THINK)],
                allow_blank=False, compact=True, id="think",
            )  # fmt: skip
            if not self._can_think:
                yield Static("(this model has none)", markup=False)
        with Horizontal(classes="line"):
            yield Static("Preset", markup=False)
            yield Select[str]([], prompt="none", compact=True, id="presets")
            yield Field(placeholder="name to save as", compact=True, id="name")
            yield Button("save", id="save", compact=True)
            yield Button("delete", id="delete", compact=True)
        with VerticalScroll(can_focus=False):
            for name in (*COMMON, *(name for name in PARAMETERS if name not in COMMON)):
                row = PARAMETERS[name]
                yield ParameterField(row, self._usual.get(name, row.default))
        yield Static("", id="told", markup=False)
        yield KeyLine()

    def on_mount(self) -> None:
        self._put(self._wishes)
        self._in_thread(lambda: self._read(""))

    # What is shown.

    def _put(self, wishes: Wishes) -> None:
        self._put_system(wishes.system)
        names = {value: name for name, value in THINK.items()}
        think = "" if wishes.think is None else names.get(wishes.think, "")
        self.query_one("#think", Select).value = think
        for field in self.query(ParameterField):
            name = field.row.name
            field.put(name in wishes.params, wishes.params.get(name))

    def _put_system(self, text: str | None) -> None:
        """Shows instructions, escaped; they stay exact as long as nobody changes them."""
        self._is_own = text is None
        self._exact = self._own_system if text is None else text
        self.query_one("#system", TextArea).load_text(escape(self._exact))
        self._show_origin()

    def _show_origin(self) -> None:
        whose = "the model's own" if self._is_own else "yours"
        if not self.query_one("#system", TextArea).text:
            whose = "none" if not self._is_own else "none come with the model"
        self.query_one("#origin", Static).update(Content(f"({whose})"))

    @on(TextArea.Changed)
    def _written(self) -> None:
        text = self.query_one("#system", TextArea).text
        self._is_own = self._is_own and text == escape(self._own_system)
        self._show_origin()

    @property
    def _system(self) -> str | None:
        if self._is_own:
            return None
        text = self.query_one("#system", TextArea).text
        return self._exact if text == escape(self._exact) else text

    @on(Button.Pressed, "#own")
    def _to_own(self) -> None:
        self._put_system(None)

    @on(ParameterField.Told)
    def _told(self, message: ParameterField.Told) -> None:
        self._say(message.text)

    def _say(self, text: str) -> None:
        self.query_one("#told", Static).update(Content(escape_line(text)))

    def wishes(self) -> Wishes | None:
        """What is asked for now; None while a field is wrong, which then has the focus."""
        params = {}
        for field in self.query(ParameterField):
            if field.error:
                field.query_one(Input).focus()
                self._say(field.help)
                return None
            is_set, value = field.value
            if is_set:
                params[field.row.name] = value
        think = self.query_one("#think", Select).value
        return Wishes(
            self._system,
            params,
            THINK.get(str(think)),
        )

    # What the user does.

    def action_back(self) -> None:
        self.dismiss(None)

    def action_apply(self) -> None:
        found = self.wishes()
        if found is not None:
            self.dismiss(found)

    def action_reset_field(self) -> None:
        focused = self.focused
        if focused is None or focused.id == "system":
            self._to_own()
            return
        for field in self.query(ParameterField):
            if focused in field.walk_children():
                field.reset()

    def action_reset_all(self) -> None:
        self._put(Wishes())

    @on(Select.Changed, "#presets")
    def _chosen(self, event: Select.Changed) -> None:
        name = event.value
        if not isinstance(name, str) or name not in self._kept:
            return
        self.query_one("#name", Input).value = name
        if name == self._saved:  # what it holds is on the screen
            self._saved = ""
            return
        self._put(self._kept[name])
        self._say(f"{name} is shown; Use (Ctrl+S) takes it")

    @on(Button.Pressed, "#save")
    @on(Input.Submitted, "#name")
    def action_save_preset(self) -> None:
        name, found = self.query_one("#name", Input).value, self.wishes()
        if not name.strip():
            self.query_one("#name", Input).focus()
            self._say("Type a name for the preset, then Enter")
        elif found is not None:
            self._in_thread(lambda: self._save(name, found))

    @on(Button.Pressed, "#delete")
    def action_delete_preset(self) -> None:
        name = self.query_one("#name", Input).value.strip()
        if name not in self._kept:
            self._say("Choose the preset to delete first")
            return

        def answered(agreed: bool | None) -> None:
            if agreed:
                self._in_thread(lambda: self._delete(name))

        self.app.push_screen(ConfirmScreen(f"Delete the preset {name}?", "Delete"), answered)

    # In threads.

    def _read(self, chosen: str) -> None:
        self.post_message(self.PresetsRead(self._presets.all(), chosen))

    def _save(self, name: str, wishes: Wishes) -> None:
        self._read(self._presets.save(name, wishes))

    def _delete(self, name: str) -> None:
        self._presets.delete(name)
        self._read("")

    def _in_thread(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except LocalLLMError as e:
                self.post_message(self.Failed(e))

        self.run_worker(guarded, thread=True, group="presets")

    def on_parameters_screen_presets_read(self, message: PresetsRead) -> None:
        before, self._kept = self._kept, message.presets
        choices: Select[str] = self.query_one("#presets", Select)
        self._saved = message.chosen
        choices.set_options((Content(escape_line(name)), name) for name in self._kept)
        if message.chosen:
            choices.value = message.chosen
            self._say(f"{message.chosen} is saved")
        elif len(self._kept) < len(before):
            self.query_one("#name", Input).value = ""
            self._say("The preset is deleted")

    def on_parameters_screen_failed(self, message: Failed) -> None:
        e = message.error
        text = f"{e.message}. {e.hint}" if e.hint else e.message
        self.notify(escape_line(text)[:600], severity="error", markup=False)
