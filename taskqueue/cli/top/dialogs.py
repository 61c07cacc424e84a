"""Dialogs: the question before each action, and the keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from taskqueue.cli.top.actions import Question
from taskqueue.model.shown_text import logged


class Ask(ModalScreen[str | None]):
    """Asks before an action; the answer is the reason that was typed, or None for no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "no", show=False),
        Binding("enter,y", "yes", show=False),
        Binding("n", "no", show=False),
    ]

    def __init__(self, question: Question) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question, a sample, and a line for the reason."""
        with Vertical(classes="dialog"):
            yield Static(Content.styled(logged(self._question.title), "bold"))
            for line in self._question.sample:
                yield Static(Content(f"  {logged(line)}"))
            if self._question.takes_reason:
                yield Input(id="reason", placeholder="reason, if you like", compact=True)
            yield Static(Content.styled("enter: do it   esc: leave it", "dim"))

    def on_input_submitted(self) -> None:
        """Take the reason as a yes."""
        self.action_yes()

    def action_yes(self) -> None:
        """Answer yes."""
        reason = self.query_one("#reason", Input).value if self._question.takes_reason else ""
        self.dismiss(reason)

    def action_no(self) -> None:
        """Answer no."""
        self.dismiss(None)


class Keys(ModalScreen[None]):
    """Shows the action of each key."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", show=False)]

    def __init__(self, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        """Show them."""
        wide = max(map(len, self._keys))
        with Vertical(classes="dialog"):
            for key, words in self._keys.items():
                yield Static(Content.assemble((key.ljust(wide), "bold"), "  ", words))
