"""Ended jobs run again in stages: the first ones, then the rest at a rate, and a stop; whatever dies in between."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from taskqueue import Scheduler, Status
from taskqueue.errors import InvalidJob, InvalidOption, InvalidQuery, JobNotFound, WrongStatus
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.model.record import Record
from taskqueue.model.timestamps import MILLISECOND
from taskqueue.scheduler import bulk_actions
from taskqueue.scheduler.bulk_actions import BulkActionState, Plan
from taskqueue.scheduler.changes import BATCH, STAGE
from taskqueue.scheduler.connection import StoreOpener
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.nodes import LIMIT, eventually, node
from tests.scheduler.jobs import Echo, Giving
from tests.scheduler.playing import LEASE, WEB_1, take
from tests.servers import PATIENCE, emptied
from tests.store.records import BROKEN, a_record, settlement

FAILED = {"status": "FAILED", "queue": {"$in": ["mail"]}}
stores = pytest.mark.parametrize("url", ["sqlite", "mongodb", "postgresql"], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the address of an empty store."""
    kind = getattr(request, "param", "sqlite")
    if kind == "sqlite":
        yield f"sqlite://{tmp_path}/jobs.db?synchronous=normal"
    elif kind == "mongodb":
        emptied_one = emptied(request.getfixturevalue("mongo_set"), f"bulk_{os.getpid()}")
        yield f"{emptied_one}&timeoutMS={PATIENCE * 1000:.0f}"
    else:
        server, schema = request.getfixturevalue("postgresql_url"), f"bulk_{secrets.token_hex(6)}"
        yield f"{server}?taskqueue.schema={schema}"
        with psycopg.connect(server, autocommit=True) as raw:
            raw.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def failed(scheduler: Scheduler, number: int) -> list[JobId]:
    """Return the ids of jobs that have failed, in order."""
    return sorted(scheduler.run_job(Giving, {"number": each}, queue="mail").id for each in range(number))


def plan(store: Store, **given: Any) -> Plan:
    """Return a checked plan."""
    return Plan.of(given, store.now())


def numbers(action: BulkActionState) -> dict[str, int]:
    """Return how many copies are in which status, without those in which none is."""
    return {status.name: number for status, number in action.statuses.items() if number}


def copies_of(scheduler: Scheduler, action: BulkActionState, stage: int = -1) -> list[Record]:
    """Return the copies that a stage has added, in the order of the jobs that they are copies of."""
    own = {"parent": action.stages[stage].stage.record.id, "job": {"$ne": STAGE}}
    return sorted((process.snapshot for process in scheduler.get_jobs(own)), key=_of)


def _of(record: Record) -> str:
    return str(record.given["recovered_from"])


@stores
def test_the_first_jobs_run_again_then_the_rest_at_a_rate_and_a_stop_cancels_what_has_not_started(
    blocking: Scheduler, store: Store
) -> None:
    ids = failed(blocking, 8)
    done = blocking.run_job(Echo, queue="mail")

    action = bulk_actions.begin(blocking, "vat-fix", FAILED, plan(store, first=3), "ann")
    assert (action.first.found, action.left, numbers(action)) == (8, 5, {"WAITING": 3})
    assert [_of(record) for record in copies_of(blocking, action)] == list(map(str, ids[:3]))
    blocking.run_pending()
    assert numbers(bulk_actions.read(blocking, "vat-fix")) == {"FAILED": 3}

    given = plan(store, rate="50/m", queue="backfill", at=store.now() + timedelta(hours=1))
    action = bulk_actions.add_rest(blocking, "vat-fix", given, "bob")
    assert (action.left, numbers(action), action.may_continue) == (0, {"FAILED": 3, "POSTPONED": 5}, False)
    assert [one.stage.by for one in action.stages] == ["ann", "bob"]
    copies = copies_of(blocking, action)
    assert [_of(record) for record in copies] == list(map(str, ids[3:]))
    assert {record.queue for record in copies} == {"backfill"}
    assert given.at is not None
    assert [record.ready_at for record in copies] == [given.at + n * timedelta(seconds=1.2) for n in range(5)]

    blocking.update_job(copies[0].id, at="now")
    assert store.claim_one(copies[0].id, WEB_1, store.now(), store.now() + LEASE) is not None
    action = bulk_actions.stop(blocking, "vat-fix", "enough")
    assert numbers(action) == {"FAILED": 3, "PROCESSING": 1, "CANCELED": 4}
    assert blocking.get_job(copies[0].id).snapshot.cancel is None  # what has started continues
    assert blocking.get_job(copies[1].id).error is not None
    assert done.refresh().recovered_as is None


