"""Lines that are logged during a run in the caller's process are kept, and logging there stays as it is."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskqueue import Job, Scheduler
from taskqueue.execution.log_capture import KEEPER, CapturedStream, attached
from taskqueue.model.log_lines import LogLine

LIBRARY = logging.getLogger("tests.library")


class Logging(Job):
    """Logs by itself and by a library."""

    def start(self) -> None:
        self.log.warning("from the job")
        LIBRARY.error("mongodb://ann:%s@host/x cannot be reached", "secret", extra={"run": "of the library"})


class Outer(Job):
    """Runs another job within its run."""

    def start(self) -> None:
        self.log.warning("before")
        self.scheduler.run_job(Logging)
        self.log.warning("after")


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    with closing(Scheduler(str(tmp_path / "jobs.db"))) as opened:
        yield opened


def words(lines: list[LogLine]) -> list[str]:
    return [line.message for line in lines]


def test_lines_of_the_job_and_of_libraries_are_kept_without_secrets(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Logging)

    assert words(process.logs()) == ["from the job", "mongodb://ann:***@host/x cannot be reached"]
    assert KEEPER not in logging.root.handlers


def test_each_run_keeps_its_own_lines(scheduler: Scheduler) -> None:
    process = scheduler.run_job(Outer)
    [inner] = scheduler.get_jobs({"job": f"{__name__}:Logging"})

    assert words(process.logs()) == ["before", "after"]
    assert len(inner.logs()) == 2


def test_what_is_logged_outside_of_runs_is_nobody_s(scheduler: Scheduler) -> None:
    with attached():
        LIBRARY.error("outside")

    assert scheduler.run_job(Logging).logs()[0].message == "from the job"


def test_the_handler_leaves_with_its_last_user() -> None:
    with attached():
        with attached():
            assert KEEPER in logging.root.handlers
        assert KEEPER in logging.root.handlers

    assert KEEPER not in logging.root.handlers


def test_the_handler_leaves_with_its_last_user_in_any_order() -> None:
    first, last = attached(), attached()
    first.__enter__()
    last.__enter__()
    first.__exit__(None, None, None)
    assert KEEPER in logging.root.handlers
    last.__exit__(None, None, None)
    assert KEEPER not in logging.root.handlers


def test_where_logging_is_not_configured_python_goes_on_to_print_warnings(tmp_path: Path) -> None:
    program = (
        "import sys; from taskqueue import Scheduler; "
        f"print(len(Scheduler({str(tmp_path / 'jobs.db')!r}).run_job('{__name__}:Logging').logs()))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "2\n"
    assert done.stderr.splitlines() == ["from the job", "mongodb://ann:secret@host/x cannot be reached"]


def test_a_captured_stream_has_the_encoding_of_its_stream_and_can_be_written() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="replace")
    captured = CapturedStream(stream, "stdout")

    assert (captured.encoding, captured.errors, captured.writable()) == ("latin-1", "replace", True)
