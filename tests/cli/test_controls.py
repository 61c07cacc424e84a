"""``pause``, ``resume``, ``drain``, ``undrain`` and ``limit`` change what is in force, and say it (X-47)."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest

from taskqueue.exit_codes import Exit
from taskqueue.insight.limit_states import MOST_KEYS
from taskqueue.model.controls import Kind
from taskqueue.model.limits import declared, lane
from taskqueue.store import Store
from tests.cli.conftest import Answer
from tests.scheduler.playing import WEB_1, seat, take
from tests.store.records import a_record

Taskqueue = Callable[..., Answer]


def in_force(store: Store) -> list[tuple[str, str, str, str, int | None]]:
    return [(one.kind.value, one.name, one.by, one.reason, one.count) for one in store.controls().kept]


def run_one(store: Store, queue: str = "default") -> None:
    """Have a job that runs on node web-1."""
    store.add([replace(a_record(queue=queue), created_at=store.now(), ready_at=store.now()).at_rank()])
    [_] = take(store)


def test_a_queue_is_paused_and_resumed(taskqueue: Taskqueue, store: Store) -> None:
    assert taskqueue("pause", "mail", "--reason", "relay down", "--by", "ann").out == "queue mail is paused\n"
    assert in_force(store) == [("pause", "mail", "ann", "relay down", None)]
    assert taskqueue("resume", "mail").out == "queue mail is resumed\n"
    assert taskqueue("resume", "mail").out == "no pause of queue mail was active\n"
    assert in_force(store) == []


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"USER": "ann"}, "ann"),
        ({"LOGNAME": "root", "USER": "root", "SUDO_USER": "ann"}, "ann"),
        ({"USER": ""}, pwd.getpwuid(os.getuid()).pw_name),
    ],
)
def test_who_pauses_is_this_user_unless_said_otherwise(
    taskqueue: Taskqueue, store: Store, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str
) -> None:
    for variable in ("SUDO_USER", "LOGNAME", "USER"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    taskqueue("pause", "mail")

    [(_, _, by, _, _)] = in_force(store)
    assert by == f"{name}@{socket.gethostname()}"


def test_everything_is_paused_apart_from_queues(taskqueue: Taskqueue, store: Store) -> None:
    taskqueue("pause", "mail", "--by", "ann")
    assert taskqueue("pause", "--all", "--by", "bob").out == "every queue is paused\n"

    first, second = taskqueue("resume", "mail").out.splitlines()
    assert first == "queue mail is resumed"
    assert second.startswith("still active: every queue is paused, since ")
    assert second.endswith(" by bob")

    taskqueue("pause", "mail", "--by", "ann")
    first, second = taskqueue("resume", "--all").out.splitlines()
    assert first == "every queue is resumed"
    assert second.startswith("still active: queue mail is paused, since ")
    assert taskqueue("resume", "--all").out.startswith("no pause of every queue was active\n")


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize("arguments", [(), ("mail", "--all")])
def test_a_queue_or_all_has_to_be_named(taskqueue: Taskqueue, verb: str, arguments: tuple[str, ...]) -> None:
    answer = taskqueue(verb, *arguments)

    assert answer.code == Exit.USAGE
    assert "name a queue, or pass --all" in answer.complaint


def test_a_pause_says_what_still_runs_and_waits_for_it(taskqueue: Taskqueue, store: Store) -> None:
    run_one(store, "mail")

    assert taskqueue("pause", "mail").out.splitlines() == [
        "queue mail is paused",
        "1 job of queue mail is still running",
    ]
    waited = taskqueue("pause", "mail", "--wait", "0.05")
    assert (waited.code, waited.out) == (Exit.UNFINISHED, "queue mail is paused\n")
    assert "still open after " in waited.complaint
    assert (
        taskqueue("pause", "reports", "--wait", "5").out
        == "queue reports is paused\nno job of queue reports is running\n"
    )
    assert taskqueue("pause", "--all").out.splitlines()[-1] == "1 job is still running"


def test_pausing_again_keeps_since_when(taskqueue: Taskqueue, store: Store) -> None:
    taskqueue("pause", "mail", "--reason", "first")
    [before] = store.controls().kept
    taskqueue("pause", "mail", "--reason", "second")
    [after] = store.controls().kept

    assert after == replace(before, reason="second")


def test_a_node_is_drained_and_listed_so(taskqueue: Taskqueue, store: Store) -> None:
    seat(store, WEB_1.seat, lease=30.0)
    run_one(store)

    assert taskqueue("drain", "web-1", "--by", "ann").out.splitlines() == [
        "node web-1 is drained",
        "1 job of node web-1 is still running",
    ]
    assert "drains, by ann" in taskqueue("nodes").out
    assert taskqueue("nodes", "--json").document[0]["drained"]["by"] == "ann"
    assert taskqueue("undrain", "web-1").out == "node web-1 starts jobs again\n"
    assert taskqueue("undrain", "web-1").out == "node web-1 was not drained\n"
    assert taskqueue("nodes", "--json").document[0]["drained"] is None


def test_a_node_without_jobs_is_drained_at_once(taskqueue: Taskqueue, store: Store) -> None:
    seat(store, "web-2", lease=30.0)

    assert taskqueue("drain", "web-2", "--wait", "5", "--by", "ann").out.endswith("no job of node web-2 is running\n")
    assert "is drained, by ann" in taskqueue("nodes").out


@pytest.mark.parametrize(
    ("name", "value", "family", "said"),
    [
        ("api", "8", "limit:name=api", "limit name=api is 8"),
        ("api", "200/60", "rate/60:name=api", "limit name=api is 200 in 60 s"),
        ("shop:Upload", "8 by=bucket", "limit:shop:Upload by=bucket", "limit shop:Upload by=bucket is 8"),
    ],
)
def test_a_limit_gets_another_number(
    taskqueue: Taskqueue, store: Store, name: str, value: str, family: str, said: str
) -> None:
    assert taskqueue("limit").out == "every limit is as declared\n"
    assert taskqueue("limit", name, value, "--by", "ann", "--reason", "sale").out == f"{said}\n"
    assert in_force(store) == [("limit", family, "ann", "sale", int(value.partition("/")[0].split()[0]))]
    assert taskqueue("limit").out.startswith(f"{said}, since ")
    assert taskqueue("limit").out.endswith(" by ann (sale)\n")


def test_limits_that_are_left_out_of_the_list_are_spoken_of(taskqueue: Taskqueue, store: Store) -> None:
    of_each = [lane([declared("1 by=customer")], "app:Mail", {"customer": number}) for number in range(MOST_KEYS + 1)]
    store.add([a_record(lane=one) for one in (*of_each, of_each[0])])

    said = taskqueue("limit", "--held")

    assert len(said.out.splitlines()) == MOST_KEYS
    assert "customer 0: 0 of 1 used, waiting: 2" in said.out
    assert said.err == f"only the {MOST_KEYS} limits with the most waiting jobs are listed\n"


def test_who_holds_a_limit_is_listed(taskqueue: Taskqueue, store: Store) -> None:
    assert taskqueue("limit", "--held").out == "no running or waiting job has a limit\n"
    of_shop = lane([declared("1 name=shop")], "app:Mail", None)
    now = store.now()
    store.add([replace(a_record(lane=of_shop), created_at=now, ready_at=now).at_rank() for _ in range(3)])
    [_] = take(store)

    first, second = taskqueue("limit", "--held").out.splitlines()
    assert first == "at most 1 at once of name=shop: 1 of 1 used, waiting: 2"
    assert second.endswith("on web-1")
    [shape] = taskqueue("limit", "--held", "--json").document
    assert (shape["used"], shape["waiting"], [one["node"] for one in shape["jobs"]]) == (1, 2, ["web-1"])


def test_all_limits_of_a_name_are_reset_together(taskqueue: Taskqueue, store: Store) -> None:
    for name, value in (("api", "8"), ("api", "200/60"), ("api", "2 by=customer"), ("other", "3"), ("shop:Up", "3")):
        taskqueue("limit", name, value)

    assert taskqueue("limit", "api", "--reset").out == "api: 3 limits reset to what is declared\n"
    assert [one.name for one in store.controls().kept] == ["limit:name=other", "limit:shop:Up"]
    assert taskqueue("limit", "shop:Up", "--reset").out == "shop:Up: 1 limit reset to what is declared\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("api",), Exit.USAGE, "name the limit and its VALUE, or pass --reset"),
        (("api", "8", "--reset"), Exit.USAGE, "name the limit and its VALUE, or pass --reset"),
        (("api", "--held"), Exit.USAGE, "--held lists the limits of all running and waiting jobs: pass it alone"),
        (("api", "many"), Exit.CONFIG, "is not a limit: write a whole number"),
        (("api", "0"), Exit.CONFIG, "a whole number from 1 to 10,000"),
        (("api", "5 name=other"), Exit.CONFIG, "leave its name out"),
        (("shop: Up", "5"), Exit.CONFIG, "is not an import path"),
        (("a b", "5"), Exit.CONFIG, "without spaces"),
    ],
)
def test_what_is_no_change_of_a_limit_is_refused(
    taskqueue: Taskqueue, arguments: tuple[str, ...], code: Exit, words: str
) -> None:
    answer = taskqueue("limit", *arguments)

    assert answer.code == code
    assert words in answer.complaint


@pytest.mark.parametrize(("command", "words"), [(("pause", ""), "queue="), (("drain", " "), "pass the name of a node")])
def test_what_has_no_name_is_refused(taskqueue: Taskqueue, command: tuple[str, ...], words: str) -> None:
    answer = taskqueue(*command)

    assert answer.code == Exit.CONFIG
    assert words in answer.complaint


def test_what_is_in_force_is_told_with_the_figures(taskqueue: Taskqueue, store: Store) -> None:
    store.add([a_record()])
    taskqueue("pause", "mail", "--by", "ann", "--reason", "relay down")
    taskqueue("drain", "web-1", "--by", "bob")

    drained, paused = taskqueue("stats").out.splitlines()[-2:]
    assert drained.startswith("node web-1 is drained, since ")
    assert paused.endswith(" by ann (relay down)")
    assert [one["kind"] for one in taskqueue("stats", "--json").document["controls"]] == [
        Kind.DRAIN.value,
        Kind.PAUSE.value,
    ]


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (("drain", "wbe-1"), "no node of this name is running"),
        (("pause", "mial"), "no job has this queue now"),
        (("limit", "apy", "3"), "no waiting job has this limit"),
    ],
)
def test_a_decision_about_nothing_that_there_is_holds_and_says_so(
    taskqueue: Taskqueue, store: Store, arguments: tuple[str, ...], note: str
) -> None:
    answer = taskqueue(*arguments)

    assert answer.code == Exit.OK
    assert answer.complaint.startswith(note)
    assert len(in_force(store)) == 1


def test_the_nearest_queue_and_node_are_named(taskqueue: Taskqueue, store: Store) -> None:
    store.add([a_record(queue="mail")])
    seat(store, "web-1")

    assert taskqueue("drain", "wbe-1").complaint.endswith("see `taskqueue nodes`: did you mean web-1?")
    assert taskqueue("pause", "mial").complaint.endswith("the pause applies to future jobs: did you mean mail?")


def test_a_decision_about_what_there_is_says_no_more(taskqueue: Taskqueue, store: Store) -> None:
    store.add([a_record(queue="mail", lane=lane([declared("3 name=api")], "shop:Job", None))])
    seat(store, WEB_1.seat)

    for arguments in (("drain", WEB_1.seat), ("pause", "mail"), ("pause", "--all"), ("limit", "api", "5")):
        assert taskqueue(*arguments).err == ""


@pytest.mark.parametrize(
    ("kept", "value", "form"),
    [("100/60", "5", "5/60"), ("8", "5/60", "5"), ("8 by=bucket", "5", '"5 by=bucket"')],
)
def test_a_limit_in_another_form_than_declared_is_told_with_the_declared_one(
    taskqueue: Taskqueue, store: Store, kept: str, value: str, form: str
) -> None:
    store.add([a_record(lane=lane([declared(f"{kept} name=api")], "shop:Job", {"bucket": 1}))])

    answer = taskqueue("limit", "api", value)

    assert answer.complaint == (
        "no waiting job has this limit, but some have a limit of this name that counts differently: "
        f"run `taskqueue limit api --reset`, then `taskqueue limit api {form}`"
    )


@pytest.mark.parametrize("arguments", [("--reset",), ("--reason", "why"), ("--by", "ann")])
def test_what_changes_a_limit_needs_its_name(taskqueue: Taskqueue, arguments: tuple[str, ...]) -> None:
    answer = taskqueue("limit", *arguments)

    assert answer.code == Exit.USAGE
    assert "need the name of a limit" in answer.complaint


@pytest.mark.parametrize(("value", "said"), [("abc", "'abc' is not a limit"), ("3.5", "'3.5' is not a limit")])
def test_a_value_that_is_no_limit_is_named(taskqueue: Taskqueue, value: str, said: str) -> None:
    answer = taskqueue("limit", "api", value)

    assert answer.code == Exit.CONFIG
    assert said in answer.complaint


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("events", "--timeout", "3"), Exit.USAGE, "--timeout limits --follow"),
        (("list", "--late", "99999d"), Exit.CONFIG, "'99999d' is out of range"),
        (("list", "--since", "99999d"), Exit.CONFIG, "'99999d' is out of range"),
        (("analytics", "--at-most", "10000001"), Exit.CONFIG, "--at-most: 10000001 "),
    ],
)
def test_a_value_without_a_use_is_refused_for_its_true_reason(
    taskqueue: Taskqueue, arguments: tuple[str, ...], code: Exit, said: str
) -> None:
    answer = taskqueue(*arguments)

    assert (answer.code, said in answer.complaint) == (code, True)


def test_controls_answer_programs_in_json(taskqueue: Taskqueue, store: Store) -> None:
    run_one(store, "mail")
    seat(store, WEB_1.seat)

    paused = taskqueue("pause", "mail", "--by", "ann", "--reason", "relay down", "--json").document
    assert (paused["kind"], paused["name"], paused["by"], paused["reason"]) == ("pause", "mail", "ann", "relay down")
    assert paused["running"] == 1
    drained = taskqueue("drain", WEB_1.seat, "--json").document
    assert (drained["kind"], drained["name"], drained["running"]) == ("drain", WEB_1.seat, 1)
    assert taskqueue("undrain", WEB_1.seat, "--json").document == {"kind": "drain", "name": WEB_1.seat, "cleared": 1}

    taskqueue("pause", "--all")
    resumed = taskqueue("resume", "mail", "--json").document
    assert [resumed.pop("in_force")[0]["name"], resumed] == ["", {"kind": "pause", "name": "mail", "cleared": 1}]
    again = taskqueue("resume", "mail", "--json").document
    assert again["cleared"] == 0


def test_limits_answer_programs_in_json(taskqueue: Taskqueue) -> None:
    assert taskqueue("limit", "--json").document == []
    changed = taskqueue("limit", "api", "8", "--json").document
    assert (changed["kind"], changed["name"], changed["count"]) == ("limit", "limit:name=api", 8)
    assert taskqueue("limit", "--json").document == [changed]
    assert taskqueue("limit", "api", "--reset", "--json").document == {"kind": "limit", "name": "api", "cleared": 1}


def test_a_program_reads_what_still_runs_when_the_wait_is_over(taskqueue: Taskqueue, store: Store) -> None:
    run_one(store, "mail")

    waited = taskqueue("pause", "mail", "--wait", "0.05", "--json")

    assert (waited.code, waited.document["running"]) == (Exit.UNFINISHED, 1)
    assert "still open after " in waited.complaint


@pytest.mark.parametrize(
    ("change", "undo", "note"),
    [
        (("pause", "mail"), ("resume", "mial"), "active: queue mail is paused"),
        (("drain", "web-1"), ("undrain", "wbe-1"), "active: node web-1 is drained"),
        (("limit", "api", "8"), ("limit", "apy", "--reset"), "active: limit name=api is 8"),
    ],
)
def test_a_misspelt_name_is_answered_with_those_in_force(
    taskqueue: Taskqueue, change: tuple[str, ...], undo: tuple[str, ...], note: str
) -> None:
    assert taskqueue(*undo).complaint.startswith("nothing is ")
    taskqueue(*change)
    answer = taskqueue(*undo)

    assert (answer.code, answer.complaint) == (Exit.OK, note)
