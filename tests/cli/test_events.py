"""``events`` prints what is kept, and with --follow what happens, for people and for programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.store import Event, Store
from tests.cli import records
from tests.cli.conftest import Answer

Taskqueue = Callable[..., Answer]


def tell(store: Store) -> str:
    """Have a job and a node's worker, and return the id of the job."""
    [job] = store.add([records.record(queue="mail")])
    about = {"pid": 7, "exit": "killed by SIGKILL"}
    store.record_events([Event(id="a:1", name="worker_ended", at=store.now(), node="web-1", about=about)])
    store.record_events([Event(id="a:2", name="became_leader", at=store.now(), node="web-1")])
    return str(job.id)


def test_what_is_kept_is_printed_line_by_line(taskqueue: Taskqueue, store: Store) -> None:
    id = tell(store)

    answer = taskqueue("events")

    waiting, ended, leader = answer.out.splitlines()
    assert re.fullmatch(rf"\d{{4}}-\S+ \S+ \S+  waiting +{id[:8]}\.\.{id[-6:]}  shop\.mail:MailJob", waiting)
    assert ended.endswith("  worker_ended    web-1 (pid 7, exit killed by SIGKILL)")
    assert leader.endswith("  became_leader   web-1")


def test_programs_get_an_object_a_line_and_go_on_with_its_cursor(taskqueue: Taskqueue, store: Store) -> None:
    id = tell(store)

    first, second, _ = map(json.loads, taskqueue("events", "--json").out.splitlines())

    assert set(first) == {"id", "event", "event_id", "at", "job", "status", "node", "about", "error", "cursor"}
    assert (first["event"], first["id"], first["status"], first["node"]) == ("waiting", id, "WAITING", None)
    assert first["job"] == json.loads(taskqueue("show", id, "--json").out)["job"]
    assert (second["event"], second["job"], second["node"], second["about"]["pid"]) == (
        "worker_ended",
        None,
        "web-1",
        7,
    )
    assert len(taskqueue("events", "--cursor", first["cursor"]).out.splitlines()) == 2


def test_an_attempt_that_failed_has_its_error(taskqueue: Taskqueue) -> None:
    id = taskqueue("add", "--here", "tests.daemon.jobs:Raising", "--data", '{"raise": "value"}').out.split()[0]

    line = taskqueue("events", "-e", "failed").out.strip()
    assert line.endswith(f"{id[:8]}..{id[-6:]}  tests.daemon.jobs:Raising  ValueError: no such value")
    assert json.loads(taskqueue("events", "-e", "failed", "--json").out)["error"] == {
        "type": "ValueError",
        "message": "no such value",
    }


def test_events_can_be_chosen(taskqueue: Taskqueue, store: Store) -> None:
    tell(store)

    assert len(taskqueue("events", "-e", "waiting", "--event", "became_leader").out.splitlines()) == 2
    assert len(taskqueue("events", "--query", '{"queue": "mail"}').out.splitlines()) == 1
    assert taskqueue("events", "--query", '{"queue": "none"}').out == ""


def test_following_begins_now_and_ends_in_time(taskqueue: Taskqueue, store: Store) -> None:
    tell(store)

    assert taskqueue("events", "--follow", "--timeout", "0.05").out == ""
    assert len(taskqueue("events", "--follow", "--cursor", "oldest", "--timeout", "0.05").out.splitlines()) == 3


def test_a_follower_prints_what_happens(url: str, store: Store) -> None:
    command = [
        sys.executable,
        "-m",
        "taskqueue.cli.main",
        "--url",
        url,
        "events",
        "--follow",
        "--cursor",
        "oldest",
        "--timeout",
        "60",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        for _ in range(2):
            tell(store)
            assert [follower.stdout.readline().split()[3] for _ in range(3)] == [
                "waiting",
                "worker_ended",
                "became_leader",
            ]
        follower.terminate()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--cursor", "nonsense"), Exit.CONFIG),
        (("--query", "nonsense"), Exit.CONFIG),
        (("--event", "nonsense"), Exit.CONFIG),
    ],
)
def test_what_is_wrong_is_said_in_one_line(taskqueue: Taskqueue, arguments: tuple[str, ...], code: Exit) -> None:
    answer = taskqueue("events", *arguments)

    assert answer.code == code
    assert "nonsense" in answer.complaint


def test_the_last_events_are_printed(taskqueue: Taskqueue, store: Store) -> None:
    now = store.now()
    times = [now - timedelta(hours=3), *(now - timedelta(minutes=2) for _ in range(60)), now]
    for place, at in enumerate(times):
        store.record_events([Event(id=f"a:{place}", name="worker_ended", at=at, node="web-1", about={"pid": place})])

    def pids(*options: str) -> list[int]:
        return [json.loads(line)["about"]["pid"] for line in taskqueue("events", "--json", *options).out.splitlines()]

    assert pids() == list(range(12, 62)), "50 unless told otherwise"
    assert pids("--limit", "1") == [61]
    assert pids("-n", "0") == list(range(62))
    assert pids("--since", "1h") == list(range(1, 62))
    assert pids("--since", "1h", "-n", "2") == [60, 61]
    assert pids("--since", "1m") == [61]
    assert pids("--follow", "-n", "2", "--timeout", "0.05") == [60, 61]
    assert pids("--follow", "--since", "1m", "--timeout", "0.05") == [61]
    assert pids("--cursor", "oldest") == list(range(62)), "a program that continues misses nothing"


def test_events_of_a_class_and_of_a_node_are_chosen(taskqueue: Taskqueue, store: Store) -> None:
    tell(store)
    store.add([records.record(job="shop.sales:Invoice")])
    store.record_events([Event(id="b:1", name="became_leader", at=store.now(), node="web-2")])

    [line] = taskqueue("events", "--class", "Invo").out.splitlines()
    assert line.endswith("shop.sales:Invoice")
    assert len(taskqueue("events", "--class", "Invo", "--class", "MailJob").out.splitlines()) == 2
    assert taskqueue("events", "--class", "Invo", "--query", '{"queue": "none"}').out == ""
    assert [line.split()[-1] for line in taskqueue("events", "--node", "web-2").out.splitlines()] == ["web-2"]
    assert "pass --node, or --class" in taskqueue("events", "--node", "web-2", "--class", "Mail").complaint
    assert "--cursor and --since" in taskqueue("events", "--since", "1h", "--cursor", "oldest").complaint
