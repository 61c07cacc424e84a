"""The panes of the first screen, and lists of jobs and failures: tables with a selected row, marks and a filter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from taskqueue.cli import ids, record_facts, terminal
from taskqueue.cli.terminal import Column
from taskqueue.insight.failure_groups import FailureGroup, Trend
from taskqueue.insight.needs import Need
from taskqueue.insight.nodes import Node
from taskqueue.insight.overview import QueueState, Run, Upcoming
from taskqueue.insight.overview_reader import Overview
from taskqueue.insight.work_report import Day
from taskqueue.model.controls import Controls
from taskqueue.model.finding import Level
from taskqueue.model.job_filter import WORDS_OF_PARTS
from taskqueue.model.record import Record
from taskqueue.model.shown_text import logged
from taskqueue.model.wording import count, local, minute, percent, span

STATUSES: Mapping[str, str] = {
    status: " ".join(f"ansi_{word}" if word != "bold" else word for word in style.split())
    for status, style in terminal.STATUS_STYLES.items()
}
LEVELS: Mapping[str, str] = {Level.ERROR.value: "bold ansi_red", Level.WARNING.value: "ansi_yellow"}
STATES: Mapping[str, str] = {
    "degraded:": "bold ansi_red", "gone:": "bold ansi_red", "silent": "bold ansi_red", "is": "ansi_yellow",
    "drains,": "ansi_yellow", "paused": "ansi_yellow", "grows": "ansi_yellow", "never": "ansi_yellow",
}  # fmt: skip
"""Styles by the first word of a cell; the word is always there, too."""

TRENDS: Mapping[str, str] = {
    Trend.NEW.value: "bold ansi_red",
    Trend.RISING.value: "ansi_yellow",
    "regressed": "bold ansi_red",
}

NEEDS = (Column(head="", styles=LEVELS), Column(head="", cut="end"))
QUEUES = (
    Column(head="queue", cut="end", least=12),
    Column(head="oldest", side="right"),
    Column(head="waiting", side="right"),
    Column(head="in/min", side="right"),
    Column(head="out/min", side="right"),
    Column(head="empty in", side="right", styles=STATES),
    Column(head="running", side="right"),
    Column(head="later", side="right", is_spare=True),
)
RUNS = (
    Column(head="job", cut="start", least=14),
    Column(head="id", is_spare=True),
    Column(head="done", side="right"),
    Column(head="runs", side="right"),
    Column(head="left", side="right"),
    Column(head="", cut="end", least=8),
)
NODES = (
    Column(head="node", cut="end", least=12),
    Column(head="state", cut="end", least=9, styles=STATES),
    Column(head="lead"),
    Column(head="workers", cut="end", least=8),
    Column(head="jobs", side="right"),
    Column(head="up", side="right", is_spare=True),
    Column(head="host", cut="end", is_spare=True),
    Column(head="pid", side="right", is_spare=True),
    Column(head="version", is_spare=True),
)
JOBS = (
    Column(head="job", cut="start", least=14),
    Column(head="id"),
    Column(head="status", styles=STATUSES),
    Column(head="queue", cut="end", is_spare=True),
    Column(head="age", side="right", is_spare=True),
    Column(head="done", side="right", is_spare=True),
    Column(head="tries", side="right", is_spare=True),
    Column(head="cause", cut="end"),
)
FAILURES = (
    Column(head="class", cut="start", least=14),
    Column(head="error", cut="end", least=12),
    Column(head="trend", styles=TRENDS),
    Column(head="failed", side="right"),
    Column(head="of", side="right"),
    Column(head="usual", side="right", is_spare=True),
    Column(head="last at", side="right", is_spare=True),
)


def need_row(need: Need) -> Row:
    """Return the row of a problem that needs action."""
    return Row(
        key=f"{need.subject} {need.name} {need.error or need.says[:20]}",
        thing=need,
        cells=(need.level.value, need.says),
        detail=f"To do: {need.do}. {need.says}" if need.do else need.says,
    )


def queue_row(queue: QueueState) -> Row:
    """Return the row of a queue."""
    pause = queue.pause
    detail = f"queue {queue.name}"
    if pause is not None:
        reason = f": {pause.reason}" if pause.reason else ""
        whole = "" if pause.name else ", as every queue is"
        detail += f" is paused{whole}, since {local(pause.since)} by {pause.by}{reason}"
    elif queue.grows:
        detail += " is growing: more jobs arrive than end"
    detail += f"; {queue.waiting:,} waiting, {queue.postponed:,} later, {queue.running:,} running"
    return Row(
        key=queue.name,
        thing=queue,
        cells=(
            queue.name,
            _time(queue.oldest) if queue.oldest is not None else "-",
            f"{queue.waiting:,}",
            _rate(queue.added_per_minute),
            _rate(queue.ended_per_minute),
            _empty(queue),
            f"{queue.running:,}",
            f"{queue.postponed:,}" if queue.postponed else "-",
        ),
        detail=detail,
    )


def run_row(run: Run, now: datetime) -> Row:
    """Return the row of a running job."""
    record = run.record
    cause = record_facts.cause(record, now)
    remaining = "" if run.left is None else f", about {_time(run.left)} left"
    usual = (
        f"; {count(run.usual.number, 'job')} of the last day took {_time(run.usual.total / run.usual.number)}"
        if run.usual
        else ""
    )
    return Row(
        key=str(record.id),
        thing=run,
        cells=(
            record.shown_job,
            ids.named(record),
            record_facts.progress(record) if record.progress else "-",
            _time(run.ran) if run.ran is not None else "-",
            f"~{_time(run.left)}" if run.left is not None else "-",
            cause,
        ),
        detail=f"{record.job} {record.id}, attempt {record.attempt}, queue {record.queue}: {cause}{remaining}{usual}",
    )


def node_row(node: Node, now: datetime) -> Row:
    """Return the row of a node."""
    about = node.about
    queues = about.get("queues")
    takes = f"takes {', '.join(map(str, queues))}" if isinstance(queues, Mapping) and queues else "takes every queue"
    pool = f"{about.get('pm', '?')}, {about.get('min_children', '?')} to {about.get('max_children', '?')} workers"
    workers = f"{pool}: {about.get('busy', '?')} busy, {about.get('idle', '?')} idle"
    return Row(
        key=node.name,
        thing=node,
        cells=(
            node.name,
            node.state,
            "yes" if node.is_leader else "",
            node.pool,
            f"{node.jobs:,}",
            _time(max((now - node.lease.since).total_seconds(), 1)),
            str(about.get("host", "?")),
            str(about.get("pid", "?")),
            str(about.get("version", "?")),
        ),
        detail=f"node {node.name} {node.state}; pool {workers}; {takes}; pid {about.get('pid', '?')} "
        f"on {about.get('host', '?')}",
    )


def job_row(record: Record, now: datetime, controls: Controls) -> Row:
    """Return the row of a job in a list."""
    id, job, *others, cause = record_facts.cells(record, now, controls)
    state = ", ".join(filter(None, (record.status.name, cause)))
    error = "" if record.error is None else f". Its last error: {record.error.type}: {record.error.message}"
    return Row(
        key=str(record.id),
        thing=record,
        cells=(job, id, *others, cause),
        detail=f"{record.job} {record.id} is {state}{error}",
    )


def failures_row(group: FailureGroup, now: datetime) -> Row:
    """Return the row of one class and error."""
    error, usual = group.fingerprint or "no error", "-" if group.usual is None else percent(group.usual)
    release = "" if group.release is None else f", new since release {group.release.name}"
    return Row(
        key=f"{group.job} {group.fingerprint}",
        thing=group,
        cells=(
            group.job,
            error,
            group.word,
            f"{group.number:,}",
            f"{group.attempts:,}",
            usual,
            minute(group.last_at, now),
        ),
        detail=f"{group.number:,} of {count(group.attempts, 'attempt')} of {group.job} failed in the "
        f"{group.lately}, first at {minute(group.first_at, now)}{release}: {error}",
    )


def summary(overview: Overview) -> list[str]:
    """Return whether nodes are live and keep up with the jobs."""
    live = len(overview.live_nodes)
    return [
        f"{'Working' if live else 'No node is live'}. {count(live, 'node')}",
        overview.workers_in_words,
        f"{_rate(overview.ended_per_minute)} jobs/min",
        "none waits" if overview.oldest is None else f"oldest {_time(overview.oldest)}",
    ]


def later(upcoming: Upcoming) -> list[str]:
    """Return how many jobs wait for a time or for other jobs, and why."""
    parts = [f"{number} {WORDS_OF_PARTS[word]}" for word, number in upcoming.numbers.items() if number not in ("", "0")]
    return [f"Later: {parts[0]}", *parts[1:]] if parts else ["Later: no job"]


def last_hour(day: Day) -> list[str]:
    """Return how many jobs were done, how many attempts failed and how long jobs waited, each also for yesterday."""
    done, failed, waited, _ = day.figures
    return [
        f"Last hour (yesterday): {done.value} done ({done.yesterday})",
        f"{failed.value} failed ({failed.yesterday})",
        f"p95 wait {waited.value} ({waited.yesterday})",
    ]


def joined(parts: Sequence[str], width: int) -> str:
    """Return as many of the parts as fit: a number that is cut off would look like another one."""
    lines = [", ".join(parts[:number]) for number in range(1, len(parts) + 1)]
    return next((line for line in reversed(lines) if len(line) <= width), lines[0])


def _time(seconds: float) -> str:
    """Return a duration without unnecessary digits."""
    return span(round(seconds, 1) if seconds < 10 else round(seconds))


def _rate(per_minute: float) -> str:
    if per_minute == 0:
        return "0"
    return f"{per_minute:,.0f}" if per_minute >= 9.5 else f"{per_minute:.1f}"


def _empty(queue: QueueState) -> str:
    if queue.pause is not None:
        return "paused"
    if not queue.waiting:
        return "-"
    if queue.empty_in is None:
        return "never"
    return "grows" if queue.grows else _time(queue.empty_in)


MARK = "*"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: its subject and its cells."""

    key: str
    """Identifies the same thing in every read."""
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
        """The total number, if the rows are only some of them."""
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
        """The number of lines that shows every row."""
        return 1 + max(1, len(self._shown))

    def put(self, rows: Iterable[Row]) -> None:
        """Show these rows; the selected one keeps its place on the screen."""
        self._is_read = True
        self._rows = list(rows)
        self.marked &= {row.key for row in self._rows}
        self._arrange()

    def filter(self, text: str) -> None:
        """Show only rows that contain the text, ignoring case."""
        self.text = text
        self._arrange()

    def action_move(self, by: int) -> None:
        """Select another row."""
        self._select(self._at + by)

    def action_turn(self, by: int) -> None:
        """Select the row one page further."""
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
        """Return as many lines as there is room for."""
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
        """Keep the selected row in view, with no empty lines below the last row."""
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
