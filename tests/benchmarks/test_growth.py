"""What is measured as work grows can be measured, told and drawn."""

from __future__ import annotations

from pathlib import Path

from taskqueue.cli.bench.environment import scratch_stores
from taskqueue.store.open import open_store
from tests.benchmarks import first_job, growth, worker_memory

SMALL, LARGE = 20, 40


def test_every_call_is_measured_told_and_drawn(tmp_path: Path) -> None:
    with scratch_stores(str(tmp_path / "jobs.db"), "normal") as stores:
        found = growth.measure(stores, [SMALL, LARGE], rounds=2)
    growth.draw(found, tmp_path / "growth.svg")

    calls = {row["call"] for row in found["figures"]}
    assert len(found["figures"]) == len(calls) * len(growth.KINDS) * 2
    assert all(row["median_ms"] > 0 for row in found["figures"])
    assert len(growth.summary(found)) == len(calls) + 2
    assert (tmp_path / "growth.svg").read_text().count("claim 8") == 1


def test_a_store_keeps_its_size_while_it_is_measured(tmp_path: Path) -> None:
    for kind, status in growth.KINDS.items():
        store = open_store(str(tmp_path / f"{status.name}.db"))
        filled = growth.fill(store, kind, SMALL)
        filled.round()
        filled.round()

        assert store.tally() == {("default", status): SMALL}
        store.close()


def test_a_collection_in_the_manager_leaves_a_worker_what_it_shares(tmp_path: Path) -> None:
    with scratch_stores(str(tmp_path / "jobs.db"), "normal") as stores:
        found = worker_memory.measure(stores, megabytes=20, rounds=1)

    for moments in found["uss_mb"].values():
        [before], [after] = moments["after it collected garbage"], moments["after its manager collected garbage"]
        assert after < before + 4
    assert len(list(worker_memory.summary(found))) == len(moments) + 2


def test_a_node_does_its_first_job_and_is_gone(tmp_path: Path) -> None:
    with scratch_stores(str(tmp_path / "jobs.db"), None) as stores:
        found = first_job.measure(stores, rounds=1)

    assert all(ms > 0 for [ms] in found["ms"].values())
    assert len(first_job.summary(found)) == len(found["ms"]) + 2
