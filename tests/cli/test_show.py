"""``show``, ``why``, ``cancel``, ``wait`` find the job that is meant, and leave with the documented code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from bson import ObjectId

from taskqueue import Scheduler, workflows
from taskqueue.cli import ids
from taskqueue.cli.context import StoreContext
from taskqueue.cli.wait import wait_and_report
from taskqueue.errors import JobNotFound
from taskqueue.exit_codes import Exit
from taskqueue.model.ids import JobId
from taskqueue.model.lifecycle.continuation import Continuation, Phase
from taskqueue.model.lifecycle.recovered_copy import copy
from taskqueue.model.query import parse
from taskqueue.model.record import Cause, Record, Status, replace
from taskqueue.model.wording import local
from taskqueue.store import Store
from tests.cli import records
from tests.cli.conftest import Answer

Taskqueue = Callable[..., Answer]


@pytest.fixture
def jobs(store: Store) -> Mapping[str, Record]:
    """Store a job in every state and return them by what they are."""
    added = records.in_every_status()
    store.add(list(added.values()))
    return added


def written(*endings: str) -> list[Record]:
    """Return records with these ends of ids, made in one second by two processes."""
    return [records.record(id=ObjectId(f"6740a1b2{ending}")) for ending in endings]


@pytest.mark.parametrize(
    ("short", "meant"),
    [
        ("6740a1b2aaaaaaaaaa000001", 0),
        ("6740A1B2AAAAAAAAAA000001", 0),
        ("6740a1b2..000002", 1),
        ("6740a1b2…000002", 1),
        ("6740a1b2b", 2),
        ("6740a1b2..000003", 2),
        ("6740a1b2ffffffffffff", 3),
        ("6740a1b2..ffffff", 3),
        ("67..fffffe", 4),
    ],
)
def test_an_id_can_be_shortened(store: Store, short: str, meant: int) -> None:
    added = written("aaaaaaaaaa000001", "aaaaaaaaaa000002", "bbbbbbbbbb000003", "ffffffffffffffff", "fffffffffefffffe")
    store.add(added)

    assert ids.resolve(store, short) == added[meant]


@pytest.mark.parametrize("short", ["6740a1b2", "6740a1b2..000001", "6"])
def test_an_id_that_means_several_jobs_names_them(taskqueue: Taskqueue, store: Store, short: str) -> None:
    store.add(written("aaaaaaaaaa000001", "bbbbbbbbbb000001"))

    answer = taskqueue("show", short)

    assert answer.code == Exit.NOT_FOUND
    named = "6740a1b2aaaaaaaaaa000001, 6740a1b2bbbbbbbbbb000001"
    assert answer.complaint == f"taskqueue: {short} matches several jobs: {named}: write more of the id"


def test_the_text_of_an_id_names_the_job_before_a_beginning_of_an_id(taskqueue: Taskqueue) -> None:
    id = taskqueue("add", "shop:Invoice", "--id", "65f0").out.strip()
    other = taskqueue("add", "shop:Invoice", "--id", "65f000000000000000000000", "--data", '{"n": 2}').out.strip()

    assert taskqueue("show", "65f0", "--json").document["id"] == id
    assert taskqueue("show", "65f00", "--json").document["id"] == other
    assert re.search(r"^id text +65f0$", taskqueue("show", "65f0").out, re.MULTILINE)
    assert taskqueue("show", other, "--json").document["id_text"] is None


def test_a_text_of_an_id_is_listed_and_taken_by_each_command(taskqueue: Taskqueue) -> None:
    id = taskqueue("add", "shop:Invoice", "--id", "invoice-7").out.strip()
    again = taskqueue("add", "shop:Invoice", "--id", "invoice-7")

    assert (again.out.strip(), again.complaint) == (
        id,
        "nothing was added: a job with the same id or unique key already exists",
    )
    assert taskqueue("list").out.splitlines()[1].split()[:2] == ["invoice-7", "shop:Invoice"]
    assert [job["id"] for job in taskqueue("list", "--query", '{"id_text": "invoice-7"}', "--json").document] == [id]
    assert taskqueue("why", "invoice-7").out.startswith(f"Job {id} (shop:Invoice:invoice-7) is WAITING.")
    assert taskqueue("update", "invoice-7", "--priority", "3").out == "invoice-7 is WAITING in queue default\n"
    assert taskqueue("cancel", "shop:Invoice:invoice-7").out == "invoice-7 is CANCELED\n"
    assert taskqueue("add", "shop:Mail", "--id", "invoice-7").code == Exit.OK
    ambiguous = taskqueue("show", "invoice-7")
    assert ambiguous.code == Exit.NOT_FOUND
    assert "it is the id of several jobs, so name the class as well: shop:" in ambiguous.complaint


def test_of_many_candidates_some_are_named(store: Store) -> None:
    store.add(written(*(f"aaaaaaaaaa{number:06x}" for number in range(9))))

    with pytest.raises(JobNotFound, match=r"matches several jobs: (\w{24}, ){5}…: write more"):
        ids.resolve(store, "6740a1b2")


@pytest.mark.parametrize(
    ("short", "complaint"),
    [
        ("6740a1b2aaaaaaaaaa000001", "taskqueue: there is no job 6740a1b2aaaaaaaaaa000001: "),
        ("12..34", "taskqueue: there is no job 12..34: "),
        ("mail", "taskqueue: 'mail' is not a job id: "),
        ("6740a1b2aaaaaaaaaa000001f", "taskqueue: '6740a1b2aaaaaaaaaa000001f' is not a job id: "),
        ("6740a1b2aaaaaaaaaa00..000001", "taskqueue: '6740a1b2aaaaaaaaaa00..000001' is not a job id: "),
        ("", "taskqueue: '' is not a job id: "),
        ("order:17", "taskqueue: 'order:17' is not a job id: write its 24 digits"),
        (
            "error:not found",
            (
                "taskqueue: 'error:not found' is not a job id: for jobs that match it use"
                " `taskqueue list 'error:not found'`; cancel and recover take --query 'error:not found'"
            ),
        ),
    ],
)
@pytest.mark.parametrize("command", ["show", "why", "cancel", "wait"])
def test_an_unknown_id_is_one_line(taskqueue: Taskqueue, command: str, short: str, complaint: str) -> None:
    answer = taskqueue(command, short)

    assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")
    assert answer.complaint.startswith(complaint)


def test_show_says_all_that_is_kept(taskqueue: Taskqueue, jobs: Mapping[str, Record]) -> None:
    record = jobs["failed"]
    shown = " ".join(taskqueue("show", str(record.id)).out.split())

    for words in (
        f"id {record.id} job shop.mail:MailJob status FAILED exhausted: OutOfStock queue mail, priority -3",
        "tags a, b unique key mail:7",
        "progress 99.6% page 2",
        "retry once, after 60 s; 1 failed so far crashes 1 of 3 allowed timeout 30 s",
        "a worker of its own (force_spawn)",
        'data { "to": "a@example.org" } state 7',
        "error Traceback … OutOfStock: teapots",
        "1 Failed web-1 4711",
        "3 s 512 MiB OutOfStock: no more teapots",
        "2 Crashed web-1 - - - 512 MiB SIGKILL",
    ):
        assert words in shown


@pytest.mark.parametrize("name", records.in_every_status())
def test_show_has_something_to_say_in_every_state(taskqueue: Taskqueue, jobs: Mapping[str, Record], name: str) -> None:
    record = jobs[name]

    answer = taskqueue("show", str(record.id))
    document = taskqueue("show", "--json", str(record.id)).document

    assert f" {record.status.name}" in answer.out
    assert (document["id"], document["status"]) == (str(record.id), record.status.name)
    assert document["waiting_for"] == [str(id) for id in record.waiting_for]


def test_show_names_the_key_of_a_copy(taskqueue: Taskqueue, store: Store, jobs: Mapping[str, Record]) -> None:
    again = copy(jobs["failed"], JobId(), None, store.now())
    store.add([again])

    shown = taskqueue("show", str(again.id))

    assert re.search(rf"^key +{jobs['failed'].id}$", shown.out, re.MULTILINE)


def test_long_data_is_cut_for_people_only(taskqueue: Taskqueue, store: Store) -> None:
    [added] = store.add([records.record(data=str(list(range(100))))])

    assert taskqueue("show", str(added.id)).out.endswith("\n… 62 more lines; --json writes all\n")
    assert taskqueue("show", str(added.id), "--json").document["data"] == list(range(100))


def test_why_says_it_in_words(taskqueue: Taskqueue, jobs: Mapping[str, Record]) -> None:
    answer = taskqueue("why", str(jobs["failed"].id))

    assert answer.code == 0
    assert "teapots" in answer.out


def test_cancel_says_what_became_of_each_job(taskqueue: Taskqueue, jobs: Mapping[str, Record], store: Store) -> None:
    meant = [jobs["waiting"], jobs["running"], jobs["done"]]

    answer = taskqueue("cancel", *(str(record.id) for record in meant), "--reason", "wrong customer")

    assert answer.code == 0
    assert answer.out.splitlines() == [
        f"{ids.short(meant[0].id)} is CANCELED",
        f"{ids.short(meant[1].id)} is running on node web-1 and was asked to end",
        f"{ids.short(meant[2].id)} had already ended as DONE",
    ]
    after = ids.resolve(store, str(meant[1].id))
    assert after.cancel is not None
    assert after.cancel.reason == "wrong customer"


def test_nothing_is_canceled_if_one_id_is_unknown(
    taskqueue: Taskqueue, jobs: Mapping[str, Record], store: Store
) -> None:
    assert taskqueue("cancel", str(jobs["waiting"].id), "0" * 24).code == Exit.NOT_FOUND
    assert ids.resolve(store, str(jobs["waiting"].id)).status is Status.WAITING


def test_cancel_writes_json_for_programs(taskqueue: Taskqueue, jobs: Mapping[str, Record]) -> None:
    [document] = taskqueue("cancel", "--json", str(jobs["retry"].id)).document

    assert (document["status"], document["cause"]) == ("CANCELED", "canceled")


def test_cancel_counts_the_jobs_that_match_and_cancels_them_when_told_to(
    taskqueue: Taskqueue, jobs: Mapping[str, Record], store: Store
) -> None:
    store.add([records.record(queue="kept")])
    pending = [record for record in jobs.values() if record.status.is_pending]
    running = [record for record in pending if record.status is Status.PROCESSING]
    waiting = len(pending) - len(running)

    counted = taskqueue("cancel", "--query", '{"queue": {"$ne": "kept"}}')
    assert store.count(parse({"status": "CANCELED"})) == 1
    told = taskqueue("cancel", "--query", '{"queue": {"$ne": "kept"}}', "--reason", "added twice", "--yes")

    assert counted.out == f"would cancel {len(pending)} jobs: pass --yes to cancel them\n"
    assert told.out == f"canceled {waiting} jobs; asked {len(running)} running jobs to end\n"
    assert {ids.resolve(store, str(record.id)).status for record in pending} == {Status.CANCELED, Status.PROCESSING}
    assert [record.queue for record in store.find(parse({"status": "WAITING"}))] == ["kept"]
    assert taskqueue("cancel", "--query", '{"queue": "kept"}', "--yes", "--json").document == {
        "found": 1,
        "asked_to_end": 0,
        "canceled": 1,
    }


@pytest.mark.parametrize("command", ["cancel", "give-up", "recover"])
def test_a_command_for_jobs_takes_ids_or_a_query(taskqueue: Taskqueue, command: str) -> None:
    both, neither = taskqueue(command, "65f0", "--query", "{}"), taskqueue(command)

    assert (both.code, neither.code) == (Exit.USAGE, Exit.USAGE)
    assert "name the jobs by ID or with --query, not both" in both.complaint
    assert "name the jobs by ID or with --query (see" in neither.complaint


def test_wait_tells_how_ended_jobs_ended(taskqueue: Taskqueue, jobs: Mapping[str, Record]) -> None:
    done, failed = jobs["done"], jobs["failed"]

    fine = taskqueue("wait", str(done.id), str(done.id))
    bad = taskqueue("wait", str(done.id), str(failed.id))

    assert fine.code == Exit.OK
    assert fine.out == 2 * f'{ids.short(done.id)} DONE {{"sent":1}}\n'
    assert bad.code == Exit.UNSUCCESSFUL
    assert bad.out.splitlines()[1:] == [f"{ids.short(failed.id)} FAILED shop.errors.OutOfStock: no more teapots"]
    assert (
        taskqueue("wait", "--json", str(failed.id)).document[0]["attempts"][0]["error"]["type"] == records.FAILURE.type
    )


def test_a_wait_that_gives_up_tells_what_has_ended(taskqueue: Taskqueue, jobs: Mapping[str, Record]) -> None:
    both = (str(jobs["done"].id), str(jobs["running"].id))

    answer = taskqueue("wait", *both, "--timeout", "20ms")

    assert answer.code == Exit.UNFINISHED
    assert answer.out.startswith(f"{ids.short(jobs['done'].id)} DONE")
    assert len(answer.out.splitlines()) == 1
    assert answer.complaint.startswith(f"taskqueue: still open after 0.02 s: {both[1]}")
    assert [job["id"] for job in taskqueue("wait", *both, "--timeout", "20ms", "--json").document] == [both[0]]


def test_wait_gives_up_after_its_timeout(taskqueue: Taskqueue, jobs: Mapping[str, Record]) -> None:
    answer = taskqueue("wait", str(jobs["running"].id), "--timeout", "20ms")

    assert answer.code == Exit.UNFINISHED
    assert str(jobs["running"].id) in answer.complaint


class EndedBehindTheWait:
    """A store in which a job ends before it is read."""

    def __init__(self, store: Store, id: JobId) -> None:
        self._store = store
        self._id = id

    def find(self, *wanted: Any, **bounds: Any) -> Any:
        self._store.cancel(self._id, "late", self._store.now())
        return self._store.find(*wanted, **bounds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_job_that_ends_with_the_time_of_the_wait_has_ended(
    url: str, store: Store, jobs: Mapping[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    id = jobs["waiting"].id
    context = StoreContext(url)
    context.__dict__["store"] = EndedBehindTheWait(store, id)

    assert wait_and_report(context, [id], 0.0, as_json=False) == Exit.UNSUCCESSFUL
    assert capsys.readouterr() == (f"{ids.short(id)} CANCELED Canceled: late\n", "")
    context.scheduler.close()


def test_show_tells_the_phase_and_the_reports_of_a_job_in_steps(taskqueue: Taskqueue, store: Store) -> None:
    course = Continuation(phase=Phase.RUNNING, steps=12, reports='{"records":1200}', crashes=4)
    stepping = records.record(course=course, crashes=5, cursor='{"":7}', cause=Cause.STEPPED)
    stepping = replace(stepping, progress=3, progress_at=stepping.created_at)
    store.add([stepping])

    shown = " ".join(taskqueue("show", str(stepping.id)).out.split())
    in_full = taskqueue("show", str(stepping.id), "--json").document

    for line in (
        "phase running, iterations done: 12",
        f"reported {local(stepping.created_at)}",
        'loops {"":7}',
        "crashes 1 of 3 allowed, 4 more before it continued",
        '"records": 1200',
    ):
        assert line in shown
    assert (in_full["phase"], in_full["steps"], in_full["cursor"]) == ("running", 12, {"": 7})
    assert in_full["reports"] == {"records": 1200}


def test_the_period_of_a_key_and_what_is_received_are_shown(taskqueue: Taskqueue, url: str) -> None:
    with Scheduler(url) as scheduler:
        first = scheduler.add_job("shop:Fetch", unique="k", unique_for="1h")
        second = scheduler.add_job("shop:Parse", depends_on=first, receives={"page": "result"})

    assert re.search(r"unique key +k, taken until 20\d\d-", taskqueue("show", str(first.id)).out)
    assert re.search(r"receives +page=result", taskqueue("show", str(second.id)).out)


def test_the_workflow_of_a_member_is_drawn(taskqueue: Taskqueue, url: str) -> None:
    with Scheduler(url) as scheduler:
        flow = workflows.chain(scheduler, "shop:Fetch", ["shop:Resize", "shop:Resize"], "shop:Publish")

    drawn = taskqueue("show", str(flow.processes[1].id)).out.partition("workflow\n")[2].splitlines()

    assert drawn == [
        f"shop:Fetch WAITING {flow.id}",
        "└─ 2 × shop:Resize 2 POSTPONED",
        f"   └─ shop:Publish POSTPONED {flow.processes[3].id}",
    ]
    assert str(flow.id) in taskqueue("why", str(flow.processes[1].id)).out


def test_why_has_the_shape_of_a_job(taskqueue: Taskqueue) -> None:
    id = taskqueue("add", "shop:Report").out.strip()

    document = taskqueue("why", id, "--json").document

    assert (document["id"], document["job"]) == (id, "shop:Report")
    *_, nodes, in_short = document["why"].splitlines()
    assert nodes == "No node is running on this store: start one with `taskqueue-node`."
    assert in_short == "In short: no node takes jobs of queue default."


def test_the_last_stack_of_a_job_is_shown(taskqueue: Taskqueue, store: Store) -> None:
    failed = records.in_full()
    stack = 'Main thread (most recent call first):\n  File "/app/shop.py", line 12 in charge'
    store.add([replace(failed, attempts=(failed.attempts[0]._replace(stack=stack),))])

    assert f"\nstack of the last attempt when it was ended\n{stack}\n" in taskqueue("show", str(failed.id)).out
    assert taskqueue("show", "--json", str(failed.id)).document["attempts"][0]["stack"] == stack
