"""The screens: the first one with its four panes, lists of jobs and failures, pages of text, and dialogs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from taskqueue.cli import record_facts, show
from taskqueue.cli.top import panes
from taskqueue.cli.top.actions import Question
from taskqueue.cli.top.panes import Row, Rows
from taskqueue.cli.top.targets import Listing
from taskqueue.errors import StoreUnavailable, TaskqueueError
from taskqueue.insight import obstacles, records
from taskqueue.insight.overview import Upcoming
from taskqueue.insight.overview_reader import Overview, OverviewReader
from taskqueue.insight.why import why
from taskqueue.insight.work_report import Day
from taskqueue.model.controls import Controls
from taskqueue.model.environment import node_command
from taskqueue.model.ids import JobId
from taskqueue.model.log_lines import lines_of
from taskqueue.model.record import Record, Status
from taskqueue.model.shown_text import logged, shown
from taskqueue.scheduler.operations import OPERATIONS, AnyOperation
from taskqueue.store import Store

if TYPE_CHECKING:
    from taskqueue.cli.top.app import Top

LISTED = 200
"""Maximum number of jobs of each part of a list."""

FEW = 5_000
"""If more jobs than this are due later, a list leaves them out."""

View = TypeVar("View")


class Looking(Screen[None], Generic[View]):
    """A screen that reads the store repeatedly and shows the result."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", show=False),
        Binding("slash", "filter", show=False),
    ]
    KEYS: ClassVar[tuple[str, ...]] = ()
    """The keys of the screen for its last line, each with its word."""

    @property
    def program(self) -> Top:
        """The program."""
        return cast("Top", self.app)

    def look(self) -> View:
        """Read the store; called in the thread that makes its calls."""
        raise AssertionError

    def show(self, view: View) -> None:
        """Show the state that was read."""

    @property
    def pane(self) -> Rows | None:
        """The pane with the keys."""
        return self.focused if isinstance(self.focused, Rows) else None

    def compose(self) -> ComposeResult:
        """Compose a line above the screen, with details, keys and the filter below."""
        yield Static(id="head")
        yield from self.content()
        yield Static(id="detail")
        yield Input(id="filter", placeholder="show only what contains …", compact=True, select_on_focus=False)
        words = (word.partition(" ") for word in self.KEYS)
        yield Static(
            Content(" ").join(Content.assemble((key, "bold"), gap, word) for key, gap, word in words), id="keys"
        )

    def content(self) -> ComposeResult:
        """Yield the panes between the header and the footer."""
        yield from ()

    def on_mount(self) -> None:
        """Start without a filter."""
        self.query_one("#filter", Input).display = False
        self.program.draw_head()
        self.draw_detail()

    def on_rows_selected(self) -> None:
        """Show the details of the selected row."""
        self.draw_detail()

    def draw_detail(self) -> None:
        """Show the result of the last action, or the details of the selected row."""
        row = self.pane.selected if self.pane is not None else None
        text = self.program.notice or (row.detail if row is not None else "")
        self.query_one("#detail", Static).update(Content(logged(text)))

    def on_rows_opened(self) -> None:
        """Open the selected row."""
        if self.pane is not None and self.pane.selected is not None:
            self.program.open(self.pane.selected.thing)

    def action_filter(self) -> None:
        """Let the user type a text that rows must contain."""
        pane = self.pane
        if pane is None:
            return
        box = self.query_one("#filter", Input)
        box.display = True
        box.value = pane.text
        self._filtered = pane
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as the user types."""
        self._filtered.filter(event.value)

    def on_input_submitted(self) -> None:
        """Keep the filter."""
        self._leave_filter()

    def action_back(self) -> None:
        """Leave the filter, remove it, or go back a screen."""
        pane = self.pane
        if self.query_one("#filter", Input).has_focus:
            self._filtered.filter("")
            self._leave_filter()
        elif pane is not None and (pane.text or pane.marked):
            pane.marked.clear()
            pane.filter("")
        else:
            self.leave()

    def leave(self) -> None:
        """Go back to the screen before."""
        self.app.pop_screen()

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self._filtered.focus()


class Look(NamedTuple):
    """What the first screen shows."""

    overview: Overview
    day: Day
    upcoming: Upcoming


class Main(Looking[Look]):
    """Problems that need action, queues, running jobs and nodes."""

    KEYS = (
        "⏎ open", "/ filter", "␣ mark", "c cancel", "r again", "p pause", "d drain", "l log", "s stack", "f fails",
        "?",
    )  # fmt: skip

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.reader = OverviewReader(store)
        self._look: Look | None = None
        self._panes = (
            Rows("needs attention", panes.NEEDS, "Nothing needs your attention.", id="needs", titled=panes.NEEDS[-1]),
            Rows("queues", panes.QUEUES, "no queue has jobs: add one with `taskqueue add`", id="queues"),
            Rows("running", panes.RUNS, "no job is running", id="running"),
            Rows("nodes", panes.NODES, f"no node works on this store: start one with `{node_command()}`", id="nodes"),
        )

    def content(self) -> ComposeResult:
        """Yield the panes, above them lines about the nodes, about jobs that are due later, and about the last hour."""
        yield Static(id="summary")
        yield from self._panes

    def look(self) -> Look:
        """Read an overview, what is due later, and the last hour of this day and of yesterday."""
        overview = self.reader.read()
        return Look(overview, self.reader.day(overview), self.reader.upcoming(overview.at))

    def show(self, view: Look) -> None:
        """Show what was read."""
        self._look = view
        overview = view.overview
        needs, queues, running, nodes = self._panes
        needs.put(map(panes.need_row, overview.needs))
        queues.put(map(panes.queue_row, overview.queues))
        running.put(panes.run_row(run, overview.at) for run in overview.runs)
        running.total = overview.running
        nodes.put(panes.node_row(node, overview.at) for node in overview.nodes)
        self._draw_summary()
        self._share_out()

    def on_resize(self) -> None:
        """Distribute the new height, and leave out figures that the new width has no room for."""
        self._draw_summary()
        self._share_out()

    def _draw_summary(self) -> None:
        if self._look is not None:
            overview, day, upcoming = self._look
            lines = (panes.summary(overview), panes.later(upcoming), panes.last_hour(day))
            text = "\n".join(panes.joined(parts, self.size.width) for parts in lines)
            self.query_one("#summary", Static).update(Content(text))

    def leave(self) -> None:
        """Do nothing: this is the first screen."""

    def _share_out(self) -> None:
        """Give each pane the lines that it needs, or take some from the largest; running jobs get the rest."""
        room = self.size.height - 8
        heights = [pane.wanted_height for pane in self._panes]
        while sum(heights) > room and max(heights) > 2:
            heights[heights.index(max(heights))] -= 1
        heights[2] += max(0, room - sum(heights))
        for pane, height in zip(self._panes, heights, strict=True):
            pane.styles.height = height


class Jobs(Looking[tuple[list[Record], datetime, Controls]]):
    """The jobs of a row: running, next to run, later, and failed in the last hour."""

    KEYS = ("⏎ open", "/ filter", "␣ mark", "c cancel", "r again", "l log", "s stack", "w why", "esc back", "?", "q")

    def __init__(self, store: Store, listing: Listing) -> None:
        super().__init__()
        self._store = store
        self._listing = listing
        self._rows = Rows(listing.title, panes.JOBS, "no job waits, runs or has failed in the last hour", id="jobs")

    def content(self) -> ComposeResult:
        """Yield the list."""
        yield self._rows

    def look(self) -> tuple[list[Record], datetime, Controls]:
        """Read the jobs."""
        records = read_listing(self._store, self._listing)
        return records, self._store.now(), obstacles.holds(self._store, records)

    def show(self, view: tuple[list[Record], datetime, Controls]) -> None:
        """Show them."""
        records, now, controls = view
        self._rows.put(panes.job_row(record, now, controls) for record in records)


def read_listing(store: Store, listing: Listing) -> list[Record]:
    """Return the first jobs of each part of a list."""
    parts = list(listing.parts)
    if listing.later is not None:
        postponed = sum(number for (_, status), number in store.tally().items() if status is Status.POSTPONED)
        parts += [(listing.later, "rank")] if postponed <= FEW else []
    return [record for query, order in parts for record in store.find(query, order=order, limit=LISTED)]


class FailureList(Looking[Overview]):
    """The failed attempts of the last hour by class and error, judged: errors that need attention first."""

    KEYS = ("⏎ jobs", "/ filter", "r again", "m mute", "v resolve", "o reopen", "esc back", "? keys", "q quit")

    def __init__(self, reader: Callable[[], Overview]) -> None:
        super().__init__()
        self._read = reader
        self._rows = Rows("failures", panes.FAILURES, "no attempt has failed in the last hour", id="failures")

    def content(self) -> ComposeResult:
        """Yield the list."""
        yield self._rows

    def look(self) -> Overview:
        """Read an overview."""
        return self._read()

    def show(self, view: Overview) -> None:
        """Show its failures."""
        self._rows.put(panes.failures_row(group, view.at) for group in view.groups)


class Page(Looking[str]):
    """A page of text, read repeatedly or once; a followed page stays at its end."""

    KEYS = ("↑↓ scroll", "l log", "s stack", "w why", "c cancel", "r again", "esc back", "? keys", "q quit")

    def __init__(
        self,
        title: str,
        read: Callable[[], str],
        thing: object = None,
        *,
        follows: bool = False,
        is_read_once: bool = False,
    ) -> None:
        super().__init__()
        self.thing = thing
        self._heading = title
        self._read = read
        self._follows = follows
        self._is_read_once = is_read_once
        self._text = ""

    def content(self) -> ComposeResult:
        """Yield a title and the text."""
        yield Static(Content(logged(self._heading)), id="title")
        with VerticalScroll(id="scroll"):
            yield Static(id="text")

    def look(self) -> str:
        """Read the text, or why there is none."""
        if self._is_read_once and self._text:
            return self._text
        try:
            return self._read()
        except StoreUnavailable:
            raise
        except TaskqueueError as error:
            return str(error)

    def show(self, view: str) -> None:
        """Show the text if it has changed."""
        if view == self._text:
            return
        self._text = view
        self.query_one("#text", Static).update(Content(shown(view)))
        if self._follows:
            self.query_one("#scroll").scroll_end(animate=False)


def things_of(screen: Screen[object]) -> Sequence[object]:
    """Return the targets of the keys: the marked rows, the selected one, or the job of a page."""
    if isinstance(screen, Page):
        return [screen.thing] if screen.thing is not None else []
    pane = screen.pane if isinstance(screen, Looking) else None
    rows: Sequence[Row] = pane.meant if pane is not None else []
    return [row.thing for row in rows]


def _meaning(operation: AnyOperation) -> str:
    """Return the help on the key of an operation."""
    reverse = operation.reverse()
    return f"{operation.name} a {operation.target}{f', or {reverse.name} it' if reverse else ''}"


HELP: Mapping[str, str] = {
    "tab": "go to the next pane; with shift, to the previous one",
    "↑ ↓ k j": "select a row; page up and page down go further",
    "enter": "open the jobs of a queue, node or class, or one job",
    "/": "show only rows that contain a text; esc shows all",
    "space": "mark rows: actions apply to all marked rows",
    "c": "cancel jobs, or the jobs of a queue that have not started",
    "e": "give up jobs that wait to run again: they end as failed",
    "r": "run ended jobs again; of a queue, the failed jobs",
    **{operation.key: _meaning(operation) for operation in OPERATIONS.values() if operation.key},
    "f": "show failures of the last hour by class and error",
    "l": "show the log lines of a job",
    "s": "show where a running job is: its Python stack",
    "w": "say why a job is in its current state",
    "esc": "go back",
    "q ctrl+c": "quit; jobs are not affected",
}


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
                yield Input(id="reason", placeholder="reason (optional)", compact=True)
            yield Static(Content.styled("enter: confirm   esc: go back", "dim"))

    def on_input_submitted(self) -> None:
        """Treat entering the reason as a yes."""
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


NO_LINES = "no log lines are kept"


def log(store: Store, id: JobId) -> str:
    """Return its kept log lines, those of each run below its attempt."""
    text: list[str] = []
    for run, stored in sorted(store.log_lines(id).items()):
        lines = list(lines_of(run, stored))
        if lines:
            text.append(f"attempt {lines[0].attempt}, {lines[0].at.astimezone():%Y-%m-%d %Z}")
        text += [f"{line.at.astimezone():%H:%M:%S} {line.level.upper():7} {line.message}" for line in lines]
    return "\n".join(text) or NO_LINES


def everything(store: Store, id: JobId) -> str:
    """Return the sentences of *why* and the lines of `taskqueue show`."""
    [record] = records.read(store, [id])
    now = store.now()
    cause = record_facts.cause(record, now, obstacles.holds(store, [record]))
    facts = [(name, value) for name, value in show.facts(record, cause) if value]
    wide = max(len(name) for name, _ in facts)
    parts = [why(store, id), "", *(f"{name:{wide}}  {value}" for name, value in facts)]
    for heading, text in show.texts(record):
        parts += ["", heading, text]
    if record.attempts:
        parts += ["", "attempts"]
        parts += ["  ".join(show.attempt_cells(attempt)) for attempt in record.attempts]
    return "\n".join(parts)
