"""Prints tables, facts and log lines for people: the only user of rich, imported when something is shown."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from taskqueue.cli import output
from taskqueue.model.shown_text import logged
from taskqueue.model.shown_text import shown as shown_text

UNBOUNDED = 100_000
"""The width of output that is not a terminal: no text is cut there."""

SHORTEST = 6
"""The minimum width to which a column is cut, unless the column sets its own."""

STATUS_STYLES: Mapping[str, str] = {
    "WAITING": "cyan",
    "POSTPONED": "blue",
    "PROCESSING": "yellow",
    "DONE": "green",
    "FAILED": "bold red",
    "CANCELED": "magenta",
    "TIMEOUT": "bold red",
}
"""The colour of each status; the word is always there too."""


_LEVELS: Mapping[str, str] = {"warning": "yellow", "error": "bold red", "critical": "bold red"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table: its heading, its alignment, and where its text is cut if the terminal is narrow."""

    head: str
    side: Literal["left", "right"] = "left"
    cut: Literal["never", "end", "start"] = "never"
    least: int = SHORTEST
    styles: Mapping[str, str] = field(default_factory=dict)
    is_spare: bool = False
    """Whether the table may drop the column if cutting alone does not make it fit."""


class Bar:
    """A progress bar on the screen."""

    def __init__(self, bar: Progress, words: str) -> None:
        self._bar = bar
        self._shown = bar.add_task(words, total=None)

    def __call__(self, *, done: float, total: float, words: str) -> None:
        """Show this much of the total, with this text."""
        self._bar.update(self._shown, completed=done, total=total, description=logged(words))

    def note(self, text: str) -> None:
        """Print a line above the bar, which continues below it."""
        self._bar.console.print(Text(logged(text)))


def width() -> int:
    """Return how many columns the terminal has, or ``UNBOUNDED`` if the output goes to a program or a file."""
    return _console().width


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], foot: str = "", width: int | None = None) -> None:
    """Print rows of text under their headings; if there is too little room, cells are cut and marked with ``…``.

    The room is the width of the terminal, unless ``width`` is given.
    """
    console = _console()
    width = width or console.width
    fitted = fit(columns, rows, width)
    styles, gap = _Styles(console), " " * fitted.gap
    widths = _squeezed(fitted.widths, width - fitted.gap * (len(fitted.columns) - 1))
    # Not by a table of rich, which takes a millisecond for each line.
    lines = [
        [
            styles.painted(padded(column, column.head, size), "bold")
            for column, size in zip(fitted.columns, widths, strict=True)
        ]
    ]
    for row in fitted.rows:
        cells = zip(fitted.columns, row, widths, strict=True)
        lines.append(
            [styles.painted(padded(column, text, size), column.styles.get(text, "")) for column, text, size in cells]
        )
    # Padding at the end of a line is invisible, but wraps in a terminal that was made narrower and ends up in diffs.
    output.styled("\n".join(gap.join(line).rstrip() for line in lines))
    if foot:
        _print(console, Text(foot, style="dim"))


class Fitted(NamedTuple):
    """A table that fits a width: the columns that have room, their cells in one line each, and their widths."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    widths: Sequence[int]
    gap: int


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Fitted:
    """Return the table for a terminal of this width."""
    rows = [[output.encodable(logged(text)) for text in row] for row in rows]
    columns, rows = _affordable(columns, rows, width)
    natural = _natural(columns, rows)
    gap = 2 if sum(natural) + 2 * len(columns) <= width else 1
    return Fitted(columns, rows, _fitted(columns, natural, width - gap * (len(columns) - 1)), gap)


def cut(column: Column, text: str, size: int) -> str:
    """Return the text, cut to the size if it is longer."""
    if cell_len(text) <= size:
        return text
    mark = "…" if output.encodable("…") == "…" else "~"
    return mark + text[len(text) - size + 1 :] if column.cut == "start" else set_cell_size(text, size - 1) + mark


def padded(column: Column, text: str, size: int) -> str:
    """Return the text cut to the size, or with spaces on the other side of its column."""
    shown = cut(column, text, size)
    spaces = " " * (size - cell_len(shown))
    return f"{spaces}{shown}" if column.side == "right" else f"{shown}{spaces}"


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values below one another; long values are wrapped beside their name."""
    shown = Table.grid(padding=(0, 2, 0, 0))
    shown.add_column(no_wrap=True, style="dim")
    shown.add_column(overflow="fold")
    for name, value in pairs:
        shown.add_row(
            Text(name), Text(output.encodable(logged(value)), style=STATUS_STYLES.get(value.partition(" ")[0], ""))
        )
    _print(_console(), shown)