@stores
def test_jobs_that_were_recovered_before_or_whose_key_is_taken_are_left_out(blocking: Scheduler, store: Store) -> None:
    ids = failed(blocking, 3)
    blocking.recover_job(ids[0])
    unique = blocking.run_job(Giving, queue="mail", unique="key")
    blocking.add_job(Giving, queue="mail", unique="key")

    action = bulk_actions.begin(blocking, "all", FAILED, Plan(), "ann")

    assert (action.total("copies"), action.total("left_out"), action.total("taken"), action.left) == (2, 1, 1, 0)
    assert unique.refresh().recovered_as is None
    assert bulk_actions.read(blocking, "all").statuses[Status.WAITING] == 2


class Wrapped:
    """A store to whose additions of copies a test adds something; what it is asked for first is the stage itself."""

    def __init__(self, store: Store, then: Callable[[int], object]) -> None:
        self._store = store
        self._then = then
        self._added = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Add the records, and say how many copies there are."""
        kept = self._store.add(records)
        if records[0].job != STAGE:
            self._added += len(records)
            self._then(self._added)
        return kept


def many_failed(store: Store, number: int) -> list[JobId]:
    """Return the ids of many jobs that have failed, in order."""
    ended = [ended_as(a_record(job=f"{Giving.__module__}:Giving"), Status.FAILED, store.now()) for _ in range(number)]
    return sorted(record.id for record in store.add(ended))


def ended_as(record: Record, status: Status, now: datetime) -> Record:
    """Return a record that has ended."""
    return replace(record, status=status, ready_at=None, ended_at=now, error=BROKEN)


@stores
def test_copies_that_end_while_a_bulk_action_adds_others_do_not_run_again(store: Store, url: str) -> None:
    number = BATCH + 1
    many_failed(store, number)

    def run_what_waits(_added: int) -> None:
        while runs := take(store, most=1000):
            store.settle([settlement(run, Failed(failure=BROKEN)) for run in runs], store.now())

    with opened(url, run_what_waits) as hasty:
        action = bulk_actions.begin(hasty, "all", {"status": "FAILED"}, Plan(), "ann")

    assert (action.total("copies"), numbers(action)) == (number, {"FAILED": number})
    assert store.tally() == {("default", Status.FAILED): 2 * number, ("default", Status.DONE): 1}


@contextmanager
def opened(url: str, then: Callable[[int], object]) -> Iterator[Scheduler]:
    """Yield a scheduler on a wrapped store."""
    with Scheduler(StoreOpener(open=lambda: cast(Store, Wrapped(open_store(url), then)))) as scheduler:
        yield scheduler


class Outrun(Wrapped):
    """A store to which another process that runs the same stage has added the copies just before."""

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Add the records a second time."""
        if records[0].job != STAGE:
            self._store.add([replace(record, created_at=record.created_at - MILLISECOND) for record in records])
        return super().add(records)


@stores
def test_copies_that_another_process_has_added_for_the_same_stage_are_its_own(
    blocking: Scheduler, store: Store, url: str
) -> None:
    ids = many_failed(store, 5)
    outrun = StoreOpener(open=lambda: cast(Store, Outrun(open_store(url), lambda _: None)))
    with Scheduler(outrun) as scheduler:  # after a pause, say, in which a node has continued its stage
        action = bulk_actions.begin(scheduler, "all", {"status": "FAILED"}, Plan(), "ann")

    assert (action.total("copies"), action.total("left_out"), numbers(action)) == (5, 0, {"WAITING": 5})
    assert [_of(record) for record in copies_of(blocking, action)] == list(map(str, ids))


