"""``recover`` begins a bulk action with its first jobs; ``bulk`` follows it, continues it at a rate, and stops it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.model.ids import id_of_text
from taskqueue.model.query import parse
from taskqueue.model.record import Failure, Record, Status
from taskqueue.model.serializer import encode
from taskqueue.model.wording import local
from taskqueue.scheduler.changes import STAGE
from taskqueue.store import Store
from tests.cli import records
from tests.cli.conftest import Answer

Taskqueue = Callable[..., Answer]
FAILED = ("recover", "--query", '{"status": "FAILED"}')


@pytest.fixture
def failed(store: Store) -> list[Record]:
    """Return failed jobs of queue mail."""
    ended = [records.record(queue="mail") for _ in range(5)]
    now = store.now()
    broken = Failure(type="KeyError", message="vat")
    return store.add([replace(one, status=Status.FAILED, ready_at=None, ended_at=now, error=broken) for one in ended])


def test_the_first_jobs_run_again_and_then_the_rest_at_a_rate(
    taskqueue: Taskqueue, store: Store, failed: list[Record]
) -> None:
    counted = taskqueue(*FAILED, "--first", "2", "--name", "vat-fix", "--since", "1h")
    assert counted.out == "would run 2 of 5 jobs again (the first 2): pass --yes to add a copy of each\n"

    begun = taskqueue(*FAILED, "--first", "2", "--name", "vat-fix", "--since", "1h", "--yes").out
    assert begun.startswith("bulk action vat-fix: 2 of 5 jobs run again, 3 left\n  stage 1, the first 2, by ")
    assert "UTC: 2 WAITING\nthe rest: taskqueue bulk vat-fix --rest --rate 50/m --yes\n" in begun
    assert "to cancel the 2 that have not started: taskqueue bulk vat-fix --stop" in begun

    rest = ("bulk", "vat-fix", "--rest", "--rate", "50/m", "--queue", "backfill", "--at", "+1 hour")
    assert taskqueue(*rest).out.startswith("would run 3 jobs again (all at 50/m in queue backfill from 20")
    assert taskqueue(*rest, "--json").document == {"found": 3}
    assert "stage 2, all at 50/m in queue backfill from" in taskqueue(*rest, "--yes").out
    assert store.count(parse({"queue": "backfill", "status": "POSTPONED"})) == 3

    document = taskqueue("bulk", "vat-fix", "--stop", "--reason", "wrong rate", "--json").document
    assert (document["found"], document["left"], document["statuses"]["CANCELED"]) == (5, 0, 5)
    assert [stage["rate"] for stage in document["stages"]] == [None, "50/m"]
    assert "5 of 5 jobs run again, 0 left" in taskqueue("bulk", "vat-fix").out
    [copy, *_] = store.find(parse({"queue": "backfill", "job": failed[0].job}))
    assert copy.error is not None
    assert copy.error.message.startswith("wrong rate (")

    told = taskqueue("audit").out
    assert [word in told for word in ("begin bulk action", "continue bulk action", "stop bulk action")] == [True] * 3


def test_a_bulk_action_without_a_name_gets_one(taskqueue: Taskqueue, failed: list[Record]) -> None:
    assert "no bulk actions: `taskqueue recover" in taskqueue("bulk").complaint
    name = taskqueue(*FAILED, "--rate", "1/s", "--yes", "--json").document["name"]

    assert name.startswith("rerun-20")
    assert taskqueue("bulk", name).code == Exit.OK


def test_without_a_name_the_bulk_actions_are_listed_the_newest_first(
    taskqueue: Taskqueue, failed: list[Record]
) -> None:
    taskqueue(*FAILED, "--first", "2", "--name", "vat-fix", "--yes")
    taskqueue("bulk", "vat-fix", "--rest", "--first", "2", "--yes")
    taskqueue(*FAILED, "--name", "others", "--yes")

    newest, oldest = taskqueue("bulk").out.splitlines()
    assert newest.startswith("others: 1 of 5 jobs run again, 0 left; started by ")
    assert oldest.startswith("vat-fix: 4 of 5 jobs run again, 1 left; started by ")
    assert [action["name"] for action in taskqueue("bulk", "--json").document] == ["others", "vat-fix"]


def test_what_is_left_out_is_counted(taskqueue: Taskqueue, failed: list[Record]) -> None:
    taskqueue("recover", str(failed[0].id))
    counted = taskqueue(*FAILED, "--rate", "1/s", "--json").document
    told = taskqueue(*FAILED, "--rate", "1/s", "--name", "all", "--yes").out

    assert counted == {"found": 4, "left_out": 1}
    assert "left out, already recovered: 1\n" in told


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((*FAILED, "--first", "0", "--yes"), Exit.CONFIG, "first=0: pass a whole number from 1"),
        ((*FAILED, "--rate", "50", "--yes"), Exit.CONFIG, "rate='50': write a number and a unit"),
        ((*FAILED, "--name", "a/b"), Exit.CONFIG, "name='a/b': pass 1 to 64 letters"),
        (("recover", "65f0", "--first", "5"), Exit.USAGE, "--first, --rate, --queue and --name need --query"),
        (("bulk", "other"), Exit.NOT_FOUND, "no bulk action has this name"),
        (("bulk", "half\udcff"), Exit.NOT_FOUND, "no bulk action has this name"),
        (("bulk", "other"), Exit.NOT_FOUND, "`taskqueue bulk` lists the others"),
        (("bulk", "--stop"), Exit.USAGE, "--rest and --stop need the name of a bulk action"),
        (("bulk", "other", "--rest", "--stop"), Exit.USAGE, "pass --rest or --stop, not both"),
        (("bulk", "other", "--rate", "50/m"), Exit.USAGE, "need --rest"),
    ],
)
def test_a_bulk_action_that_cannot_be_is_one_line(
    taskqueue: Taskqueue, arguments: tuple[str, ...], code: Exit, words: str
) -> None:
    answer = taskqueue(*arguments)

    assert (answer.code, words in answer.complaint) == (code, True)


def test_a_stage_that_a_node_tries_again_says_when(taskqueue: Taskqueue, store: Store) -> None:
    now = store.now()
    plan = dict.fromkeys(("first", "rate", "queue", "at", "queues", "after"))
    data = encode({**plan, "query": {"status": "FAILED"}, "ended_before": now, "found": 5, "by": "ann"}, "data")
    stage = records.record(id=id_of_text(STAGE, "late"), job=STAGE, data=data, error=Failure(type="E", message="full"))
    store.add([replace(stage, status=Status.POSTPONED, ready_at=now + timedelta(minutes=5))])

    said = taskqueue("bulk", "late").out
    assert f"the stage itself is POSTPONED until {local(now + timedelta(minutes=5))}, E: full\n" in said


def test_a_name_that_a_bulk_action_has_is_refused(taskqueue: Taskqueue, failed: list[Record]) -> None:
    taskqueue(*FAILED, "--name", "vat-fix", "--yes")
    answer = taskqueue(*FAILED, "--name", "vat-fix", "--yes")

    assert (answer.code, "has this name already: choose another one" in answer.complaint) == (Exit.CONFIG, True)
    assert "begin bulk action refused" in taskqueue("audit").out
