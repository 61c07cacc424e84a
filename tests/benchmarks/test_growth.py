"""What is measured as work grows can be measured, told and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import first_job, growth, ten_million, worker_memory
from taskqueue.cli.bench import scratch_stores
from taskqueue.model.record import Status
from taskqueue.store.open import open_store

pytestmark = pytest.mark.long

SMALL, LARGE = 20, 40


def test_every_call_is_measured_told_and_drawn(tmp_path: Path) -> None:
    with scratch_stores(f"sqlite://{tmp_path}/jobs.db?synchronous=normal") as stores:
        found = growth.measure(stores, [SMALL, LARGE], rounds=2)
    growth.draw(found, tmp_path / "growth.svg")

    calls = {row["call"] for row in found["figures"]}
    assert len(found["figures"]) == len(calls) * len(growth.KINDS) * 2
    assert all(row["median_ms"] > 0 for row in found["figures"])
    assert len(growth.summary(found)) == len(calls) + 2
    assert (tmp_path / "growth.svg").read_text().count("claim 8") == 1


def test_a_store_keeps_its_size_while_it_is_measured(tmp_path: Path) -> None:
    for number, (kind, status) in enumerate(growth.KINDS.items()):
        store = open_store(str(tmp_path / f"{number}.db"))
        filled = growth.fill(store, kind, SMALL)
        filled.round()
        filled.round()

        mixed = {("default", Status.DONE): SMALL - SMALL // 10, ("default", Status.WAITING): SMALL // 10}
        assert store.tally() == (mixed if kind == growth.MIXED else {("default", status): SMALL})
        store.close()


def test_a_large_file_is_filled_in_parts_and_measured_beside_an_empty_one(tmp_path: Path) -> None:
    url = growth.url_of(str(tmp_path / "large.db"))
    assert ten_million.fill(url, SMALL, seconds=0) == SMALL  # one batch at least
    assert ten_million.fill(url, LARGE, seconds=60) == LARGE

    with scratch_stores(f"sqlite://{tmp_path}/jobs.db?synchronous=normal") as stores:
        found = ten_million.measure(stores, url, rounds=1, jobs=5)

    assert found["jobs"] == LARGE
    assert all(value > 0 for values in found["figures"].values() for value in values.values())
    assert len(ten_million.summary(found)) == len(found["figures"]["empty"]) + 2


def test_a_collection_in_the_manager_leaves_a_worker_what_it_shares(tmp_path: Path) -> None:
    with scratch_stores(f"sqlite://{tmp_path}/jobs.db?synchronous=normal") as stores:
        found = worker_memory.measure(stores, megabytes=20, rounds=1)

    for moments in found["uss_mb"].values():
        [before], [after] = moments["after it collected garbage"], moments["after its manager collected garbage"]
        assert after < before + 4
    assert len(list(worker_memory.summary(found))) == len(moments) + 2


def test_a_node_does_its_first_job_and_is_gone(tmp_path: Path) -> None:
    with scratch_stores(str(tmp_path / "jobs.db")) as stores:
        found = first_job.measure(stores, rounds=1)

    assert all(ms > 0 for [ms] in found["ms"].values())
    assert len(first_job.summary(found)) == len(found["ms"]) + 2
