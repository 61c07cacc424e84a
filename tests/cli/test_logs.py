"""``taskqueue logs`` prints what is kept with a job, follows it to its end, and shows it harmless."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta

import pytest

from taskqueue import Scheduler
from taskqueue.exit_codes import Exit
from taskqueue.model.lifecycle.outcomes import Done, GivenUp, Outcome
from taskqueue.model.log_lines import kept_text, written
from taskqueue.model.record import Record
from taskqueue.store import Note, Store
from taskqueue.store.open import open_store
from tests.cli.conftest import Answer
from tests.cli.test_hostile_text import EVIL, UNSEEN
from tests.nodes import LIMIT
from tests.store.records import BROKEN, WEB_1, a_record, running, settlement

Taskqueue = Callable[..., Answer]


def text(*messages: str, attempt: int = 1, first: int = 1, level: str = "info") -> str:
    """Return kept lines with these messages."""
    lines = [
        written(1, number, 1_782_900_000.5, level, "shop.mail", message)
        for number, message in enumerate(messages, first)
    ]
    return kept_text(attempt, lines)


def end(store: Store, record: Record, lines: str, outcome: Outcome | None = None) -> None:
    """Settle the run with these lines."""
    assert store.settle([settlement(record, outcome or Done())._replace(lines=lines)], store.now())


def run(store: Store) -> Record:
    """Return a job that runs."""
    return running(store, a_record(), now=store.now() + timedelta(seconds=1))


def shown(answer: Answer) -> Sequence[str]:
    """Return the lines without their times, which are of the reader's zone."""
    return [line[13:] if line[:1].isdigit() else line for line in answer.out.splitlines()]


def test_lines_are_printed_under_their_attempt(taskqueue: Taskqueue, store: Store) -> None:
    record = run(store)
    end(store, record, text("it begins", "Traceback\n  a.py\nValueError", attempt=2))

    first, *lines = shown(taskqueue("logs", str(record.id)))

    assert first.startswith("attempt 2, 2026-")
    assert lines == ["INFO    it begins", "INFO    Traceback", "      a.py", "    ValueError"]


def test_lines_that_were_not_kept_are_counted(taskqueue: Taskqueue, store: Store) -> None:
    record = run(store)
    end(store, record, text("late", first=1235))

    assert shown(taskqueue("logs", str(record.id)))[1:] == ["… 1,234 lines before this one", "INFO    late"]


def test_the_last_lines_alone_may_be_asked_for(taskqueue: Taskqueue, store: Store) -> None:
    record = run(store)
    end(store, record, text("one", "two", "three"))

    assert shown(taskqueue("logs", str(record.id), "-n", "2"))[-2:] == ["INFO    two", "INFO    three"]


def test_programs_get_one_object_a_line(taskqueue: Taskqueue, store: Store) -> None:
    record = run(store)
    end(store, record, text(EVIL, level="error", attempt=3))

    out = taskqueue("logs", str(record.id), "--json", "--attempt", "3").out
    assert UNSEEN.findall(out) == []
    document = json.loads(out)
    assert document.pop("at").endswith("+00:00")
    assert document == {
        "level": "error", "logger": "shop.mail", "message": EVIL, "attempt": 3, "run": 1, "number": 1,
    }  # fmt: skip
    assert taskqueue("logs", str(record.id), "--json", "--attempt", "2").out == ""


def test_lines_command_no_terminal_and_forge_no_line(taskqueue: Taskqueue, store: Store) -> None:
    record = run(store)
    end(store, record, text(EVIL, level=EVIL))

    answer = taskqueue("logs", str(record.id))

    assert UNSEEN.findall(answer.out) == []
    assert not [line for line in answer.out.splitlines() if line.startswith("INFO 1 all is well")]


def test_a_job_without_lines_prints_nothing_for_programs(taskqueue: Taskqueue, store: Store) -> None:
    record = run(store)

    assert taskqueue("logs", str(record.id), "--json") == Answer(code=Exit.OK, out="", err="")
    assert taskqueue("logs", "f" * 24).code == Exit.NOT_FOUND


def test_show_and_why_point_to_the_lines(taskqueue: Taskqueue, store: Store) -> None:
    record = run(store)
    end(store, record, text("one", "two"), GivenUp(failure=BROKEN))

    assert "log      2 lines: taskqueue logs " in taskqueue("show", str(record.id)).out
    assert taskqueue("why", str(record.id)).out.splitlines()[-2:-1] == [f"What it logged: `taskqueue logs {record.id}`"]


def test_following_prints_each_line_once_until_the_job_has_ended(taskqueue: Taskqueue, store: Store, url: str) -> None:
    record = run(store)
    store.note(WEB_1, {record.id: Note(lines=text("one"))})

    def go_on() -> None:
        with closing(open_store(url)) as own, Scheduler(url):
            own.note(WEB_1, {record.id: Note(lines=text("one", "two"))})
            end(own, record, text("one", "two", "three"))

    later = threading.Timer(0.2, go_on)
    later.start()
    answer = taskqueue("logs", "-f", str(record.id))
    later.join(LIMIT)

    assert shown(answer)[1:] == ["INFO    one", "INFO    two", "INFO    three"]


@pytest.mark.parametrize("arguments", [["--attempt", "0"], ["-n", "0"]])
def test_absurd_numbers_are_refused(taskqueue: Taskqueue, store: Store, arguments: list[str]) -> None:
    assert taskqueue("logs", str(run(store).id), *arguments).code == Exit.CONFIG


def test_a_job_without_lines_says_why_on_stderr(taskqueue: Taskqueue, store: Store) -> None:
    begun = run(store)
    [new] = store.add([a_record()])

    assert taskqueue("logs", str(new.id)).complaint.startswith("no lines yet: the job has not started; --follow")
    assert taskqueue("logs", str(begun.id)).complaint.startswith("no lines yet: lines of a running job appear")
    end(store, begun, "")
    answer = taskqueue("logs", str(begun.id))
    assert (answer.out, answer.complaint.strip()) == ("", "no lines: its runs logged nothing")
    assert taskqueue("logs", str(begun.id), "--attempt", "3").complaint.strip() == "no lines of attempt 3 are kept"
