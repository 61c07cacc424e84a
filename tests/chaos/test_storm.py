"""Storms, short ones: nothing is lost and nothing ends twice, whatever is killed and whenever."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.chaos.storm import Forecast, Storm
from tests.chaos.tempest import rage


def test_every_job_ends_once_while_workers_managers_and_nodes_are_killed(url: str, tmp_path: Path) -> None:
    with closing(Storm(Forecast(jobs=100, kills=8, seed=1), url, tmp_path)) as storm:
        report = storm.run()

    print(report.figures)
    assert report.complaints == []


def test_every_job_ends_once_while_everything_happens_to_a_cluster(tmp_path: Path) -> None:
    report = rage(tmp_path, jobs=120, hits=10, seed=1, seconds=0.3)

    print(report.figures)
    assert report.complaints == []
