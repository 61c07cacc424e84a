"""Storms, short ones: nothing is lost and nothing ends twice, whatever is killed and whenever."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.chaos.storm import Forecast, Storm
from tests.chaos.tempest import rage


@pytest.mark.parametrize(("jobs", "kills"), [(40, 4), pytest.param(100, 8, marks=pytest.mark.long)])
def test_every_job_ends_once_while_workers_managers_and_nodes_are_killed(
    url: str, tmp_path: Path, jobs: int, kills: int
) -> None:
    with closing(Storm(Forecast(jobs=jobs, kills=kills, seed=1), url, tmp_path)) as storm:
        report = storm.run()

    print(report.figures)
    assert report.complaints == []


@pytest.mark.parametrize(("jobs", "hits"), [(30, 4), pytest.param(120, 10, marks=pytest.mark.long)])
def test_every_job_ends_once_while_everything_happens_to_a_cluster(tmp_path: Path, jobs: int, hits: int) -> None:
    report = rage(tmp_path, jobs=jobs, hits=hits, seed=1, seconds=0.3)

    print(report.figures)
    assert report.complaints == []
