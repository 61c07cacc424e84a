"""The way of one job can be traced through all its processes, and the page that tells it names every file."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskqueue.cli.bench.environment import scratch_stores
from tests.benchmarks import way_of_a_job
from tests.servers import with_database

PAGE = Path(__file__).resolve().parents[2] / "docs/explanation/architecture.md"


@pytest.fixture(params=["sqlite", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    return with_database(request.getfixturevalue("mongo_set"), "way_of_a_job")


def test_a_job_passes_four_processes_and_only_files_that_the_page_names(url: str) -> None:
    with scratch_stores(url, None) as place:
        way = way_of_a_job.trace(place, rounds=3)

    application = [function for _, function in way.places[way_of_a_job.APPLICATION]]
    assert application[0] == "Scheduler.add_job"
    assert "Process.wait" in application
    assert all(way.places.values())
    page = PAGE.read_text()
    assert {file for file in way.files if f"`{file}`" not in page} == set()
    assert next(way_of_a_job.summary(way)) == f"{len(way.files)} files, {len(way.functions)} functions"
