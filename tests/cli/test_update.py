"""``update`` and ``recover`` change waiting jobs and copy ended ones; ``add --here`` runs a job in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from bson import ObjectId

from taskqueue.exit_codes import Exit
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.continuation import Continuation, Phase
from taskqueue.model.query import EVERYTHING, parse
from taskqueue.model.record import Cause, Dependency, Holder, Record, Status
from taskqueue.model.retry import ExponentialRetry, FilteredRetry, FixedRetry
from taskqueue.store import ClaimRequest, Store
from tests.cli import records
from tests.cli.conftest import Answer

Taskqueue = Callable[..., Answer]

ECHO = "tests.scheduler.jobs:Echo"


def kept(store: Store, id: JobId | str) -> Record:
    """Return the record of this id."""
    [found] = store.find(parse({"id": str(id)}))
    return found


def test_update_changes_what_is_named(taskqueue: Taskqueue, store: Store) -> None:
    first, second = store.add([records.record(tags=("a",)), records.record()])

    answer = taskqueue(
        *("update", str(first.id), str(second.id), "--priority", "-3", "--queue", "slow", "--at", "+1 hour"),
        *("--tags", "b", "--tags", "c", "--data", '{"to": "b"}'),
    )

    assert answer.code == 0
    assert answer.out.count("is POSTPONED in queue slow\n") == 2
    for id in (first.id, second.id):
        after = kept(store, id)
        assert (after.priority, after.queue, after.tags, after.data) == (-3, "slow", ("b", "c"), '{"to":"b"}')
        assert after.ready_at is not None
        assert after.ready_at - store.now() > timedelta(minutes=50)


def test_update_sets_the_keys_of_meta_that_are_named(taskqueue: Taskqueue, store: Store) -> None:
    [job] = store.add([records.record(given={"meta": {"tenant": "acme", "added_by": "ann"}})])

    assert taskqueue("update", str(job.id), "--meta", "tenant=beta", "--meta", "batch=7").code == 0
    assert kept(store, job.id).meta == {"tenant": "beta", "added_by": "ann", "batch": "7"}


def test_update_sets_data_to_null(taskqueue: Taskqueue, store: Store) -> None:
    [job] = store.add([records.record(data="[1]")])

    assert taskqueue("update", str(job.id), "--data", "null").code == 0
    assert kept(store, job.id).data == "null"


def test_tags_are_named_or_taken_away(taskqueue: Taskqueue, store: Store) -> None:
    [job] = store.add([records.record(tags=("a",))])

    answer = taskqueue("update", str(job.id), "--tags", "b", "--no-tags")

    assert answer.code == Exit.USAGE
    assert "--no-tags" in answer.complaint
    assert kept(store, job.id) == job


def test_update_lets_a_job_go_and_takes_its_tags(taskqueue: Taskqueue, store: Store) -> None:
    scheduled = records.in_every_status()["scheduled"]
    store.add([scheduled])

    [told] = taskqueue("update", str(scheduled.id), "--at", "now", "--no-tags", "--json").document

    assert (told["status"], told["tags"]) == ("WAITING", [])
    assert kept(store, scheduled.id).status is Status.WAITING


@pytest.mark.parametrize(
    ("which", "arguments", "code", "words"),
    [
        ("done", ["--priority", "1"], Exit.ERROR, "is DONE: a job can be updated while it is WAITING or POSTPONED"),
        ("waiting", [], Exit.CONFIG, "update_job: nothing to change"),
        ("waiting", ["--priority", "90"], Exit.CONFIG, "--priority: 90: pass a whole number"),
    ],
)
def test_an_update_that_cannot_be_is_one_line(
    taskqueue: Taskqueue, store: Store, which: str, arguments: list[str], code: Exit, words: str
) -> None:
    record = records.in_every_status()[which]
    store.add([record])

    answer = taskqueue("update", str(record.id), *arguments)

    assert answer.code == code
    assert words in answer.complaint
    assert kept(store, record.id) == record


def test_recover_prints_the_ids_of_the_copies(taskqueue: Taskqueue, store: Store) -> None:  # REC-33
    jobs = records.in_every_status()
    store.add(list(jobs.values()))

    answer = taskqueue("recover", str(jobs["failed"].id), str(jobs["canceled"].id))

    copies = [kept(store, id) for id in answer.out.split()]
    assert answer.code == 0
    assert [copy.given["recovered_from"] for copy in copies] == [str(jobs["failed"].id), str(jobs["canceled"].id)]
    assert {copy.status for copy in copies} == {Status.WAITING}
    assert kept(store, jobs["failed"].id) == replace(jobs["failed"], given={"recovered_as": str(copies[0].id)})


def test_recover_runs_the_failed_part_of_a_workflow_again(taskqueue: Taskqueue, store: Store) -> None:
    first, second = ObjectId("65f0" * 6), ObjectId("65f1" * 6)
    flow = {
        "tags": (f"workflow:{first}",),
        "given": {"workflow": f"{first}"},
        "ready_at": None,
        "ended_at": records.NOW,
    }
    store.add(
        [
            records.record(id=first, status=Status.FAILED, cause=Cause.EXHAUSTED, error=records.FAILURE, **flow),
            records.record(
                id=second, status=Status.CANCELED, cause=Cause.DEPENDENCY, depends_on=(Dependency(id=first),), **flow
            ),
        ]
    )

    copies = [kept(store, id) for id in taskqueue("recover", "--workflow", "65f1").out.split()]

    assert [copy.given["recovered_from"] for copy in copies] == [str(first), str(second)]
    assert (copies[0].status, copies[1].waiting_for) == (Status.WAITING, (copies[0].id,))
    again = taskqueue("recover", "--workflow", "65f0")
    assert (again.code, again.complaint) == (0, "no failed job is left to run again")
    assert taskqueue("recover", "--workflow", "65f0", "--json").document == []
    assert taskqueue("recover", "--workflow", "--query", "{}").code == Exit.USAGE
    [entry] = [entry for entry in taskqueue("audit", "--json").document if entry["about"]["job"]][-1:]
    assert (entry["action"], entry["target"]) == ("run failed part again", str(first))


def test_a_job_whose_unique_key_another_has_is_not_recovered(taskqueue: Taskqueue, store: Store) -> None:
    ended = records.record(status=Status.FAILED, cause=Cause.FAILED, unique="key")
    holder = records.record(unique="key")
    free = records.record(status=Status.FAILED, cause=Cause.FAILED)
    store.add([free, ended, holder])

    answer = taskqueue("recover", str(free.id), str(ended.id))

    assert answer.code == Exit.CONFIG
    assert kept(store, answer.out.strip()).given["recovered_from"] == str(free.id)  # it was added before
    assert f"job {holder.id} " in answer.err
    asked = taskqueue("recover", "--query", '{"status": "FAILED"}', "--yes")
    assert (asked.code, asked.out) == (0, "")
    assert "left out, another pending job has their unique key: 1\n" in asked.err
    assert taskqueue("recover", "--query", '{"status": "FAILED"}', "--yes", "--json").document == {
        "found": 0, "left_out": 1, "taken": 1, "copies": [],
    }  # fmt: skip


def test_jobs_that_wait_to_run_again_are_given_up(taskqueue: Taskqueue, store: Store) -> None:
    retried = [records.record(status=Status.POSTPONED, error=records.FAILURE, tags=(tag,)) for tag in ("a", "b", "c")]
    first, course = str(retried[0].id), Continuation(phase=Phase.RUNNING)
    steps = records.record(status=Status.POSTPONED, error=records.FAILURE, tags=("d",), course=course)
    store.add([*retried, steps, records.record(id=ObjectId("65f0" * 6))])

    assert taskqueue("give-up", first, "--reason", "closed").out.split()[1:] == ["is", "FAILED"]
    assert taskqueue("give-up", str(steps.id)).out.split()[1:] == ["is", "WAITING,", "to", "clean", "up"]
    given_up = kept(store, first)
    assert given_up.error is not None
    assert given_up.error.message.endswith(" (closed)")
    assert taskqueue("give-up", "65f0").complaint.endswith("can be given up while it waits to run again after an error")
    assert taskqueue("give-up").code == Exit.USAGE
    several = ("give-up", "--query", "tag:b")
    assert taskqueue(*several).out == "would give up 1 job: pass --yes to give them up\n"
    assert taskqueue(*several, "--yes").out == "gave up 1 job\n"
    assert taskqueue("give-up", "--query", "{}", "--yes", "--json").document == {"found": 1, "given_up": 1}


def test_recover_takes_a_query(taskqueue: Taskqueue, store: Store) -> None:
    jobs = records.in_every_status()
    store.add(list(jobs.values()))

    told = taskqueue(
        "recover", "--query", '{"status": {"$in": ["FAILED", "TIMEOUT"]}}', "--at", "+1 hour", "--yes", "--json"
    )

    document = told.document
    assert [job["status"] for job in document.pop("copies")] == ["POSTPONED", "POSTPONED"]
    assert document == {"found": 2, "left_out": 0, "taken": 0}


def test_without_yes_jobs_of_a_query_are_counted_and_not_recovered(taskqueue: Taskqueue, store: Store) -> None:
    jobs = records.in_every_status()
    store.add(list(jobs.values()))
    taskqueue("recover", str(jobs["timeout"].id))
    before = store.count(EVERYTHING)
    command = ("recover", "--query", '{"status": {"$in": ["FAILED", "TIMEOUT"]}}')

    told = taskqueue(*command)
    assert told.out == "would run 1 job again: pass --yes to add a copy of each\n"
    assert told.complaint == "left out, already recovered: 1; name them by ID to run them again"
    assert taskqueue(*command, "--json").document == {"found": 1, "left_out": 1, "taken": 0, "copies": []}
    assert store.count(EVERYTHING) == before


def test_a_query_leaves_out_what_was_recovered_before_and_says_so(taskqueue: Taskqueue, store: Store) -> None:
    jobs = records.in_every_status()
    store.add(list(jobs.values()))
    copy = taskqueue("recover", str(jobs["failed"].id)).out.strip()

    told = taskqueue("recover", "--query", '{"status": {"$in": ["FAILED", "TIMEOUT"]}}', "--yes")

    assert told.out.split() != [copy]
    assert len(told.out.split()) == 1
    assert told.complaint == "left out, already recovered: 1; name them by ID to run them again"
    assert f"recovered as  {copy}" in taskqueue("show", str(jobs["failed"].id)).out


def test_recover_leaves_out_jobs_that_ended_before_since(taskqueue: Taskqueue, store: Store) -> None:
    failed = records.in_every_status()["failed"]
    [earlier, later] = (replace(failed, id=JobId(), ended_at=store.now() - timedelta(minutes=ago)) for ago in (90, 30))
    store.add([earlier, later])

    told = taskqueue("recover", "--query", '{"status": "FAILED"}', "--since", "1h", "--yes")

    [copy] = told.out.split()
    assert kept(store, copy).given["recovered_from"] == str(later.id)
    assert "recovered_as" not in kept(store, earlier.id).given


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], Exit.USAGE, "name the jobs by ID or with --query"),
        (["65f0", "--since", "1h"], Exit.USAGE, "--since needs --query"),
        (["65f0", "--query", "{}"], Exit.USAGE, "not both"),
        (["65f0" * 6], Exit.NOT_FOUND, "there is no job"),
        (["--query", "[1]"], Exit.CONFIG, "query"),
    ],
)
def test_a_recovery_that_cannot_be_is_one_line(
    taskqueue: Taskqueue, arguments: list[str], code: Exit, words: str
) -> None:
    answer = taskqueue("recover", *arguments)

    assert answer.code == code
    assert words in answer.complaint


def test_what_waits_is_not_recovered(taskqueue: Taskqueue, store: Store) -> None:
    waiting = records.record()
    store.add([waiting])

    answer = taskqueue("recover", str(waiting.id))

    assert (answer.code, answer.out) == (Exit.ERROR, "")
    assert "is WAITING: a job can be recovered once it has ended" in answer.complaint


def test_add_here_runs_the_job_in_this_process(taskqueue: Taskqueue, store: Store) -> None:  # REC-4
    answer = taskqueue("add", ECHO, "--data", "[1]", "--here")

    [record] = store.find(EVERYTHING)
    assert (answer.code, answer.out) == (0, f"{record.id} is DONE [1]\n")
    assert record.result == "[1]"


def test_add_here_tells_of_a_failure(taskqueue: Taskqueue, store: Store) -> None:
    answer = taskqueue("add", "tests.scheduler.jobs:Broken", "--here", "--retry", "1", "--json")

    [record] = store.find(EVERYTHING)
    assert answer.code == Exit.UNSUCCESSFUL
    assert answer.document["id"] == str(record.id)
    assert (record.status, record.failures) == (Status.POSTPONED, 1)


def test_add_here_says_why_a_job_failed_and_what_follows(taskqueue: Taskqueue, store: Store) -> None:
    failed = taskqueue("add", "tests.scheduler.jobs:Broken", "--here")
    retried = taskqueue("add", "tests.scheduler.jobs:Broken", "--here", "--retry", "1")

    assert failed.code == retried.code == Exit.UNSUCCESSFUL
    assert failed.out.endswith(" is FAILED ValueError: no such address, attempt 1\n")
    assert " is POSTPONED ValueError: no such address, attempt 1, retry in " in retried.out


@pytest.mark.parametrize("option", ["--unique", "--id"])
def test_add_here_says_that_nothing_was_run(taskqueue: Taskqueue, store: Store, option: str) -> None:
    key = (option, "6740a1b2000000000000000f")
    id = taskqueue("add", ECHO, *key).out.strip()

    answer = taskqueue("add", ECHO, *key, "--here")

    assert (answer.code, answer.out) == (Exit.UNSUCCESSFUL, f"{id} is WAITING\n")
    assert answer.complaint == "nothing was run: a job with the same id or unique key already exists"
    assert taskqueue("add", ECHO, *key, "--here", "--json").document["id"] == id


def test_add_here_says_that_a_limit_has_no_room(taskqueue: Taskqueue, store: Store) -> None:
    limit = ("--limits", "1 name=license")
    taskqueue("add", ECHO, *limit)
    now = store.now()
    store.claim(
        Holder(seat="web-1", incarnation="i"), ClaimRequest(pooled=1, forced=0), now, now + timedelta(minutes=1)
    )

    answer = taskqueue("add", ECHO, *limit, "--here")

    assert (answer.code, answer.out.endswith(" is WAITING\n")) == (Exit.UNSUCCESSFUL, True)
    assert answer.complaint == "nothing was run: the job's limits are used up; a node will run it when there is room"


def test_a_retry_policy_is_given_as_its_document(taskqueue: Taskqueue, store: Store) -> None:
    policy = ExponentialRetry(times=3, jitter=0.5)

    taskqueue("add", ECHO, "--retry", json.dumps(policy.document()))

    [record] = store.find(EVERYTHING)
    assert record.options.retry == policy


def test_a_document_that_is_no_policy_is_refused(taskqueue: Taskqueue, store: Store) -> None:
    answer = taskqueue("add", ECHO, "--retry", '{"policy": "soon"}')

    assert answer.code == Exit.CONFIG
    assert "'soon' is not a retry policy: use fixed" in answer.complaint
    assert store.count(EVERYTHING) == 0


def test_what_is_retried_can_be_said(taskqueue: Taskqueue, store: Store) -> None:
    taskqueue(
        *("add", ECHO, "--retry", "2", "--retry-on", "ValueError", "--retry-on", "app.errors.Refused"),
        *("--no-retry-on-timeout", "--stall-timeout", "5m"),
    )

    [record] = store.find(EVERYTHING)
    assert record.options.retry == FilteredRetry(FixedRetry(2), ("ValueError", "app.errors.Refused"))
    assert (record.options.retry_on_timeout, record.options.stall_timeout) == (False, 300.0)


def test_a_job_in_steps_that_is_canceled_between_two_of_them_waits_to_clean_up(
    taskqueue: Taskqueue, store: Store
) -> None:
    [job] = store.add([records.record(course=Continuation(phase=Phase.RUNNING))])

    answer = taskqueue("cancel", str(job.id))

    assert answer.out.endswith(" is WAITING, to clean up\n")
