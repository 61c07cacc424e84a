"""Log lines stay with their job: those of its last runs, written with notes and outcomes, removed with it."""

from __future__ import annotations

from taskqueue.model.lifecycle.outcomes import Done, Snoozed
from taskqueue.model.log_lines import RUNS_KEPT
from taskqueue.model.record import Record, Status
from taskqueue.store import Note, Store
from tests.store.records import HOUR, LEASE, NOON, WEB_1, WEB_2, a_record, claim, running, settlement

LINES = '1\n[1,1,0,"info","shop","it begins"]\n'
MORE = '1\n[1,1,0,"info","shop","it begins"]\n[1,2,0,"info","shop","\\u0000 ends é"]\n'


def ended(store: Store, record: Record, lines: str | None) -> None:
    """Settle the run of a job with these lines."""
    assert store.settle([settlement(record, Done())._replace(lines=lines)], NOON) == {record.id}


def test_lines_of_a_running_job_come_with_a_renewal_and_others_with_a_note(store: Store) -> None:
    record = running(store, a_record())

    store.renew(WEB_1, NOON + LEASE, {record.id: Note(lines=LINES)})
    assert store.log_lines(record.id) == {1: LINES}
    store.note(WEB_1, {record.id: Note(lines=MORE, progress=5, progress_at=NOON)})
    assert store.log_lines(record.id) == {1: MORE}


def test_a_node_that_has_lost_the_claim_writes_no_lines(store: Store) -> None:
    record = running(store, a_record())

    store.note(WEB_2, {record.id: Note(lines=LINES)})

    assert store.log_lines(record.id) == {}


def test_the_outcome_brings_the_last_lines(store: Store) -> None:
    record = running(store, a_record())
    store.note(WEB_1, {record.id: Note(lines=LINES)})

    ended(store, record, MORE)

    assert store.log_lines(record.id) == {1: MORE}


def test_an_outcome_without_lines_leaves_those_that_are_kept(store: Store) -> None:
    record = running(store, a_record())
    store.note(WEB_1, {record.id: Note(lines=LINES)})

    ended(store, record, None)

    assert store.log_lines(record.id) == {1: LINES}


def test_a_refused_outcome_brings_no_lines(store: Store) -> None:
    record = running(store, a_record())
    ended(store, record, None)

    assert store.settle([settlement(record, Done())._replace(lines=LINES)], NOON) == set()
    assert store.log_lines(record.id) == {}


def test_each_run_has_lines_and_the_oldest_go(store: Store) -> None:
    store.add([a_record()])
    for number in range(1, RUNS_KEPT + 3):
        now = NOON + number * HOUR
        [record] = claim(store, now=now).records
        store.settle([settlement(record, Snoozed(seconds=1), now=now)._replace(lines=f"{number}\n")], now)

    assert store.log_lines(record.id) == {number: f"{number}\n" for number in range(3, RUNS_KEPT + 3)}


def test_lines_are_removed_with_their_job(store: Store) -> None:
    first, second = running(store, a_record()), running(store, a_record())
    ended(store, first, LINES)
    ended(store, second, LINES)

    assert store.prune({Status.DONE: NOON + HOUR}, NOON, 1) == 1
    left = [record.id for record in (first, second) if store.log_lines(record.id)]
    assert len(left) == 1
    store.flush()
    assert store.log_lines(left[0]) == {}


def test_a_job_that_nothing_is_known_of_has_no_lines(store: Store) -> None:
    assert store.log_lines(a_record().id) == {}
