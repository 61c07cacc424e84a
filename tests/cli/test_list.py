"""``taskqueue list`` and ``taskqueue stats`` show what is in the store, to people and to programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest

from taskqueue.cli import ids
from taskqueue.exit_codes import Exit
from taskqueue.insight.overview_reader import OverviewReader
from taskqueue.model.lifecycle.outcomes import Failed
from taskqueue.model.record import Failure, Holder, Options, Status
from taskqueue.store import ClaimRequest, Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.nodes import LIMIT
from tests.store.records import a_record, finished

Taskqueue = Callable[..., Answer]


@pytest.fixture
def jobs(store: Store) -> dict[str, str]:
    """Store a job in every state and return their full ids by what they are."""
    added = records.in_every_status()
    store.add(list(added.values()))
    return {name: str(record.id) for name, record in added.items()}


def test_an_empty_store_is_said_in_words(taskqueue: Taskqueue) -> None:
    assert taskqueue("list").out == "no jobs\n"
    assert taskqueue("stats").out == "no jobs\n"
    assert taskqueue("list", "--json").document == []


def test_list_shows_each_job_with_its_cause(taskqueue: Taskqueue, jobs: dict[str, str]) -> None:
    head, *lines = taskqueue("list").out.splitlines()
    shown = {line.split()[0]: line for line in lines}

    assert head.split() == ["id", "job", "status", "queue", "age", "done", "tries", "cause"]
    for name, words in {
        "waiting": "shop.mail:MailJob WAITING default 10 d - 0",
        "interrupted": "WAITING default 10 d - 0 after interrupted",
        "behind": "POSTPONED default 10 d - 0 waits for 1 job",
        "retry": "POSTPONED default 10 d - 2 retry in 2 d",
        "running": "PROCESSING default 10 d 45% 1 page 9, on web-1",
        "silent": "PROCESSING default 10 d 0% 1 on web-1",
        "done": "DONE default 10 d 100% 1 returned",
        "failed": "FAILED mail 10 d 99.6% 2 exhausted: OutOfStock",
        "canceled": "CANCELED default 10 d - 0 canceled",
        "timeout": "TIMEOUT default 10 d - 1 timed out: OutOfStock",
    }.items():
        assert words in " ".join(shown[f"{jobs[name][:8]}..{jobs[name][-6:]}"].split())
    assert not any(line.endswith(" ") for line in lines)


def test_a_wide_list_has_node_times_tags_meta_and_error_and_cuts_nothing(taskqueue: Taskqueue, store: Store) -> None:
    message = "the relay refused ann@example.org: " + "mailbox full " * 20
    tagged = a_record(tags=("customer:initech", "vat"), given={"meta": {"tenant": "acme"}})
    finished(store, tagged, Failed(failure=Failure(type="builtins.OSError", message=message)))

    head, line = taskqueue("list", "-o", "wide").out.splitlines()

    assert head.split()[-6:] == ["node", "began", "took", "tags", "meta", "error"]
    assert all(cell in line for cell in ("  web-1  ", "  1 s  ", "  customer:initech,vat  ", "  tenant=acme  "))
    assert line.endswith(f"builtins.OSError: {message}".strip())
    assert taskqueue("list", "-o", "json").document == taskqueue("list", "--json").document


def test_a_declared_name_is_shown_and_the_class_where_there_is_room(taskqueue: Taskqueue, store: Store) -> None:
    [named] = store.add([a_record(options=Options(name="Send an invoice"))])

    assert " Send an invoice  WAITING" in taskqueue("list").out
    assert f"Job {named.id} (Send an invoice, {named.job}) is WAITING." in taskqueue("why", str(named.id)).out
    assert "name    Send an invoice" in taskqueue("show", str(named.id)).out


def test_a_waiting_job_of_a_paused_queue_says_so(taskqueue: Taskqueue, jobs: dict[str, str]) -> None:
    def cause_of(name: str) -> str:
        [line] = [line for line in taskqueue("list").out.splitlines() if line.split()[0][-6:] == jobs[name][-6:]]
        return line.split(" - ", 1)[1].strip()

    assert "paused" not in taskqueue("list").out
    taskqueue("pause", "default")

    assert cause_of("waiting").endswith("  queue is paused")
    assert cause_of("interrupted").endswith("after interrupted, queue is paused")
    assert taskqueue("list").out.count("paused") == 2
    assert "queue is paused" in taskqueue("show", jobs["waiting"]).out
    taskqueue("pause", "--all")
    assert cause_of("waiting").endswith("every queue is paused")


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--status", "done"], {"done"}),
        (["--status", "DONE", "--status", "timeout"], {"done", "timeout"}),
        (["--status", "final"], {"done", "failed", "canceled", "timeout"}),
        (["--queue", "mail"], {"failed"}),
        (["--tag", "a", "--tags", "b"], {"failed"}),
        (["--tag", "a", "--tag", "c"], set()),
        (["--job", "shop.mail:MailJob", "--status", "processing"], {"running", "silent"}),
        (["--query", '{"data.to": "a@example.org"}'], {"failed"}),
        (["--query", "data.to:a@example.org status:failed"], {"failed"}),
        (["--failed"], {"failed"}),
        (["--class", "MailJob", "--status", "running"], {"running", "silent"}),
        (["class:Mail", "status:running"], {"running", "silent"}),
        (["class:Mail", "--status", "done"], {"done"}),
        (["tag:a", "tag:b"], {"failed"}),
        (["status:failed,timeout", "queue:mail"], {"failed"}),
        (["error:Out", "status:timeout"], {"timeout"}),
        (["--meta", "tenant=acme"], set()),
        (["tenant:acme"], set()),
        (["--query", '{"failures": {"$gt": 1}}'], {"retry"}),
    ],
)
def test_filters_leave_what_matches(
    taskqueue: Taskqueue, jobs: dict[str, str], filters: list[str], found: set[str]
) -> None:
    document = taskqueue("list", "--json", *filters).document

    assert {job["id"] for job in document} == {jobs[name] for name in found}


def test_a_name_that_no_job_has_is_said_with_the_nearest_one(taskqueue: Taskqueue, store: Store) -> None:
    store.add([a_record(queue="mail", job="shop:Mail")])

    answer = taskqueue("list", "--queue", "mial", "--job", "shop:Mial")
    assert (answer.code, answer.out) == (Exit.OK, "no jobs\n")
    assert answer.err.splitlines() == [
        "no job has queue mial: did you mean mail?",
        "no job has class shop:Mial: did you mean shop:Mail?",
    ]
    assert taskqueue("list", "--queue", "mail", "--status", "done").err == ""
    assert taskqueue("list", "class:Mial").err == "no job has class Mial: did you mean Mail?\n"


def test_a_status_that_is_written_as_a_word_is_recognized_if_no_job_has_the_word(
    taskqueue: Taskqueue, store: Store
) -> None:
    store.add([a_record(job="shop:done")])

    assert taskqueue("list", "failed").err == "no job has the word failed: did you mean status:failed?\n"
    assert taskqueue("list", "done").err == ""


def test_a_filter_finds_a_value_as_a_tag_or_in_the_meta(taskqueue: Taskqueue, store: Store) -> None:
    tagged = a_record(tags=("customer:initech",))
    with_meta = a_record(given={"meta": {"customer": "initech", "plan": "gold"}})
    store.add([tagged, with_meta, a_record(tags=("customer:acme",))])

    def ids_of(*arguments: str) -> set[str]:
        return {job["id"] for job in taskqueue("list", "--json", *arguments).document}

    assert ids_of("customer:initech") == {str(tagged.id), str(with_meta.id)}
    assert ids_of("tag:customer:initech") == {str(tagged.id)}
    assert ids_of("--meta", "plan=gold") == ids_of("meta.plan:gold") == {str(with_meta.id)}
    assert ids_of(ids.short(tagged.id)) == {str(tagged.id)}
    assert taskqueue("list", "customer:inittech").err == (
        "no job has tag or meta customer:inittech: did you mean customer:initech?\n"
    )


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("[1]", "taskqueue: a query is a JSON object such as"),
        ("{", "taskqueue: --query: the query is not JSON"),
        (
            '{"status": "faild"}',
            "taskqueue: status cannot be compared with 'faild': pass a Status, its number or its name",
        ),
        ('{"colour": 1}', "taskqueue: a query cannot name 'colour'"),
        ('{"status": {"$near": 1}}', "taskqueue: status: there is no operator '$near'"),
    ],
)
def test_a_query_that_is_none_is_one_line(taskqueue: Taskqueue, query: str, complaint: str) -> None:
    answer = taskqueue("list", "--query", query)

    assert answer.code == Exit.CONFIG
    assert answer.complaint.startswith(complaint)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["list", "--query", '{"status": "faild"}'], "its number or its name; did you mean FAILED?"),
        (["list", "--status", "faild"], "; did you mean failed?"),
        (["list", "status:faild"], "; did you mean failed?"),
        (["list", "clas:Mail"], "there is no key 'clas': did you mean class:Mail?"),
        (["events", "--event", "retred"], "did you mean retried?"),
        (["schedule", "add", "nightly", "shop:Job", "--every", "1d", "--overlap", "skipp"], "did you mean skip?"),
        (["analytics", "--by", "clas"], "did you mean class?"),
    ],
)
def test_the_nearest_of_some_words_is_suggested(taskqueue: Taskqueue, arguments: list[str], hint: str) -> None:
    answer = taskqueue(*arguments)

    assert answer.code in (Exit.CONFIG, Exit.USAGE)
    assert hint in answer.complaint


def test_the_newest_jobs_come_first_and_the_rest_is_counted(taskqueue: Taskqueue, store: Store) -> None:
    added = [records.record(created_at=records.NOW - timedelta(hours=hours)) for hours in range(5)]
    store.add(added)

    *lines, foot = taskqueue("list", "-n", "2").out.splitlines()

    assert [line.split()[0] for line in lines[1:]] == [ids.short(record.id) for record in added[:2]]
    assert foot == "2 of 5 jobs; --limit shows more"


def test_the_last_ended_come_first_where_only_ended_ones_are_asked_for(taskqueue: Taskqueue, store: Store) -> None:
    ended = [
        records.record(
            status=Status.DONE,
            created_at=records.NOW - timedelta(hours=9 - hours),
            ready_at=None,
            ended_at=records.NOW - timedelta(hours=hours),
        )
        for hours in range(5)
    ]
    store.add(ended)

    for asked in (("--status", "final"), ("--status", "done"), ("--since", "9h")):
        _, *lines, _ = taskqueue("list", "--limit", "3", *asked).out.splitlines()
        assert [line.split()[0] for line in lines] == [ids.short(record.id) for record in ended[:3]]
    assert len(taskqueue("list", "--json", "--limit", "0", "--status", "done").document) == 5


def test_without_limit_all_pages_are_read(taskqueue: Taskqueue, store: Store) -> None:
    store.add([records.record(created_at=records.NOW - timedelta(seconds=number // 7)) for number in range(1203)])

    assert len({job["id"] for job in taskqueue("list", "--json", "--limit", "0").document}) == 1203
    assert len(taskqueue("list", "--limit", "501").out.splitlines()) == 1 + 501 + 1


def test_stats_count_by_queue_and_status(taskqueue: Taskqueue, jobs: dict[str, str]) -> None:
    head, *lines = [line.split() for line in taskqueue("stats").out.splitlines()]

    assert head == ["queue", "waiting", "postponed", "processing", "done", "failed", "canceled", "timeout", "oldest"]
    ages = [tuple(line[8:]) for line in lines]
    assert [line[:8] for line in lines] == [
        ["default", "2", "3", "2", "1", "-", "1", "1"],
        ["mail", "-", "-", "-", "-", "1", "-", "-"],
        ["all", "2", "3", "2", "1", "1", "1", "1"],
    ]
    assert ages[0] == ages[2] != ages[1] == ("-",)


def test_stats_in_json_say_which_store(taskqueue: Taskqueue, jobs: dict[str, str], store: Store) -> None:
    document = taskqueue("stats", "--json").document

    assert document["store"] == store.url
    assert document["total"] == 11
    assert list(document["waiting_since"]) == ["default"]
    assert document["statuses"]["FAILED"] == document["queues"]["mail"]["FAILED"] == 1


def test_stats_have_the_last_hour_and_the_next_day_in_the_words_of_the_dashboard(
    taskqueue: Taskqueue, jobs: dict[str, str], store: Store
) -> None:
    lines = taskqueue("stats", "--day").out.splitlines()
    document = taskqueue("stats", "--day", "--json").document

    reader = OverviewReader(store)
    figures = reader.day(reader.read()).figures
    assert [f"{figure.name}: {figure.value} (yesterday {figure.yesterday})" for figure in figures] == lines[-5:-1]
    assert lines[-1] == "due in 24 hours: 1; 1 scheduled, 1 retrying, 1 blocked, 0 cannot load"
    assert lines[-2].startswith("pending now: 7 (yesterday ")
    assert (document["day"]["pending"], len(document["day"]["hours"])) == (7, 24)
    assert [document["next"][word] for word in ("scheduled", "retrying", "blocked", "unloadable")] == [1, 1, 1, 0]
    assert document["next"]["retrying"] == len(taskqueue("list", "status:retrying", "--json").document)
    assert taskqueue("list", 'status:"cannot load"', "--json").document == []


def test_a_command_imports_only_what_it_uses(url: str) -> None:
    heavy = "{'rich', 'pymongo', 'croniter', 'psutil', 'asyncio', 'taskqueue.daemon.node.node'}"
    script = (
        "import sys; from taskqueue.cli import main; "
        f"main.main(['--url', {url!r}, 'list', '--json']); sys.exit(str(sorted({heavy} & set(sys.modules))))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT)

    assert (done.stdout, done.stderr) == ("[\n]\n", "[]\n")


def test_a_waiting_job_that_a_used_up_limit_holds_back_says_so(taskqueue: Taskqueue, store: Store) -> None:
    lanes = [f'[["limit:name={name}",1,null]]' for name in ("stripe", "stripe", "smtp")]
    store.add([a_record(lane=lane) for lane in lanes])
    now = store.now()
    store.claim(Holder(seat="web-1", incarnation="a1"), ClaimRequest(pooled=1), now, now + timedelta(minutes=1))

    held = [line for line in taskqueue("list").out.splitlines() if "limit" in line]

    assert len(held) == 1
    assert held[0].endswith("  limit is used up: at most 1 at once of name=stripe")
