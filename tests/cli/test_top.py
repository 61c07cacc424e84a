"""``taskqueue top``: what its screens show, and that each key asks before it acts."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from bson import ObjectId
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from taskqueue import Scheduler
from taskqueue.cli import ids
from taskqueue.cli.top import actions, panes
from taskqueue.cli.top.app import Top
from taskqueue.cli.top.panes import Rows
from taskqueue.exit_codes import Exit
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.model.controls import Control, Kind
from taskqueue.model.history import Durations
from taskqueue.model.record import Failure, Holder, Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.store import ClaimRequest, Lease, Settlement, Store
from tests.acceptance.work import Gate
from tests.cli import records
from tests.cli.conftest import Answer
from tests.nodes import LIMIT, node

EVERY = 0.2
"""Seconds between looks: a key press of the pilot waits until the processor has nothing to do."""

OTHER_FAILURE = Failure(type="shop.errors.LateCarrier", message="the carrier is late")
Steps = Callable[[Pilot[int]], Coroutine[Any, Any, None]]


def run_top(store: Store, steps: Steps, *, size: tuple[int, int] = (80, 24), is_read_only: bool = False) -> Top:
    """Show the program on a screen of this size, press keys in these steps, and return the program."""
    top = Top(store, every=EVERY, is_read_only=is_read_only)

    async def run() -> None:
        async with top.run_test(size=size) as pilot:
            await steps(pilot)

    asyncio.run(run())
    return top


def screen(pilot: Pilot[int]) -> str:
    """Return the text on the screen."""
    return "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips())


async def shows(pilot: Pilot[int], *texts: str) -> str:
    """Wait until all of the texts are on the screen, and return what is."""
    ends_at = time.monotonic() + LIMIT
    while not all(text in (found := screen(pilot)) for text in texts):
        assert time.monotonic() < ends_at, f"{texts} are not on the screen:\n{found}"
        await pilot.pause(0.01)
    return found


async def until(fact: Callable[[], object]) -> None:
    """Wait until it is so."""
    ends_at = time.monotonic() + LIMIT
    while not fact():
        assert time.monotonic() < ends_at
        await asyncio.sleep(0.01)


def mail(queue: str = "mail", **fields: Any) -> Record:
    """Return a record that waits."""
    return replace(records.record(id=ObjectId()), queue=queue, **fields)


def test_a_pane_says_nothing_of_a_store_that_it_has_not_read() -> None:
    class Screen(App[None]):
        def compose(self) -> ComposeResult:
            yield Rows("nodes", panes.NODES, "no node works", id="nodes")

    async def steps() -> None:
        async with Screen().run_test(size=(80, 5)) as pilot:
            pane = pilot.app.query_one(Rows)
            assert "reading the store" in pane.render().plain
            assert "0" not in pane.render().plain
            pane.put([])
            assert "nodes 0" in pane.render().plain
            assert "no node works" in pane.render().plain

    asyncio.run(steps())


def test_an_empty_store_says_what_to_do_next(store: Store) -> None:
    async def steps(pilot: Pilot[int]) -> None:
        found = await shows(pilot, "no node is running", "no job is running", "no queue has jobs", "start one")
        assert found.splitlines()[1].startswith("No node is live. 0 nodes")

        assert "Later: no job" in found
        assert "Last hour (yesterday): 0 done (none), – failed (–), p95 wait – (–)" in found

    run_top(store, steps)


def test_a_running_job_is_seen_and_ended(url: str, store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    data = {"file": str(tmp_path / "runs"), "gate": str(tmp_path / "gate")}

    async def steps(pilot: Pilot[int]) -> None:
        await shows(
            pilot, "Gate", ids.short(added.id), "1 of 4 busy", "Nothing needs your attention.", "Working. 1 node"
        )
        await pilot.press("tab", "tab", "s")
        await shows(pilot, f"stack of job {added.id}", "Gate.start")
        await pilot.press("escape", "c")
        await shows(pilot, "Cancel 1 job?", f"{ids.short(added.id)} tests.acceptance.work:Gate PROCESSING", "reason")
        await pilot.press(*"wrong", "enter")
        await shows(pilot, "asked 1 running job to end")
        await until(lambda: added.refresh().is_final)

    with node(url, tmp_path, "--name", "web-1", "--max-children", "4"), Scheduler(url) as scheduler:
        added = scheduler.add_job(Gate, data)
        run_top(store, steps)
        assert added.status is Status.CANCELED
        assert "wrong" in added.why()


def test_a_paused_queue_needs_somebody_and_is_resumed(url: str, store: Store) -> None:
    store.add([mail()])
    with Scheduler(url) as scheduler:
        scheduler.pause("mail", "moving house", by="ann")

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "queue mail is paused since", "paused")
        await pilot.press("tab", "p")
        await shows(pilot, "Resume queue mail?", "paused by ann: moving house")
        await pilot.press("escape")
        assert store.controls().pause_of("mail")
        await pilot.press("p")
        await shows(pilot, "Resume queue mail?")
        await pilot.press("enter")
        await shows(pilot, "queue mail is resumed")
        await pilot.press("p")
        await shows(pilot, "Pause queue mail?", "1 job waiting; 0 running")
        await pilot.press(*"why", "enter")
        await shows(pilot, "queue mail is paused")
        await pilot.press("enter")
        await shows(pilot, "cause", "queue is paused")

    run_top(store, steps)
    pause = store.controls().pause_of("mail")
    assert pause is not None
    assert pause.reason == "why"


def test_a_page_acts_on_the_job_that_it_shows(store: Store) -> None:
    store.add([mail("other")])
    store.claim(Holder(seat="gone", incarnation="1"), ClaimRequest(pooled=1), store.now(), store.now())
    store.add([mail()])
    store.set_control(Control(kind=Kind.PAUSE, name="mail", since=store.now(), by="ann"))

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "queue mail is paused since", "its lease ended")
        await pilot.press("space", "space", "space", "w")
        await shows(pilot, "why job")
        await pilot.press("c")
        await shows(pilot, "Cancel 1 job?", "PROCESSING")

    run_top(store, steps)


def test_a_node_is_drained_and_works_again(url: str, store: Store, tmp_path: Path) -> None:
    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "web-1", "works")
        await pilot.press("shift+tab", "d")
        await shows(pilot, "Drain node web-1?")
        await pilot.press("enter")
        await shows(pilot, "is drained, by", "node web-1 is drained since")
        await pilot.press("d")
        await shows(pilot, "Undrain node web-1?")
        await pilot.press("enter")
        await shows(pilot, "node web-1 starts jobs again")

    with node(url, tmp_path, "--name", "web-1"):
        run_top(store, steps)


def test_marked_jobs_are_canceled_together(store: Store) -> None:
    added = [mail(job=f"shop:Mail{number}") for number in range(9)]
    store.add(added)

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "mail")
        await pilot.press("tab", "enter")
        await shows(pilot, "queue mail 9")
        await pilot.press("space", "space", "down", "space", "c")
        await shows(pilot, "Cancel 3 jobs?", "WAITING")
        await pilot.press("enter")
        await shows(pilot, "canceled 3 jobs", "queue mail 6")
        assert "*" not in screen(pilot)

    run_top(store, steps)
    assert Counter(record.status for record in store.find(records_of(added))) == {
        Status.WAITING: 6,
        Status.CANCELED: 3,
    }


def records_of(added: list[Record]) -> Any:
    """Return the query for these."""
    from taskqueue.model.query import parse

    return parse({"id": {"$in": [record.id for record in added]}})


def test_the_jobs_of_a_queue_are_canceled_after_a_sample(store: Store) -> None:
    store.add([mail() for _ in range(7)])

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "mail")
        await pilot.press("tab", "c")
        await shows(pilot, "Cancel 7 jobs of queue mail that have not started?", "and 2 more")
        await pilot.press("enter")
        await shows(pilot, "canceled 7 jobs")

    run_top(store, steps)
    assert store.tally() == {("mail", Status.CANCELED): 7}


def test_jobs_that_end_while_the_question_waits_are_not_counted_as_canceled(store: Store) -> None:
    added = [mail() for _ in range(3)]
    store.add(added)
    question = actions.cancel(store, [("", records_of(added))])
    end(store, 2)

    assert question.act("") == "canceled 1 job"


def test_jobs_whose_unique_key_another_has_are_counted_when_others_run_again(store: Store) -> None:
    failed = [mail(unique="key"), mail()]
    fail(store, failed)
    store.add([mail(unique="key")])
    question = actions.run_again(store, [("", records_of(failed))])

    assert question.act("") == "added 1 copy; left out: 1 whose unique key another job has"


def test_jobs_run_again_whatever_number_ran_again_before_them(store: Store) -> None:
    failed = [mail() for _ in range(4)]
    fail(store, failed)
    actions.run_again(store, [("", records_of(failed[:2]))]).act("")

    question = actions.run_again(store, [("", records_of(failed))], most=2)

    assert question.title == "Run 2 jobs again, as copies?"
    assert question.act("") == "added 2 copies; left out: 2 that ran again before"


def test_an_action_on_more_jobs_than_it_takes_says_so(store: Store) -> None:
    failed = [mail() for _ in range(3)]
    fail(store, failed)

    question = actions.run_again(store, [("", records_of(failed))], most=2)

    assert question.title == "Run the first 2 of 3 jobs again, as copies?"


def test_failures_are_listed_by_error_and_run_again(store: Store) -> None:
    fail(store, [mail(job="shop.mail:Letter")])

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "No node is live")
        await pilot.press("f")
        await shows(pilot, "failures 1", "Letter", "OutOfStock", "1 of 1 attempt of shop.mail:Letter failed")
        await pilot.press("r")
        await shows(pilot, "Run 1 job of shop.mail:Letter that failed with shop.errors.OutOfStock")
        await pilot.press("enter")
        await shows(pilot, "added 1 copy")
        await pilot.press("r")
        await shows(pilot, "no ended job to run again: 1 job ran again before")
        await pilot.press("enter")
        await shows(pilot, "failed shop.mail:Letter 1", "FAILED")
        await pilot.press("escape", "escape")
        await shows(pilot, "needs attention")

    run_top(store, steps, size=(160, 40))


def test_jobs_that_are_retried_are_among_the_failures(store: Store) -> None:
    fail(store, [mail(job="shop.mail:Letter", options=Options(retry=FixedRetry(times=3, interval=3600)))])

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "No node is live", "Later: 1 retrying", " 100 % failed (–)")
        await pilot.press("f")
        await shows(pilot, "failures 1", "Letter", "OutOfStock", "few")
        await pilot.press("r")
        await shows(pilot, "no ended job to run again")
        await pilot.press("enter")
        await shows(pilot, "failed shop.mail:Letter 1", "POSTPONED", "Its last error: shop.errors.OutOfStock")
        await pilot.press("escape")
        await shows(pilot, "failures 1")
        await pilot.press("e")
        await shows(pilot, "Give up 1 job of shop.mail:Letter that failed with")
        await pilot.press("enter")
        await shows(pilot, "gave up 1 job")
        await pilot.press("e")
        await shows(pilot, "no job waits to run again after an error")

    run_top(store, steps, size=(160, 40))


def test_of_marked_failures_only_jobs_with_these_errors_run_again(store: Store) -> None:
    fail(store, [mail(job="shop.mail:Letter") for _ in range(3)])
    fail(store, [mail(job="shop.mail:Letter"), mail(job="shop.mail:Bill")], failure=OTHER_FAILURE)

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "No node is live")
        await pilot.press("f")
        await shows(pilot, "failures 3")
        await pilot.press("slash", *"LateCarrier", "enter", "space", "space", "r")
        await shows(pilot, "Run 2 jobs")

    run_top(store, steps, size=(160, 40))


def test_a_failure_is_muted_resolved_and_opened_again_by_keys(store: Store) -> None:
    fail(store, [mail(job="shop.mail:Letter") for _ in range(3)])

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "No node is live")
        await pilot.press("m")
        await shows(pilot, "for: select a failure")
        await pilot.press("f")
        await shows(pilot, "failures 1", "m mute", "v resolve", "o reopen", "q quit")
        await pilot.press("m")
        await shows(pilot, "Mute failure ", "shop.mail:Letter: shop.errors.OutOfStock")
        await pilot.press(*"known", "enter")
        await shows(pilot, "is muted")
        await pilot.press("v")
        await shows(pilot, "Resolve failure ")
        await pilot.press("enter")
        await shows(pilot, "is resolved", " resolved ")
        await pilot.press("o", "enter")
        await shows(pilot, "is reported again")

    run_top(store, steps, size=(80, 24))
    entries = [(entry.action, entry.about.get("job"), entry.about.get("reason")) for entry in store.audit(9)]
    assert [entry[:2] for entry in entries] == [(name, "shop.mail:Letter") for name in ("reopen", "resolve", "mute")]
    assert entries[-1][2] == "known"


def fail(store: Store, jobs: list[Record], failure: Failure = records.FAILURE) -> None:
    """Add jobs and let them fail as a node does."""
    store.add(jobs)
    end(store, len(jobs), failure)


def end(store: Store, number: int, failure: Failure = records.FAILURE) -> None:
    """Let this many waiting jobs fail."""
    from taskqueue.model.lifecycle.outcomes import Failed, Run
    from taskqueue.model.lifecycle.settle import ended

    holder, now = Holder(seat="web-1", incarnation="a1"), store.now()
    claimed = store.claim(holder, ClaimRequest(pooled=number), now, now).records
    run = Run(node="web-1", started_at=now)
    after = [ended(record, Failed(failure=failure), run, now) for record in claimed]
    settled = [Settlement(claims=1, holder=holder, after=one) for one in after]
    assert len(store.settle(settled, now)) == number


def test_a_job_is_opened_with_its_reasons_and_its_log(store: Store) -> None:
    [kept] = store.add([records.in_full()])

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "No node is live")
        await pilot.press("tab")
        top = pilot.app
        assert isinstance(top, Top)
        top.open(kept)
        await shows(pilot, f"job {kept.id}", "is FAILED.", "retry")
        await pilot.press("l")
        await shows(pilot, f"log of job {kept.id}", "no log lines are kept")
        await pilot.press("s")
        await shows(pilot, f"stack of job {kept.id}", "FAILED")
        await pilot.press("w")
        await shows(pilot, f"why job {kept.id}", "is FAILED.")
        await pilot.press("c")
        await shows(pilot, "nothing here to cancel")

    run_top(store, steps, size=(100, 50))


def test_a_filter_leaves_rows_that_contain_it(store: Store) -> None:
    store.add([mail(queue=name) for name in ("mail", "reports", "images")])

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "queues 3")
        await pilot.press("tab", "slash", *"REP", "enter")
        assert "  images  " not in await shows(pilot, "queues 1 of 3 /REP", "  reports  ")
        await pilot.press("slash", *"x")
        await shows(pilot, "nothing contains 'REPx'")
        await pilot.press("escape")
        await shows(pilot, "queues 3", "  images  ")

    run_top(store, steps)


def test_the_selection_stays_with_its_row(store: Store) -> None:
    store.add([mail(queue="reports")])

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "queues 1")
        await pilot.press("tab")
        await shows(pilot, "queue reports;")
        store.add([mail(queue=f"a{number}", created_at=records.NOW, ready_at=records.NOW) for number in range(3)])
        store.add([replace(mail(queue="old"), rank=1)])
        await shows(pilot, "queues 5", "queue reports;")
        await pilot.resize_terminal(60, 16)
        await shows(pilot, "queues 5", "queue reports;")
        await pilot.resize_terminal(120, 40)
        await shows(pilot, "queues 5", "queue reports;")
        await pilot.press("p")
        await shows(pilot, "Pause queue reports?")

    run_top(store, steps)


@pytest.mark.parametrize("key", ["c", "e", "r", "p", "d"])
def test_read_only_refuses_every_action_and_says_so(store: Store, key: str) -> None:
    store.add([mail()])

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "mail", "read-only")
        await pilot.press("tab", key)
        await shows(pilot, "read-only: start `taskqueue top` without --read-only to act")

    run_top(store, steps, is_read_only=True)
    assert store.controls().kept == ()
    assert store.tally() == {("mail", Status.WAITING): 1}


def test_an_outage_is_a_bar_and_is_outlived(store: Store, tmp_path: Path) -> None:
    store.add([mail()])
    database, away = tmp_path / "jobs.db", tmp_path / "away.db"

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "mail", "live")
        os.rename(database, away)
        found = await shows(pilot, "store unavailable since")
        assert "mail" in found
        os.rename(away, database)
        await shows(pilot, "taskqueue top", "live")

    run_top(store, steps)


class Counted:
    """A store whose calls are counted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return value(*arguments, **named)

        return call


