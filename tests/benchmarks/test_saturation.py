"""What each process takes for a job can be measured on both stores, and where a node ends follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bson import ObjectId

from benchmarks import saturation
from taskqueue.cli.bench import scratch_stores
from tests.servers import with_database

pytestmark = pytest.mark.long

COSTS = {"node": 50.0, "manager": 20.0, "worker": 30.0}


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("mongodb", marks=pytest.mark.long)])
def test_the_processor_time_of_each_process_is_measured(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("mongo_set") if kind == "mongodb" else ""
    url = with_database(server, f"saturation_{ObjectId()}") if server else str(tmp_path / "jobs.db")
    with scratch_stores(url) as stores:
        alone = saturation.one_by_one(stores, 3)
        two = saturation.together(stores, nodes=2, workers=1, jobs=10)
        written = {} if stores.file_store else saturation.by_the_server(stores, 10)

    assert all(costs[role] > 0 for costs in (alone, two) for role in costs if role != "server")  # in ticks of 10 ms
    assert {"node", "manager", "worker", "jobs/s"} < alone.keys() & two.keys()
    assert not written or written["one by one"]["insert"] >= 1


@pytest.mark.parametrize(
    ("cores", "rate", "bound", "busy_from"),
    [(1, 10_000, "cores", 0), (2, 20_000, "cores", 0), (8, 20_000, "node", 300), (64, 20_000, "node", 3_100)],
)
def test_a_node_is_the_bound_of_jobs_shorter_than_all_cores_need_to_be_busy(
    cores: int, rate: float, bound: str, busy_from: float
) -> None:
    assert saturation.bounds(COSTS, cores) == (rate, bound, busy_from)