@stores
def test_stages_of_two_users_at_once_leave_no_job_over(blocking: Scheduler, store: Store, url: str) -> None:
    many_failed(store, 8)
    bulk_actions.begin(blocking, "all", {"status": "FAILED"}, plan(store, first=2), "ann")
    two = plan(store, first=2)

    with Scheduler(StoreOpener(open=lambda: cast(Store, Overtaken(open_store(url), blocking)))) as slow:
        action = bulk_actions.add_rest(slow, "all", two, "bob")

    assert (action.total("copies"), action.left) == (6, 2)
    action = bulk_actions.add_rest(blocking, "all", Plan(), "ann")
    assert (action.left, numbers(action)) == (0, {"WAITING": 8})


class Overtaken(Wrapped):
    """A store to which another user adds a stage of the same bulk action just before."""

    def __init__(self, store: Store, other: Scheduler) -> None:
        super().__init__(store, lambda _: None)
        self._other = other

    def add(self, records: Sequence[Record]) -> list[Record]:
        """Add the records after the stage of the other user."""
        if records[0].job == STAGE:
            bulk_actions.add_rest(self._other, "all", plan(self._store, first=2), "eve")
        return super().add(records)


@pytest.mark.parametrize("data", [None, {"first": 1}, {"query": 1}])
def test_a_job_with_the_class_of_stages_alone_is_no_bulk_action(blocking: Scheduler, data: Any) -> None:
    blocking.add_job(STAGE, data, id="no-action")

    with pytest.raises(JobNotFound, match="no bulk action has this name"):
        bulk_actions.stop(blocking, "no-action", "enough")


def test_the_name_of_an_author_that_is_no_text_is_kept_as_it_can_be(blocking: Scheduler) -> None:
    assert bulk_actions.begin(blocking, "all", FAILED, Plan(), "\udcff").first.by == "\\udcff"


def test_a_bulk_action_of_no_job_has_no_copies(blocking: Scheduler) -> None:
    action = bulk_actions.begin(blocking, "none", FAILED, Plan(), "ann")

    assert (action.first.found, action.left, numbers(action), action.may_continue) == (0, 0, {}, False)


def test_stages_of_bulk_actions_do_not_run_again(blocking: Scheduler) -> None:
    failed(blocking, 6)
    stage = bulk_actions.begin(blocking, "one", {}, Plan(first=1), "ann").first.record

    assert bulk_actions.begin(blocking, "two", {}, Plan(first=1), "ann").first.found == 6
    assert blocking.recover_jobs({"status": "DONE"}) == []
    with pytest.raises(InvalidJob, match="is a stage of a bulk action: `taskqueue bulk NAME --rest` adds"):
        blocking.recover_job(stage.id)
    assert blocking.count_jobs({"status": "WAITING"}) == 2


