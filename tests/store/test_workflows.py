"""Stores list workflows, the newest first, and find their members, however many other jobs they have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from taskqueue.model.ids import WORKFLOW, JobId
from taskqueue.model.lifecycle.outcomes import GivenUp
from taskqueue.model.lifecycle.recovered_copy import copy
from taskqueue.model.query import parse
from taskqueue.model.record import Options, Record, Status
from taskqueue.store import Store
from taskqueue.store.open import open_store
from tests.store.records import (
    BROKEN,
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    a_record,
    behind,
    finished,
    ids,
    postponed,
    running,
)
from tests.store.test_sqlite_costs import steps


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Store]:
    """Yield an empty store, whose steps are counted."""
    with closing(open_store(f"sqlite://{tmp_path}/jobs.db?synchronous=normal")) as opened:
        yield opened


def workflow_id(number: int) -> JobId:
    """Return an id that sorts by the number."""
    return JobId(f"{number:024x}")


def member(workflow: JobId, **fields: Any) -> Record:
    """Return a new member of the workflow."""
    return a_record(given={WORKFLOW: str(workflow)}, **fields)


def listed(store: Store, upto: JobId | None = None, limit: int = 100) -> list[JobId]:
    """Return the ids of a page of workflows."""
    return [summary.id for summary in store.workflows(upto, limit)]


def test_a_workflow_is_listed_with_its_members_by_status(store: Store) -> None:
    id = workflow_id(1)
    finished(store, member(id, id=id, created_at=NOON - HOUR), now=NOON + MINUTE)
    finished(store, member(id), GivenUp(failure=BROKEN), now=NOON + SECOND)
    running(store, member(id, job="app:Report"), now=NOON + 2 * MINUTE)
    store.add([a_record(), postponed(NOON + HOUR)])

    [summary] = store.workflows(None, 10)

    assert summary.id == id
    assert summary.statuses == {Status.PROCESSING: 1, Status.DONE: 1, Status.FAILED: 1}
    assert (summary.number, summary.ended, summary.failed, summary.state) == (3, 2, 1, "running")
    assert (summary.created_at, summary.started_at, summary.ended_at) == (NOON - HOUR, NOON, None)
    assert summary.took(NOON + HOUR) == 3600
    assert summary.name == "Mail → Report"


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [([None, None], "done"), ([None, GivenUp(failure=BROKEN)], "failed")],
)
def test_a_workflow_that_has_ended_has_a_state_and_a_time(store: Store, outcomes: list[Any], state: str) -> None:
    id = workflow_id(1)
    for number, outcome in enumerate(outcomes):
        finished(store, member(id), outcome, now=NOON + number * MINUTE)

    [summary] = store.workflows(None, 10)

    assert (summary.state, summary.ended_at, summary.took(NOON + HOUR)) == (state, NOON + MINUTE, 60)


def test_canceled_members_and_waiting_ones_have_a_state(store: Store) -> None:
    for number, record in enumerate((member(workflow_id(0)), member(workflow_id(1)))):
        store.add([record])
        if number == 0:
            store.cancel(record.id, "", NOON)

    assert [summary.state for summary in store.workflows(None, 10)] == ["waiting", "canceled"]
    assert [summary.took(NOON) for summary in store.workflows(None, 10)] == [None, None]


def test_of_a_recovered_member_the_copy_counts(store: Store) -> None:
    id = workflow_id(1)
    failed = finished(store, member(id), GivenUp(failure=BROKEN))
    again = copy(failed, ObjectId(), None, NOON + HOUR)
    store.add([again])
    assert [summary.statuses for summary in store.workflows(None, 10)] == [{Status.WAITING: 1}]
    assert {record.workflow for record in store.find(parse({"workflow": id}))} == {id}


def test_workflows_are_paged_the_newest_first(store: Store) -> None:
    store.add([member(workflow_id(number)) for number in range(7) for _ in range(number % 3 + 1)])

    assert listed(store, limit=3) == [workflow_id(6), workflow_id(5), workflow_id(4)]
    assert listed(store, workflow_id(3), limit=3) == [workflow_id(3), workflow_id(2), workflow_id(1)]
    assert listed(store, workflow_id(0), limit=3) == [workflow_id(0)]
    assert listed(store) == [workflow_id(number) for number in reversed(range(7))]


def test_a_workflow_is_found_after_its_first_member_was_removed(store: Store) -> None:
    id = workflow_id(1)
    finished(store, member(id, id=id), now=NOON)
    rest = member(id)
    store.add([rest])
    store.prune({Status.DONE: NOON + HOUR}, NOON, 10)

    assert listed(store) == [id]
    assert ids(store.find(parse({"workflow": id}))) == [rest.id]
    assert store.count(parse({"workflow": id})) == 1


def test_a_workflow_has_the_names_of_its_classes(store: Store) -> None:
    named = Options(name="Import of the night")
    store.add([member(workflow_id(1), options=named), member(workflow_id(1), job="app:Report")])
    store.add([member(workflow_id(2), job=f"app:{name}") for name in ("A", "B", "C", "D")])

    assert [summary.name for summary in store.workflows(None, 10)] == ["A → … → D", "Import of the night → Report"]


def test_a_large_workflow_does_not_hide_the_ones_before_it(store: Store) -> None:
    store.add([member(workflow_id(1)), *(member(workflow_id(2)) for _ in range(1500)), member(workflow_id(3))])

    assert [(summary.id, summary.number) for summary in store.workflows(None, 10)] == [
        (workflow_id(3), 1),
        (workflow_id(2), 1500),
        (workflow_id(1), 1),
    ]


def test_other_jobs_and_older_workflows_cost_sqlite_nothing(embedded: Store) -> None:
    newest = workflow_id(10_000)
    embedded.add([member(newest, id=newest), behind(newest, given={WORKFLOW: str(newest)})])

    def cost(read: Any) -> int:
        read()  # the statement is prepared
        return steps(embedded, read)

    few = cost(lambda: embedded.workflows(None, 1))
    few_members = cost(lambda: embedded.find(parse({"workflow": newest}), order="-created_at"))
    few_found = cost(lambda: embedded.find(parse({"workflow": workflow_id(20_000)})))
    embedded.add([member(workflow_id(number % 500)) for number in range(3000)])
    embedded.add([a_record(given={"priority": 1}) for _ in range(3000)])

    assert cost(lambda: embedded.workflows(None, 1)) < few + 50
    assert cost(lambda: embedded.find(parse({"workflow": newest}), order="-created_at")) < few_members + 50
    assert cost(lambda: embedded.find(parse({"workflow": workflow_id(20_000)}))) < few_found + 50
