"""``python -m benchmarks`` measures every workload on stores of its own and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from click.testing import CliRunner, Result
from pymongo import MongoClient

from benchmarks.__main__ import main
from benchmarks.figures import Figure, percentile
from benchmarks.workloads import WORKLOADS
from tests.servers import PATIENCE, with_database

pytestmark = pytest.mark.long


def measure(*arguments: str) -> Result:
    done = CliRunner().invoke(main, ["--jobs", "10", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_every_workload_is_measured_and_nothing_is_left_behind(tmp_path: Path) -> None:
    picture = tmp_path / "figures.svg"

    document = json.loads(measure("--url", f"{tmp_path}/jobs.db", "--json", "--plot", str(picture)).stdout)

    assert {figure["workload"] for figure in document["figures"]} == set(WORKLOADS)
    measured = [figure for figure in document["figures"] if not figure["name"].startswith("processor for a job")]
    assert [figure for figure in measured if figure["median"] <= 0] == [  # the processor's time comes in ticks of 10 ms
        {"workload": "W4", "name": "started early", "unit": "jobs", "median": 0, "values": [0]}
    ]
    assert document["durability"]["synchronous"] == "full"
    assert {write["unit"] for write in document["durability"]["writes"]} == {"ms"}
    assert document["hardware"]["cores"] >= 1
    assert "drain with 2 workers" in picture.read_text()
    assert [*tmp_path.iterdir()] == [picture]


def test_a_server_is_measured_in_collections_that_are_dropped(mongo_set: str) -> None:
    url = f"{with_database(mongo_set, f'bench-{ObjectId()}')}&timeoutMS={PATIENCE * 1000:.0f}"

    done = measure("--url", f"{url}&taskqueue.prefix=mine_", "--workload", "W3", "--json")

    assert '"a single write of one document"' in done.stdout
    with MongoClient[dict[str, Any]](url) as client:
        assert client.get_default_database().list_collection_names() == []


@pytest.mark.parametrize("before", ["", "sqlite://", "sqlite:///"])
def test_rounds_have_a_spread_and_a_file_another_level(before: str, tmp_path: Path) -> None:
    done = measure(
        "--url", f"{before}{tmp_path}/jobs.db", "--workload", "W1", "--repeat", "2", "--synchronous", "normal"
    )

    head = next(line.split() for line in done.stdout.splitlines() if "median" in line)
    assert head == ["figure", "median", "unit", "least", "most"]
    assert len([line for line in done.stdout.splitlines() if line.startswith("W1  ")]) == 2
    assert "synchronous=normal)" in done.stdout


def test_percentiles_lie_between_the_values() -> None:
    assert [percentile([4, 1, 3, 2], share) for share in (0, 0.5, 0.95, 1)] == [1, 2.5, pytest.approx(3.85), 4]
    assert percentile([7], 0.99) == 7
    assert Figure(workload="W1", name="add", unit="ms", values=(3, 1, 2)).median == 2
