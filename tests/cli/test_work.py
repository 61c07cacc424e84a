"""``taskqueue class`` and ``taskqueue queue`` show how one class, or one queue, does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.insight.work_report import options_in_words
from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.model.limits import Limit, lane
from taskqueue.model.record import Failure, Options, Record
from taskqueue.store import Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.cli.test_hostile_text import EVIL, UNSEEN
from tests.store.records import MINUTE, SECOND, a_record, claim, running
from tests.store.test_work_reports import ran

Taskqueue = Callable[..., Answer]
INVOICE = "shop.jobs:MakeInvoice"
MAIL = "shop.jobs:SendMail"


@pytest.fixture
def jobs(store: Store) -> dict[str, Record]:
    """Run jobs of two classes, one of which fails for one customer, and leave one running and one waiting."""
    now = store.now()
    error = Failure(type="builtins.KeyError", message="'vat'", traceback="…")
    meta: dict[str, Any] = {"given": {"meta": {"tenant": "acme", "api_token": "s3cret"}}}
    for number in range(4):
        ran(store, now - number * MINUTE, 2 * SECOND, job=INVOICE, queue="billing", tags=("customer:acme",), **meta)
    bad = ran(store, now - MINUTE, 40 * SECOND, Failed(failure=error), job=INVOICE, queue="billing", tags=("initech",))
    ran(store, now - MINUTE, job=MAIL, queue="mail")
    limited = lane([Limit(1)], INVOICE, None)
    runs = running(store, a_record(job=INVOICE, queue="billing", lane=limited, created_at=now, ready_at=now), now=now)
    waiting = a_record(job=INVOICE, queue="billing", lane=limited, created_at=now, ready_at=now)
    store.add([waiting])
    return {"bad": bad, "running": runs, "waiting": waiting}


def rows(said: str, title: str) -> list[list[str]]:
    """Return the cells of the lines of a table, without its heading."""
    lines = said.rpartition(f"\n{title}")[2].partition("\n\n")[0].splitlines()[2:]
    return [line.split() for line in lines]


def test_the_options_of_a_class_include_its_limits_without_the_value_of_one_job() -> None:
    limited = lane([Limit(5, by="bucket")], INVOICE, {"bucket": "s3cret"})

    options = dict(options_in_words(a_record(job=INVOICE, lane=limited)))

    assert options["limits"] == f"at most 5 at once of {INVOICE} by=bucket"


def test_a_class_shows_figures_histograms_errors_customers_and_slow_runs(
    taskqueue: Taskqueue, jobs: dict[str, Record]
) -> None:
    said = taskqueue("class", INVOICE).out

    assert said.splitlines()[0] == f"class {INVOICE}"
    assert "5 jobs ended in the last hour, 20 % failed; 95 of 100 runs took at most 40 s." in said
    assert rows(said, "hour, day and week")[:3] == [["added", *["7"] * 3], ["done", *["4"] * 3], ["failed", *["1"] * 3]]
    assert ["2", "s", "4", "#" * 24, "p50"] in rows(said, "run time")
    assert rows(said, "errors")[0][0] == "1"
    assert "builtins.KeyError: 'vat'" in said
    assert rows(said, "tags and meta")[0] == ["initech", "1", "1", "100", "%"]
    assert ["tenant=acme", "4", "0", "0", "%"] in rows(said, "tags and meta")
    assert [row[0] for row in rows(said, "the slowest")] == [str(jobs["bad"].id)]
    assert rows(said, "running")[0][0] == str(jobs["running"].id)
    assert rows(said, "limits")[0][-4:] == ["1", "of", "1", "1"]
    assert "s3cret" not in said
    assert MAIL not in said


def test_a_class_shows_how_it_keeps_its_promise(taskqueue: Taskqueue, store: Store) -> None:
    options = Options(begin_within=30.0, promise=0.9)
    now = store.now()
    for number in range(4):
        ran(store, now - number * MINUTE, job=MAIL, options=options)
    ran(store, now - MINUTE, job=MAIL, options=options, ready_at=now - 4 * MINUTE)

    said = " ".join(taskqueue("class", "Mail").out.split())
    assert "promise 90 % start within 30 s kept 80 % of 5 jobs started within 30 s since " in said
    assert "(promised: 90 %); the error budget is used up: 1 job was late, 0 may be " in said
    promise = taskqueue("class", "Mail", "--json").document["promise"]
    assert (promise["share"], promise["begin_within"], promise["kept"], promise["late"]) == (0.9, 30, 4, 1)
    assert promise["budget_left"] == pytest.approx(-1)
    [finding] = [one for one in taskqueue("doctor", "--json").document if one["about"] == "promise"]
    assert finding["finding"].startswith(f"{MAIL}: 80 % of 5 jobs started within 30 s since ")
    assert taskqueue("queue", "default", "--json").document["promise"] is None


def test_a_queue_shows_its_backlog_and_its_classes(taskqueue: Taskqueue, jobs: dict[str, Record]) -> None:
    said = taskqueue("queue", "bill", "--over", "7d").out

    assert said.splitlines()[0] == "queue billing"
    assert "waiting  1, the oldest for " in said
    assert rows(said, "by class")[0][:2] == [INVOICE, "5"]
    assert "run time, last 7 days" in said


def test_programs_get_the_same(taskqueue: Taskqueue, store: Store, jobs: dict[str, Record]) -> None:
    document = taskqueue("class", "invoice", "--over", "1h", "--json").document

    assert (document["store"], document["of"], document["name"], document["over"]) == (
        store.url,
        "class",
        INVOICE,
        "1h",
    )
    work = document["work"]["1h"]
    assert (work["done"], work["failed"], work["failed_share"], work["running"]["p99"]) == (4, 1, 0.2, 40.0)
    assert work["running"]["buckets"][0] == {"up_to": 2.0, "jobs": 4}
    assert sum(part["done"] for part in document["parts"]) == 4
    [error] = document["errors"]
    assert (error["fingerprint"], error["failed"], error["query"]["job"]) == ("builtins.KeyError: 'vat'", 1, INVOICE)
    assert {"meta": {"tenant": "acme"}, "jobs": 4, "failed": 0} in document["last"]["shares"]
    assert [job["id"] for job in document["runs"]] == [str(jobs["running"].id)]
    assert document["slowest"][0]["took"] == 40.0
    assert document["options"]["timeout"] is None
    assert [limit["used"] for limit in document["limits"]] == [1]
    assert [queue["name"] for queue in document["queues"]] == ["billing"]


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ("class", "shop.jobs:MakeInvoce"),
            f"no class 'shop.jobs:MakeInvoce' had jobs within 7 days: did you mean {INVOICE}?",
        ),
        (("class", "shop"), f"'shop' matches several names: {INVOICE}, {MAIL}"),
        (("queue", "nowhere"), "no queue 'nowhere' has jobs: see `taskqueue stats`"),
        (("class", INVOICE, "--over", "1y"), "--over: '1y' is not one of"),
    ],
)
def test_a_name_or_time_that_means_nothing_is_refused(
    taskqueue: Taskqueue, arguments: tuple[str, ...], complaint: str
) -> None:
    answer = taskqueue(*arguments)

    assert answer.code == Exit.CONFIG
    assert complaint in answer.complaint


def test_text_of_jobs_cannot_command_a_terminal(taskqueue: Taskqueue, store: Store) -> None:
    now = store.now()
    evil = Failure(type="shop.Bad", message=EVIL)
    ran(store, now - MINUTE, SECOND, Failed(failure=evil), job=f"shop:{EVIL}", queue=EVIL, tags=(EVIL,))
    store.add([replace(records.record(), job=f"shop:{EVIL}", queue=EVIL, created_at=now, ready_at=now + timedelta(0))])
    claim(store, now=now)

    for command in (["class", "shop"], ["queue", EVIL], ["class", "shop", "--json"]):
        answer = taskqueue(*command)
        assert answer.code == Exit.OK, answer.err
        assert UNSEEN.search(answer.out) is None
