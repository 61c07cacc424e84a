"""The log lines of a run reach its node: at its end, while it goes on, and after the death of its worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskqueue.daemon.protocol.messages import Ended, Logged, Message
from taskqueue.execution.run import Run
from taskqueue.model.log_lines import MOST_BYTES, MOST_LINES, LogLine, lines_of
from tests.daemon.fake_node import FakeNode, Fifo, fifos


@pytest.fixture
def fake_node() -> Iterator[FakeNode]:
    """A manager with one worker."""
    with FakeNode(max_children=1) as started:
        yield started


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Callable[[str], Fifo]]:
    yield from fifos(tmp_path)


def logged(fake_node: FakeNode, run: Run) -> list[LogLine]:
    """Return the lines that were reported of a run that has ended, its end last."""
    fake_node.expect(Ended, run)
    reports = [message for message in fake_node.heard if isinstance(message, Logged) and message.id == run.id]
    return list(lines_of(run.claims, reports[-1].lines)) if reports else []


def reported(report: Logged) -> list[str]:
    """Return the lines in a report of a run."""
    return [line.message.strip() for line in lines_of(report.claims, report.lines)]


def test_lines_of_the_job_and_of_libraries_come_before_its_end(fake_node: FakeNode) -> None:
    first = fake_node.run("Logging", attempt=2)
    [line] = logged(fake_node, first)
    assert (line.level, line.logger, line.message) == ("warning", "tests.daemon.jobs", "it is so")
    assert (line.attempt, line.run, line.number) == (2, first.claims, 1)

    second = fake_node.run("LoggingMuch", {"count": 2})
    assert [line.message.strip() for line in logged(fake_node, second)] == ["1", "2"]
    kinds = [type(message) for message in fake_node.heard if getattr(message, "id", "") == second.id]
    assert kinds[-2:] == [Logged, Ended]


def test_a_job_that_logs_nothing_sends_nothing_more(fake_node: FakeNode) -> None:
    run = fake_node.run("Empty")
    fake_node.expect(Ended, run)

    assert not [message for message in fake_node.heard if isinstance(message, Logged)]


def test_an_exception_is_below_its_line(fake_node: FakeNode) -> None:
    [line] = logged(fake_node, fake_node.run("LoggingMuch", {"count": 0, "end": "error"}))

    assert line.message == "it is over\nValueError: no such address"


@pytest.mark.parametrize("end", ["killed", "segfault"])
def test_what_a_run_logged_before_the_death_of_its_worker_is_kept(fake_node: FakeNode, end: str) -> None:
    found = logged(fake_node, fake_node.run("LoggingMuch", {"count": 3, "end": end}))

    assert [line.message.strip() for line in found] == ["1", "2", "3"]


def test_of_many_lines_the_last_ones_are_sent_once(fake_node: FakeNode) -> None:
    run = fake_node.run("LoggingMuch", {"count": 3000})

    found = logged(fake_node, run)
    assert [line.number for line in found] == list(range(3001 - MOST_LINES, 3001))
    assert found[-1].message.strip() == "3000"
    assert len([message for message in fake_node.heard if isinstance(message, Logged)]) < 100  # by time, not by line


def test_long_lines_are_bounded_together(fake_node: FakeNode) -> None:
    run = fake_node.run("LoggingMuch", {"count": 60, "size": 5000})

    found = logged(fake_node, run)
    assert MOST_BYTES * 0.8 < sum(len(line.message) for line in found) <= MOST_BYTES
    assert found[-1].message.startswith("60 xxx")
    assert "characters …]" in found[-1].message


def test_lines_of_a_run_that_goes_on_are_reported(fake_node: FakeNode, fifo: Callable[[str], Fifo]) -> None:
    gate = fifo("gate")
    run = fake_node.run("LoggingMuch", {"count": 2, "fifo": gate.path})
    gate.hear()

    def has_both(message: Message) -> bool:  # a slow worker may have been looked at between them
        return isinstance(message, Logged) and reported(message) == ["1", "2"]

    fake_node.hear(has_both, "both lines of the run")
    gate.tell()
    fake_node.expect(Ended, run)


def test_lines_are_kept_after_a_job_has_configured_logging_anew(fake_node: FakeNode) -> None:
    fake_node.expect(Ended, fake_node.run("ConfiguringLogging"))

    assert len(logged(fake_node, fake_node.run("Logging"))) == 1


def test_a_child_of_the_job_keeps_no_lines(fake_node: FakeNode) -> None:
    [line] = logged(fake_node, fake_node.run("LoggingMuch", {"count": 1, "end": "children"}))

    assert line.message.strip() == "1"


def test_printed_output_is_kept_only_if_that_was_asked_for(fake_node: FakeNode) -> None:
    assert logged(fake_node, fake_node.run("Printing")) == []
    with FakeNode(max_children=1, capture_output=True) as capturing:
        found = logged(capturing, capturing.run("Printing"))

    assert [(line.level, line.message) for line in found] == [
        ("stdout", "one two"),
        ("stderr", "and mongodb://ann:***@host/x"),
        ("stdout", "unended "),
    ]
