"""What one plain warm job costs each process, from ``add_job`` to the end of ``wait``, stays within its budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import one_job, system_calls, way_of_a_job
from benchmarks.way_of_a_job import ROLES, Way
from taskqueue.cli.bench import scratch_stores
from tests import budgets
from tests.servers import prepared

PAGE = Path(__file__).resolve().parents[1] / "docs/explanation/architecture.md"
SHOWN = 25
"""The most frequent things that a failure names."""


@pytest.fixture(scope="module", params=["sqlite", "mongodb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if kind == "sqlite":
        return str(tmp_path_factory.mktemp("budgets") / "jobs.db")
    return prepared(request.getfixturevalue("mongo_set"), "budgets")


@pytest.fixture(scope="module")
def way(url: str) -> Way:
    return way_of_a_job.traced(url)


@pytest.fixture(scope="module")
def calls(url: str) -> system_calls.Calls:
    return system_calls.measure(url)


def test_a_job_passes_four_processes_and_only_files_that_the_page_names(way: Way) -> None:
    application = [function for _, function in way.places[way_of_a_job.APPLICATION]]
    assert application[0] == "Scheduler.add_job"
    assert "Process.wait" in application
    assert all(way.places.values())
    page = PAGE.read_text()
    assert {file for file in way.files if f"`{file}`" not in page} == set()
    assert next(way_of_a_job.summary(way)) == f"{len(way.files)} files, {len(way.functions)} functions"


@pytest.mark.parametrize("role", ROLES)
def test_each_process_keeps_to_its_budgets(kind: str, way: Way, role: str) -> None:
    budgets.keep(f"{kind}.{role}.functions", len(way.places[role]))
    for what, counted in way.counts[role].items():
        budgets.keep(f"{kind}.{role}.{what}", way.totals[role][what], list(counted.items())[:SHOWN])


@pytest.mark.parametrize("role", ROLES)
def test_each_process_keeps_to_its_system_calls(kind: str, calls: system_calls.Calls, role: str) -> None:
    budgets.keep(f"{kind}.{role}.system_calls", calls.totals[role], list(calls.counts[role].items())[:SHOWN])


def test_calls_of_the_manager_that_follow_from_a_timer_are_not_counted() -> None:
    traced = """\
7 1.0 epoll_wait(3,  <unfinished ...>
8 1.1 read(4, ""..., 9) = 9
7 1.2 <... epoll_wait resumed>[{events=EPOLLIN, data=0x4}], 5, 4) = 1
7 1.3 recvfrom(4,  <unfinished ...>
7 1.4 <... recvfrom resumed>""..., 65536, 0, NULL, NULL) = 40
7 2.0 epoll_wait(3, [], 5, 4)           = 0
7 2.1 select(4, [3], [], [], {tv_sec=0, tv_usec=900}) = 0 (Timeout)
7 2.2 epoll_wait(3, [], 5, 0)           = 0
7 2.3 sendto(4, ""..., 30, 0, NULL, 0) = 30
7 2.4 poll([{fd=5, events=POLLIN}], 1, 5) = 0 (Timeout)
8 2.5 poll([{fd=5, events=POLLIN}], 1, 5 <unfinished ...>
8 2.6 <... poll resumed>) = 0 (Timeout)
8 2.7 openat(AT_FDCWD, ""..., O_RDONLY) = 6
7 3.0 epoll_wait(3, [{events=EPOLLIN, data=0x4}], 5, 86400000) = 1
7 3.1 --- SIGCHLD {si_signo=SIGCHLD} ---
7 3.2 sendto(4, ""..., 30, 0, NULL, 0) = 30
"""

    assert list(system_calls.calls_of(traced.splitlines(keepends=True), without_timers=[7])) == [
        (8, 1.1, "read"),
        (7, 1.2, "epoll_wait"),
        (7, 1.3, "recvfrom"),
        (8, 2.5, "poll"),
        (8, 2.7, "openat"),
        (7, 3.0, "epoll_wait"),
        (7, 3.2, "sendto"),
    ]


def test_the_journal_gets_no_more_bytes_than_budgeted(tmp_path: Path) -> None:
    with scratch_stores(str(tmp_path / "jobs.db")) as stores:
        budgets.keep("sqlite.life.bytes", one_job.journaled(stores, 20))


def test_a_count_beyond_its_budget_names_the_way_to_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(budgets.COUNTS_TO, raising=False)  # these are no counts
    budgets.keep("sqlite.node.calls", budgets.budget_of("sqlite.node.calls"))

    with pytest.raises(AssertionError, match=r"sqlite\.node\.calls: inf .* `python -m benchmarks\..*`"):
        budgets.keep("sqlite.node.calls", math.inf)


def test_a_budget_is_lowered_and_never_raised() -> None:
    text = "# Comments stay.\n[sqlite.node]\ncalls = 20\nsteps = 30\n[mongodb.node]\ncalls = 40\n"
    counts: Mapping[str, float] = {"sqlite.node.calls": 12.3, "sqlite.node.steps": 31, "mongodb.node.calls": 39}

    assert budgets.lowered(text, counts) == text.replace("calls = 20", "calls = 13")