def test_a_name_is_of_one_bulk_action(blocking: Scheduler) -> None:
    bulk_actions.begin(blocking, "vat-fix", FAILED, Plan(), "ann")

    with pytest.raises(InvalidOption, match="name='vat-fix': a bulk action has this name already: choose another"):
        bulk_actions.begin(blocking, "vat-fix", {}, Plan(), "ann")
    for name in ("", "a/b", "-x", "ä", "x" * 65, "65f0" * 6):
        with pytest.raises(InvalidOption, match="pass 1 to 64 letters"):
            bulk_actions.begin(blocking, name, {}, Plan(), "ann")
    with pytest.raises(JobNotFound, match="no bulk action has this name"):
        bulk_actions.read(blocking, "other")
    with pytest.raises(InvalidQuery):
        bulk_actions.begin(blocking, "other", {"colour": "red"}, Plan(), "ann")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"first": 0}, "first=0: pass a whole number from 1"),
        ({"first": "5"}, "first='5': pass a whole number"),
        ({"rate": "50"}, "rate='50': write a number and a unit, s, m, h or d, such as 50/m"),
        ({"rate": "0/m"}, "rate='0/m': write a number and a unit"),
        ({"queue": "a b"}, "queue='a b': pass a name"),
        ({"at": "tomorrow-ish"}, "'tomorrow-ish' is not a time"),
    ],
)
def test_a_wrong_plan_names_the_value_and_the_way_out(store: Store, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        plan(store, **given)


@pytest.mark.parametrize(
    ("given", "says"),
    [({}, "all"), ({"first": 1000, "rate": "2/s"}, "the first 1,000 at 2/s"), ({"queue": "slow"}, "all in queue slow")],
)
def test_a_plan_says_what_it_does(store: Store, given: dict[str, Any], says: str) -> None:
    assert plan(store, **given).says == says


def test_a_rate_from_a_time_that_has_passed_holds_from_now_on(store: Store) -> None:
    now = store.now()

    assert plan(store, rate="1/m", at=now - timedelta(hours=1)).at_place(2, now) == now + timedelta(minutes=2)
    assert plan(store, rate="1/m", at=now + timedelta(hours=1)).at_place(2, now) == now + timedelta(minutes=62)


def test_jobs_that_retention_has_removed_are_not_left(blocking: Scheduler, store: Store) -> None:
    failed(blocking, 4)
    bulk_actions.begin(blocking, "vat-fix", FAILED, plan(store, first=1), "ann")
    store.prune({Status.FAILED: store.now() + timedelta(days=1)}, store.now(), 10)

    action = bulk_actions.add_rest(blocking, "vat-fix", Plan(), "ann")

    assert (action.first.found, action.total("copies"), action.left, action.may_continue) == (4, 1, 0, False)


def test_nothing_is_added_to_a_bulk_action_that_has_looked_at_all_jobs(blocking: Scheduler) -> None:
    bulk_actions.begin(blocking, "all", FAILED, Plan(), "ann")

    with pytest.raises(InvalidOption, match="no job is left for bulk action all"):
        bulk_actions.add_rest(blocking, "all", Plan(), "ann")


@stores
def test_a_stop_ends_a_stage_that_still_adds_copies(blocking: Scheduler, store: Store, url: str) -> None:
    number = 2 * BATCH + 1
    many_failed(store, number)
    stopped: list[BulkActionState] = []

    def stop_after_the_second(added: int) -> None:
        if added == 2 * BATCH:
            stopped.append(bulk_actions.stop(blocking, "vat-fix", "enough"))

    with opened(url, stop_after_the_second) as adding:
        given = plan(store, at=store.now() + timedelta(hours=1))
        action = bulk_actions.begin(adding, "vat-fix", {"status": "FAILED"}, given, "ann")

    assert numbers(stopped[0]) == numbers(action) == {"CANCELED": 2 * BATCH}
    assert (action.left, action.is_cut, action.may_continue) == (1, True, False)
    assert action.first.record.status is Status.CANCELED
    with pytest.raises(WrongStatus, match="is CANCELED: a job can be followed by another stage"):
        bulk_actions.add_rest(blocking, "vat-fix", Plan(), "ann")


DYING = """
import os, signal, sys
from datetime import datetime, timezone
from tests.scheduler import test_bulk_actions as tests
from taskqueue.scheduler import bulk_actions

def die_before_the_checkpoint(added):
    if added == 2 * tests.BATCH:
        os.kill(os.getpid(), signal.SIGKILL)

with tests.opened(sys.argv[1], die_before_the_checkpoint) as scheduler:
    plan = bulk_actions.Plan.of({"rate": "50/m", "at": "+1 hour"}, datetime.now(timezone.utc))
    bulk_actions.begin(scheduler, "vat-fix", {"status": "FAILED"}, plan, "ann")
"""


@stores
def test_a_node_continues_a_bulk_action_whose_process_was_killed_and_copies_no_job_twice(
    blocking: Scheduler, store: Store, url: str, tmp_path: Path
) -> None:
    number = 2 * BATCH + 1
    ids = many_failed(store, number)
    program = [sys.executable, "-c", DYING, url]
    died = subprocess.run(program, check=False, timeout=LIMIT, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    assert died.returncode == -signal.SIGKILL
    action = bulk_actions.read(blocking, "vat-fix")
    assert (numbers(action), action.first.record.status) == ({"POSTPONED": 2 * BATCH}, Status.PROCESSING)

    with node(url, tmp_path) as running:
        running.heed("READY=1")
        ended = eventually(lambda: _ended(bulk_actions.read(blocking, "vat-fix")))

    assert ended is not None
    action = ended
    copies = copies_of(blocking, action)
    assert [_of(record) for record in copies] == list(map(str, ids))
    assert (numbers(action), action.left, action.total("copies")) == ({"POSTPONED": number}, 0, number)
    at = action.first.plan.at
    assert at is not None
    assert [record.ready_at for record in copies] == [at + n * timedelta(seconds=1.2) for n in range(number)]


def _ended(action: BulkActionState) -> BulkActionState | None:
    return action if action.first.record.status is Status.DONE else None
