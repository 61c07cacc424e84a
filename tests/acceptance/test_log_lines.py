"""Log lines of a job that runs in a node are kept with it: of runs that died, that go on, and that have ended."""

from __future__ import annotations

from pathlib import Path

from taskqueue import Process, Scheduler
from tests.acceptance.conftest import JobFiles
from tests.acceptance.work import LastWords
from tests.nodes import LIMIT, eventually, node


def words(process: Process) -> list[tuple[int, str]]:
    return [(line.attempt, line.message) for line in process.logs()]


def test_lines_of_each_attempt_are_read_while_it_goes_on_and_after_it(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path, "--log-level", "warning") as running:
        process = scheduler.add_job(LastWords, {"gate": files.gate()}, crash_retries=1)

        eventually(lambda: (2, "attempt 2") in words(process))
        assert words(process) == [(1, "attempt 1"), (2, "attempt 2")]
        files.open()
        process.wait(timeout=LIMIT)
        assert words(process)[2:] == [(2, "through")]
        assert "ERROR" not in running.log.read_text()


def test_lines_that_were_reported_outlive_the_node(
    url: str, scheduler: Scheduler, files: JobFiles, tmp_path: Path
) -> None:
    with node(url, tmp_path) as running:
        process = scheduler.add_job(LastWords, {"gate": files.gate()}, crash_retries=1)
        eventually(lambda: (2, "attempt 2") in words(process))
        running.kill()

    assert words(process) == [(1, "attempt 1"), (2, "attempt 2")]
