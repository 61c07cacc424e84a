"""The application: refreshes the visible screen at a limited rate, handles keys, and calls the store in a thread."""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, ClassVar, TypeVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static

from taskqueue.cli.top import actions, screens, targets
from taskqueue.cli.top.actions import Question
from taskqueue.cli.top.screens import HELP, Ask, FailureList, Jobs, Keys, Looking, Main, Page, things_of
from taskqueue.errors import StoreUnavailable, TaskqueueError
from taskqueue.exit_codes import Exit
from taskqueue.insight.needs import Need
from taskqueue.insight.why import why
from taskqueue.model.ids import JobId
from taskqueue.model.query import Query
from taskqueue.scheduler import stacks
from taskqueue.scheduler.operations import OPERATIONS
from taskqueue.store import Store
from taskqueue.store.redaction import concealed_in

REST = 4.0
"""The pause between two reads is at least this many times as long as the last read."""

LONGEST = 10.0
"""Maximum length of such a pause in seconds: one slow read must not freeze the screen for minutes."""


class Top(App[int]):
    """The live screen of one store."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    * { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; }
    Screen { layout: vertical; }
    #summary { height: 3; text-wrap: nowrap; }
    #head, #keys, #title { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #head, #title { text-style: bold; }
    #detail { height: 3; text-overflow: ellipsis; }
    #scroll, #jobs, #failures { height: 1fr; }
    #text { height: auto; }
    .away { text-style: reverse bold; }
    Ask, Keys { align: center middle; background: transparent; }
    .dialog { width: auto; max-width: 90%; height: auto; max-height: 90%; border: round ansi_default; padding: 0 1; }
    .dialog Static { width: auto; }
    .dialog Input { width: 60; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit_with(0)", show=False),
        Binding("ctrl+c", f"quit_with({int(Exit.INTERRUPTED)})", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("question_mark", "keys", show=False),
        Binding("c", "cancel", show=False),
        Binding("e", "give_up", show=False),
        Binding("r", "run_again", show=False),
        *(
            Binding(operation.key, f"operate('{name}')", show=False)
            for name, operation in OPERATIONS.items()
            if operation.key
        ),
        Binding("f", "failures", show=False),
        Binding("l", "log", show=False),
        Binding("s", "stack", show=False),
        Binding("w", "why", show=False),
    ]

    def __init__(self, store: Store, *, every: float, is_read_only: bool) -> None:
        super().__init__(ansi_color=True)  # use the colours of the terminal, or none with NO_COLOR
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self._store = store
        self._every = every
        self._is_read_only = is_read_only
        self._calls = StoreCalls()
        self._wake = asyncio.Event()
        self._away = ""
        self._away_since: datetime | None = None
        self.notice = ""
        self.reads = 0
        """How many times the store was read."""

    def run_on_terminal(self) -> int:
        """Show it until the user ends it, and return the exit code."""
        code = self.run(mouse=False)
        return int(code) if code is not None else int(Exit.ERROR if self.return_code else Exit.OK)

    def get_default_screen(self) -> Main:
        """Return the first screen."""
        return Main(self._store)

    def on_mount(self) -> None:
        """Start reading, and end on SIGTERM as on Ctrl-C."""
        for signum in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, self.action_quit_with, int(Exit.INTERRUPTED))
        self.run_worker(self._read_on(), exit_on_error=True)

    def on_unmount(self) -> None:
        """End the thread that calls the store."""
        self._calls.close()

    def action_quit_with(self, code: int) -> None:
        """End with this exit code."""
        self.exit(code, return_code=code)

    def action_keys(self) -> None:
        """Show the help on keys."""
        self.push_screen(Keys(HELP))

    def action_cancel(self) -> None:
        """Cancel the jobs of the rows."""
        self._ask_about(targets.cancelable, "to cancel", actions.cancel)

    def action_give_up(self) -> None:
        """Give up the jobs of the rows that wait to run again."""
        self._ask_about(targets.retried, "to give up", actions.give_up)

    def action_run_again(self) -> None:
        """Run the ended jobs of the rows again."""
        now = datetime.now(timezone.utc)
        self._ask_about(partial(targets.repeatable, now=now), "to run again", actions.run_again)

    def action_operate(self, name: str) -> None:
        """Do a declared operation to the queue, node or failure of the row."""
        operation = OPERATIONS[name]
        named = targets.NAMES[operation.target]
        names = [target for thing in self._things() if (target := named(thing)) is not None]
        if len(names) > 1:
            self.say(f"one at a time: unmark {len(names) - 1}")
            return
        self._ask_if(
            names, f"for: select a {operation.target}", lambda: actions.operate(self._store, operation, names[0])
        )

    def action_failures(self) -> None:
        """Show the failed attempts of the last hour, judged against the last week."""
        first = self.screen_stack[0]
        if isinstance(first, Main) and not isinstance(self.screen, FailureList):
            self._show(FailureList(first.reader.read))

    def action_log(self) -> None:
        """Show the log lines of the job."""
        self._page("log of job", screens.log, follows=True)

    def action_why(self) -> None:
        """Say why the job is in its current state."""
        self._page("why job", why)

    def action_stack(self) -> None:
        """Show where the running job is; its node is asked once."""
        self._page("stack of job", stacks.stack, is_read_once=True)

    def open(self, thing: object) -> None:
        """Show the details of a row."""
        job = targets.job_of(thing)
        chosen = targets.listed(thing, datetime.now(timezone.utc))
        if job is not None:
            self._show(Page(f"job {job}", partial(screens.everything, self._store, JobId(job)), thing))
        elif chosen is not None:
            self._show(Jobs(self._store, chosen))
        elif isinstance(thing, Need):
            text = f"{thing.says}.\n\n{thing.do}"
            self._show(Page(str(thing.subject), lambda: text, thing))

    def draw_head(self) -> None:
        """Show the store, and whether the screen is up to date."""
        if not self.screen.query("#head"):
            return
        head = self.screen.query_one("#head", Static)
        mode = "read-only  " if self._is_read_only else ""
        if self._away_since is not None:
            text = f"store unavailable since {self._away_since.astimezone():%H:%M:%S}, retrying: {self._away}"
        else:
            text = f"taskqueue top  {self._store.url}"
        right = f"{mode}{'offline' if self._away_since else 'live'} {datetime.now().astimezone():%H:%M:%S}"
        room = max(0, self.size.width - len(right) - 1)
        head.set_class(self._away_since is not None, "away")
        head.update(Content(text).truncate(room, ellipsis=True, pad=True) + Content(f" {right}"))

    async def _read_on(self) -> None:
        while self.screen_stack:
            began = time.monotonic()
            screen = self.screen
            if isinstance(screen, Looking):
                await self._read(screen)
            self._wake.clear()
            took = time.monotonic() - began
            pause = max(self._every - took, min(REST * took, LONGEST))
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except asyncio.TimeoutError:
                continue

    async def _read(self, screen: Looking[Any]) -> None:
        self.reads += 1
        try:
            view = await self._calls.make(screen.look)
        except StoreUnavailable as error:
            self._away = concealed_in(" ".join(str(error).split()))
            self._away_since = self._away_since or datetime.now(timezone.utc)
        except TaskqueueError as error:
            self.say(str(error))
        else:
            self._away_since = None
            if screen.is_attached and self._is_open:  # a screen that is closing has no panes left
                screen.show(view)
        if self._is_open:
            self.draw_head()

    @property
    def _is_open(self) -> bool:
        """Return whether the screen still has its panes: a call may outlast the application."""
        return self.is_running and bool(self.screen_stack)

    def say(self, text: str) -> None:
        """Show a notice until the next key."""
        if not self._is_open:
            return
        self.notice = " ".join(text.split())
        if isinstance(self.screen, Looking):
            self.screen.draw_detail()

    def on_key(self) -> None:
        """Remove the last notice."""
        if self.notice:
            self.say("")

    def _things(self) -> Sequence[object]:
        return things_of(self.screen)

    def _show(self, screen: Looking[Any]) -> None:
        self.push_screen(screen)
        self._wake.set()

    def _page(self, words: str, read: Callable[[Store, JobId], str], **how: bool) -> None:
        for thing in self._things():
            if job := targets.job_of(thing):
                self._show(Page(f"{words} {job}", partial(read, self._store, JobId(job)), thing, **how))
                return
        self.say("select a job first")

    def _ask_about(
        self,
        jobs_of: Callable[[object], tuple[str, Query] | None],
        words: str,
        ask: Callable[[Store, Sequence[tuple[str, Query]]], Question],
    ) -> None:
        """Ask about the jobs that the rows name."""
        chosen = [jobs for thing in self._things() if (jobs := jobs_of(thing))]
        self._ask_if(chosen, words, partial(ask, self._store, chosen))

    def _ask_if(self, named: Sequence[object], words: str, prepare: Callable[[], Question]) -> None:
        if self._is_read_only:
            self.say("read-only: start `taskqueue top` without --read-only to act")
        elif not named:
            self.say(f"nothing here {words}")
        else:
            self.run_worker(self._ask(prepare))

    async def _ask(self, prepare: Callable[[], Question]) -> None:
        try:
            question = await self._calls.make(prepare)
            reason = await self.push_screen_wait(Ask(question))
            if reason is None:
                return
            self.say("…")
            done = await self._calls.make(partial(self._do, question, reason))
        except TaskqueueError as error:
            done = str(error)
        if not self._is_open:
            return
        pane = self.screen.pane if isinstance(self.screen, Looking) else None
        if pane is not None:
            pane.marked.clear()
        self.say(done)
        self._wake.set()

    def _do(self, question: Question, reason: str) -> str:
        done = question.act(reason)
        first = self.screen_stack[0] if self.screen_stack else None
        if isinstance(first, Main):
            first.reader.forget()
        return done


Result = TypeVar("Result")

CLOSING = 0.5
"""Seconds to wait for a call in progress when the program ends."""


class StoreCalls:
    """A thread that makes one call after another; a call that hangs does not keep the program from ending."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    async def make(self, call: Callable[[], Result]) -> Result:
        """Return the result of the call, or raise its error."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()

        def run() -> None:
            try:
                result = call()
            except BaseException as error:
                _hand_over(loop, answer, lambda error=error: answer.set_exception(error))  # type: ignore[misc]
            else:
                _hand_over(loop, answer, lambda: answer.set_result(result))

        self._calls.put(run)
        return await answer

    def close(self) -> None:
        """End the thread after the current call."""
        self._calls.put(None)
        self._thread.join(CLOSING)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _hand_over(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Result], give: Callable[[], None]) -> None:
    """Deliver the answer in the loop, unless the loop has ended or nobody is waiting any more."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: None if answer.done() else give())
