"""A pane: a table with one selected row, marks and a filter, which keeps its selection when its rows change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from taskqueue.cli import terminal
from taskqueue.model.shown_text import logged

MARK = "*"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: its subject and its cells."""

    key: str
    """The same for the same thing in each read."""
    thing: object
    cells: tuple[str, ...]
    detail: str = ""
    """Sentences that are shown below the panes while the row is selected."""


class Rows(Widget, can_focus=True):
    """A table that fits its width as the tables of other commands do."""

    DEFAULT_CSS = "Rows { width: 1fr; height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "turn(-1)", show=False),
        Binding("pagedown", "turn(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        Binding("space", "mark", show=False),
        Binding("enter", "open", show=False),
    ]

    class Selected(Message):
        """Another row is selected, or it has changed."""

    class Opened(Message):
        """The selected row must be opened."""

    def __init__(
        self,
        title: str,
        columns: Sequence[terminal.Column],
        empty: str,
        *,
        id: str,
        titled: terminal.Column | None = None,
    ) -> None:
        """Create a pane; the column ``titled``, or else the first, has its title as its head."""
        super().__init__(id=id)
        self.title = title
        self.marked: set[str] = set()
        self.text = ""
        """The text that all shown rows contain."""
        self.total: int | None = None
        """How many there are, if not all are among the rows."""
        self._columns = columns
        self._titled = titled or columns[0]
        self._empty = empty
        self._is_read = False
        self._rows: Sequence[Row] = ()
        self._shown: Sequence[Row] = ()
        self._at = 0
        self._top = 0

    @property
    def selected(self) -> Row | None:
        """The selected row; None without rows."""
        return self._shown[self._at] if self._shown else None

    @property
    def meant(self) -> list[Row]:
        """The marked rows, or else the selected one."""
        marked = [row for row in self._rows if row.key in self.marked]
        return marked or ([self.selected] if self.selected is not None else [])

    @property
    def wanted_height(self) -> int:
        """The lines that show everything."""
        return 1 + max(1, len(self._shown))

    def put(self, rows: Iterable[Row]) -> None:
        """Show these rows; the selected one keeps its place on the screen."""
        self._is_read = True
        self._rows = list(rows)
        self.marked &= {row.key for row in self._rows}
        self._arrange()

    def filter(self, text: str) -> None:
        """Show only rows that contain the text, in capital letters or not."""
        self.text = text
        self._arrange()

    def action_move(self, by: int) -> None:
        """Select another row."""
        self._select(self._at + by)

    def action_turn(self, by: int) -> None:
        """Select a row a page further."""
        self._select(self._at + by * max(1, self.size.height - 2))

    def action_mark(self) -> None:
        """Mark or unmark the selected row, and move to the next."""
        if self.selected is not None:
            self.marked ^= {self.selected.key}
            self._select(self._at + 1)

    def action_open(self) -> None:
        """Open the selected row."""
        if self.selected is not None:
            self.post_message(self.Opened())

    def on_focus(self) -> None:
        """Ask the screen to show the details of the selected row."""
        self.post_message(self.Selected())

    def render(self) -> Content:
        """Return the lines that there is room for."""
        width, height = self.size
        named = [replace(column, head=self._title()) if column is self._titled else column for column in self._columns]
        columns = [terminal.Column(head=""), *named]
        cells = [[MARK if row.key in self.marked else " ", *row.cells] for row in self._shown]
        fitted = terminal.fit(columns, cells, width)
        head = self._line(fitted, [column.head for column in fitted.columns], width)
        if not any(column.head for column in self._columns):
            head = Content(f" {' ' * fitted.gap}{self._title()}").truncate(width, pad=True)
        lines = [head.stylize("bold underline" if self.has_focus else "underline")]
        if not self._shown:
            lines.append(Content.styled(f"  {self._nothing()}"[:width], "dim"))
        self._scroll(height - 1)
        for number in range(self._top, min(len(self._shown), self._top + height - 1)):
            line = self._line(fitted, fitted.rows[number], width)
            lines.append(line.stylize("reverse") if self.has_focus and number == self._at else line)
        return Content("\n").join(lines)

    def _arrange(self) -> None:
        selected, line = self.selected, self._at - self._top
        text = self.text.casefold()
        self._shown = [row for row in self._rows if text in " ".join(row.cells).casefold()] if text else self._rows
        keys = [row.key for row in self._shown]
        if selected is not None and selected.key in keys:
            self._at = keys.index(selected.key)
        self._at = max(0, min(self._at, len(keys) - 1))
        self._top = max(0, self._at - line)
        self.refresh()
        if self.has_focus:
            self.post_message(self.Selected())

    def _select(self, at: int) -> None:
        self._at = max(0, min(at, len(self._shown) - 1))
        self.refresh()
        self.post_message(self.Selected())

    def _scroll(self, height: int) -> None:
        """Have the selected row in view, and no empty lines below the last."""
        self._top = min(max(self._top, self._at - height + 1), self._at, max(0, len(self._shown) - height))
        self._top = max(0, self._top)

    def _title(self) -> str:
        if not self._is_read:
            return logged(self.title)
        total = len(self._rows) if self.total is None else self.total
        of_all = f" of {total:,}" if total > len(self._shown) else ""
        return logged(f"{self.title} {len(self._shown):,}{of_all}{f' /{self.text}' if self.text else ''}")

    def _line(self, fitted: terminal.Fitted, cells: Sequence[str], width: int) -> Content:
        parts: list[str | tuple[str, str]] = []
        for column, text, size in zip(fitted.columns, cells, fitted.widths, strict=True):
            shown, style = terminal.padded(column, text, size), column.styles.get(text.partition(" ")[0], "")
            parts += [(shown, style) if style else shown, " " * fitted.gap]
        line = Content.assemble(*parts)
        return line.truncate(width, pad=True)

    def _nothing(self) -> str:
        if not self._is_read:
            return "reading the store"
        return f"nothing contains {self.text!r}: esc shows all" if self.text and self._rows else self._empty