def test_a_look_takes_eight_calls_of_the_store(store: Store) -> None:
    store.add([mail(queue=f"queue-{number}") for number in range(20)])
    counted = Counted(store)

    async def steps(pilot: Pilot[int]) -> None:
        await until(lambda: top.reads >= 4)

    top = Top(counted, every=EVERY, is_read_only=False)

    async def run() -> None:
        async with top.run_test() as pilot:
            await steps(pilot)

    asyncio.run(run())
    each = {"now", "leases", "controls", "tally", "waiting_since", "find", "history"}
    assert (
        sum(counted.calls[name] for name in each) <= 8 * top.reads + 18
    )  # the first one reads two hours, a day and, twice, a week in parts
    assert {*counted.calls} - each <= {"schedules", "due", "postponed", "strains"}
    assert counted.calls["postponed"] == counted.calls["due"] == 1


def test_text_of_jobs_cannot_command_the_terminal(store: Store) -> None:
    store.add([mail(queue="[red]\x1b[2Jq", job="shop:Mail")])

    async def steps(pilot: Pilot[int]) -> None:
        found = await shows(pilot, "[red]")
        assert "\x1b" not in found
        await pilot.press("tab", "enter")
        assert "\x1b" not in await shows(pilot, "shop:Mail")

    run_top(store, steps, size=(120, 24))


