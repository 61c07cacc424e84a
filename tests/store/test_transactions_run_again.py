"""A body of a transaction that its engine undoes and runs again does its work once, as if it had run once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.model.limits import Limit, lane
from taskqueue.model.record import Options, Record, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.model.timestamps import host_time
from taskqueue.store import OLDEST, Note, Store
from taskqueue.store.bell import Ringer
from taskqueue.store.relational.engine import Sync
from taskqueue.store.relational.store import RelationalStore
from taskqueue.store.sqlite.connection import Connection
from taskqueue.store.sqlite.database import SqliteDatabase
from taskqueue.store.sqlite.url import location
from tests.store.random_graphs import Graph, expected, play, settled
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    WEB_1,
    a_record,
    all_kept,
    behind,
    claim,
    postponed,
    settlement,
)

Result = TypeVar("Result")


class RunsTwice(Connection):
    """Runs each body of a transaction, undoes what it did, and runs it again."""

    def write(self, level: Sync, body: Callable[[SqliteDatabase], Result]) -> Result:
        def again(raw: SqliteDatabase) -> Result:
            raw.execute("SAVEPOINT first_run")
            body(raw)
            raw.execute("ROLLBACK TO first_run")
            raw.execute("RELEASE first_run")
            return body(raw)

        return super().write(level, again)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[Store]]:
    """Open two stores: one runs each body once, the other twice."""
    with ExitStack() as opened:
        yield [
            opened.enter_context(closing(RelationalStore(engine(address), Ringer(address.bells), host_time)))
            for engine, address in (
                (Connection, location(str(tmp_path / "once.db"))),
                (RunsTwice, location(str(tmp_path / "twice.db"))),
            )
        ]


def told(store: Store) -> list[tuple[str, object]]:
    """Return the name and the job of each event, in order."""
    return [(event.name, event.job_id) for event in store.events(OLDEST)[0]]


def test_a_life_of_many_jobs_is_the_same(stores: list[Store]) -> None:
    retried = Options(retry=FixedRetry(times=1, interval=60.0))
    first = a_record(unique="k", queue="first", options=retried)
    jobs: list[Record] = [
        first,
        behind(first.id, queue="second"),
        a_record(parent=first.id, queue="child"),
        a_record(lane=lane([Limit(1)], "app:Mail", {}), queue="limited"),
        postponed(NOON + HOUR, queue="later"),
        *(a_record(queue=f"queue-{number % 10}") for number in range(30)),
    ]
    for store in stores:
        assert store.add(jobs) == jobs
        assert store.add([a_record(unique="k")]) == [first]
        for number in range(1, 6):
            now = NOON + number * MINUTE
            runs = [replace(run, started_at=now) for run in claim(store, 12, now=now).records]
            store.note(WEB_1, {run.id: Note(progress=10.0, progress_at=now) for run in runs})
            failed = Failed(failure=BROKEN)
            store.settle([settlement(run, failed if run.id == first.id else None, now) for run in runs], now)
        store.cancel(jobs[4].id, "enough", NOON + HOUR)
        store.prune({Status.DONE: NOON + 3 * MINUTE}, NOON, 5)
        store.tidy_history(NOON, 100)

    once, twice = stores
    assert [status for (_, status), _ in sorted(once.tally().items()) if status is Status.DONE]
    assert all_kept(twice) == all_kept(once)
    assert twice.tally() == once.tally()
    assert told(twice) == told(once)
    assert twice.disagreeing(10) == ([], True)


@pytest.mark.parametrize("seed", range(3))
def test_a_random_graph_ends_as_the_model_predicts(stores: list[Store], seed: int) -> None:
    _, twice = stores
    graph = Graph.drawn(seed)

    canceled = play(twice, graph)

    assert settled(twice, graph) == expected(graph, canceled)
    assert twice.disagreeing(10) == ([], True)
