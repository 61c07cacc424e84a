"""An overview has what one asks of a store under pressure: does it work, does it keep up, what needs somebody."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from taskqueue import Scheduler
from taskqueue.insight import needs, overview
from taskqueue.insight.failure_groups import Lately, Usual, judged
from taskqueue.insight.needs import Need, Subject
from taskqueue.insight.nodes import nodes_of
from taskqueue.insight.overview import failures_of
from taskqueue.insight.overview_reader import Overview, OverviewReader
from taskqueue.model.analytics import Due, Postponed
from taskqueue.model.controls import Control, Controls, Kind
from taskqueue.model.finding import Level
from taskqueue.model.history import Part, Step
from taskqueue.model.record import CancelRequest, Cause, Holder, Record, Status
from taskqueue.model.schedules import Every
from taskqueue.model.schedules.schedule import Miss, NamedSchedule, Stage
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import ClaimRequest, Lease, Store
from tests.nodes import eventually
from tests.scheduler.jobs import Broken, Echo
from tests.store.records import NOON

on_both = pytest.mark.parametrize("url", ["sqlite", "mongodb"], indirect=True)

WEB = Holder(seat="web-1", incarnation="a1")
MINUTE = timedelta(minutes=1)


def read(store: Store) -> Overview:
    """Return one look."""
    return OverviewReader(store).read()


def seat(store: Store, name: str = "web-1", **about: Any) -> None:
    """Let a node of another host work on the store."""
    now = store.now()
    holder = replace(WEB, seat=name)
    store.acquire(Lease(name=f"seat:{name}", holder=holder, since=now, until=now + MINUTE, about=about), now)
    store.acquire(Lease(name="lead", holder=holder, since=now, until=now + MINUTE), now)


def running(store: Store, job: Record, **fields: Any) -> Record:
    """Return a record of the job that runs since a minute."""
    now = store.now()
    base = {"status": Status.PROCESSING, "cause": Cause.CLAIMED, "holder": WEB, "claims": 1, "ready_at": now + MINUTE}
    return replace(job, **{**base, "started_at": now - MINUTE, **fields})


def says(found: list[Need], subject: Subject) -> list[str]:
    """Return the sentences about things of this kind."""
    return [need.says for need in found if need.subject is subject]


@on_both
def test_an_empty_store_needs_a_node(store: Store) -> None:
    found = read(store)

    assert (found.nodes, found.queues, found.runs, found.groups) == ([], [], [], [])
    [need] = found.needs
    assert (need.subject, need.level) == (Subject.NODE, Level.ERROR)
    assert need.says == "no node is running on this store; waiting: 0 jobs"
    assert "taskqueue-node" in need.do


def test_what_strains_the_store_needs_somebody(store: Store, tmp_path: Path) -> None:
    seat(store)
    os.truncate(tmp_path / "jobs.db-wal", 300 * 2**20)

    [need] = read(store).needs

    assert (need.subject, need.level, need.topic) == (Subject.STORE, Level.WARNING, "journal")
    assert need.says == "journal: 300 MiB are in the write-ahead log"
    assert need.do.startswith("end the long read: ")


def test_a_node_whose_clock_is_wrong_needs_somebody(store: Store) -> None:
    for name, skew in (("web-1", 0.9), ("web-2", -2.0), ("web-3", 20.0)):
        seat(store, name, skew=skew)

    behind, ahead = read(store).needs[::-1]

    assert (behind.name, behind.level, ahead.name, ahead.level) == ("web-2", Level.WARNING, "web-3", Level.ERROR)
    assert behind.says == "clocks: the clocks of the host of node web-2 and the store differ by 2 s"
    assert behind.key != replace(ahead, level=Level.WARNING).key


def test_a_store_without_a_leader_needs_somebody_unless_it_had_one_a_moment_ago() -> None:
    now = NOON
    leases = [Lease(name="seat:web-1", holder=WEB, since=now, until=now + MINUTE)]

    def of_leader(led_at: datetime | None) -> list[str]:
        return says(
            list(needs.of_nodes(leases, nodes_of(leases, Controls(), None, now), [], now, led_at)), Subject.NODE
        )

    assert of_leader(None) == of_leader(now - MINUTE / 2) == ["leader: no node leads"]
    assert of_leader(now - timedelta(seconds=29)) == []


def test_a_leader_that_has_just_resigned_is_no_finding(store: Store) -> None:
    seat(store)
    reader = OverviewReader(store)
    assert reader.read().needs == []
    store.resign("lead", WEB)

    assert reader.read().needs == []
    assert says(read(store).needs, Subject.NODE) == ["leader: no node leads"]  # another reader knows of none


@on_both
def test_without_a_node_a_backlog_is_one_error(blocking: Scheduler, store: Store) -> None:
    blocking.add_jobs([(Echo, 1), (Echo, 2, {"queue": "mail"})])

    [need] = read(store).needs

    assert (need.subject, need.level) == (Subject.NODE, Level.ERROR)
    assert need.says == "no node is running on this store; waiting: 2 jobs"


@on_both
def test_queues_come_with_age_size_and_rates(blocking: Scheduler, store: Store) -> None:
    blocking.add_jobs([(Echo, 1, {"queue": "mail"}), (Echo, 2, {"queue": "mail"}), (Broken, None, {"queue": "mail"})])
    blocking.run_pending()
    blocking.add_job(Echo, 3, queue="mail")
    blocking.add_job(Echo, 4, queue="mail", at="+1 hour")

    [queue] = eventually(lambda: [one for one in read(store).queues if one.ended_per_minute])

    assert (queue.name, queue.waiting, queue.postponed, queue.running) == ("mail", 1, 1, 0)
    assert 0 <= (queue.oldest or 0) < 60
    assert queue.added_per_minute / 5 == pytest.approx(queue.ended_per_minute / 3)
    assert queue.empty_in == pytest.approx(60 / queue.ended_per_minute)
    assert not queue.grows


def test_a_queue_is_quiet_if_nothing_happens_in_it_and_nobody_has_paused_it() -> None:
    quiet = overview.QueueState(name="mail", postponed=3)

    assert quiet.is_quiet
    changes: list[dict[str, Any]] = [{"waiting": 1}, {"running": 1}, {"added_per_minute": 1}, {"ended_per_minute": 1}]
    changes.append({"pause": Control(kind=Kind.PAUSE, name="mail", since=NOON, by="ann")})
    assert not any(replace(quiet, **change).is_quiet for change in changes)


def test_jobs_are_due_by_hour_and_those_that_are_late_are_due_now() -> None:
    due = {
        Due(Cause.SCHEDULED, False, NOON - timedelta(hours=2)): 1,
        Due(Cause.SCHEDULED, False, NOON): 2,
        Due(Cause.RETRY, True, NOON + timedelta(hours=23)): 4,
        Due(Cause.UNLOADABLE, False, NOON + timedelta(hours=24)): 8,
    }

    upcoming = overview.upcoming_of(Postponed(due, 16), [], NOON + 30 * MINUTE)

    assert [(hour.at, hour.scheduled, hour.retried) for hour in upcoming.hours if hour.scheduled or hour.retried] == [
        (NOON, 3, 0),
        (NOON + timedelta(hours=23), 0, 4),
    ]
    assert upcoming.parts == {"scheduled": 3, "retrying": 4, "blocked": 16, "unloadable": 8}
    assert (upcoming.due, upcoming.numbers["retrying"]) == ("7", "4")
    many = overview.upcoming_of(Postponed({Due(Cause.RETRY, True, NOON): overview.MOST_DUE}, 0), [], NOON)
    assert (many.due, many.numbers["retrying"], many.numbers["scheduled"]) == ("10,000+", "10,000+", "")


@on_both
def test_failures_are_grouped_by_class_and_error(blocking: Scheduler, store: Store) -> None:
    blocking.add_jobs([(Echo, 1), *[(Broken, None)] * 2])
    blocking.run_pending()

    [failed] = eventually(
        lambda: [group for group in failures_of(overview.ended_jobs(read(store).minutes)) if group.number == 2]
    )  # MongoDB counts a bit later

    assert (failed.job, failed.error) == ("tests.scheduler.jobs:Broken", "ValueError")
    assert failed.ended == 2


@on_both
def test_later_looks_keep_the_figures_of_earlier_minutes(blocking: Scheduler, store: Store) -> None:
    reader = OverviewReader(store)
    blocking.add_job(Broken)
    blocking.run_pending()
    eventually(lambda: [group.number for group in reader.read().groups] == [1])
    blocking.add_job(Broken)
    blocking.run_pending()

    eventually(lambda: [group.number for group in reader.read().groups] == [2])


@on_both
def test_a_node_and_its_jobs_are_seen(store: Store) -> None:
    seat(store, busy=1, max_children=4, running=7)
    store.add([Record(id=ObjectId(), job="app:Mail", created_at=store.now(), ready_at=store.now()).at_rank()])
    now = store.now()
    [claimed] = store.claim(WEB, ClaimRequest(pooled=1), now, now + MINUTE).records

    found = read(store)

    [node] = found.nodes
    assert (node.name, node.state, node.jobs, node.is_leader, node.is_live) == ("web-1", "works", 1, True, True)
    assert node.pool == "1 of 4 busy"
    assert [run.record.id for run in found.runs] == [claimed.id]
    assert found.running == 1
    assert found.needs == []


@on_both
def test_controls_need_somebody_until_they_are_lifted(blocking: Scheduler, store: Store) -> None:
    seat(store)
    blocking.pause("mail", "moving house", by="ann")
    blocking.pause(by="bob")
    blocking.drain("web-1", by="eve")

    found = read(store)

    assert [queue.name for queue in found.queues] == ["mail"]
    ago = r"since (\d{4}-\d\d-\d\d )?\d\d:\d\d \(\d+ s ago\)"  # with its date when a day has just begun
    every, mail = says(found.needs, Subject.QUEUE)
    assert re.fullmatch(rf"every queue is paused {ago} by bob", every)
    assert re.fullmatch(rf"queue mail is paused {ago} by ann \(moving house\); waiting: 0", mail)
    [drained] = says(found.needs, Subject.NODE)
    assert re.fullmatch(rf"node web-1 is drained {ago} by eve", drained)


def test_names_in_commands_are_one_word_of_the_shell(blocking: Scheduler, store: Store) -> None:
    hostile = "m$(id);reboot"
    seat(store, "web 1", queues={"reports": None})
    blocking.pause("other;id")
    blocking.drain("web 1")
    blocking.schedule(hostile, "app:Mail", every="1d").pause()
    process = blocking.add_job("app:Mail", queue=hostile)

    found = read(store).needs
    commands = re.findall("`(taskqueue.*?)`", " ".join([need.do for need in found] + [process.why()]))

    words = {tuple(shlex.split(command, comments=True)) for command in commands}
    assert words >= {
        ("taskqueue", "resume", "other;id"),
        ("taskqueue", "undrain", "web 1"),
        ("taskqueue", "schedule", "show", hostile),
        ("taskqueue-node", "--work-on", hostile),
    }


@on_both
def test_a_backlog_without_a_node_is_an_error(blocking: Scheduler, store: Store) -> None:
    seat(store, queues={"mail": None})
    blocking.add_job(Echo, queue="reports")

    [need] = [need for need in read(store).needs if need.subject is Subject.QUEUE]

    assert (need.name, need.level) == ("reports", Level.ERROR)
    assert need.says == "queue reports: 1 job waiting. No node takes jobs of queue reports (web-1 takes mail)"
    assert need.do == "start one: `taskqueue-node --work-on reports`"


def a_queue(**fields: Any) -> overview.QueueState:
    """Return a queue with an old backlog."""
    values = {"name": "mail", "oldest": 120.0, "waiting": 10, "postponed": 0, "running": 0, "pause": None}
    rates = {"added_per_minute": 0.0, "ended_per_minute": 0.0}
    return overview.QueueState(**{**values, **rates, **fields})


@pytest.mark.parametrize(
    ("fields", "grows"),
    [
        ({"added_per_minute": 20.0, "ended_per_minute": 10.0}, True),
        ({"added_per_minute": 10.5, "ended_per_minute": 10.0}, False),
        ({"added_per_minute": 20.0, "ended_per_minute": 10.0, "oldest": 5.0}, False),
        ({"added_per_minute": 20.0, "ended_per_minute": 10.0, "oldest": None}, False),
    ],
)
def test_only_an_old_backlog_that_clearly_gets_more_grows(store: Store, fields: dict[str, Any], grows: bool) -> None:
    seat(store)
    queue = a_queue(**fields)

    found = list(needs.of_queues(store.leases(), [queue], store.controls(), store.now()))

    assert queue.grows is grows
    assert says(found, Subject.QUEUE) == (
        ["queue mail is growing: 20 in, 10 out per minute; the oldest job has waited 2 min"]
        if grows
        else ["queue mail is late: the oldest of 10 jobs has waited 2 min"] * queue.is_late
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"oldest": 39.0, "usual_wait": 20.0}, []),
        ({"oldest": 40.0, "usual_wait": 20.0}, [
            "queue mail is late: the oldest of 10 jobs has waited 40 s, usually 20 s at most"
        ]),
        ({"oldest": 599.0, "running": 1}, []),  # nothing is known of the queue
        ({"oldest": 600.0, "running": 1}, ["queue mail is late: the oldest of 10 jobs has waited 10 min"]),
        ({"oldest": 39.0}, []),
        ({"oldest": 40.0}, ["queue mail is late: the oldest of 10 jobs has waited 40 s"]),  # and none of them runs
        ({"oldest": 500.0, "usual_wait": 300.0}, []),
        ({"oldest": 600.0, "usual_wait": 300.0}, [
            "queue mail is late: the oldest of 10 jobs has waited 10 min, usually 5 min at most"
        ]),
        ({"oldest": 119.0, "usual_wait": 60.0, "added_per_minute": 20.0, "ended_per_minute": 10.0}, []),
    ],
)  # fmt: skip
def test_a_queue_is_late_if_its_first_job_waits_twice_as_long_as_usual(
    store: Store, fields: dict[str, Any], expected: list[str]
) -> None:
    seat(store)
    found = list(needs.of_queues(store.leases(), [a_queue(**fields)], store.controls(), store.now()))

    assert says(found, Subject.QUEUE) == expected


@pytest.mark.parametrize(
    ("of_nodes", "says_also"),
    [
        ([(4, 4, {}), (2, 2, {"mail": None})], "; 6 of 6 workers that take its jobs are busy"),
        ([(4, 4, {}), (1, 2, {})], "; 5 of 6 workers that take its jobs are busy"),
        ([(4, 4, {}), (0, 9, {"other": None})], "; 4 of 4 workers that take its jobs are busy"),
        ([(4, 4, {}), (None, 4, {})], ""),  # a node that does not report it
    ],
)
def test_a_late_queue_says_how_many_workers_are_busy(
    store: Store, of_nodes: list[tuple[int | None, int, dict[str, None]]], says_also: str
) -> None:
    for number, (busy, most, queues) in enumerate(of_nodes):
        seat(store, f"web-{number}", busy=busy, max_children=most, queues=queues)

    [need] = needs.of_queues(store.leases(), [a_queue(oldest=60.0, usual_wait=20.0)], store.controls(), store.now())

    late = "queue mail is late: the oldest of 10 jobs has waited 60 s, usually 20 s at most"
    assert need.says == f"{late}{says_also}"


def test_the_usual_wait_is_that_of_the_hours_of_this_time_but_for_the_worst_day() -> None:
    now = NOON + 30 * MINUTE

    def usually(waits: dict[int, int]) -> dict[str, float]:
        """Return what is usual if jobs waited so many seconds in the hours so many hours before this one."""
        hours = {
            milliseconds(NOON - ago * timedelta(hours=1)): {("mail", ""): {"longest_wait": 1000 * seconds}}
            for ago, seconds in waits.items()
        }
        return overview.usual_waits(hours, now)

    assert usually({}) == {}
    assert usually({0: 900, 1: 900}) == {}  # which are being judged
    assert usually({24: 300}) == {"mail": 300}
    assert usually({23: 40, 24: 3, 48: 20, 49: 7}) == {"mail": 20}  # one day was worse
    assert usually({24: 3, 48: 20, 36: 900}) == {"mail": 3}  # at night they wait
    assert usually({24: 3, 48: 20, 168: 900}) == {"mail": 900}  # as each Monday
    assert usually({36: 900, 60: 800}) == {"mail": 800}  # at this time there were none


def test_the_time_left_is_that_of_the_progress_or_of_others(store: Store) -> None:
    now = store.now()
    job = Record(id=ObjectId(), job="app:Mail", created_at=now, ready_at=now)
    hours = {milliseconds(now): {("mail", "app:Mail"): {"ran": 400_000, "longest_run": 150_000, "r16": 4}}}
    usual = overview.usual_times(hours)

    halfway = running(store, job, progress=75.0, progress_at=now)
    silent = running(store, job)
    begun = running(store, job, started_at=None)
    overdue = running(store, job, started_at=now - 3 * MINUTE)
    late = running(store, job, started_at=now - 2 * MINUTE)  # the mean is over, and one has taken longer
    just_begun = running(store, job, progress=75.0, started_at=now - MINUTE, progress_at=now - MINUTE)
    left = [run.left for run in overview.runs_of([halfway, silent, begun, just_begun], usual, now)]

    assert usual["app:Mail"].number == 4
    assert sorted(one for one in left if one is not None) == pytest.approx([20, 40], abs=1)
    assert [run.left for run in overview.runs_of([overdue, late], usual, now)] == [None, None]
    assert [run.left for run in overview.runs_of([silent], {}, now)] == [None]


@pytest.mark.parametrize(
    ("progress", "moved_for", "silent_for", "expected"),
    [
        (50.0, 60, 120, "it has made no progress for 2 min, and is at 50 % after 3 min"),
        (50.0, 60, 119, ""),  # less than twice the mean
        (10.0, 60, 299, ""),  # less than half of the ten minutes that it would take
        (10.0, 60, 300, "it has made no progress for 5 min, and is at 10 % after 6 min"),
        (0.0, 60, 900, ""),  # nothing shows its pace
        (50.0, -60, 900, ""),  # the progress of an attempt before
    ],
)
def test_a_run_that_stands_still_needs_somebody(
    store: Store, progress: float, moved_for: int, silent_for: int, expected: str
) -> None:
    now = store.now()
    moved_at = now - timedelta(seconds=silent_for)
    times = {"started_at": moved_at - timedelta(seconds=moved_for), "progress_at": moved_at}
    job = Record(id=ObjectId(), job="app:Import", created_at=now, ready_at=now)
    record = running(store, job, progress=progress, **times)
    hours = {milliseconds(now): {("", "app:Import"): {"ran": 600_000, "longest_run": 3_600_000, "r16": 10}}}
    runs = overview.runs_of([record], overview.usual_times(hours), now)

    needed = list(needs.of_runs(runs, now))

    assert [need.says for need in needed] == ([f"app:Import {record.id}: {expected}"] if expected else [])
    assert [need.do for need in needed] == ([f"see where it is: `taskqueue stack {record.id}`"] if expected else [])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        ({"ready_at": -MINUTE}, "its lease ended 60 s ago, and no node has rescued it"),
        ({"cancel": -MINUTE}, "it was asked to end 60 s ago, and still runs"),
        ({"started_at": -5 * MINUTE}, ""),  # of many runs, some is the longest
        ({"started_at": -10 * MINUTE}, "longer than any of its class in the last day (the longest took 3 min)"),
    ],
)
def test_stuck_runs_need_somebody(store: Store, fields: dict[str, Any], expected: str) -> None:
    now = store.now()
    times = {name: now + value for name, value in fields.items()}
    if "cancel" in times:
        times["cancel"] = CancelRequest(requested_at=times["cancel"])
    job = running(store, Record(id=ObjectId(), job="app:Mail", created_at=now, ready_at=now), **times)
    hours = {milliseconds(now): {("mail", "app:Mail"): {"ran": 400_000, "longest_run": 180_000, "r16": 12}}}

    found = says(list(needs.of_runs(overview.runs_of([job], overview.usual_times(hours), now), now)), Subject.RUN)

    assert [expected in one for one in found] == ([True] if expected else [])


def test_a_class_that_mostly_fails_needs_somebody(store: Store) -> None:
    at = Step.MINUTE.begin(milliseconds(store.now()))
    figures = {"done": 3, "failed": 5, "timeout": 2, "e:app.NoAnswer": 6, "x:app.NoAnswer: in … s": 6, "x:": 1}
    part: Part = {("mail", "app:Mail"): figures, ("mail", "app:Rare"): {"failed": 2, "x:": 2}}
    failures = failures_of(overview.ended_jobs({at: part}))
    lately = Lately({at: part})
    groups = judged(lately, Usual(), store.now())

    assert [(one.job, one.error, one.number) for one in failures] == [
        ("app:Mail", "app.NoAnswer", 6),
        ("app:Rare", "", 2),
        ("app:Mail", "", 1),
    ]
    assert says(list(needs.of_failures(groups, lately, store.now())), Subject.CLASS) == [
        "app:Mail fails: 7 of 10 attempts in the last hour, most often with app.NoAnswer: in … s"
    ]


def test_schedules_that_missed_or_stopped_need_somebody(store: Store) -> None:
    now = store.now()
    template = Record(id=ObjectId(), job="app:Mail", created_at=now, ready_at=now)
    plan = NamedSchedule(name="nightly", trigger=Every(60, now), template=template, created_at=now)
    miss = Miss(first=now - MINUTE, last=now - MINUTE, count=1, reason="the job before still ran")
    old = replace(miss, last=now - timedelta(days=2))
    stopped = replace(plan, name="weekly", stage=Stage.PAUSED, reason="the next time could not be determined")
    just_due = replace(plan, name="well", misses=(old,), next_run_at=now - timedelta(seconds=30))
    overdue = replace(plan, name="forgotten", next_run_at=now - timedelta(seconds=40))
    for one in (replace(plan, misses=(old, miss)), stopped, just_due, overdue):
        assert store.replace_schedule(None, one, [], now)

    not_fired, missed, paused = says(read(store).needs, Subject.SCHEDULE)

    assert re.fullmatch("schedule forgotten was due at .*, and no node has started its job", not_fired)

    assert missed.startswith("schedule nightly missed a time until ")
    assert missed.endswith(": the job before still ran")
    assert paused == "schedule weekly is paused: the next time could not be determined"


@on_both
def test_jobs_that_cannot_be_loaded_or_wait_for_ever_need_somebody(blocking: Scheduler, store: Store) -> None:
    seat(store)
    failed = blocking.add_job(Broken)
    blocking.run_pending()
    blocking.add_job(Echo, depends_on=[failed], on_dependency_failure="wait")

    [waits] = says(read(store).needs, Subject.JOB)

    assert waits.startswith("job that waits forever: ")