def test_the_keys_are_explained(store: Store) -> None:
    async def steps(pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        await shows(pilot, "run ended jobs again; of a queue, the failed jobs", "quit; jobs are not affected")
        await pilot.press("escape")
        assert "jobs are not affected" not in await shows(pilot, "needs attention")

    run_top(store, steps)


def test_a_pipe_is_no_terminal(taskqueue: Callable[..., Answer]) -> None:
    answer = taskqueue("top")

    assert answer.code == Exit.USAGE
    assert "use `taskqueue stats --watch`" in answer.complaint


def test_without_its_extra_the_command_names_it(url: str) -> None:
    program = (
        "import pty, sys; sys.modules['textual'] = None; master, slave = pty.openpty()\n"
        "sys.stdin = sys.stdout = open(slave, 'w'); from taskqueue.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--url", url, "top"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, "TERM": "xterm"},
    )

    assert done.returncode == Exit.CONFIG
    assert done.stderr == "taskqueue: top needs the package textual: pip install 'taskqueue-jobs[top]'\n"


def test_the_last_hour_is_compared_with_yesterday_and_no_number_is_cut(store: Store) -> None:
    reader = OverviewReader(store)
    day = reader.day(reader.read())
    waited = Durations(number=40, total=32.0, longest=0.8, buckets={1.0: 40})
    hour = replace(day.hour, done=120_400, failed_attempts=302, waiting=waited)
    day = replace(day, hour=hour, yesterday=replace(hour, done=110_000, failed_attempts=0))
    upcoming = replace(
        reader.upcoming(day.at), parts={"scheduled": 10_000, "retrying": 21, "blocked": 0, "unloadable": 2}
    )

    parts = panes.last_hour(day)
    assert panes.joined(parts, 80) == "Last hour (yesterday): 120,400 done (110,000, +9.5 %), 0.25 % failed (0 %)"
    assert panes.joined(parts, 120) == f"{panes.joined(parts, 80)}, p95 wait 800 ms (800 ms)"
    assert panes.joined(parts, 60) == "Last hour (yesterday): 120,400 done (110,000, +9.5 %)"
    nothing, more = replace(hour, done=0), replace(hour, done=330_000)
    assert panes.last_hour(replace(day, hour=nothing))[0].endswith("0 done (110,000, −100 %)")
    assert panes.last_hour(replace(day, hour=more))[0].endswith("330,000 done (110,000, +200 %)")
    assert ", ".join(panes.later(upcoming)) == "Later: 10,000 scheduled, 21 retrying, 2 cannot load"
    assert panes.later(replace(upcoming, is_complete=False))[0] == "Later: 10,000+ scheduled"


