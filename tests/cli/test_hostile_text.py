"""What jobs and strangers put into the store reaches no terminal and no log as a command or as a line of its own."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from taskqueue import Scheduler
from taskqueue.cli import log_setup
from taskqueue.daemon.settings import Settings
from taskqueue.errors import ConfigError
from taskqueue.exit_codes import Exit
from taskqueue.model.record import CancelRequest, Failure, Record, Status
from taskqueue.store import Store
from tests.cli import records
from tests.cli.conftest import Answer
from tests.cli.test_terminal import terminal

EVIL = "x\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egpj\u2028[/red]\x7f\nINFO 1 all is well"
"""A title, a cleared screen, a colour, a reversal, a line separator, markup, and a line that a log could have."""

UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FAILURE = Failure(type="shop.errors.Bad", message=EVIL, traceback=f"Traceback …\nBad: {EVIL}")


def hostile() -> Iterator[Record]:
    """Yield records in every status with such text wherever a job can put some."""
    for record in records.in_every_status().values():
        attempts = tuple(one._replace(error=FAILURE, exit=EVIL, node="web-1") for one in records.in_full().attempts)
        changed = replace(
            record,
            data=json.dumps({"to": EVIL}),
            state=json.dumps(EVIL),
            error=None if record.error is None else FAILURE,
            attempts=attempts,
            progress_message=EVIL,
            progress_at=record.created_at,
        )
        if record.status is Status.DONE:
            changed = replace(changed, result=json.dumps(EVIL))
        if record.status is Status.PROCESSING:
            changed = replace(changed, cancel=CancelRequest(requested_at=records.NOW, reason=EVIL))
        yield changed


@pytest.fixture
def evil(store: Store, url: str) -> list[Record]:
    """Return what the store was filled with."""
    kept = store.add(list(hostile()))
    with Scheduler(url) as scheduler:
        scheduler.pause("mail", EVIL, by=EVIL)
        scheduler.drain("web-1", EVIL, by=EVIL)
        scheduler.set_limit("shop.mail:MailJob", "8", EVIL, by=EVIL)
        scheduler.schedule("nightly", "shop.mail:MailJob", {"to": EVIL}, every="1h").pause(EVIL)
    return kept


def commands(evil: list[Record]) -> Iterator[list[str]]:
    """Yield every command that shows something."""
    for record in evil:
        for command in ("show", "why", "wait", "cancel"):
            more = ["--reason", EVIL] if command == "cancel" else ["--timeout", "0"] if command == "wait" else []
            yield [command, str(record.id), *more]
    yield from (
        ["list"],
        ["stats"],
        ["nodes"],
        ["nodes", "--leader"],
        ["limit"],
        ["events"],
        ["analytics", "--by", "class"],
    )
    yield from (["schedule", "list"], ["schedule", "show", "nightly"], ["resume", "--all"])
    yield from (["show", EVIL], ["list", "--query", json.dumps({EVIL: 1})], ["pause", EVIL], [EVIL], ["add", EVIL])
    yield from (["drain", EVIL], ["schedule", "show", EVIL], ["schedule", "pause", "nightly", "--reason", EVIL])


def test_no_command_prints_what_commands_a_terminal(evil: list[Record], taskqueue: Callable[..., Answer]) -> None:
    for arguments in commands(evil):
        answer = taskqueue(*arguments)

        assert UNSEEN.findall(answer.out + answer.err) == [], (arguments, answer)


def test_no_json_does_and_it_means_what_was_stored(evil: list[Record], taskqueue: Callable[..., Answer]) -> None:
    for record in evil:
        answer = taskqueue("show", str(record.id), "--json")

        assert UNSEEN.findall(answer.out) == []
        assert answer.document["data"] == {"to": EVIL}
        assert answer.document["progress_message"] == EVIL
    for arguments in (["list"], ["events"], ["schedule", "list"], ["schedule", "show", "nightly"]):
        assert UNSEEN.findall(taskqueue(*arguments, "--json").out) == []


def test_why_gives_no_line_of_another_meaning(evil: list[Record], taskqueue: Callable[..., Answer]) -> None:
    for record in evil:
        assert "INFO 1 all is well" not in taskqueue("why", str(record.id)).out.splitlines()


def test_the_library_says_no_such_thing_either(evil: list[Record], url: str) -> None:
    with Scheduler(url) as scheduler:
        for record in evil:
            assert UNSEEN.findall(scheduler.why(record.id)) == []


def test_a_bar_shows_what_the_job_says_as_text(store: Store, url: str) -> None:
    [running] = [one for one in hostile() if one.status is Status.PROCESSING][:1]
    store.add([replace(running, ready_at=records.NOW + timedelta(hours=1))])

    with terminal(url, 120, "wait", str(running.id), "--timeout", "1") as screen:
        assert screen.end() == Exit.UNFINISHED

    assert "[/red]" in screen.shown
    assert "\x1b[2J" not in screen.shown
    assert "\u202e" not in screen.shown


def _lines(form: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    log_setup.configure("info", form)
    log = logging.getLogger("taskqueue.test")
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.exception("a job said %s", EVIL)
    logging.getLogger().handlers.clear()
    return capsys.readouterr().err.split("\n")[:-1]


def test_a_message_is_one_line_of_the_log_and_no_other_line_looks_like_one(capsys: pytest.CaptureFixture[str]) -> None:
    first, *trace = _lines("text", capsys)

    assert r"ERROR" in first
    assert first.endswith(r"\nINFO 1 all is well")
    assert len(trace) > 2
    assert all(line.startswith("    ") for line in trace)
    assert UNSEEN.findall(first + "".join(trace)) == []


def test_a_line_of_the_json_log_is_one_line_and_means_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    [line] = _lines("json", capsys)

    assert UNSEEN.findall(line) == []
    assert json.loads(line)["message"] == f"a job said {EVIL}"


@pytest.mark.parametrize("name", ["web\n1", "web\x1b[2J", "\u202ebew", "", "x" * 201])
def test_a_node_has_a_name_that_can_be_shown(name: str) -> None:
    with pytest.raises(ConfigError, match="pass the name of a node, 1 to 200 printable characters"):
        Settings(name=name)
