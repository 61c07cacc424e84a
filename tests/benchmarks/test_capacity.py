"""What a host carries can be measured on both stores, and told."""

from __future__ import annotations

from pathlib import Path

import pytest
from bson import ObjectId

from benchmarks import capacity
from benchmarks.capacity_jobs import Nap
from taskqueue.cli.bench import scratch_stores
from tests.servers import with_database

pytestmark = pytest.mark.long


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("mongodb", marks=pytest.mark.long)])
def test_memory_bytes_rates_and_retention_are_measured(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("mongo_set") if kind == "mongodb" else ""
    url = with_database(server, f"capacity_{ObjectId()}") if server else str(tmp_path / "jobs.db")
    one = {"waits": (Nap, 1, 1)}
    with scratch_stores(url) as stores:
        found = capacity.measure(stores, jobs=30, rates=1, workers=[1], cases=one)

    assert all(value > 0 for part in ("memory_mb", "bytes", "rates") for value in found[part].values())
    assert len(list(capacity.summary(found))) == sum(len(found[part]) + 3 for part in capacity.PARTS) + 1