def test_the_way_out_of_a_queue_without_a_node_is_shown_whole(store: Store) -> None:
    seat = records.in_every_status()["running"].holder
    assert seat is not None
    now = store.now()
    about = {"queues": {"default": None, "mail": None, "reports": None}}
    lease = Lease(name="seat:web-1", holder=seat, since=now, until=now + timedelta(minutes=9), about=about)
    store.acquire(lease, now)
    store.add([records.record(queue="nobody-works-here")])

    async def steps(pilot: Pilot[int]) -> None:
        await shows(pilot, "To do: start one:", "`taskqueue-node --work-on nobody-works-here`")

    run_top(store, steps)


class SlowControls:
    """A store in which a control takes as long as ``is_over`` says it does."""

    def __init__(self, store: Store, is_over: Callable[[], bool]) -> None:
        self._store = store
        self._is_over = is_over

    def set_control(self, *given: Any, **named: Any) -> Any:
        self._store.set_control(*given, **named)
        while not self._is_over():
            time.sleep(0.001)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_an_action_that_lasts_until_the_program_has_no_screen_ends_with_it(store: Store) -> None:
    store.add([mail()])

    async def run() -> None:
        slow = SlowControls(store, lambda: not top.screen_stack)
        top = Top(cast("Store", slow), every=EVERY, is_read_only=False)
        async with top.run_test() as pilot:
            await shows(pilot, "mail")
            await pilot.press("tab", "p")
            await shows(pilot, "Pause queue mail?")
            await pilot.press("enter")
            await until(store.controls)

    asyncio.run(run())

    assert store.controls()
