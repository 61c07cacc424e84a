"""Storms, short ones: nothing is lost and nothing ends twice, whatever is killed and whenever."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.chaos.async_application import AsyncApplication
from tests.chaos.cluster_storm import run_cluster_storm
from tests.chaos.observation import Observation
from tests.chaos.storm import Storm, StormSettings

IN_EITHER_ORDER = pytest.mark.parametrize("order", ["fair", pytest.param("strict", marks=pytest.mark.long)])


@IN_EITHER_ORDER
@pytest.mark.parametrize(("jobs", "kills"), [(40, 4), pytest.param(100, 8, marks=pytest.mark.long)])
def test_every_job_ends_once_while_workers_managers_and_nodes_are_killed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, jobs: int, kills: int
) -> None:
    monkeypatch.setenv("TASKQUEUE_ORDER", order)
    with closing(Storm(StormSettings(jobs=jobs, kills=kills, seed=1), url, tmp_path)) as storm:
        report = storm.run()

    print(report.figures)
    assert report.complaints == []


@IN_EITHER_ORDER
@pytest.mark.parametrize(("jobs", "hits"), [(30, 4), pytest.param(120, 10, marks=pytest.mark.long)])
def test_every_job_ends_once_while_everything_happens_to_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, jobs: int, hits: int
) -> None:
    monkeypatch.setenv("TASKQUEUE_ORDER", order)
    report = run_cluster_storm(tmp_path, jobs=jobs, hits=hits, seed=1, seconds=0.3)

    print(report.figures)
    assert report.complaints == []


@pytest.mark.parametrize(("jobs", "kills"), [(30, 3), pytest.param(400, 30, marks=pytest.mark.long)])
def test_an_asyncio_application_hears_once_of_each_end_while_all_that_runs_its_jobs_is_killed(
    url: str, tmp_path: Path, jobs: int, kills: int
) -> None:
    with (
        closing(AsyncApplication(url)) as application,
        closing(Storm(StormSettings(jobs=jobs, kills=kills, seed=2), url, tmp_path, application)) as storm,
    ):
        report = storm.run()

    print(report.figures)
    assert report.complaints == []


@pytest.mark.parametrize(("jobs", "hits"), [(12, 2), pytest.param(120, 12, marks=pytest.mark.long)])
def test_an_asyncio_application_hears_once_of_each_end_while_everything_happens_to_its_cluster(
    tmp_path: Path, jobs: int, hits: int
) -> None:
    report = run_cluster_storm(tmp_path, jobs=jobs, hits=hits, seed=2, seconds=0.3, with_asyncio=True)

    print(report.figures)
    assert report.complaints == []


@pytest.mark.parametrize(("jobs", "kills"), [(30, 3), pytest.param(400, 40, marks=pytest.mark.long)])
def test_metrics_health_logs_and_history_are_right_while_workers_managers_and_nodes_are_killed(
    url: str, tmp_path: Path, jobs: int, kills: int
) -> None:
    settings = StormSettings(jobs=jobs, kills=kills, seed=6, nodes=("a", "b"))
    observation = Observation(tmp_path, settings.nodes)
    with closing(Storm(settings, url, tmp_path, observation=observation)) as storm:
        report = storm.run()

    print(report.figures)
    assert report.complaints == []
    assert [*Path(url.removeprefix("sqlite://")).parent.glob("*.bells/*")] == []
