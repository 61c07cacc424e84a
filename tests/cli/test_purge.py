"""``purge`` counts ended jobs of some age, and removes them when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from taskqueue.exit_codes import Exit
from taskqueue.model.query import EVERYTHING
from taskqueue.model.record import Record, Status
from taskqueue.store import OLDEST, Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.cli.records import NOW

Taskqueue = Callable[..., Answer]


def ended(status: Status, days_ago: int) -> Record:
    """Return a record that ended so many days ago."""
    return replace(records.record(), status=status, ready_at=None, ended_at=NOW - timedelta(days=days_ago))


def test_a_dry_run_counts_and_removes_nothing(taskqueue: Taskqueue, store: Store) -> None:
    store.add([ended(Status.DONE, 8), ended(Status.DONE, 1), ended(Status.FAILED, 8)])

    answer = taskqueue("purge", "--done", "--older", "7d")

    assert answer.code == Exit.OK
    assert answer.out.startswith("would remove 1 job (DONE, ended before ")
    assert answer.out.endswith("): pass --yes to remove them\n")
    assert store.count(EVERYTHING) == 3


def test_with_yes_jobs_of_these_statuses_and_this_age_are_removed(taskqueue: Taskqueue, store: Store) -> None:
    [_, young, failed] = store.add([ended(Status.DONE, 8), ended(Status.DONE, 1), ended(Status.FAILED, 8)])
    waiting = store.add([records.record()])
    events, _ = store.events(OLDEST)

    answer = taskqueue("purge", "--done", "--canceled", "--older", "7d", "--yes")

    assert answer.out.startswith("removed 1 job (DONE or CANCELED, ended before ")
    assert {job.id for job in store.find(EVERYTHING)} == {young.id, failed.id, waiting[0].id}
    assert store.events(OLDEST)[0] == events


def test_a_job_that_a_pending_one_needs_stays(taskqueue: Taskqueue, store: Store) -> None:
    [needed] = store.add([ended(Status.DONE, 8)])
    assert taskqueue("add", "shop:Report", "--depends-on", str(needed.id), "--at", "+1 hour").code == Exit.OK

    answer = taskqueue("purge", "--done", "--older", "7d", "--yes")

    assert answer.out.splitlines()[0].startswith("removed 0 jobs (")
    assert answer.out.splitlines()[1] == "1 job kept: pending jobs need them"


def test_programs_get_the_figures(taskqueue: Taskqueue, store: Store) -> None:
    store.add([ended(Status.FAILED, 8)])

    document = taskqueue("purge", "--failed", "--timeout", "--older", "1d", "--yes", "--json").document

    assert {name: document[name] for name in ("statuses", "found", "removed")} == {
        "statuses": ["FAILED", "TIMEOUT"],
        "found": 1,
        "removed": 1,
    }


def test_statuses_and_age_have_to_be_named(taskqueue: Taskqueue, store: Store) -> None:
    assert "--done, --failed, --canceled or --timeout" in taskqueue("purge", "--older", "7d").complaint
    assert "--older" in taskqueue("purge", "--done").complaint
