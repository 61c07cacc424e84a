"""Fills a store as a week of work would: a million ended jobs of many classes, and many that wait.

Ended jobs get denser up to now. In SQLite all is done by the store; on a server, where that takes half an hour, ended
jobs are written by the driver, and have no events.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timedelta

from benchmarks.store_costs import HOLDER, LEASE, claimed, records
from taskqueue.errors import StoreUnavailable
from taskqueue.model.history import Step, ended_part
from taskqueue.model.ids import WORKFLOW, WORKFLOW_TAG, JobId
from taskqueue.model.lifecycle.outcomes import Done, Failed, Run
from taskqueue.model.lifecycle.pending import behind
from taskqueue.model.lifecycle.settle import ended
from taskqueue.model.record import Cause, Dependency, Failure, Record, Status
from taskqueue.model.schedules import Every
from taskqueue.model.schedules.schedule import NamedSchedule
from taskqueue.model.timestamps import milliseconds
from taskqueue.store import Settlement, Store
from taskqueue.store.mongodb.documents import documents
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.postgresql import PostgreSQLStore
from taskqueue.store.postgresql.database import connected
from taskqueue.store.relational import history
from taskqueue.store.relational.columns import ALL_COLUMNS, whole_row
from taskqueue.store.relational.engine import Sync

QUEUES = ("mail", "reports", "images", "imports", "default")
CLASSES = tuple(f"shop.jobs:Class{number}" for number in range(50))
ERRORS = tuple(f"shop.errors.{name}Error" for name in ("Connection", "Timeout", "Value", "Quota", "Address"))
TAGS = tuple(f"customer-{number}" for number in range(200))
RUNNING = 100
POSTPONED = 0.2
"""The share of pending jobs that are due later."""
MEMBERS = 5
"""The jobs of a workflow; one of ten jobs is a member of one."""

COUNTED_APART = 50_000
"""After so many ended jobs, their figures are added up: all at once would take longer than a transaction may."""

SCHEDULES = 30
SCHEDULE = "every-hour-0"
PERIOD = timedelta(days=7)
_COPY = f"COPY {{}}.jobs ({ALL_COLUMNS}) FROM STDIN"


def fill(store: Store, number_ended: int, number_waiting: int) -> None:
    """Add ended jobs, one of ten with an error, waiting and postponed ones, running ones and schedules."""
    now = store.now()
    done = 0
    for batch in records(store, number_ended):
        at = now - PERIOD * (1 - (done + len(batch)) / number_ended) ** 3
        _end(store, _in_workflows([_one(record, at) for record in batch]), at)
        done += len(batch)
        if done % COUNTED_APART == 0:
            store.tidy_history(now, 10_000)
    postponed = int(number_waiting * POSTPONED)
    for batch in records(store, postponed, timedelta(days=1)):
        store.add([replace(_one(record, now), cause=Cause.RETRY, ready_at=record.ready_at) for record in batch])
    for batch in records(store, number_waiting - postponed):
        new = _in_workflows([_one(record, now) for record in batch])
        store.add([*_dependants(new), *new])
    claimed(store, RUNNING)
    _schedule(store, now)
    while True:  # each call counts a part
        with suppress(StoreUnavailable):
            while store.tidy_history(store.now(), 10_000):
                pass
            return


def _one(record: Record, at: datetime) -> Record:
    return replace(
        record,
        queue=random.choice(QUEUES),
        job=random.choice(CLASSES),
        tags=(random.choice(TAGS),),
        created_at=at - timedelta(seconds=random.random()),
        data='{"to": "ann@example.org", "number": 17}',
    ).at_rank()


def _in_workflows(new: Sequence[Record]) -> list[Record]:
    """Return the records, the first tenth of them as members of workflows."""
    members = len(new) // 10
    firsts = [str(new[number - number % MEMBERS].id) for number in range(members)]
    grouped = [
        replace(record, tags=(*record.tags, f"{WORKFLOW_TAG}{first}"), given={**record.given, WORKFLOW: first})
        for record, first in zip(new, firsts, strict=False)
    ]
    return [*grouped, *new[members:]]


def _dependants(new: Sequence[Record]) -> Iterator[Record]:
    """Yield a member of each of the workflows that waits for the first one."""
    for record in new[: len(new) // 10 : MEMBERS]:
        awaited = Dependency(id=record.id)
        yield behind(replace(record, id=JobId(), depends_on=(awaited,)), record.id)


def _end(store: Store, new: Sequence[Record], at: datetime) -> None:
    began: Sequence[Record]
    if isinstance(store, MongoStore | PostgreSQLStore):
        began = [replace(one, status=Status.PROCESSING, holder=HOLDER, claims=1, ready_at=at + LEASE) for one in new]
        ended_jobs = list(_ended(began, at))
        if isinstance(store, MongoStore):
            _write_documents(store, ended_jobs, at)
        else:
            _write_rows(store, ended_jobs, at)
        return
    store.add(new)
    began = list(claimed(store, len(new)))
    settlements = zip(began, _ended(began, at), strict=True)
    store.settle([Settlement(claims=run.claims, holder=HOLDER, after=after) for run, after in settlements], at)


def _write_documents(store: MongoStore, ended_jobs: Sequence[Record], at: datetime) -> None:
    store._connection.collections.jobs.insert_many(documents(ended_jobs), ordered=False)
    store._history.add({Step.MINUTE.begin(milliseconds(at)): ended_part(ended_jobs, ())})


def _write_rows(store: PostgreSQLStore, ended_jobs: Sequence[Record], at: datetime) -> None:
    address = store._connection.address
    with closing(connected(address)) as raw, raw.cursor().copy(_COPY.format(address.schema)) as copy:
        for record in ended_jobs:
            copy.write_row(whole_row(record))
    numbers = Counter((record.queue, int(record.status)) for record in ended_jobs)
    store._write(Sync.NORMAL, lambda work: history.record(work, milliseconds(at), numbers, ended_jobs, ()))


def _ended(began: Sequence[Record], at: datetime) -> Iterator[Record]:
    for number, record in enumerate(began):
        run = Run(node=HOLDER.seat, started_at=at - timedelta(seconds=random.random() * 3))
        error = Failure(type=random.choice(ERRORS), message="no answer", traceback="Traceback: …\n" * 10)
        end = at - timedelta(milliseconds=random.randrange(20_000))
        yield ended(record, Failed(failure=error) if number % 10 == 0 else Done(), run, end)


def _schedule(store: Store, now: datetime) -> None:
    [[template]] = records(store, 1)
    for number in range(SCHEDULES):
        at = now + timedelta(hours=1)
        named = NamedSchedule(
            name=f"every-hour-{number}", trigger=Every(3600, now), template=template, created_at=now, next_run_at=at
        )
        store.replace_schedule(None, named, [], now)
