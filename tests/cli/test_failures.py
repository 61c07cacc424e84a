"""``taskqueue failures`` lists what fails; ``mute``, ``resolve`` and ``reopen`` decide about it, with an audit."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from taskqueue import Scheduler
from taskqueue.exit_codes import Exit
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.store import Store
from tests.cli.conftest import Answer
from tests.nodes import eventually
from tests.store.test_failure_states import DAY, ID, MINUTE, fail
from tests.store.test_releases import keep

Taskqueue = Callable[..., Answer]


@pytest.fixture
def failing(store: Store) -> Store:
    """Return a store with a new error of a class."""
    fail(store)
    eventually(lambda: OverviewReader(store).read().groups)
    return store


def test_what_fails_is_listed_and_muted_and_listed_with_all_only(taskqueue: Taskqueue, failing: Store) -> None:
    first = taskqueue("failures").out
    assert ID in first
    assert " new " in first
    assert "KeyError: 'vat'" in first
    assert f"`taskqueue mute {ID}`" in " ".join(taskqueue("doctor").out.split())

    muted = taskqueue("mute", ID, "--until", "2h", "--reason", "tax service", "--by", "ann")

    assert muted.out == f"failure {ID} is muted\n"
    assert taskqueue("failures").out == (
        "nothing else failed\n1 more error, muted or resolved: `taskqueue failures --all`\n"
    )
    listed = taskqueue("failures", "--all").out
    assert " muted " in listed
    assert listed.splitlines()[-1].startswith(f"{ID}  muted until ")
    assert listed.endswith(" by ann (tax service)\n")
    assert "KeyError" not in taskqueue("doctor").out


def test_decisions_are_in_the_audit_with_what_they_are_about(taskqueue: Taskqueue, failing: Store, url: str) -> None:
    assert taskqueue("resolve", ID, "--reason", "deployed v2").out == f"failure {ID} is resolved\n"
    assert taskqueue("reopen", ID).out == f"failure {ID} is reported again\n"
    assert taskqueue("reopen", ID).out == f"failure {ID} was neither muted nor resolved\n"

    with Scheduler(url) as scheduler:
        *_, resolved = scheduler.audit()
    assert (resolved.action, resolved.target) == ("resolve", ID)
    assert dict(resolved.about) == {
        "job": "shop:MakeInvoice",
        "error": "KeyError: 'vat'",
        "reason": "deployed v2",
        "by": None,
    }


def test_failures_are_written_for_programs(taskqueue: Taskqueue, failing: Store) -> None:
    taskqueue("resolve", ID, "--by", "ann")

    answer = json.loads(taskqueue("failures", "--json").out)

    [failure] = answer["failures"]
    assert (failure["id"], failure["state"], failure["failed"]) == (ID, "resolved", 10)
    assert failure["decision"]["by"] == "ann"
    assert answer["decisions"] == []


@pytest.mark.parametrize("arguments", [("mute", "nothing"), ("mute", ID, "--until", "-1h"), ("resolve",)])
def test_a_wrong_failure_or_time_is_refused(taskqueue: Taskqueue, failing: Store, arguments: tuple[str, ...]) -> None:
    answer = taskqueue(*arguments)

    assert answer.code in (Exit.USAGE, Exit.CONFIG)
    assert answer.out == ""


def test_without_failures_the_list_says_so(taskqueue: Taskqueue, store: Store) -> None:
    assert taskqueue("failures").out == "no attempt failed in the last hour\n"


def test_a_release_is_marked_listed_and_named_by_errors_that_are_new_since(
    taskqueue: Taskqueue, failing: Store, url: str
) -> None:
    keep(failing, "v41", DAY)
    keep(failing, "v42", MINUTE)

    assert f"{ID}  new since release v42, marked " in taskqueue("failures").out
    assert taskqueue("failures", "--json").document["failures"][0]["release"] == "v42"
    assert "with a new error since release v42, first at" in " ".join(taskqueue("doctor").out.split())
    assert taskqueue("release", "v42", "--by", "bob").out == "release v42 is marked\n"
    [head, latest, before] = [line.split() for line in taskqueue("releases").out.splitlines()]
    assert head == ["release", "marked", "new", "errors", "by"]
    assert (latest[0], latest[-2:], before[0], before[-2:]) == ("v42", ["1", "ann"], "v41", ["-", "ann"])
    assert [release["name"] for release in taskqueue("releases", "--json").document["releases"]] == ["v41", "v42"]

    assert taskqueue("unmark", "v42").out == "release v42 is no longer marked\n"
    assert taskqueue("unmark", "v42").out == "release v42 was not marked\n"

    with Scheduler(url) as scheduler:
        assert [(entry.action, entry.target) for entry in scheduler.audit()][::-1] == [
            ("release", "v42"),
            ("unmark", "v42"),
            ("unmark", "v42"),
        ]


def test_the_mark_of_a_deployment_makes_the_store_of_the_first_one(taskqueue: Taskqueue) -> None:
    assert "no release is marked: `taskqueue release v42`" in taskqueue("releases").out

    assert taskqueue("release", "v1").code == Exit.OK
    assert taskqueue("release", "a\nb").code != Exit.OK
