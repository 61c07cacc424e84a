"""Many processes on one MongoDB store: nothing is claimed twice, nothing is left, and no two block each other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
from bson import ObjectId
from pymongo.database import Database

from taskqueue.errors import StoreUnavailable
from taskqueue.model.ids import JobId
from taskqueue.model.query import PENDING, parse
from taskqueue.model.record import Holder, Record, Status
from taskqueue.store import Store
from taskqueue.store.mongodb import open_mongodb
from tests.servers import with_database
from tests.store.children import Child
from tests.store.records import NOON, PATIENCE, a_record, all_kept, claim, settlement

AT_ONCE = 1000

Answer = TypeVar("Answer")


def patiently(call: Callable[[], Answer]) -> Answer:
    """Call again, as a node does, when a busy machine lets the server answer too late."""
    ends_at = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except StoreUnavailable:
            if time.monotonic() > ends_at:
                raise


def claim_all(store: Store, holder: Holder, size: int) -> Iterator[JobId]:
    """Claim and settle until nothing is left, and return what this holder has settled."""
    held = parse({"status": "PROCESSING", "seat": holder.seat})

    def take() -> Sequence[Record]:
        """Claim; when there is nothing, what is held came with a claim whose answer was late."""
        return claim(store, size, holder=holder).records or store.find(held, limit=size)

    def settle(runs: Sequence[Record]) -> set[JobId]:
        return patiently(lambda: store.settle([settlement(run) for run in runs], NOON))

    while patiently(lambda: store.count(PENDING)):
        while runs := patiently(take):
            yield from settle(runs)


@pytest.mark.parametrize(("processes", "jobs"), [(4, 600), pytest.param(8, 10_000, marks=pytest.mark.long)])
def test_processes_claim_all_jobs_and_none_twice(
    mongo_set: str, mongo_database: Database[dict[str, object]], tmp_path: Path, processes: int, jobs: int
) -> None:
    url = f"{with_database(mongo_set, f'{mongo_database.name}-race')}&timeoutMS={PATIENCE * 1000:.0f}"
    records = [a_record(queue=f"q{number % 3}") for number in range(jobs)]

    def work(number: int) -> None:
        holder = Holder(seat=f"node-{number}", incarnation=str(number))
        with closing(open_mongodb(url)) as mine:
            settled = b"".join(id.binary for id in claim_all(mine, holder, jobs * (2 + number) // 500))
        (tmp_path / f"settled-{number}").write_bytes(settled)

    with closing(open_mongodb(url)) as store:
        for at in range(0, jobs, AT_ONCE):
            batch = records[at : at + AT_ONCE]
            patiently(lambda batch=batch: store.add(batch))  # type: ignore[misc]
        for child in [Child(lambda number=number: work(number)) for number in range(processes)]:  # type: ignore[misc]
            assert child.wait() == 0

        told = b"".join((tmp_path / f"settled-{number}").read_bytes() for number in range(processes))
        counts = Counter(ObjectId(told[at : at + 12]) for at in range(0, len(told), 12))
        assert counts == Counter(record.id for record in records)
        assert sum(store.tally().values()) == jobs
        assert {status for _, status in store.tally()} == {Status.DONE}
        assert {record.claims for record in all_kept(store)} == {1}
        assert store.repair(NOON) == 0
    mongo_database.client.drop_database(f"{mongo_database.name}-race")