def run_line(time: str, id: str, job: str, status: str, words: str) -> None:
    """Print one line about a run; its status has a colour, and the terminal wraps the line."""
    status_text = (status, STATUS_STYLES.get(status, ""))
    _print(
        _console(), Text.assemble((time, "dim"), " ", id, " ", logged(job), " ", status_text, " ", words), wraps=False
    )


def traceback(lines: Sequence[tuple[str, bool]]) -> None:
    """Print the lines of a traceback, indented; those of libraries are dim."""
    for line, is_library in lines:
        _print(_console(), Text(f"    {logged(line)}", style="dim" if is_library else ""), wraps=False)


def log_line(time: str, level: str, message: str) -> None:
    """Print one log line of a job; the further lines of its message are indented."""
    first, *others = shown_text(message).split("\n")
    name = (f"{logged(level).upper():7}", _LEVELS.get(level, ""))
    _print(_console(), Text.assemble((time, "dim"), " ", name, " ", first), wraps=False)
    for other in others:
        _print(_console(), Text(f"    {other}"), wraps=False)


def dim(text: str) -> None:
    """Print a line that sums up the lines above."""
    _print(_console(), Text(logged(text), style="dim"))


def heading(text: str) -> None:
    """Print a heading for the lines that follow."""
    _print(_console(), Text(f"\n{text}", style="bold"))


def sentences(text: str) -> None:
    """Print lines of words; on a terminal long lines are wrapped between words and continue indented."""
    if not sys.stdout.isatty():
        output.lines(text)
        return
    for line in shown_text(text).split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        wrapped = textwrap.wrap(
            line, width(), subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
        )
        output.lines("\n".join(wrapped))


@contextmanager
def progress(words: str) -> Iterator[Bar | None]:
    """Show a bar on stderr while the block runs, if people see it; the value is None otherwise."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    same = sys.stdout.isatty()  # otherwise anything printed while the bar is shown would go to stderr
    with Progress(*columns, console=console, transient=True, redirect_stdout=same) as bar:
        yield Bar(bar, words)


class _Styles:
    """Puts the control characters of a style around text, as the terminal takes them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._around: dict[str, tuple[str, str]] = {"": ("", "")}

    def painted(self, padded: str, style: str) -> str:
        """Return padded text with its words in this style."""
        if style not in self._around:
            with self._console.capture() as captured:
                self._console.print(Text("x", style=style), end="")
            before, _, after = captured.get().partition("x")
            self._around[style] = (before, after)
        before, after = self._around[style]
        text = padded.strip(" ")
        return padded.replace(text, f"{before}{text}{after}", 1) if text else padded


def _console() -> Console:
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=UNBOUNDED)


def _natural(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the widest cell of each column."""
    return [
        max(cell_len(text) for text in (column.head, *(row[index] for row in rows)))
        for index, column in enumerate(columns)
    ]


def _affordable(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
    """Return columns and rows; if the terminal is too narrow, leave out spare columns, the rightmost first."""
    while sum(_fitted(columns, _natural(columns, rows), 0)) + len(columns) - 1 > width:
        spare = [index for index, column in enumerate(columns) if column.is_spare]
        if not spare:
            break
        rest = [index for index in range(len(columns)) if index != spare[-1]]
        columns, rows = [columns[index] for index in rest], [[row[index] for index in rest] for row in rows]
    return columns, rows


def _fitted(columns: Sequence[Column], natural: Sequence[int], room: int) -> list[int]:
    """Return the widths: if the table is too wide, the widest columns that may be cut become narrower."""
    widths = list(natural)
    while sum(widths) > room:
        cuttable = [i for i, column in enumerate(columns) if column.cut != "never" and widths[i] > column.least]
        if not cuttable:
            break
        widths[max(cuttable, key=widths.__getitem__)] -= 1
    return widths


def _squeezed(widths: Sequence[int], room: int) -> list[int]:
    """Return the widths, or smaller ones if the terminal is narrower than all columns can be cut to."""
    squeezed = list(widths)
    while sum(squeezed) > room and max(squeezed) > 1:
        squeezed[squeezed.index(max(squeezed))] -= 1
    return squeezed


def _print(console: Console, shown: Table | Text, *, wraps: bool = True) -> None:
    with console.capture() as captured:
        console.print(shown, soft_wrap=not wraps)
    output.styled("\n".join(line.rstrip() for line in captured.get().splitlines()))
