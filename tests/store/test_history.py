"""The history counts every settled claim, every end and every added job once, in its minute, whatever is removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from taskqueue.model.history import MOST_CLASSES, OTHER, Durations, HistoryEntry, Step, entries
from taskqueue.model.lifecycle.outcomes import Crashed, Failed, GivenUp, HandedBack, TimedOut
from taskqueue.model.lifecycle.settle import lost
from taskqueue.model.record import Dependency, Failure, Options, Status
from taskqueue.model.retry import FixedRetry
from taskqueue.model.timestamps import moment
from taskqueue.store import Settlement, Store
from taskqueue.store.backup import back_up
from taskqueue.store.mongodb.history import History
from taskqueue.store.mongodb.store import MongoStore
from taskqueue.store.open import open_store
from tests.nodes import eventually
from tests.servers import PATIENCE, with_database
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    WEB_1,
    WEB_2,
    a_record,
    behind,
    claim,
    postponed,
    running,
    settle,
    settlement,
)

DAY = timedelta(days=1)


def history(store: Store, step: Step = Step.MINUTE, since: datetime = NOON - DAY) -> list[HistoryEntry]:
    """Return the figures since a day before noon."""
    return list(entries(store.history(step, since, NOON + 9 * DAY), step))


def counts(entry: HistoryEntry) -> dict[str, int]:
    """Return the numbers of an entry that are not 0."""
    names = ("added", "started", "done", "failed", "timeout", "canceled", "retried", "attempts")
    return {name: getattr(entry, name) for name in names if getattr(entry, name)}


def by_minute(store: Store, step: Step = Step.MINUTE) -> dict[datetime, dict[str, int]]:
    """Return the numbers of each minute, of a store with one class in one queue."""
    return {entry.at: counts(entry) for entry in history(store, step)}


def tidied(store: Store, now: datetime, limit: int) -> int:
    """Tidy the history until nothing is left to do, and return how many calls that took."""
    calls = 1
    while store.tidy_history(now, limit):
        calls += 1
    return calls


def test_a_run_counts_in_the_minute_of_its_settle(store: Store) -> None:
    settle(store, running(store, a_record(queue="mail"), now=NOON + 3 * SECOND), now=NOON + 5 * MINUTE)

    added, done = history(store)

    assert (added.at, added.queue, added.job, counts(added)) == (NOON, "mail", "app:Mail", {"added": 1})
    assert (done.at, counts(done)) == (NOON + 5 * MINUTE, {"started": 1, "done": 1, "attempts": 1})
    assert done.waiting == Durations(number=1, total=3.0, longest=3.0, buckets={5.0: 1})
    assert done.running == Durations(number=1, total=297.0, longest=297.0, buckets={300.0: 1})
    assert done.ended == 1


def test_jobs_count_when_they_were_added_before_and_after_the_history_is_tidied(store: Store) -> None:
    store.add([a_record(), a_record(created_at=NOON + MINUTE), a_record(job="app:Report")])
    store.add([postponed(NOON + HOUR, queue="mail")])
    before = history(store)

    store.tidy_history(NOON, 10)
    store.add([a_record(created_at=NOON + HOUR)])

    assert [(one.at, one.queue, one.job, one.added) for one in before] == [
        (NOON, "default", "app:Mail", 1),
        (NOON, "default", "app:Report", 1),
        (NOON, "mail", "app:Mail", 1),
        (NOON + MINUTE, "default", "app:Mail", 1),
    ]
    [*same, last] = history(store)
    assert (same, last.at, last.added) == (before, NOON + HOUR, 1)


def test_each_attempt_that_began_counts_and_each_end_once(store: Store) -> None:
    retried = a_record(options=Options(retry=FixedRetry(times=1, interval=60)))
    settle(store, running(store, retried), Failed(failure=BROKEN), now=NOON + MINUTE)
    [again] = claim(store, now=NOON + 2 * MINUTE).records
    settle(store, replace(again, started_at=NOON + 3 * MINUTE), Failed(failure=BROKEN), now=NOON + 4 * MINUTE)

    first, last = history(store)[1:]

    assert counts(first) == {"started": 1}
    assert counts(last) == {"started": 1, "failed": 1, "retried": 1, "attempts": 2}
    assert (last.waiting.total, last.running.total, last.errors) == (60.0, 60.0, {BROKEN.type: 1})


def test_a_claim_that_was_handed_back_or_refused_counts_nowhere(store: Store) -> None:
    run = running(store, a_record())
    settle(store, replace(run, started_at=None), HandedBack(), now=NOON + MINUTE)

    assert settle(store, run, now=NOON + 2 * MINUTE) == set()

    assert by_minute(store) == {NOON: {"added": 1}}


def test_jobs_that_end_without_a_run_count_when_they_end(store: Store) -> None:
    waiting, first = a_record(), running(store, a_record(ready_at=NOON - HOUR))
    store.add([waiting, behind(first.id, depends_on=(Dependency(id=first.id),)), a_record(expires_at=NOON + HOUR)])
    store.cancel(waiting.id, "", NOON + MINUTE)
    settle(store, first, GivenUp(failure=BROKEN), now=NOON + 2 * MINUTE)

    claim(store, now=NOON + 2 * HOUR)

    assert by_minute(store) == {
        NOON: {"added": 4},
        NOON + MINUTE: {"canceled": 1},
        NOON + 2 * MINUTE: {"started": 1, "failed": 1, "attempts": 1, "canceled": 1},
        NOON + 2 * HOUR: {"canceled": 1},
    }
    parts = store.history(Step.MINUTE, NOON, NOON + 2 * HOUR)
    assert [figures["expired"] for part in parts.values() for figures in part.values() if "expired" in figures] == [1]


def test_a_lost_claim_counts_when_another_node_settles_it(store: Store) -> None:
    running(store, a_record(options=Options(crash_retries=0)))
    [over] = store.expired(NOON + DAY, 10)
    assert over.holder is not None
    after = lost(replace(over, started_at=NOON), NOON + DAY)

    store.settle([Settlement(claims=over.claims, holder=over.holder, after=after)], NOON + DAY)

    assert counts(history(store)[-1])["failed"] == 1
    assert history(store)[-1].at == NOON + DAY


def test_timeouts_and_crashes_count_under_their_own_names(store: Store) -> None:
    once = Options(crash_retries=0)
    settle(store, running(store, a_record(options=once)), TimedOut(failure=BROKEN))
    settle(store, running(store, a_record(options=once)), Crashed(failure=BROKEN))

    assert by_minute(store)[NOON] == {"added": 2, "started": 2, "timeout": 1, "failed": 1, "attempts": 2}


def failures(store: Store) -> dict[datetime, dict[str, int]]:
    """Return how many attempts failed by errors of each fingerprint, by minute, of a store with one class."""
    parts = store.history(Step.MINUTE, NOON - DAY, NOON + DAY)
    found: dict[datetime, dict[str, int]] = {}
    for at, part in parts.items():
        for figures in part.values():
            numbers = {name[2:]: number for name, number in figures.items() if name.startswith("x:")}
            found.setdefault(moment(at), {}).update(numbers)
    return {at: numbers for at, numbers in found.items() if numbers}


def test_each_failed_attempt_counts_when_it_ends_whatever_becomes_of_its_job(store: Store) -> None:
    error = Failure(type="app.NoAnswer", message="attempt 1 of 7: no answer")
    retried = Options(retry=FixedRetry(times=1, interval=3600))
    for outcome in (Failed(failure=error), TimedOut(failure=error)):
        settle(store, running(store, a_record(options=retried)), outcome)
    settle(store, running(store, a_record(), now=NOON + MINUTE), Failed(failure=error), now=NOON + MINUTE)
    settle(store, running(store, a_record(), now=NOON + MINUTE), Crashed(failure=error), now=NOON + MINUTE)
    [again] = claim(store, now=NOON + 2 * MINUTE).records
    settle(store, again, HandedBack(), now=NOON + 2 * MINUTE)

    expected = "app.NoAnswer: attempt … of …: no answer"
    assert failures(store) == {NOON: {expected: 2}, NOON + MINUTE: {expected: 2}}
    store.tidy_history(NOON + HOUR, 10)
    assert failures(store) == {NOON: {expected: 2}, NOON + MINUTE: {expected: 2}}


def test_a_settle_of_many_counts_each(store: Store) -> None:
    store.add([a_record(queue=queue) for queue in ("a", "b") for _ in range(3)])
    runs = [replace(run, started_at=NOON + SECOND) for run in claim(store, 6).records]

    store.settle([settlement(run, now=NOON + 2 * SECOND) for run in runs], NOON + 2 * SECOND)

    assert [(one.queue, one.done, one.running.buckets) for one in history(store)] == [
        ("a", 3, {1.0: 3}),
        ("b", 3, {1.0: 3}),
    ]


@pytest.mark.parametrize("step", list(Step))
def test_tidying_changes_no_figure(store: Store, step: Step) -> None:
    for minute in (0, 1, 59, 61):
        settle(store, running(store, a_record(queue=f"q{minute % 2}")), now=NOON + minute * MINUTE)
    before = history(store, step)

    for _ in range(3):
        store.tidy_history(NOON + HOUR, 10)
        assert history(store, step) == before
        settle(store, running(store, a_record(job="app:Late")), now=NOON + 2 * DAY)
        before = history(store, step)


def test_an_hour_has_the_figures_of_its_minutes(store: Store) -> None:
    for minute in (0, 59, 60):
        settle(store, running(store, a_record()), now=NOON + minute * MINUTE)
        store.tidy_history(NOON, 10)

    assert by_minute(store, Step.HOUR) == {
        NOON: {"added": 3, "started": 2, "done": 2, "attempts": 2},
        NOON + HOUR: {"started": 1, "done": 1, "attempts": 1},
    }


def test_removing_jobs_changes_no_figure(store: Store) -> None:
    for _ in range(3):
        settle(store, running(store, a_record()))
    store.add([a_record()])
    before = history(store)

    store.prune({Status.DONE: NOON + HOUR}, NOON, 2)
    assert history(store) == before
    store.add([a_record(created_at=NOON + MINUTE)])
    store.flush()
    store.add([a_record(created_at=NOON + 2 * MINUTE)])

    assert sum(entry.added for entry in history(store)) == 6
    assert history(store)[0] == before[0]


def test_two_nodes_count_in_the_same_minute(opener: Callable[[], Store]) -> None:
    first, second = opener(), opener()
    first.add([a_record() for _ in range(6)])
    for store, holder in ((first, WEB_1), (second, WEB_2)) * 3:
        [run] = claim(store, holder=holder).records
        store.settle([settlement(run)], NOON + SECOND)
        store.tidy_history(NOON + SECOND, 10)
    second.flush()  # MongoDB writes figures behind the settle, and reads flush only their own store

    assert by_minute(first) == by_minute(second) == {NOON: {"added": 6, "done": 6, "attempts": 6}}


def test_processes_that_count_in_one_minute_at_once_lose_nothing(opener: Callable[[], Store]) -> None:
    stores = [opener() for _ in range(4)]
    stores[0].add([a_record(created_at=NOON + minute * MINUTE) for minute in range(4) for _ in range(8)])
    runs = [replace(run, started_at=NOON) for run in claim(stores[0], 32, now=NOON + HOUR).records]

    def count(number: int) -> None:
        for at in (NOON + HOUR + minute * MINUTE for minute in range(8)):
            stores[number].settle([settlement(runs.pop(), now=at)], at)
            history(stores[number])

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(count, range(len(stores))))

    assert [entry.done for entry in history(stores[0]) if entry.done] == [4] * 8
    assert [entry.done for entry in history(stores[0], Step.HOUR) if entry.done] == [32]


def test_figures_reach_other_processes_without_a_flush(opener: Callable[[], Store]) -> None:
    first, second = opener(), opener()
    settle(first, running(first, a_record()))

    assert eventually(lambda: [entry for entry in history(second) if entry.done])


def test_names_with_dots_and_signs_come_back_as_they_are(store: Store) -> None:
    name, error = "a.b$c%2Ed..é", Failure(type="$app.Broken", message="50 % of a.b")
    settle(store, running(store, a_record(queue=name, job="my.app:$Mail")), GivenUp(failure=error))

    [entry] = history(store)

    assert (entry.queue, entry.job, entry.added, entry.failed) == (name, "my.app:$Mail", 1, 1)
    assert entry.errors == {"$app.Broken": 1}


def test_figures_are_removed_when_they_are_kept_no_longer(store: Store) -> None:
    for at in (NOON, NOON + MINUTE, NOON + HOUR):
        settle(store, running(store, a_record(created_at=NOON)), now=at)
    history(store)  # MongoDB writes figures behind the settle

    tidied(store, NOON + Step.MINUTE.kept_for + MINUTE, 10)
    assert list(by_minute(store)) == [NOON + MINUTE, NOON + HOUR]
    assert list(by_minute(store, Step.HOUR)) == [NOON, NOON + HOUR]
    assert store.tidy_history(NOON + Step.HOUR.kept_for + 9 * HOUR, 1)
    assert (len(history(store)), len(history(store, Step.HOUR))) == (1, 1)  # one of each is gone
    tidied(store, NOON + Step.HOUR.kept_for + 9 * HOUR, 1)
    assert history(store) == history(store, Step.HOUR) == []


def test_a_long_time_is_tidied_in_bounded_parts(opener: Callable[[], Store]) -> None:
    store = opener()
    store.add([a_record(created_at=NOON + number * 2 * HOUR) for number in range(4)])
    before = history(store)

    parts = tidied(store, NOON + 20 * HOUR, 10)

    assert history(store) == before
    if isinstance(store, MongoStore):
        assert parts == 5  # the added jobs of one hour at a time
        assert store._connection.collections.history.count_documents({}) == 8


def test_classes_beyond_many_count_together(store: Store) -> None:
    store.add([a_record(job=f"app:Job{number:03}") for number in range(MOST_CLASSES + 5)])
    store.tidy_history(NOON, 10)
    store.add([a_record(job="app:Another")])

    names = {entry.job: entry.added for entry in history(store)}

    assert len(names) == MOST_CLASSES + 1
    assert names[OTHER] == 6


def test_a_time_is_read_from_its_first_minute_to_its_last(store: Store) -> None:
    store.add([a_record(created_at=NOON + minute * MINUTE) for minute in range(4)])

    for _ in range(2):
        found = store.history(Step.MINUTE, NOON + MINUTE, NOON + 2 * MINUTE)
        assert [entry.at for entry in entries(found, Step.MINUTE)] == [NOON + MINUTE, NOON + 2 * MINUTE]
        store.tidy_history(NOON, 10)


@pytest.mark.parametrize("since", [NOON - MINUTE, NOON - MINUTE + SECOND])
def test_a_time_has_no_jobs_of_the_minutes_before_and_after_it(store: Store, since: datetime) -> None:
    for seconds in (-60, -1, 0, 59, 60):
        at = NOON + seconds * SECOND
        settle(store, running(store, a_record(created_at=at, ready_at=at), now=at), now=at)

    def added() -> dict[datetime, dict[str, int]]:
        return {entry.at: counts(entry) for entry in entries(store.history(Step.MINUTE, since, NOON), Step.MINUTE)}

    both = {"added": 2, "started": 2, "done": 2, "attempts": 2}
    wanted = {at: both for at in (NOON - MINUTE, NOON) if at >= since}
    eventually(lambda: added() == wanted)
    tidied(store, NOON + HOUR, 10)
    assert added() == wanted


def test_a_backup_has_the_history_and_goes_on_with_it(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db")) as store:
        for _ in range(3):
            settle(store, running(store, a_record()))
        store.prune({Status.DONE: NOON + HOUR}, NOON, 2)
        store.tidy_history(NOON, 10)
        store.add([a_record() for _ in range(3)])
        back_up(store.url, tmp_path / "copy.db")
        before = history(store)
    with closing(open_store(f"sqlite://{tmp_path}/copy.db")) as copy:
        assert history(copy) == before
        settle(copy, replace(claim(copy).records[0], started_at=NOON))
        copy.add([a_record()])

        assert by_minute(copy) == {NOON: {"added": 7, "started": 4, "done": 4, "attempts": 4}}
        assert copy.tally() == {("default", Status.WAITING): 3, ("default", Status.DONE): 2}


def test_jobs_that_were_added_in_an_hour_are_counted_in_portions(mongo_set: str) -> None:
    url = with_database(mongo_set, f"added-{os.getpid()}")
    with closing(open_store(f"{url}&timeoutMS={PATIENCE * 1000:.0f}")) as store:
        assert isinstance(store, MongoStore)
        store.add([a_record(created_at=NOON + number * SECOND) for number in range(7)])
        kept = History(store._connection, portion=3)

        counted_until = []
        while kept.tidy(NOON + MINUTE, 10):
            counted_until.append(kept.counted_until())

        assert counted_until == [NOON + 2 * SECOND, NOON + 5 * SECOND, NOON + 6 * SECOND]
        assert [entry.added for entry in history(store)] == [7]
        store.flush()
